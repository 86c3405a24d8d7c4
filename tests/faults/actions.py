"""What is done to a job from outside, or to files that it reads. Each takes the case that runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clusterfn
from clusterfn import Job
from tests.processes import named

if TYPE_CHECKING:
    from tests.faults.case import Case

Action = Callable[["Case"], None]


def kill(*names: str, number: int = signal.SIGKILL) -> Action:
    """kill -9 some of worker, supervisor and script, together."""
    return lambda case: case.signal(number, *names)


def kill_everything(case: Case) -> None:
    """kill -9 all processes of the job together, children and all, as a lost machine would.

    The supervisor goes first: the kernel lets a stopped process go on whose group the death of its parent orphans.
    """
    case.await_up()
    case.until((case.attempts()[-1] / "usage.json").exists, what="what it has used so far")
    supervisor = case.pids()["supervisor"]
    pids = {*case.pids().values(), *case.processes()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # such as a program that the supervisor asks now and then
            os.kill(pid, signal.SIGSTOP)
    case.dies_now()
    for pid in [supervisor, *(pids | set(case.processes()))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_everything_and_forget(case: Case) -> None:
    """Let SLURM forget the job, and kill all its processes: not before it runs, or a slow start would be its end."""
    case.await_up()
    assert case.world is not None
    (case.world.stubs / case.host / "forgets").touch()
    kill_everything(case)


def pause(*names: str, seconds: float) -> Action:
    """SIGSTOP for a while: it is silent, and alive."""

    def act(case: Case) -> None:
        pids = [case.pids()[name] for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return act


def scheduler_name(case: Case) -> str:
    assert case.job is not None
    return f"{case.job.name}.{case.job.id}"


def squeue(case: Case) -> str:
    """The job's state as SLURM has it."""
    assert case.world is not None
    argv = ("squeue", "-h", "--states=all", "-o", "%T", f"--name={scheduler_name(case)}")
    return case.world.lab.slurm.run(*argv).stdout.strip()


def scheduler_id(case: Case) -> str:
    """SLURM's number of the job, as soon as there is one."""
    world = case.world
    assert world is not None
    argv = ("squeue", "-h", "--states=all", "-o", "%i", f"--name={scheduler_name(case)}")
    return str(case.until(lambda: world.lab.slurm.run(*argv).stdout.strip(), what="a number from SLURM"))


def scancel_as_user(case: Case) -> None:
    case.await_up()
    case.dies_now()
    assert case.world is not None
    case.world.lab.ssh("slurm-second", ["scancel", f"--name={scheduler_name(case)}"])


def scancel_waiting(case: Case) -> None:
    """Before it has begun."""
    number = scheduler_id(case)
    case.dies_now()
    assert case.world is not None
    case.world.lab.slurm.run("scancel", number)


def stop(case: Case) -> None:
    """Job.stop() while it runs."""
    case.await_up()
    case.dies_now()
    assert case.job is not None
    case.job.stop()


def stop_waiting(case: Case) -> None:
    """Job.stop() before it runs."""
    scheduler_id(case)
    case.dies_now()
    assert case.job is not None
    case.job.stop()


def withdraw(case: Case) -> None:
    """Job.cancel() before it runs."""
    scheduler_id(case)
    case.dies_now()
    assert case.job is not None
    assert case.job.cancel() is True


def requeue(case: Case) -> None:
    """scontrol requeue, as an administrator would."""
    case.await_up()
    assert case.world is not None
    case.world.lab.slurm.run("scontrol", "requeue", scheduler_id(case))


def preempt(case: Case) -> None:
    """A job of a higher partition takes all cores of the node."""
    case.await_up()
    assert case.world is not None
    run = case.world.lab.slurm.run
    node = re.search(r" NodeList=(\S+)", run("scontrol", "-o", "show", "job", scheduler_id(case)).stdout)
    assert node
    line = ["sbatch", "-p", "high", "-w", node[1], "-c", "8", "--mem=100M", "-o", "/dev/null", "--wrap", "sleep 2"]
    said = case.world.lab.ssh("slurm-second", line)
    assert said.returncode == 0, said.stderr


def lose_node(case: Case) -> None:
    """kill -9 slurmd and every process of the job; it comes back when the job has ended."""
    assert case.world is not None
    lab = case.world.lab
    case.await_up()
    found = re.search(r" NodeList=(\S+)", lab.slurm.run("scontrol", "-o", "show", "job", scheduler_id(case)).stdout)
    assert found and case.job
    daemon = lab.slurmd(found[1])
    step = named(f"slurmstepd: [{scheduler_id(case)}.")
    daemon.kill()
    for pid in step:
        os.kill(pid, signal.SIGKILL)
    kill_everything(case)
    try:
        case.until(case.job.done, 150, "the end")
    finally:
        daemon.start()
        lab.slurm.heal()


