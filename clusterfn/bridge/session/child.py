"""Fork the process of a session's call, and run the call in it as a worker does."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
from typing import Any, NoReturn

from ..layout import FAILED_RANK, WORK
from ..supervisor.limits import peak_of
from ..supervisor.worker_process import WorkerProcess
from ..worker import children, execute, payload
from ..worker.report import Report
from . import preload


def fork_call(folder: str, attempt: str, spec: dict[str, Any]) -> WorkerProcess:
    """Fork the process of a call.

    Args:
        folder: The call's, with its payload.
        attempt: With what it prints, its value and its outcome.
        spec: The session's, with the folders of this call's modules.
    """
    pipes = [os.pipe() for _ in range(3)]
    pid = os.fork()
    if pid == 0:
        _live(folder, attempt, spec, pipes)
    for reading, writing in pipes:
        os.close(writing)
        os.set_blocking(reading, False)
    return WorkerProcess(pid, *(reading for reading, _ in pipes))


def _live(folder: str, attempt: str, spec: dict[str, Any], pipes: list[tuple[int, int]]) -> NoReturn:
    """Run the call, and end this process. Its pipes are for stdout, stderr and the report."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        (out, printing), (err, complaining), (heard, writing) = pipes
        for fd in (out, err, heard):
            os.close(fd)
        report = Report(writing)
        children.report_own_signals(report.say)
        os.environ[payload.FAILED] = os.path.join(attempt, FAILED_RANK)
        known = list(sys.modules)
        for fd, pipe in ((1, printing), (2, complaining)):
            os.dup2(pipe, fd)
            os.close(pipe)
        asked: str | None = spec["cwd"]
        os.chdir(os.path.expanduser(os.path.expandvars(asked)) if asked else os.path.join(attempt, WORK))
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # torch starts from the same seed in every process, forked or not
        value = execute.open_value_file(attempt)
        try:
            facts = execute.run_call(folder, spec, [], report, value)
        except execute.CallRejected as rejected:
            facts = rejected.facts
        report.say(loaded=preload.imported_since(known), peak=peak_of(os.getpid()))
        execute.report_outcome(report, facts)
        status = 0
        # What an interpreter does at its end, which a forked process must not reach by unwinding its parent's frames.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        os._exit(status)
