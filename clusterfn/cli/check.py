"""`clusterfn check HOST`: every step from the host's name to a function's return, and what was found at each.

The steps themselves are in `steps`; here they are run in order, and printed. A step whose ground has failed is skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from clusterfn.cli import screen, steps
from clusterfn.cli.steps import Failed, Found, Skipped, Step, Warned
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.job import PENDING, RUNNING

_BLOCKED = "blocked"  # skipped for another's failure; its own followers are skipped too
_COLOURS = {"PASS": "green", "FAIL": "red", "WARN": "yellow", "skip": "dim", "....": "dim"}
_WIDTH = max(len(step.name) for step in steps.STEPS)
_INDENT = " " * (4 + 2 + _WIDTH + 2)
_ENDED_BY_SIGNAL = 128
_PATIENCE_S = 3.0


def check(given: argparse.Namespace) -> int:
    """Run the steps; 1 if one of them failed."""
    line = screen.Line(sys.stdout)
    found = Found(given.host, given.environment, given.no_job, given.timeout, progress=_Progress(line))
    words: dict[str, str] = {}
    with _ending_is_an_exception():
        for step in steps.STEPS:
            words[step.name] = _run(step, found, words, line)
    failed = [name for name, word in words.items() if word == "FAIL"]
    doubtful = [name for name, word in words.items() if word == "WARN"]
    if failed:
        print(f"\n{found.name} is not ready: {', '.join(failed)}")
        return 1
    print(f"\n{found.name} is ready{'; mind ' + ', '.join(doubtful) if doubtful else ''}.")
    return 0


@contextlib.contextmanager
def _ending_is_an_exception() -> Iterator[None]:
    """SIGTERM and a closed terminal end the command as Ctrl-C does: what it has started on the host is withdrawn."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(_ENDED_BY_SIGNAL + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is signal.SIG_DFL:  # nohup ignores SIGHUP: let it
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


class _Progress:
    """How the function's job stands: redrawn on a terminal, elsewhere one line for each new reason to wait."""

    def __init__(self, line: screen.Line) -> None:
        self._line = line

    def __call__(self, state: str, reason: str, seconds: float) -> None:
        if seconds < _PATIENCE_S and not self._line.redrawn:
            return  # most jobs start before there is anything to say
        does = "waits in the queue" if state == PENDING else "runs" if state == RUNNING else "starts"
        clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
        word = screen.coloured("....", _COLOURS["...."], sys.stdout)
        why = f" ({screen.clean(reason)})" if reason else ""
        self._line.show(f"{word}  {'function'.ljust(_WIDTH)}  {does} {clock}{why}", screen.without_digits(does + why))


def _run(step: Step, found: Found, words: dict[str, str], line: screen.Line) -> str:
    missing = next((name for name in step.needs if words[name] in ("FAIL", _BLOCKED)), None)
    if missing is not None:
        _say("skip", step.name, f"needs {missing}")
        return _BLOCKED
    try:
        try:
            what = step.run(found)
        finally:
            line.clear()
        return _say("PASS", step.name, what)
    except Skipped as reason:
        return _say("skip", step.name, str(reason))
    except Failed as error:
        return _say("WARN" if isinstance(error, Warned) else "FAIL", step.name, str(error), error.evidence, error.hint)
    except ConfigError as error:
        if not words:  # no such host, or no usable file: a wrong word, and no finding about a host
            raise
        return _say("FAIL", step.name, error.message, error.evidence, error.hint or "")
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
