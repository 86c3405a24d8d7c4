"""The survey of one package or script from outside: its process is started again where it ended, watched and ended.

No package keeps the survey from its end: one that is stuck, ends its process or takes too long is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.survey import environments
from benchmarks.survey.environments import ROOT

TOOLS = ("clusterfn", "cloudpickle", "dill")
stopping = threading.Event()


class Interrupted(Exception):
    """The survey was told to stop before this was found."""


class Limits(NamedTuple):
    """How long a package or script may take.

    Attributes:
        still_s: Without a new line for so long, a process is taken for stuck.
        task_s: After that, the package is left as it is.
        starts: So often its process may be started.
    """

    still_s: float = 300
    task_s: float = 900
    starts: int = 25


LIMITS = Limits()


def survey(
    name: str, here: str, there: str, version: tuple[int, int], results: Path, tools: Sequence[str] = TOOLS,
    limits: Limits = LIMITS,
) -> None:  # fmt: skip
    """Survey a package by all tools in one process, or a script by each in its own: they change its classes."""
    facts = {"name": name, "python": there, "version": version, "bridge": str(environments.bridge())}
    until = time.monotonic() + limits.task_s
    if not name.endswith(".py"):
        lines = _lines(here, {**facts, "tools": list(tools)}, results, limits, until)
        results.write_text(json.dumps(lines))
        return
    found: dict[str, dict[str, str]] = {}
    for tool in tools:
        for line in _lines(here, {**facts, "tools": [tool]}, results, limits, until):
            found.setdefault(line["name"], {}).update(line)
    results.write_text(json.dumps(list(found.values())))


def _lines(
    here: str, facts: dict[str, object], results: Path, limits: Limits, until: float
) -> list[dict[str, str]]:  # fmt: skip
    """Run clients until one comes to the end: one that ends before leaves out the object at which it ended."""
    growing, begun = results.with_suffix(".jsonl"), results.with_suffix(".begun")
    for path in (growing, begun):  # of a run that was interrupted: the object at which it was did not end the process
        path.unlink(missing_ok=True)
    argv = [here, "-m", "benchmarks.survey.client", json.dumps({**facts, "results": str(growing)})]
    lines: list[dict[str, str]] = []
    for _ in range(limits.starts):
        cwd = tempfile.mkdtemp(prefix="survey-")
        try:
            _watch(argv, cwd, growing, limits.still_s, until)
        finally:
            shutil.rmtree(cwd, ignore_errors=True)
        lines = [json.loads(line) for line in growing.read_text().splitlines()] if growing.exists() else []
        if any(line["kind"] == "end" for line in lines) or time.monotonic() > until:
            break
    if not any(line["kind"] == "end" for line in lines):
        lines.append({"name": "*", "kind": "unfinished"})
    for path in (growing, begun):
        path.unlink(missing_ok=True)
    return lines


def _watch(argv: Sequence[str], cwd: str, growing: Path, still_s: float, until: float) -> None:
    """Run a client until it ends, is stuck or has had its time.

    Raises:
        Interrupted: The survey was told to stop.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLUSTERFN"))}
    environ.update(PYTHONPATH=str(ROOT), HOME=cwd, OMP_NUM_THREADS="1", MPLBACKEND="Agg", TQDM_DISABLE="1")
    begun = growing.with_suffix(".begun")
    with growing.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)  # fmt: skip
        changed = time.monotonic()
        size = -1
        while process.poll() is None:
            time.sleep(0.05)
            found = begun.stat().st_size if begun.exists() else 0
            if found != size:
                size, changed = found, time.monotonic()
            if time.monotonic() - changed > still_s or time.monotonic() > until or stopping.is_set():
                break
        with contextlib.suppress(ProcessLookupError):  # the process, and what it started
            os.killpg(process.pid, 9)
        process.wait()
    if stopping.is_set():
        raise Interrupted
