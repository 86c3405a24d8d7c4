"""`clusterfn check HOST`: every step from the host's name to a function's return, and what was found at each.

This module runs the steps in order and prints them. Each step takes what earlier ones found, and returns a sentence or
raises what is wrong; it prints nothing. A step is skipped if one that it needs has failed. `step` says what a step is;
`host` and `function` hold them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.bridge.job_states import PENDING, RUNNING
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.cli import target
from clusterfn.cli.check import function, host
from clusterfn.cli.check.step import CheckState, Step, StepFailed, StepSkipped, StepWarning
from clusterfn.cli.keys import ending_is_an_exception
from clusterfn.config.spec import Host
from clusterfn.display import console, live
from clusterfn.errors import ClusterfnError, ConfigError

# The order matters, because each step uses what earlier ones have found.
STEPS = (
    Step("configuration", (), host.configuration),
    Step("name", ("configuration",), host.name),
    Step("connection", ("configuration", "name"), host.connection),
    Step("host key", ("connection",), host.host_key),
    Step("login", ("connection", "host key"), host.login),
    Step("shell", ("login",), host.shell),
    Step("python", ("login",), host.python),
    Step("root", ("python",), host.root),
    Step("space", ("root",), host.space),
    Step("stored", ("root",), host.stored),
    Step("noexec", ("root",), host.noexec),
    Step("scheduler", ("root",), host.scheduler),
    Step("account", ("scheduler",), host.account),
    Step("gpus", ("root",), host.gpus),
    Step("lingering", ("root",), host.lingering),
    Step("modules", ("root",), function.modules),
    Step("environment", ("root",), function.environment),
    Step("function", ("space", "noexec", "scheduler", "account", "modules", "environment"), function.function),
    Step("pytorch", ("function",), function.pytorch),
)
_COLOURS = {"PASS": live.GREEN, "FAIL": live.RED, "WARN": live.YELLOW, "skip": live.DIM}
_WIDTH = max(len(step.name) for step in STEPS)
_INDENT = " " * (4 + 2 + _WIDTH + 2)


@dataclass(frozen=True)
class Finding:
    """How one step ended.

    Attributes:
        word: PASS, FAIL, WARN or skip.
        evidence: What was seen, line by line.
        hint: How to fix it.
        blocked: Whether it was skipped because another step failed; its own followers are skipped too.
    """

    name: str
    word: str
    message: str
    evidence: tuple[str, ...] = ()
    hint: str = ""
    blocked: bool = False


def check(args: argparse.Namespace) -> int:
    """Run the steps and print what each found, with --json when all have ended; 1 if one of them failed.

    The hosts of a list are checked one after another.
    """
    hosts: Sequence[Host] = ()
    # The first step of a single host says what is wrong with its name.
    with contextlib.suppress(ConfigError):
        hosts = target.hosts(args.host, "check")[1]
    names = [host.name for host in hosts] if len(hosts) > 1 else [args.host]
    how = (args.environment, args.no_job, args.timeout)
    states = [CheckState(name, *how, gpus=args.gpus, binds=tuple(args.binds)) for name in names]
    if not args.json:
        return max([check_host(state) for state in states])
    reports = [_report(state) for state in states]
    print(json.dumps(reports if len(reports) > 1 else reports[0], indent=1))
    return 0 if all(report["ready"] for report in reports) else 1


def _report(state: CheckState) -> dict[str, Any]:
    with ending_is_an_exception():
        findings = list(_findings(state, lambda: None))
    steps = []
    for finding in findings:
        facts = {"name": finding.name, "result": finding.word.lower(), "message": finding.message}
        steps.append({**facts, "evidence": list(finding.evidence), "hint": finding.hint})
    return {"host": state.name, "ready": not _names_with("FAIL", findings), "steps": steps}


def check_host(state: CheckState) -> int:
    """Run the steps on the host that `state` names; as `check`."""
    findings = []
    with ending_is_an_exception(), console.Status() as status:
        state.progress = functools.partial(_show_progress, status)
        for finding in _findings(state, lambda: status.show("")):
            _say(finding)
            findings.append(finding)
    failed, doubtful = _names_with("FAIL", findings), _names_with("WARN", findings)
    if failed:
        print(f"\n{state.name} is not ready: {', '.join(failed)}")
        return 1
    print(f"\n{state.name} is ready{', with warnings: ' + ', '.join(doubtful) if doubtful else ''}.")
    return 0


def _names_with(word: str, findings: Sequence[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.word == word]


def _findings(state: CheckState, ended: Callable[[], None]) -> Iterator[Finding]:
    """Each step's finding, as soon as it is there; `ended` is called before each."""
    findings: dict[str, Finding] = {}
    for step in STEPS:
        missing = next((name for name in step.needs if findings[name].word == "FAIL" or findings[name].blocked), None)
        if missing is not None:
            findings[step.name] = Finding(step.name, "skip", f"needs {missing}", blocked=True)
        else:
            findings[step.name] = _run(step, state, first=not findings, ended=ended)
        yield findings[step.name]


def _show_progress(status: console.Status, state: str, reason: str, seconds: float) -> None:
    """Show the state of the function's job."""
    does = {PENDING: "waits in the queue", RUNNING: "runs"}.get(state, "starts")
    status.show(f"function {does} {console.as_clock(seconds)}{f' ({reason})' if reason else ''}")


def _run(step: Step, state: CheckState, first: bool, ended: Callable[[], None]) -> Finding:
    try:
        try:
            return Finding(step.name, "PASS", step.run(state))
        finally:
            # Clear the line with the progress before the finding is printed.
            ended()
    except StepSkipped as reason:
        return Finding(step.name, "skip", str(reason))
    except StepFailed as error:
        word = "WARN" if isinstance(error, StepWarning) else "FAIL"
        return Finding(step.name, word, str(error), error.evidence, error.hint)
    except ClusterfnError as error:
        if first and isinstance(error, ConfigError):
            # There is no such host, or no usable clusterfn.yml. That is wrong usage, and not a finding about a host.
            raise
        return Finding(step.name, "FAIL", error.message, error.evidence, error.hint or "")


def _say(finding: Finding) -> None:
    """Print one step: its word and sentence, then what was seen, then what to do."""
    word = finding.word
    if console.is_terminal(sys.stdout) and not os.environ.get("NO_COLOR"):
        word = live.coloured(word, _COLOURS[word])
    lines = finding.message.splitlines() or [""]
    print(f"{word}  {finding.name.ljust(_WIDTH)}  {in_one_line(lines[0])}".rstrip())
    for line in lines[1:]:
        print(_INDENT + in_one_line(line))
    for line in finding.evidence:
        print(f"{_INDENT}  | {in_one_line(line)}")
    if finding.hint:
        # Keep the hint on one line, because it often contains a command to copy.
        print(f"{_INDENT}next: {in_one_line(finding.hint)}")
    sys.stdout.flush()
