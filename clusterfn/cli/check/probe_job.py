"""The one function that `clusterfn check` runs on a host: sent, watched while it waits, and never left behind there.

Prints nothing; the caller gets the state of the job by a callback.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.calls import call
from clusterfn.calls.job import PENDING, Job
from clusterfn.config.options import Options, parse_options
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import Scheduler

T = TypeVar("T")

QUEUE_S = 60.0
TIMEOUT_S = 300.0
_TICK_S = 0.25
_SEND_S = 60.0
_CANCEL_S = 30.0
_AGAIN_S = 0.5

Progress = Callable[[str, str, float], None]
ProbeResult = tuple[str, str, int, str]


@dataclass(frozen=True)
class Returned:
    """What the function said of where it ran.

    Attributes:
        net_ns: Its network namespace, as the kernel names it; "" where there are none.
        seconds: From when it was sent until its value was here.
    """

    node: str
    python: str
    pid: int
    net_ns: str
    seconds: float


class StillWaiting(Exception):
    """It did not start within the time that one waits for a queue; the text says what it waits for."""


class TooLate(Exception):
    """It started, and gave no result in time."""


def silent(state: str, reason: str, seconds: float) -> None:
    """Show nothing."""


def run_probe(
    host: Host, environment: str | None, session: HostState, progress: Progress, timeout_s: float | None
) -> Returned:
    """Run a function there and give what it returned.

    Args:
        progress: Called a few times a second with state, reason, and the seconds since it was sent.
        timeout_s: How long to wait, in the queue and in all; None: QUEUE_S and TIMEOUT_S.

    Raises:
        StillWaiting, TooLate: It was withdrawn, or stopped.
        ClusterfnError: What went wrong with it.
    """
    began = time.monotonic()
    options = parse_options({"host": host.name, "environment": environment, "name": "check"})
    told: ProbeResult = send_probe(_tell(), options, host, session, progress, timeout_s)
    return Returned(*told, seconds=time.monotonic() - began)


def send_probe(
    function: Callable[[], T], options: Options, host: Host, session: HostState, progress: Progress,
    timeout_s: float | None,
) -> T:  # fmt: skip
    """What a function returned there; arguments and exceptions as those of `run_probe`."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(1, "clusterfn-check") as pool:  # Ctrl-C must not lose a job half sent
        sending = pool.submit(call.submit_call, function, (), {}, options)
        try:
            job: Job[T] = sending.result()
            return _result(job, session.scheduler, progress, timeout_s, began)
        except (KeyboardInterrupt, SystemExit, StillWaiting, TooLate):
            _withdraw(sending, session)
            raise


def _tell() -> Callable[[], ProbeResult]:
    def tell() -> tuple[str, str, int, str]:  # travels by value, as it has no name that can be imported
        import os
        import platform

        namespace = "/proc/self/ns/net"
        net_ns = os.readlink(namespace) if os.path.lexists(namespace) else ""
        return platform.node(), platform.python_version(), os.getpid(), net_ns

    return tell


def _result(job: Job[T], scheduler: Scheduler, progress: Progress, timeout_s: float | None, began: float) -> T:
    in_queue_s, in_all_s = (QUEUE_S, TIMEOUT_S) if timeout_s is None else (timeout_s, timeout_s)
    while not concurrent.futures.wait([job], _TICK_S).done:
        passed = time.monotonic() - began
        if job.state == PENDING and scheduler.has_nodes and passed > in_queue_s:
            raise StillWaiting(job.reason or f"{scheduler.title} has not said why")
        if passed > in_all_s:
            raise TooLate(f"no result within {in_all_s:.0f} s: {job.status}")
        progress(job.state, job.reason, passed)
    return job.result()


def _withdraw(sending: concurrent.futures.Future[Job[Any]], session: HostState) -> None:
    """Stop the job, and wait until the scheduler has heard of it: our connection ends with this process.

    Raises:
        ClusterfnError: The scheduler did not answer for so long that the job may still be in its queue.
    """
    try:
        job = sending.result(_SEND_S)
    except (ClusterfnError, concurrent.futures.TimeoutError):
        return  # it was never sent
    with contextlib.suppress(ClusterfnError):  # a scheduler that does not answer now is asked again below
        job.stop()
    leave_queue(job, session)
    concurrent.futures.wait([job], _CANCEL_S)


def leave_queue(job: Job[Any], session: HostState) -> None:
    """See that the scheduler has taken the job out of its queue, asking again while it does not answer.

    Raises:
        ClusterfnError: It did not within half a minute.
    """
    argv = session.scheduler.cancel_command(layout.job_name(job.name, job.id))
    until = time.monotonic() + _CANCEL_S
    while argv:
        answer = session.connection.run(argv, unset=session.scheduler.unset, timeout_s=_CANCEL_S).result(_CANCEL_S)
        if answer.rc == 0:
            return
        if time.monotonic() > until:
            raise ClusterfnError(
                f"the scheduler did not answer: job {job.id} of this check may still be in its queue",
                evidence=answer.err.decode("utf-8", "replace").splitlines()[-5:],
                hint=f"later: clusterfn cancel {job.id} --host {job.host}",
            )
        time.sleep(_AGAIN_S)
