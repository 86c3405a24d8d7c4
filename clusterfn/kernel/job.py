"""Find the job of a kernel, or start one: a record on this machine says which job belongs to which key."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.calls import attach, console, job_display
from clusterfn.calls import payload as payloads
from clusterfn.calls.call import prepare_packed, send_call
from clusterfn.config import config_file, places
from clusterfn.config.spec import KernelSpec
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts.host_state import CALLER, HostState, open_session

if TYPE_CHECKING:
    from clusterfn.calls.job import Job
    from clusterfn.config.options import Options
    from clusterfn.config.spec import Host

RECONNECT_S = 30 * 60.0
REFUSED_S = 20.0  # clients start a kernel that has died up to five times, three seconds apart
_KEPT_S = 30 * 86400.0


@dataclass(frozen=True)
class KernelJob:
    """The job of a kernel, which runs.

    Attributes:
        address: The holder's socket on the machine of the job.
    """

    job: Job[Any]
    session: HostState
    address: str


class JobRecord:
    """The record of one kernel on this machine, named by the hash of its key."""

    def __init__(self, key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._path = places.state_folder() / "kernels" / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """Return what was written last; {} if that is nothing that can be read."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, **facts: str | float) -> None:
        """Replace the record; remove those of kernels that are long gone.

        Raises:
            OSError: The folder cannot be written: a restart would ask for other GPUs.
        """
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(facts), encoding="utf-8")
        temporary.replace(self._path)
        for old in folder.iterdir():
            with contextlib.suppress(OSError):  # another process removes them too
                if time.time() - old.stat().st_mtime > _KEPT_S:
                    old.unlink()

    def refuse(self, why: str) -> None:
        """Forget the job, and start none for a while: clients start a kernel again that has ended by itself."""
        self.write(refused=why, until=time.time() + REFUSED_S)

    def remove(self) -> None:
        """Forget the job."""
        self._path.unlink(missing_ok=True)


def host_for_kernel(name: str | None) -> Host:
    """Return the host of a kernel.

    Raises:
        ConfigError: There is none of that name, or it has a scheduler.
    """
    host, _ = config_file.load().resolve(name)
    if open_session(host).scheduler_rules.has_nodes:
        raise ConfigError(
            f"kernels cannot run on {host.name}: its jobs run on nodes of {open_session(host).scheduler_rules.title}, "
            "to which clusterfn cannot carry the channels of a kernel yet",
            hint="choose a host without a scheduler; for this one use @cluster or clusterfn.Session in the notebook",
        )
    return host


class JobSearch:
    """Finds or starts the job of one kernel, in a thread of its own.

    Args:
        key: The client's; the same after a restart.
        options: What the job asks for.
        idle_s: After so long without a cell the job ends.
    """

    def __init__(self, key: str, options: Options, idle_s: float) -> None:
        self.record = JobRecord(key)
        self._idle_s = idle_s
        self._options = options
        self._job: Job[Any] | None = None
        self._changed = threading.Event()
        self._is_withdrawn = False

    def run(self) -> KernelJob:
        """Return the job once its holder listens.

        Raises:
            ClusterfnError: It was rejected, or ended before that; starts within the next seconds are rejected at once.
        """
        refused = self.record.read()
        if time.time() < float(refused.get("until", 0.0)):
            raise ClusterfnError(str(refused.get("refused")), hint="start the kernel again in a few seconds")
        try:
            host = host_for_kernel(self._options.host)
            found = self._earlier(host) or self._start()
            return self._await_holder(*found)
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
        known = self.record.read()
        if known.get("host") != host.name or not known.get("id"):
            return None
        try:
            job = attach.attach(str(known["id"]), host.name)
        except ConfigError:  # removed meanwhile
            return None
        return None if job.done() or not hasattr(job, "state") else (job, open_session(host))  # type: ignore[return-value]

    def _start(self) -> tuple[Job[Any], HostState]:
        prepared = prepare_packed(len, lambda target: payloads.pack(len, ((),), {}, target), self._options)
        spec = replace(
            prepared.job, name="kernel", kernel=KernelSpec(self._idle_s, min(RECONNECT_S, self._idle_s), CALLER)
        )
        if self._is_withdrawn:
            raise ClusterfnError("the kernel was shut down before its job was sent")
        job, _ = send_call(replace(prepared, job=spec))
        job_display.forget_going(job)
        console.tell(f"{job.id} kernel on {job.host}")
        self.record.write(host=job.host, id=job.id)
        return job, prepared.session

    def _await_holder(self, job: Job[Any], session: HostState) -> KernelJob:
        """Wait until the holder has said where it listens, or the job has ended; say why it waits."""
        self._job = job
        if self._is_withdrawn:
            self.withdraw()
        place = posixpath.join(job.folder, layout.KERNEL)
        coming = session.connection.wait(place)
        job.listen(lambda *_: self._changed.set())
        job.add_done_callback(lambda _: self._changed.set())
        coming.add_done_callback(lambda _: self._changed.set())
        said = ""
        while not (coming.done() or job.done()):
            self._changed.wait()
            self._changed.clear()
            status = job.status
            if not job.done() and job.reason and status != said:
                said = status
                console.tell(f"{job.id[:4]} {status}")
        if not coming.done():
            coming.cancel()
            raise reason_of_end(job)
        return KernelJob(job, session, str(json.loads(coming.result(0))["socket"]))


def reason_of_end(job: Job[Any]) -> ClusterfnError:
    """Return the error that says why a kernel's job has ended."""
    if job.cancelled():
        return ClusterfnError("the job of the kernel was cancelled", host=job.host, job=job.id)
    error = job.exception(0)
    if isinstance(error, ClusterfnError):
        return error
    why = error if error is not None else job.result(0)["why"]
    return ClusterfnError(f"the job of the kernel has ended: {why}", host=job.host, job=job.id)
