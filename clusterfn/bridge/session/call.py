"""One call of a session: a process of its own runs it, and the same `AttemptRun` as a job's judges and publishes it.

Its folder `calls/<n>` has the files of a job's only attempt. A `Reporter` gets what is written there, for a client that
is connected. Nothing here waits for the disk. Limits of memory and time are the session's own, whose supervisor watches
them. No process of the call is left behind: GPUs and memory are the next call's.
"""

from __future__ import annotations

import copy
import errno
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import layout
from ..schedulers.base import BareOnHost
from ..schedulers.registry import given_gpus
from ..supervisor import publish
from ..supervisor.attempt import RunnableAttempt
from ..supervisor.gpus import GpuUsageMonitor, monitored_gpus
from ..supervisor.job import JobFolder
from ..supervisor.run import AttemptRun, run_through
from ..supervisor.text import portable
from ..supervisor.verdict import Verdict, document
from ..supervisor.watch import EndWatch, Signals
from ..supervisor.worker_process import WorkerProcess
from .call_process import Ahead

if TYPE_CHECKING:
    from typing import TypeVar

    from ..supervisor.spec import Spec, SpecResources

    # Tells the session's server what was just written to the files of a call: "events", "stdout", "stderr", or "end"
    # with the outcome; then the bytes that were appended. "end" also has the `size=` of the value.
    Reporter = Callable[..., None]
    Give = Callable[[], WorkerProcess]
    Run = TypeVar("Run", bound="CallRun")

FULL_DISK = "the disk of the host is full"
RESTARTED = "the session was restarted"
ROOM = "make room there, or point root: to another file system"


_EVENTS_AFTER_S = 0.02
_FIRST_LOOK_S = 0.1


class CallJob(JobFolder):
    """A call as a job: its folder, and the session's spec without the limits that are the session's own."""

    def __init__(self, folder: str, spec: Spec) -> None:
        resources: SpecResources = {**spec["resources"], "memory_bytes": None, "time_s": None}
        unlimited: Spec = {**spec, "resources": resources, "stall_s": None, "quiet_s": None}
        super().__init__(folder, unlimited)
        # The scheduler knows only the session.
        self.scheduler = BareOnHost(self.scheduler.node_name())
        self._of_session: int | None = spec["resources"]["memory_bytes"]

    def of(self, folder: str) -> CallJob:
        """Return the job of another call: all that is costly to find out is the same for all of them."""
        job = copy.copy(self)
        job.folder = job.home = folder
        return job

    @property
    def asked_memory(self) -> int | None:
        """The session's: its calls ask for none."""
        return self._of_session

    def secrets(self) -> dict[str, str]:
        """Return those of the session, which are in its environment."""
        return {name: os.environ[name] for name in self.spec["secrets"] if name in os.environ}


