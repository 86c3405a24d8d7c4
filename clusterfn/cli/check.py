"""`clusterfn check HOST`: every step from the host's name to a function's return, and what was found at each.

The steps themselves are in `steps`; here they are run in order, and printed. A step whose ground has failed is skipped.
"""

from __future__ import annotations

import argparse
import sys

from clusterfn.cli import screen, steps
from clusterfn.cli.steps import Failed, Found, Skipped, Step
from clusterfn.errors import ClusterfnError

_BLOCKED = "blocked"  # skipped for another's failure; its own followers are skipped too
_COLOURS = {"PASS": "green", "FAIL": "red", "skip": "dim"}
_WIDTH = max(len(step.name) for step in steps.STEPS)
_INDENT = " " * (4 + 2 + _WIDTH + 2)


def check(given: argparse.Namespace) -> int:
    """Run the steps; 1 if one of them failed."""
    found = Found(given.host, given.environment, given.no_job, given.timeout)
    words: dict[str, str] = {}
    for step in steps.STEPS:
        words[step.name] = _run(step, found, words)
    failed = [name for name, word in words.items() if word == "FAIL"]
    if failed:
        print(f"\n{found.name} is not ready: {', '.join(failed)}")
        return 1
    print(f"\n{found.name} is ready.")
    return 0


def _run(step: Step, found: Found, words: dict[str, str]) -> str:
    missing = next((name for name in step.needs if words[name] in ("FAIL", _BLOCKED)), None)
    if missing is not None:
        _say("skip", step.name, f"needs {missing}")
        return _BLOCKED
    try:
        return _say("PASS", step.name, step.run(found))
    except Skipped as reason:
        return _say("skip", step.name, str(reason))
    except Failed as error:
        return _say("FAIL", step.name, str(error), error.evidence, error.hint)
    except ClusterfnError as error:
        return _say("FAIL", step.name, error.message, error.evidence, error.hint or "")


def _say(word: str, name: str, what: str, evidence: tuple[str, ...] = (), hint: str = "") -> str:
    """Print one step: its word and sentence, then what was seen, then what to do."""
    lines = what.splitlines() or [""]
    print(
        f"{screen.coloured(word, _COLOURS[word], sys.stdout)}  {name.ljust(_WIDTH)}  {screen.clean(lines[0])}".rstrip()
    )
    for line in lines[1:]:
        print(_INDENT + screen.clean(line))
    for line in evidence:
        print(f"{_INDENT}  | {screen.clean(line)}")
    if hint:  # in one line, for it often holds a command to be copied
        print(f"{_INDENT}next: {screen.clean(hint)}")
    sys.stdout.flush()
    return word
