"""What a call needs beyond the host: modules, an environment of the caller's Python, and one function that returns.

The function is watched while it waits, and is never left behind on the host. Prints nothing.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING
from clusterfn.bridge.supervisor.text import counted, how_to_correct, last_lines
from clusterfn.calls import call
from clusterfn.calls.job import Job, run_of
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.config.options import parse_options
from clusterfn.environment import torch_build
from clusterfn.errors import ClusterfnError, did_you_mean
from clusterfn.hosts import loop
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import CALLER, HostState
from clusterfn.scheduler import job_script
from clusterfn.scheduler.base import Scheduler

_LAST_LINES = 5
_ONE_NAMESPACE = "run all jobs of the host in one network namespace, in containers by `--network host`"
# The beginnings of reasons that are not about the queue: such a job waits for something other than its turn.
_NO_TURN = ("environment: ", "its environment is ", "no connection to ", "connection to ")


def modules(state: CheckState) -> str:
    wanted = state.host.modules
    if not (wanted or state.host.setup or state.host.prolog):
        raise StepSkipped("clusterfn.yml has no modules: and no shell lines for this host")
    # The loaded modules may print anything, so the answer begins after a line that none of them can print by chance.
    marker = f"clusterfn-{secrets.token_hex(8)}"
    answer = state.run("/bin/sh", "-c", job_script.modules_check(state.host, marker, state.has_nodes))
    before, _, after = answer.out.decode("utf-8", "replace").partition(f"\n{marker} ")
    head, *like = after.splitlines() or [""]
    status, _, stage = head.partition(" ")
    lines = [*answer.err.decode("utf-8", "replace").splitlines(), *before.splitlines()][-_LAST_LINES:]
    if stage.startswith("module:"):
        name = stage[len("module:") :]
        names = [line.strip().removesuffix("(default)") for line in like if line.startswith(name.split("/")[0])]
        listing = f"; there are {', '.join(names)}" if names else "; `module avail` on the host lists them"
        near = did_you_mean(name, names)
        raise StepFailed(
            f"the module {name} cannot be loaded{near}", f"correct modules: of {state.place}{listing}", lines
        )
    if stage != "loaded":
        code, stage = status or str(answer.rc), stage or "setup"
        line = f" `{like[0]}`" if like and like[0] else ""
        hint = how_to_correct("\n".join(like), code, f"{stage}: of {state.place}")
        raise StepFailed(f"{stage}: fails with exit code {code} at the line{line}", hint, lines)
    return f"{', '.join(wanted)} can be loaded" if wanted else "the lines of setup: and prolog: succeed"


def environment(state: CheckState) -> str:
    wanted = EnvironmentRequest(state.environment, gpus=state.gpus, binds=state.binds)
    interpreter = state.host_state.environments.find(wanted).interpreter
    here = f"yours is {CALLER[0]}.{CALLER[1]}: functions are sent as source"
    if interpreter.version == CALLER:
        here = "the same as yours"
    torch, cuda = interpreter.torch
    build = f"; PyTorch {torch} for CUDA {cuda or 'none'}" if torch else ""
    found = f"{interpreter.title} (Python {interpreter.version[0]}.{interpreter.version[1]}, {here}{build})"
    driver, table = state.site.gpus.driver if state.site.gpus else "", torch_build.load_table()
    if cuda and driver and not table.runs_driver(cuda, driver):
        needs = f"CUDA {cuda} needs driver {table.least_driver(cuda)} or newer, and the host has {driver}"
        raise StepWarning(f"{found}; {needs}", f"use a PyTorch for CUDA {torch_build.newest_cuda(driver)} or older")
    return found


def function(state: CheckState) -> str:
    if state.no_job:
        raise StepSkipped("--no-job")
    try:
        returned = run_probe(state)
    except StillWaiting as waiting:
        raise StepSkipped(f"still waiting ({waiting}); everything before it works") from waiting
    except TooLate as late:
        hint = "wait longer with --timeout, or skip the function with --no-job; the job was stopped"
        raise StepFailed(str(late), hint) from late
    agent_ns, net_ns = state.host_state.connection.facts.net_ns, returned.net_ns
    # Jobs of a bare host lock GPUs by sockets, which do not cross the borders of network namespaces.
    if not state.has_nodes and net_ns and agent_ns and net_ns != agent_ns:
        message = f"returned, but jobs run in a network namespace of their own ({net_ns}, the agent in {agent_ns})"
        raise StepWarning(f"{message}: two jobs could take the same GPU", _ONE_NAMESPACE)
    where = f"{returned.node}, Python {returned.python}, process {returned.pid}"
    return f"returned from {where}, after {returned.seconds:.2f} s{_about_workers(returned.trouble)}"


def _about_workers(trouble: str | None) -> str:
    """Say how workers of this environment begin: one that is forked costs a tenth of one that is started."""
    if not trouble:
        return "" if trouble is None else "; workers: forked"
    why = f"because when it starts, the environment {trouble.removeprefix('it ')}"
    return f"; workers: started by exec, {why}"


def pytorch(state: CheckState) -> str:
    """One calculation on the GPUs of a job, in whatever kind of environment."""
    if state.no_job:
        raise StepSkipped("--no-job")
    if not state.gpus:
        raise StepSkipped("add --gpus 1 to run a calculation on a GPU")
    count = len(state.site.gpus.names) if state.site.gpus and not state.has_nodes else 0
    if 0 < count < state.gpus:
        has = counted(count, "GPU")
        raise StepFailed(f"{state.name} has {has}, and --gpus asks for {state.gpus}", f"write --gpus {count}, or fewer")
    try:
        probe = send_probe(_gpu_kernel(), state, state.gpus)
    except StillWaiting as waiting:
        raise StepSkipped(f"still waiting for a GPU ({waiting})") from waiting
    except TooLate as late:
        raise StepFailed(str(late), "wait longer with --timeout; the job was stopped") from late
    if probe is None:
        raise StepFailed("the environment has no PyTorch", "name one with --environment, or leave out --gpus")
    node, version, cuda, available, count, capability, total = probe
    build = f"PyTorch {version} for CUDA {cuda}"
    if not available or count < state.gpus:
        sees = f"sees {count} of {state.gpus} GPUs" if available else "sees no GPU (torch.cuda.is_available() is False)"
        raise StepFailed(f"{build} {sees} on {node}", f"run nvidia-smi in a job on {state.name}")
    if total != _TOTAL:
        raise StepFailed(f"{build} computes {total} instead of {_TOTAL} on {node}", "ask the administrator")
    return f"{build} calculated on {node}: {counted(count, 'GPU')}, compute capability {capability}"


# The correct result of the calculation below.
_TOTAL = 4.0
_OnGpu = tuple[str, str, str, bool, int, str, float]


def _gpu_kernel() -> Callable[[], _OnGpu | None]:
    """Return a function that calculates on a GPU with PyTorch and reports it; None where there is no PyTorch."""

    # A nested function has no name that a host could import, so it is sent by value.
    def kernel() -> _OnGpu | None:
        import importlib
        import importlib.util
        import platform

        if importlib.util.find_spec("torch") is None:
            return None
        torch = importlib.import_module("torch")
        build = platform.node(), torch.__version__, torch.version.cuda
        if not torch.cuda.is_available():
            return (*build, False, 0, "", 0.0)
        capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
        ones = torch.ones(2, device="cuda")
        return (*build, True, torch.cuda.device_count(), capability, float((ones + ones).sum()))

    return kernel


T = TypeVar("T")

QUEUE_S = 60.0
TIMEOUT_S = 300.0
_TICK_S = 0.25
_SEND_S = 60.0
CANCEL_S = 30.0
AGAIN_S = 0.5


class Returned(NamedTuple):
    """What the function said of where it ran.

    Attributes:
        net_ns: Its network namespace, as the kernel names it; "" where there are none.
        trouble: Why its environment's workers cannot be forked; "" if they can, None where that is unknown.
        seconds: From when it was sent until its value was here.
    """

    node: str
    python: str
    pid: int
    net_ns: str
    trouble: str | None
    seconds: float


class StillWaiting(Exception):
    """It did not start within the time that one waits for a queue; the text says what it waits for."""


class TooLate(Exception):
    """It started, and gave no result in time."""


def run_probe(state: CheckState) -> Returned:
    """Run a function there and give what it returned.

    Raises:
        StillWaiting, TooLate: It was withdrawn, or stopped.
        ClusterfnError: What went wrong with it.
    """
    began = time.monotonic()
    probe = send_probe(_tell(), state)
    return Returned(*probe, seconds=time.monotonic() - began)


def send_probe(function: Callable[[], T], state: CheckState, gpus: int | None = None) -> T:
    """Return what a function returned there; raise as `run_probe`."""
    began = time.monotonic()
    keywords = {"host": state.host.name, "environment": state.environment, "binds": state.binds, "name": "check"}
    options = parse_options({**keywords, "gpus": gpus})
    # Send from another thread: Ctrl-C interrupts only this one, so no job stays half sent and unknown.
    with concurrent.futures.ThreadPoolExecutor(1, "clusterfn-check") as pool:
        sending = pool.submit(call.submit_call, function, (), {}, options)
        try:
            job: Job[T] = sending.result()
            return _result(job, state, began)
        except (KeyboardInterrupt, SystemExit, StillWaiting, TooLate):
            _withdraw(sending, state.host_state)
            raise


def _tell() -> Callable[[], tuple[str, str, int, str, str | None]]:
    # A nested function has no name that a host could import, so it is sent by value.
    def tell() -> tuple[str, str, int, str, str | None]:
        import os
        import platform
        import sys

        trouble = None
        if sys.platform.startswith("linux"):
            from _clusterfn.bridge.worker import template  # type: ignore[import-not-found]

            trouble = template.look(os.path.join(os.path.dirname(sys.argv[0]), "worker.py"))
        namespace = "/proc/self/ns/net"
        net_ns = os.readlink(namespace) if os.path.lexists(namespace) else ""
        return platform.node(), platform.python_version(), os.getpid(), net_ns, trouble

    return tell


def _result(job: Job[T], state: CheckState, began: float) -> T:
    in_queue_s, in_all_s = (QUEUE_S, TIMEOUT_S) if state.timeout_s is None else (state.timeout_s, state.timeout_s)
    scheduler = state.host_state.scheduler
    while not concurrent.futures.wait([job], _TICK_S).done:
        passed = time.monotonic() - began
        if passed > in_queue_s and _waits_in_queue(job, scheduler):
            raise StillWaiting(job.reason or f"{scheduler.title} has not said why")
        if passed > in_all_s:
            raise TooLate(f"no result within {in_all_s:.0f} s: {job.status}")
        state.progress(job.state, job.reason, passed)
    return job.result()


def _waits_in_queue(job: Job[Any], scheduler: Scheduler) -> bool:
    """Whether it waits for its turn.

    Without a scheduler the queue always says why. A job also waits there, pending, while files or its environment are
    made ready, which is no queue and may take minutes.
    """
    if job.state != PENDING or scheduler.has_nodes:
        return job.state == PENDING
    return bool(job.reason) and not run_of(job).moving and not job.reason.startswith(_NO_TURN)


def _withdraw(sending: concurrent.futures.Future[Job[Any]], host: HostState) -> None:
    """Stop the job, and wait until the scheduler knows: our connection ends with this process.

    Raises:
        ClusterfnError: The scheduler did not answer for so long that the job may still be in its queue.
    """
    try:
        job = sending.result(_SEND_S)
    except (ClusterfnError, concurrent.futures.TimeoutError):
        # The job was never sent.
        return
    with loop.speaking(lambda: f"waiting for job {job.id} of this check to end: it is {job.status_since}"):
        with contextlib.suppress(ClusterfnError):
            # A scheduler that does not answer now is asked again below.
            job.stop()
        leave_queue(job, host)
        concurrent.futures.wait([job], CANCEL_S)


def leave_queue(job: Job[Any], host: HostState) -> None:
    """See the job out of the scheduler's queue, asking again for half a minute; raise ClusterfnError then."""
    argv = host.scheduler.cancel_command(layout.job_name(job.name, job.id))
    until = time.monotonic() + CANCEL_S
    while argv:
        answer = host.connection.run(argv, unset=host.scheduler.unset, timeout_s=CANCEL_S).result(CANCEL_S)
        if answer.rc == 0:
            return
        if time.monotonic() > until:
            problem = f"the scheduler did not answer: job {job.id} of this check may still be in its queue"
            hint = f"later: clusterfn cancel {job.id} {job.host}"
            raise ClusterfnError(problem, evidence=last_lines(answer.err, 5), hint=hint)
        time.sleep(AGAIN_S)
