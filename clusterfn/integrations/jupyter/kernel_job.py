"""Find the job of a kernel, or start one: a record on this machine says which job belongs to which key."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import posixpath
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.kernel.stream import key_name
from clusterfn.bridge.supervisor import publish
from clusterfn.calls import attach, leaving
from clusterfn.calls.call import host_of, prepare_held, send_call
from clusterfn.calls.job import Job, run_of
from clusterfn.config import places
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import KernelSpec
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import loop, spoken_wait
from clusterfn.hosts.host_state import CALLER, HostState, open_host
from clusterfn.hosts.transports import held_connections

if TYPE_CHECKING:
    from clusterfn.calls.call import Prepared
    from clusterfn.config.config_file import CallHost
    from clusterfn.config.options import Options
    from clusterfn.config.spec import Host
    from clusterfn.hosts.connection import Reply

RECONNECT_S = 30 * 60.0
# A client that ended a kernel without a message starts the next one within this time.
ORPHAN_S = 8.0
# If such a client starts the next kernel first, it ends the old one within this time.
SIBLING_S = 2.0
# Clients start a kernel that has died up to five times, three seconds apart.
REFUSED_S = 20.0
_KEPT_S = 30 * 86400.0


@dataclass(frozen=True)
class KernelJob:
    """The job of a kernel, which runs.

    Attributes:
        address: The holder's socket on the machine of the job.
        join: The command that reaches it from the host, inside the scheduler's job; () where the two are one machine.
        adopts: The name of the key of the kernel whose place this one takes; "" for none.
    """

    job: Job[Any]
    host: HostState
    address: str
    join: Sequence[str] = ()
    adopts: str = ""


class JobRecord:
    """The record of one kernel on this machine, named by the hash of its key."""

    def __init__(self, key: str) -> None:
        self._path = places.state_folder() / "kernels" / f"{key_name(key)}.json"

    def read(self) -> dict[str, Any]:
        """Return what was written last; {} if that is nothing that can be read."""
        return _read(self._path)

    def leave_orphan(self) -> None:
        """Note that the client has ended the kernel without a word: it may start it again at once, with another key."""
        self.write(**{**self.read(), "orphan_at": time.time()})

    def adopt(self, host: str, launch: str) -> str:
        """Take over the record of an orphan that was launched in the same way; return the name of its key, or "".

        Some clients start the next kernel before they end the last one: wait a moment for a single one that lives.
        """
        deadline = time.monotonic() + SIBLING_S
        while True:
            siblings = 0
            for path in self._path.parent.glob("*.json"):
                record = _read(path)
                if path == self._path or (record.get("host"), record.get("launch")) != (host, launch):
                    continue
                if time.time() - float(record.get("orphan_at", 0.0)) < ORPHAN_S:
                    with contextlib.suppress(FileNotFoundError):
                        # Another process has taken over the record.
                        path.rename(self._path)
                        return path.stem
                pid = 0 if "orphan_at" in record else int(record.get("pid", 0))
                # On Windows, the signal with which the process is looked up would end it.
                can_ask = pid > 0 and sys.platform != "win32"
                siblings += can_ask and held_connections.is_running(pid)
            if siblings != 1 or time.monotonic() > deadline:
                return ""
            time.sleep(0.05)

    def write(self, **facts: str | float) -> None:
        """Replace the record; remove those of kernels that are long gone.

        Raises:
            OSError: The folder cannot be written: a restart would ask for other GPUs.
        """
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        publish.replace(str(self._path), json.dumps(facts).encode(), sync=False)
        for old in folder.iterdir():
            with contextlib.suppress(OSError):
                # Another process removes the old records too.
                if time.time() - old.stat().st_mtime > _KEPT_S:
                    old.unlink()

    def refuse(self, why: str) -> None:
        """Forget the job, and start none for a while: clients start a kernel again that has ended by itself."""
        self.write(refused=why, until=time.time() + REFUSED_S)

    def remove(self) -> None:
        """Forget the job."""
        self._path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def launch_of(argv: Sequence[str]) -> str:
    """Return what a client launches again when it restarts a kernel: these words, in this folder, by this process."""
    return json.dumps([*argv, os.getcwd(), os.getppid()])


def host_for_kernel(options: Options) -> CallHost:
    """Choose the host of a kernel; raises as `host_with_way`."""
    return host_with_way(options, "kernels", "@cluster or clusterfn.Session in the notebook")


def host_with_way(options: Options, title: str, instead: str) -> CallHost:
    """Choose the host of what a job holds.

    Args:
        options: What the job asks for.
        title: In words.
        instead: What to use on a host that cannot run it.

    Raises:
        ConfigError: No host has that name, or its scheduler has no way into a running job.
    """
    chosen = host_of(options, title)
    host, rules = chosen.host, open_host(chosen.host).scheduler_rules
    if rules.has_nodes and not rules.join_command("0"):
        problem = f"{title} cannot run on {host.name}: clusterfn cannot reach into a running job of {rules.title}"
        raise ConfigError(problem, hint=f"choose another host; for this one use {instead}")
    return chosen


class JobSearch:
    """Finds or starts the job of one kernel, in a thread of its own.

    Args:
        key: The client's; the same after a restart.
        options: What the job asks for.
        idle_s: After so long without a cell the job ends.
        program: What the job holds: "ipykernel" or "jupyterlab".
        launch: See `launch_of`; "" if the job must be a new one.
    """

    def __init__(self, key: str, options: Options, idle_s: float, program: str = "ipykernel", launch: str = "") -> None:
        self.record = JobRecord(key)
        self._launch = launch
        self._adopts = ""
        self._program = program
        self._idle_s = idle_s
        self._options = options._replace(name=options.name or "kernel")
        self._job: Job[Any] | None = None
        self._is_withdrawn = False

    def run(self) -> KernelJob:
        """Return the job once its holder listens.

        Raises:
            ClusterfnError: It was rejected, or ended before that; starts within the next seconds are rejected at once.
        """
        spoken_wait.speak_here()
        refused = self.record.read()
        if time.time() < float(refused.get("until", 0.0)):
            raise ClusterfnError(str(refused.get("refused")), hint="start the kernel again in a few seconds")
        try:
            chosen = host_for_kernel(self._options)
            self._job, host_state = self._earlier(chosen.host) or self._start(chosen)
            if self._is_withdrawn:
                self.withdraw()
            return await_holder(self._job, host_state, self._adopts)
        except ClusterfnError as error:
            if not self._is_withdrawn:
                self.record.refuse(error.message)
            raise

    def withdraw(self) -> None:
        """End a job whose kernel has not started."""
        self._is_withdrawn = True
        job = self._job
        if job is not None:
            self.record.remove()
            job.stop()

    def _earlier(self, host: Host) -> tuple[Job[Any], HostState] | None:
        """Return the job that an earlier proxy of this kernel has left, if it has not ended."""
        if self._launch and not self.record.read():
            self._adopts = self.record.adopt(host.name, self._launch)
        record = self.record.read()
        if record.get("host") != host.name or not record.get("id"):
            return None
        try:
            job = attach.attach(str(record["id"]), host.name)
        except ConfigError:
            # The job was removed meanwhile.
            return None
        if not isinstance(job, Job) or job.done():
            return None
        self._keep(job)
        return job, open_host(host)

    def _keep(self, job: Job[Any]) -> None:
        self.record.write(host=job.host, id=job.id, launch=self._launch, pid=os.getpid())

    def _start(self, chosen: CallHost) -> tuple[Job[Any], HostState]:
        prepared = prepare_held(chosen)
        held = KernelSpec(self._program, self._idle_s, min(RECONNECT_S, self._idle_s), CALLER)
        if self._is_withdrawn:
            raise ClusterfnError("it was shut down before its job was sent")
        job = send_held(prepared, held)
        self._keep(job)
        return job, prepared.host


def send_held(prepared: Prepared, held: KernelSpec) -> Job[Any]:
    """Send a job that holds this instead of making its call, and show its id; may raise ClusterfnError."""
    job = send_call(prepared._replace(job=prepared.job._replace(kernel=held)))
    leaving.forget_going(run_of(job))
    console.tell(f"{job.id} {prepared.job.name} on {job.host}")
    return job


def await_holder(job: Job[Any], host: HostState, adopts: str = "") -> KernelJob:
    """Wait until the holder listens, and say why it waits; raise ClusterfnError if the job ends before."""
    coming = host.connection.wait(posixpath.join(job.folder, layout.KERNEL))
    either = [job, loop.start(_arrival(coming))]

    def ends(within_s: float | None) -> bool:
        return bool(concurrent.futures.wait(either, within_s, concurrent.futures.FIRST_COMPLETED).done)

    spoken_wait.wait(ends, lambda: f"{job.id[:SHORT]} is {job.status_since}")
    if not coming.done():
        coming.cancel()
        raise reason_of_end(job)
    with reading(host.settings.name, layout.KERNEL):
        facts = json.loads(coming.result(0))
        address, submission, attach = str(facts["socket"]), str(facts["submission"]), [*map(str, facts["attach"])]
    way = host.scheduler.join_command(submission) if host.scheduler.has_nodes else ()
    return KernelJob(job, host, address, (*way, *attach) if way else (), adopts)


async def _arrival(coming: Reply[bytes]) -> None:
    await coming.error()


def reason_of_end(job: Job[Any]) -> ClusterfnError:
    """Return the error that says why a kernel's job has ended."""
    if job.cancelled():
        return ClusterfnError("its job was cancelled", host=job.host, job=job.id)
    error = job.exception(0)
    if isinstance(error, ClusterfnError):
        return error
    why = error if error is not None else job.result(0)["why"]
    return ClusterfnError(f"its job has ended: {why}", host=job.host, job=job.id)