class CallAttempt(RunnableAttempt):
    """The call's only attempt, as `AttemptRun` needs it. Most calls end before their events are worth a file.

    Args:
        work: The folder that is made for it to run in, below its own; "" for none.

    Attributes:
        actor_gone: Why its actor is gone after it; "" if that is not so.
        reserve: Disk space for its outcome, used only where there is no other.
    """

    def __init__(self, job: CallJob, report: Reporter, work: str = layout.WORK) -> None:
        self.folder = layout.attempt_dir(job.folder, 1)
        self._job = job
        self._report = report
        # This counts the events that are written.
        self._events = 0
        self._waiting: list[dict[str, Any]] = []
        self._due = 0.0
        self.actor_gone = ""
        self.reserve: publish.Reserve | None = None
        try:
            if work:
                os.mkdir(self.path(work), 0o700)
            else:
                os.stat(self.folder)
        except OSError:
            # An earlier start of the session has made it, or a function has removed the call's folder.
            os.makedirs(self.path(work), mode=0o700, exist_ok=True)

    def event(self, name: str, **facts: Any) -> None:
        self._due = self._due if self._waiting else time.monotonic() + _EVENTS_AFTER_S
        number = self._events + len(self._waiting) + 1
        self._waiting.append({**portable(facts), "n": number, "event": name, "t": round(time.time(), 3)})

    def tick(self) -> None:
        """Write the events that have waited long enough."""
        if time.monotonic() >= self._due:
            self.write_events()

    def write_events(self) -> None:
        if not self._waiting:
            return
        data = "".join(json.dumps(line) + "\n" for line in self._waiting).encode()
        self._events, self._waiting = self._events + len(self._waiting), []
        try:
            # The mode keeps the umask out of it: that is the user's own, and the function's process has it too.
            fd = os.open(self.path(layout.EVENTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            # The disk is full. Events are news and not the record.
            return
        try:
            data = data[: os.write(fd, data)]
        except OSError:  # as above
            return
        finally:
            os.close(fd)
        self._report("events", data)

    def report_output(self, name: str, data: bytes) -> None:
        """Say what the function has printed, and before it the events that wait."""
        self.write_events()
        self._report(name, data)

    def publish(self, verdict: Verdict) -> bool:
        outcome = document(self._job.id, 1, verdict)
        if self.actor_gone:
            outcome["actor_gone"] = self.actor_gone
        data = (json.dumps(outcome) + "\n").encode()
        self.tick()
        won = self.write_outcome(data)
        # The outcome says more than these events.
        self._waiting = []
        if won:
            self._report("end", data, size=(outcome.get("value") or {}).get("size") or 0)
        return won

    def write_outcome(self, data: bytes) -> bool:
        """Write it, as `publish.publish`."""
        try:
            return publish.publish(self.folder, layout.OUTCOME, data, sync=False)
        except OSError as error:
            # The function may have removed its folder.
            if error.errno not in (*layout.DISK_ERRORS, errno.ENOENT):
                raise
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        return publish.publish(self.folder, layout.OUTCOME, data, self.reserve, sync=False)

    def publish_without_run(self, verdict: Verdict) -> None:
        """Publish how a call ended that no process was started for."""
        self.publish(verdict.replace(stage=verdict.stage or "start", node=self._job.node, by="supervisor"))


class CallWatch(EndWatch):
    """What may end a call from outside: the request of its caller. Most calls end before the first look."""

    _what = "call"

    def __init__(self, job: CallJob, attempt: CallAttempt, signals: Signals) -> None:
        super().__init__(job, attempt, signals)
        self._next.update(cancel=time.monotonic() + _FIRST_LOOK_S, fence=time.monotonic() + _FIRST_LOOK_S)


class CallRun(AttemptRun):
    """The run of one call: its process is forked, with the modules that earlier calls needed, and not started by exec.

    Args:
        give: Gives the call to its process, and returns that.
        is_live: Whether a client hears what the call prints.

    Attributes:
        loaded: Top-level modules that it has loaded.
    """

    # Its folder goes with the session's.
    lists_files = False

    def __init__(
        self, job: CallJob, attempt: CallAttempt, watch: CallWatch, ahead: Ahead, give: Give, is_live: bool
    ) -> None:
        super().__init__(job, attempt, watch, late_output=True)
        self.processes.spared = ahead.pids
        self.loaded: list[str] = []
        self._ahead = ahead
        self._give = give
        self._call = attempt
        self._is_live = is_live

    def start(self) -> None:
        spec = self.job.spec
        # This comes first: while the process loads the call, the rest is made ready.
        self._attach(self._give())
        self.attempt.event("starting", node=self.job.node, pid=os.getpid())
        # The Python of the process runs already.
        self._on_line({"stage": "load"})
        gpus: int = spec["resources"]["gpus"]
        self._gpus = GpuUsageMonitor(monitored_gpus(None, gpus, given_gpus(os.environ)), self.notes)

    def _turn(self) -> None:
        super()._turn()
        self._call.tick()

    def _attach(self, child: WorkerProcess) -> None:
        super()._attach(child)
        if self._is_live:
            for pump, name in zip(self.pumps, (layout.STDOUT, layout.STDERR)):
                pump.on_kept = functools.partial(self._call.report_output, name)

    def _on_line(self, said: dict[str, Any]) -> None:
        super()._on_line(said)
        if "loaded" in said:
            # The function can write what it likes there.
            loaded = said["loaded"] if isinstance(said["loaded"], list) else []
            self.loaded = [name for name in loaded if isinstance(name, str)]

    def finish(self) -> None:
        """Give its threads and exit functions their time, then end what is left."""
        self._await_exit()
        # The process may have ended just after the last look.
        self._read_report()
        self.end_tree()


def is_withdrawn(folder: str) -> bool:
    """Whether the client has withdrawn a call before it was taken."""
    return os.path.islink(os.path.join(folder, layout.TAKEN))


def is_taken(folder: str) -> bool:
    """Whether a call was taken to be run."""
    return os.path.exists(os.path.join(folder, layout.TAKEN)) and not is_withdrawn(folder)


def take_call(attempt: CallAttempt, folder: str) -> bool:
    """Take a call to run it. False if it was withdrawn, or an earlier start of the session had it: publish that."""
    call, taken = os.path.join(folder, layout.CALL), os.path.join(folder, layout.TAKEN)
    try:
        try:
            # A folder would take ten times as long as a link.
            os.link(call, taken)
        except OSError:
            # The file system refuses the link, or the call is taken. In that case, this fails too.
            os.mkdir(taken, 0o700)
        if os.path.exists(call):
            return True
    except FileExistsError:
        pass
    try:
        if is_withdrawn(folder):
            withdrawn = Verdict(layout.CANCELLED, "the call was withdrawn before it started", stage="queue")
            attempt.publish_without_run(withdrawn)
        elif publish.read(attempt.folder, layout.OUTCOME) is None:
            attempt.publish_without_run(Verdict(layout.LOST, RESTARTED + " while the call ran", hint="call again"))
    except OSError as error:
        # On a full disk this can wait: the client knows it, or learns it at the end of the session.
        if error.errno not in layout.DISK_ERRORS:
            raise
    return False


def serve_call(
    job: CallJob, facts: Mapping[str, Any], signals: Signals, ahead: Ahead, report: Reporter, is_live: bool
) -> list[str] | None:
    """Run one call to its published end; the top-level modules that it loaded, None if it was not to be run.

    Args:
        signals: That wake this process when a child ends.
        report: Gets all that is written to the call's files.
        is_live: Whether that includes what it prints.
    """
    try:
        attempt = CallAttempt(job, report)
        if not take_call(attempt, job.folder):
            return None
        watch = CallWatch(job, attempt, signals)
        give = functools.partial(ahead.give, job.folder, attempt.folder, facts)
        work = prepare_run(attempt, ahead, lambda: CallRun(job, attempt, watch, ahead, give, is_live))
    except OSError as error:
        if error.errno not in layout.DISK_ERRORS:
            raise
        # Not even that can be written, and the server reports it.
        return None
    if work is None:
        return []
    verdict, alive = run_through(work)
    if verdict.kind is not None:
        work.publish(verdict)
    if alive:
        work.finish()
    work.release()
    work.close()
    return work.loaded


def prepare_run(attempt: CallAttempt, ahead: Ahead, make: Callable[[], Run]) -> Run | None:
    """Make what a run needs on the disk. None if the disk is full, which is published then."""
    try:
        attempt.reserve = ahead.reserve()
        return make()
    except OSError as error:
        if error.errno not in layout.DISK_ERRORS:
            raise
        attempt.publish_without_run(Verdict(layout.HOST_DISK, FULL_DISK, hint=ROOM))
        return None