def kill_slurmd(case: Case) -> None:
    """kill -9 slurmd alone: the job's processes go on on a node that SLURM calls dead."""
    assert case.world is not None and case.job
    lab = case.world.lab
    case.await_up()
    found = re.search(r" NodeList=(\S+)", lab.slurm.run("scontrol", "-o", "show", "job", scheduler_id(case)).stdout)
    assert found
    daemon = lab.slurmd(found[1])
    daemon.kill()
    try:
        case.until(lambda: case.job.done() or lab.slurm.node_state(found[1]).startswith("down"), 90, "a dead node")
        time.sleep(2)
    finally:
        daemon.start()
        lab.slurm.heal()


def controller_dies(seconds: float) -> Action:
    """slurmctld is away for some seconds. Not by kill -9: it would forget numbers of jobs and give them out again."""

    def act(case: Case) -> None:
        case.await_up()
        assert case.world is not None
        daemon = case.world.lab.slurmctld
        daemon.stop()
        try:
            time.sleep(seconds)
        finally:
            daemon.start()
            case.world.lab.slurm.heal()

    return act


def shorten_limit(case: Case) -> None:
    """An administrator gives the running job one minute."""
    case.await_up()
    assert case.world is not None
    number = scheduler_id(case)
    case.world.lab.slurm.run("scontrol", "update", f"jobid={number}", "timelimit=1")
    case.world.lab.slurm.wait_job(number, "COMPLETING", "TIMEOUT", timeout_s=150)
    case.dies_now()


def restarted_host(case: Case) -> None:
    """All is dead, and the claim names another boot: a second reader finds the host restarted."""
    assert case.job is not None
    case.await_up()
    pids = case.pids()
    claim = case.folder / "claim"
    _, rest = claim.read_text().split(":", 1)
    claim.write_text(f"11111111-2222-3333-4444-555555555555:{rest}")
    for name in ("script", "supervisor", "worker"):
        os.kill(pids[name], signal.SIGSTOP)
    case.dies_now()
    for name in ("script", "supervisor", "worker"):
        # The end of one may have ended the next.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[name], signal.SIGKILL)
    second: Job[Any] = clusterfn.attach(case.job.id, case.host)
    case.error = second.exception(150)


def damage_value(change: Callable[[bytearray], bytearray]) -> Action:
    """Alter value.pkl, then read the result a second time."""

    def act(case: Case) -> None:
        assert case.job is not None
        case.job.result(150)
        path = case.attempts()[0] / "value.pkl"
        path.write_bytes(change(bytearray(path.read_bytes())))
        case.dies_now()
        case.error = clusterfn.attach(case.job.id, case.host).exception(150)

    return act


def damage_outcome(case: Case) -> None:
    """Cut outcome.json, read the result a second time, and mend it."""
    assert case.job is not None
    case.job.result(150)
    path = case.attempts()[0] / "outcome.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    case.dies_now()
    case.error = clusterfn.attach(case.job.id, case.host).exception(150)
    path.write_bytes(whole)


def flipped(data: bytearray) -> bytearray:
    """One bit of the last byte but ten."""
    data[-10] ^= 1
    return data


def cut(data: bytearray) -> bytearray:
    """Without its last bytes."""
    return data[:-7]


def blob_altered(case: Case) -> Job[Any]:
    """Send a large argument, alter it where it lies on the host, and call again."""
    first = case.function.submit(*case.row.args)
    first.result(150)
    blobs = (Path(first.folder).parent.parent / "blobs").iterdir()
    (blob,) = [path for path in blobs if ".part-" not in path.name and case.row.args[0] in path.read_bytes()]
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(data)
    case.notes["blob"] = blob
    return case.function.submit(*case.row.args)


def becomes_38(link: Path) -> None:
    from tests.lab import layout

    link.symlink_to(layout.PYTHONS / "3.8" / "bin" / "python")


def stays_away(link: Path) -> None:
    """It was removed."""


def on_tiny(case: Case) -> Job[Any]:
    """A call to the host with a small disk, which is emptied first."""
    empty_tiny(case)
    return case.function.submit(*case.row.args)


def empty_tiny(case: Case) -> None:
    assert case.world is not None
    root = case.world.disk
    for path in (*root.glob("jobs/*/attempts/*/work/filler"), *root.glob("blobs/*"), *root.glob("blobs/.*")):
        path.unlink()
