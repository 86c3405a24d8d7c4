"""The worker's program: prepare the process, run the call of one attempt, and report.

The supervisor starts it as `worker.py <attempt dir> <report fd> <control fd>`. For an item of a group it is `worker.py
<attempt dir> <group dir> <offset> <size> <report fd> <control fd>`, with the place of its arguments in items.pkl. A
further task of either gets the word "discard" before the descriptors, and its value is dropped. As `worker.py template
<report fd> <control fd>` it forks such workers instead. It waits until the supervisor lets it begin. It opens the
value's file and the report's pipe before the function runs, so the function may close, remove or replace what it likes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import sys
from typing import Any

from ..layout import CHECKPOINT_VARIABLE, RETURNED, STACKS, TEMPLATE
from ..supervisor.text import native
from . import finish, payload
from .descriptors import keep_from_programs, out_of_reach
from .execute import CallRejected, as_data, keep_result, open_value_file, report_outcome, run_call
from .report import Report, open_orders, peak_bytes, receive_order


def main(argv: list[str]) -> None:
    """Run the call of one attempt and report; as a template, fork processes that do."""
    # Modules are no garbage. To look at all of them again and again would take a tenth of the time that loading takes.
    gc.freeze()
    gc.enable()
    is_forked = argv[1] == TEMPLATE
    if is_forked:
        # This import is late, because a worker that is started has no template.
        from . import template

        words = template.await_order(argv)
        if words is None:
            return
        argv = [argv[0], *words]
    attempt, rest, fd, control = argv[1], argv[2:-2], int(argv[-2]), int(argv[-1])
    discards = rest[-1:] == ["discard"]
    rest = rest[:-1] if discards else rest
    job = rest[0] if rest else os.path.dirname(os.path.dirname(attempt))
    cwd = _await_begin(control)
    if is_forked:
        template.reseed()
    keep_from_programs()
    report = Report(fd)
    value_fd = open_value_file(attempt)
    payload.become_program(argv[0])
    payload.use_utf8()
    faulthandler.enable(file=out_of_reach(os.dup(2)))
    payload.dump_stacks_on_signal(os.path.join(attempt, STACKS))
    last = finish.last_loaded()
    spec = payload.read_spec(job)
    try:
        _enter(cwd)
        if not is_forked:
            report.send(stage="load")
        facts = _run_job(job, spec, rest, discards, report, value_fd)
    except CallRejected as rejected:
        facts = rejected.facts
    # The supervisor does not wait for this process to exit before it publishes the outcome.
    facts["peak"] = peak_bytes()
    report_outcome(report, facts)
    finish.end(last if is_forked else "")


def _await_begin(control: int) -> str:
    """Get the last variables, and the files to hold as long as this process lives; return where to run.

    Without a supervisor that lets it begin, this process ends.

    Args:
        control: A socket, through which a line of JSON comes, and the files with it (`WorkerProcess.begin`).
    """
    connection = open_orders(control)
    line, _ = receive_order(connection)
    connection.close()
    if not line:
        os._exit(0)
    settings = native(json.loads(line))
    for name, value in settings["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if settings["cpus"] and hasattr(os, "sched_setaffinity"):
        # The environment may have started further threads.
        for thread in os.listdir("/proc/self/task"):
            # The thread has ended, or CPUs were taken away meanwhile.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), settings["cpus"])
    return str(settings["cwd"])


def _enter(cwd: str) -> None:
    try:
        payload.enter(cwd)
    except OSError as error:
        message = "the working directory %s cannot be used: %s" % (cwd, error.strerror)
        raise CallRejected("environment", message, "correct cwd=", stage="environment") from error


def _run_job(job: str, spec: Any, rest: list[str], discards: bool, report: Report, value_fd: int) -> dict[str, Any]:
    report.hide(spec.get("secrets") or [])
    _check_version(spec)
    sys.meta_path.append(payload.LibraryFinder())
    if spec.get("session"):
        # This import is late, because other jobs do not need it.
        from ..session import serve

        # The folder is that of the session, and its calls have none.
        os.environ.pop(CHECKPOINT_VARIABLE, None)
        report.send(stage="function")
        result = serve.serve(job, spec)
        return keep_result(RETURNED, result, value_fd, tuple(spec["session"]["caller"]), report, True, as_data(spec))
    if spec.get("kernel"):
        _require_module(spec["kernel"]["program"])
        # This import is late for the same reason.
        from ..kernel import hold

        report.send(stage="function")
        # The further tasks of such a job have nothing to do.
        held = None if discards else hold.serve(job, spec)
        return keep_result(RETURNED, held, value_fd, tuple(spec["kernel"]["caller"]), report, True, as_data(spec))
    spec["discards"] = discards
    return run_call(job, spec, [int(number) for number in rest[1:]], report, value_fd)


def _require_module(name: str) -> None:
    # This import is late, because few jobs need a module by name.
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise CallRejected(
            "environment",
            "the environment %s has no %s, which this job needs" % (sys.prefix, name),
            "add %s to the environment: a line in its file, or `%s -m pip install %s`" % (name, sys.executable, name),
        )


def _check_version(spec: dict[str, Any]) -> None:
    wanted = tuple(spec["version"])
    here = sys.version_info[:2]
    if wanted != here:
        raise CallRejected(
            "environment",
            "the environment's interpreter is Python %d.%d, expected %d.%d" % (*here, *wanted),
            "the environment was changed since it was last checked: call again, and it will be checked again",
        )
