"""A job as its user sees it: a concurrent.futures.Future that can be awaited, with an id, a status, logs and files.

Asks its `JobBackend`, which reports what happens on the host.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import posixpath
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import (
    CANCELLED,
    DIED,
    FINAL,
    NO_SILENCE,
    PENDING,
    RETURNED,
    RUNNING,
    SHORT,
    STARTING,
    UNKNOWN,
    in_words,
    seen_state,
)
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import console, files, outcome, remote_state
from clusterfn.calls.dependencies import ArgumentSource, JobPart, Reference
from clusterfn.calls.notebook_display import NotebookDisplay
from clusterfn.calls.summary import Summary, describe_request, describe_usage
from clusterfn.config.units import parse_memory, shown_memory
from clusterfn.errors import Cancelled, ClusterfnError, DependencyFailed, HostError, ResultError
from clusterfn.hosts import exit_flush, remote_files, spoken_wait
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.config.spec import Resources, ResultPolicy
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.landing import Value
    from clusterfn.hosts.transfer import Transfer

R = TypeVar("R")

_MOMENT_S, _ANSWER_S = 5.0, 30.0  # for an answer, where the job seems not to have begun, and where it has
_SOON_S = 2.0  # for the outcome of a failed job whose dependents have failed already
_TAIL = 8192  # bytes of output that a notebook shows
_OUTPUT = (layout.STDOUT, layout.STDERR)
_STREAMS = (*_OUTPUT, "scheduler")
_FOR_THE_LIBRARY = {
    "tell", "listen", "unlisten", "fetch_when_done", "on_interrupt", "is_silent", "is_stopping", "on_begun",
    "on_connection", "on_limited", "on_lost", "on_outcome", "on_output", "on_quiet", "on_refused", "on_retry",
    "on_silent", "on_state", "on_transfer", "transfer", "moving", "given", "asked", "sent_here", "inputs", "takers",
    "waits_here", "unanswered",
}  # fmt: skip

_ON_HOST: Any = object()  # instead of a value that is kept there

Listener = Callable[[str, Any], None]


class JobBackend(Protocol):
    """What a `Job` asks of whatever follows it on its host: a `Tracker`."""

    @property
    def connection(self) -> HostConnection:
        """The connection to the job's host."""

    @property
    def work_folder(self) -> str:
        """The folder in which the function runs."""

    def log_path(self, stream: str) -> str:
        """Return the file of stdout, stderr or the scheduler."""

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""

    def stop(self, on_left: Callable[[str], object]) -> None:
        """Withdraw the job, or end it with its whole process tree; `on_left` takes the names of processes that stay."""

    def show(self, job: Job[R]) -> R:
        """Show the job until it has ended: what it prints, and why it waits; return its value."""

    def open_requests(self) -> Sequence[Reply[Any]]:
        """Return the requests after which its folder is on the host, and its scheduler knows it."""

    def unanswered(self, since: float) -> str:
        """Say who has not taken it yet, if it was sent longer ago than a moment; "" otherwise."""

    @property
    def keeps(self) -> bool:
        """Whether the value stays on the host until `fetch_value` asks for it."""

    @property
    def results(self) -> ResultPolicy:
        """What is accepted of its value."""

    @property
    def is_fetched_apart(self) -> bool:
        """Whether its value comes only when its outcome is known."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether the host does not have all of the call yet."""

    @property
    def waits_here(self) -> bool:
        """Whether it waits in this program until its scheduler takes it."""

    def fetch_value(self, job: Job[Any], told: Mapping[str, Any], timeout: float | None = None) -> Value | None:
        """Fetch the value that the host has kept."""

    def remove(self) -> None:
        """Remove the job from the host, with its value and its files."""

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> None:
        """Give what the present attempt prints, and later ones, to `on_output`, with the stream's name."""


class Job(concurrent.futures.Future[R], ArgumentSource, NotebookDisplay):
    """One call on a host.

    As an argument of another call on that host it means its value, which stays there; `job["loss"]` means a part of it.

    Everything of concurrent.futures.Future holds: `result(timeout)`, `exception()`, `done()`, callbacks, `wait`,
    `as_completed`. Waiting with a timeout, or giving up waiting, never touches the job. `await job` works.

    Attributes:
        id: 16 hex digits; four are enough where they are unambiguous.
        name: The function's name.
        host: The host's name.
        folder: The job's folder on the host.
        since: When it came into its state, in seconds since 1970; None if that is not known.
    """

    _as_argument = "pass the value of that job: job.result()"
    # What hardly any job changes. Up to 30 attributes of its own take a fifth of the memory that more take (PEP 412).
    sent_here, is_stopping, on_interrupt, _trouble = True, False, "detach", ""
    _silence = NO_SILENCE

    def __init__(self, job_id: str, name: str, host: str, folder: str, tracker: JobBackend) -> None:
        super().__init__()
        self.id = job_id
        self.name = name
        self.host = host
        self.folder = folder
        self.submitted_at = time.monotonic()
        self.asked: Resources | None = None
        self._tracker = tracker
        self._outputs: tuple[tuple[str, Path], ...] = ()  # patterns, and where their files go
        self._outcome: Mapping[str, Any] = {}
        self._listeners: list[Listener] = []
        self._shown_notes: set[str] = set()
        self._unheard: list[tuple[str, Any]] = []
        self.transfer: Transfer | None = None
        self.given: Mapping[str, PurePath] = {}  # path of an argument there -> here
        self.inputs: Mapping[str, ArgumentSource] = {}  # the jobs whose values it takes, by id
        self._takers: weakref.WeakSet[Job[Any]] | None = None
        self._fetched: list[R] = []  # the value that was kept on the host, once it was asked for
        self._lock = threading.Lock()
        self._settling = threading.RLock()
        self._pid = os.getpid()
        self._is_watched = False
        self._tail = b""
        self._now: tuple[str, str] = (PENDING, "")
        self.since: float | None = time.time()

    # what a user asks

    @property
    def state(self) -> str:
        """PENDING, STARTING, RUNNING, SUSPENDED, RETURNED, RAISED, DIED, CANCELLED or UNKNOWN."""
        return self._seen()[0]

    @property
    def reason(self) -> str:
        """Why it is in that state, or why nothing is received of it, if there is something to say."""
        if self.done():
            return self._now[1]
        return self._trouble or self.moving or self._seen()[1] or self.unanswered

    @property
    def unanswered(self) -> str:
        """Who has not taken it yet, if it was sent some seconds ago; "" otherwise."""
        waits = self._now[0] == PENDING and not self.done()
        return self._tracker.unanswered(self.submitted_at) if waits else ""

    def _seen(self) -> tuple[str, str]:
        """Return state and reason, as far as its heartbeat lets them be believed."""
        return self._now if self.done() else seen_state(*self._now, self._silence.lasts_s)

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from it, though it has begun and not ended."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def takers(self) -> weakref.WeakSet[Job[Any]]:
        """The calls of this program that take its value."""
        if self._takers is None:
            self._takers = weakref.WeakSet()
        return self._takers

    @property
    def waits_here(self) -> bool:
        """Whether it waits in this program until its scheduler takes it."""
        return not self.done() and self._tracker.waits_here

    @property
    def moving(self) -> str:
        """How far files of it are on their way; "" where none are, or too few for a word."""
        return self.transfer.in_words() if self.transfer is not None else ""

    @property
    def status(self) -> str:
        """State and reason in one line, such as "PENDING (waiting for its turn)"."""
        return in_words(self.state, self.reason, None)

    @property
    def status_since(self) -> str:
        """The same, and since when: "RUNNING since 14:03:11 (node7)"."""
        return in_words(self.state, self.reason, self.since)

    @property
    def usage(self) -> Mapping[str, Any]:
        """What it used: wall_s, cpu_s, peak_memory_bytes, and gpus, a dict for each GPU. Empty until it has ended."""
        usage: Mapping[str, Any] = self._outcome.get("usage") or {}
        return usage

    @property
    def notes(self) -> Sequence[str]:
        """What was noticed apart from the outcome: attempts before the last, processes that were left behind, …"""
        return (*(self._outcome.get("earlier") or ()), *(self._outcome.get("notes") or ()))

    @property
    @public_api
    def files(self) -> list[remote_files.RemoteFile]:
        """The files that the function has left in its folder; none if it has not begun."""
        try:
            return remote_files.list_files(self._tracker.connection, self._tracker.work_folder)
        except HostError as error:
            if error.kind != "missing":
                raise
        if self.state in (PENDING, STARTING):
            return []
        return remote_files.list_files(self._tracker.connection, self._tracker.work_folder)  # it has begun meanwhile

    @public_api
    def logs(self, stream: str = "stdout") -> str:
        """Return what the function has printed so far.

        Args:
            stream: "stdout", "stderr", or "scheduler" for what the scheduler and the supervisor said.

        Returns:
            The text; "" if nothing was printed yet.

        Raises:
            ValueError: There is no such stream.
        """
        if stream not in _STREAMS:
            raise ValueError(f"{stream!r}: a job has {', '.join(_STREAMS)}")
        return remote_files.read_text(self._tracker.connection, self._tracker.log_path(stream))

    @public_api
    def follow(self) -> R:
        """Show why the job waits and what it prints, from its beginning, until it ends; return its value.

        Shows what a plain call shows. After Ctrl-C the job continues, unless it has `on_interrupt="stop"`.

        Raises:
            KeyboardInterrupt: After Ctrl-C.
            Exception: As `result`.

        Example:
            >>> job = train.submit(1e-3)
            >>> job.follow()
        """
        return self._tracker.show(self) if os.getpid() == self._pid else self.result()

    @public_api
    def download(self, pattern: str = "*", to: str | Path = ".") -> list[Path]:
        """Fetch files that the function left in its folder.

        Args:
            pattern: Which, such as "*.pt" or "plots/*.png"; "**/*" for all below.
            to: Folder here; it is made if need be.

        Returns:
            The paths of the files here.

        Raises:
            ClusterfnError: Nothing there has such a name; the message lists what there is. Or the job has not begun.
        """
        try:
            return remote_files.fetch(self._tracker.connection, self._tracker.work_folder, pattern, Path(to))
        except HostError:
            if self.state not in (PENDING, STARTING):
                raise
        message = f"it has left no files yet: it is {self.status}"
        raise HostError(message, host=self.host, job=self.id, hint="wait for it with job.result(), then download")

    @property
    @public_api
    def checkpoint(self) -> remote_files.CheckpointFolder:
        """What the function has saved in `clusterfn.checkpoint()`: `job.checkpoint.files`, `job.checkpoint.download()`.

        It can be read while the job runs, and after it has failed, as long as the job is on the host.
        """
        folder = posixpath.join(self.folder, layout.CHECKPOINT)
        return remote_files.CheckpointFolder(self._tracker.connection, folder, "job.checkpoint")

    @public_api
    def stack(self) -> str:
        """Where the job is now: the stack of every thread of its Python processes. The job continues.

        Returns:
            The text, with the lines of your files where they are known.

        Raises:
            ClusterfnError: The job does not run, or does not answer.
        """
        said = remote_state.request_stack_dump(
            self._tracker.connection,
            self.folder,
            lambda waited_s: not self.done() and waited_s < (_MOMENT_S if self.state == PENDING else _ANSWER_S),
        )
        if said is None:
            not_now = self.done() or self.state == PENDING
            raise ClusterfnError(
                f"there are no stacks of job {self.id}: it is {self.status}", host=self.host, job=self.id,
                hint="ask while it is running" if not_now else "try again; then check its machine",
            )  # fmt: skip
        return said

    @public_api
    def stop(self) -> None:
        """End the job and every process of it, whether it waits or runs. Its result then raises `Cancelled`."""
        if not self.done():
            self._tracker.stop(lambda left: self.on_state(self.state, left))
            self.is_stopping = True

    @public_api
    def cancel(self) -> bool:
        """Withdraw the job if it has not started, as concurrent.futures has it; `stop()` ends a running one.

        Returns:
            Whether it was withdrawn. False means that it runs or has ended.
        """
        if self.done() or self.running():
            return self.cancelled()
        with self._settling:  # the outcome of our own withdrawal comes back too, and must find the job cancelled
            if self.done() or not self._withdraw() or not super().cancel():
                return self.cancelled()
            self.set_running_or_notify_cancel()
        self._set_state(CANCELLED, "withdrawn before it started")
        self.tell("done", None)  # for `follow` in another thread
        return True

    def _withdraw(self) -> bool:
        tracker, withdrawn = None, False
        while tracker is not self._tracker:  # a call of a session may have been moved to another one meanwhile
            tracker = self._tracker
            withdrawn = tracker.withdraw()
        return withdrawn

    @public_api
    def result(self, timeout: float | None = None, *, max_result: str | None = None) -> R:
        """The value, waiting for it; see concurrent.futures.Future.

        Args:
            timeout: Seconds; None for as long as it takes.
            max_result: Size with a unit, "8GB": fetch a value up to this size without asking.

        Raises:
            TimeoutError: It has not ended within `timeout` seconds; it continues.
            ResultTooLarge: The value is larger than `max_result`, and there is no terminal to ask on.
            RuntimeError: This is a forked child of the process that submitted it, which receives nothing of the job.
            Exception: What the function raised, or one of `clusterfn.errors`.
        """
        if os.getpid() != self._pid and not self.done():
            raise RuntimeError(
                f"job {self.id} was submitted by another process: clusterfn.attach({self.id!r}).result()"
            )
        began, most = time.monotonic(), None if max_result is None else parse_memory(max_result, "max_result")
        try:
            value = self._await_value(timeout)
        except concurrent.futures.TimeoutError as error:
            if self.done():  # the function's own
                raise
            raise type(error)(f"{self.id} on {self.host} has not ended within {timeout:g} s; it continues") from None
        if value is not _ON_HOST:
            return value
        return self._fetch(None if timeout is None else max(0.0, began + timeout - time.monotonic()), most)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` raises, or None, as `concurrent.futures.Future.exception`."""
        return super().exception(self._await_end(timeout))

    def _await_value(self, timeout: float | None) -> R:
        return super().result(self._await_end(timeout))

    def _await_end(self, timeout: float | None) -> float | None:
        """Wait as a Future does, and say what for unless a display shows that; return what is left of `timeout`."""
        began = time.monotonic()
        if not self._listeners:
            spoken_wait.wait_for([self], self._waits, timeout)
        return None if timeout is None else max(0.0, began + timeout - time.monotonic())

    def _waits(self) -> str:
        return f"{self.id} {self.name} on {self.host} is {self.status_since}; waiting for it"

    @public_api
    def remove(self) -> None:
        """Remove the job, which has ended, from the host with its value and its files.

        Hosts do this by themselves once a job has been there for longer than their `keep:`.

        Raises:
            ClusterfnError: It has not ended, or another job needs its value.
        """
        for each in self.takers:  # the host knows of the others
            if not each.done() and each._tracker.is_on_its_way:
                why = f"{each.id[:SHORT]} takes its value, and has not been sent yet"
                raise ClusterfnError(
                    f"{self.name} was not removed: {why}", host=self.host, job=self.id,
                    hint="remove it once that call has returned",
                )  # fmt: skip
        self._tracker.remove()

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # here: it costs every other call a seventh of the library's own import

        if self._tracker.is_fetched_apart:
            return self._fetched_later().__await__()
        return asyncio.shield(asyncio.wrap_future(self)).__await__()

    async def _fetched_later(self) -> R:
        """Wait for the end without a thread, and then fetch the value in one: it must not stop the event loop."""
        import asyncio  # as above

        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.add_done_callback(lambda _: ended.set_result(None))
        await asyncio.shield(asyncio.wrap_future(ended))
        return await asyncio.get_running_loop().run_in_executor(None, self.result)

    def __dir__(self) -> list[str]:
        """What a user may call."""
        return sorted({*super().__dir__()} - _FOR_THE_LIBRARY)

    def __getitem__(self, key: Any) -> JobPart:
        """Return what means this part of its value, as an argument of another call."""
        return JobPart(self.as_reference())[key]

    # With __getitem__ alone, `list(job)` and `x in job` would never end.
    __iter__ = None
    __contains__ = None

    def as_reference(self) -> Reference:
        return Reference(self, self.id, self.name, self.host, self.folder)

    def has_ended(self) -> bool:
        return self.done()

    def value_here(self, item: int | None, timeout: float | None = None) -> Any:
        return self.result(timeout)

    def await_end(self) -> None:
        spoken_wait.wait_for([self], self._waits)

    def open_requests(self) -> Sequence[Reply[Any]]:
        return self._tracker.open_requests() if os.getpid() == self._pid else ()

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"this is the Job {self.id} itself, which belongs to this process, and not its value")

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name} on {self.host}: {self.status}>"

    def _summary(self) -> Summary:
        waited_s = time.monotonic() - self.submitted_at if self.sent_here else None
        return Summary(
            f"{self.name} on {self.host}", self.id, self.state, self.reason,
            elapsed_s=self.usage.get("wall_s") if self.done() else waited_s,
            lines=[*describe_request(self.asked), *describe_usage(self.usage)],
            output=self._tail, is_final=self.done(),
        )  # fmt: skip

    def _watch_output(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._tracker.watch_output(self._keep_tail)

    def _keep_tail(self, stream: str, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL:]

    # what the tracker reports; `listen` is for displays

    def listen(self, listener: Listener) -> None:
        """Call `listener(kind, what)` at every change: "state" with it, "stdout" and "stderr" with bytes, "done".

        "note" comes with a sentence of ours.
        "connection" comes with why the host is not connected, and with "" once it is again.
        """
        with self._lock:
            self._listeners.append(listener)
            unheard, self._unheard = self._unheard, []
        for kind, what in unheard:
            listener(kind, what)
        if self.done():
            listener("done", None)

    def unlisten(self, listener: Listener) -> None:
        """Call it no longer."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def tell(self, kind: str, what: Any) -> None:
        """Pass it on to the listeners; the first one also gets what was printed before."""
        with self._lock:
            listeners = list(self._listeners)
            if not listeners and kind in _OUTPUT:
                self._unheard.append((kind, what))
        for listener in listeners:
            listener(kind, what)

    def on_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Take the job's new state, and since when it is in it; now if that is not given."""
        if self.done():
            return
        if state == UNKNOWN:  # what it is for want of a heartbeat
            state = self._now[0]
        if state in (STARTING, RUNNING) and not self.running():
            self.set_running_or_notify_cancel()
        self._set_state(state, reason, since)

    def on_silent(self) -> None:
        """Take note that no heartbeat has come for `SILENT_AFTER_S`; that is said again while it lasts."""
        self._silence = self._silence.noticed()
        self.tell("state", self.state)

    def on_transfer(self, transfer: Transfer) -> None:
        """Take the transfer of files that are being sent or received."""
        self.transfer = transfer
        self.tell("state", self.state)

    def on_output(self, stream: str, data: bytes) -> None:
        """Take what the function has printed."""
        self.on_begun(data)
        self.tell(stream, data)

    def on_begun(self, data: bytes) -> None:
        """Note that it has begun: its first output may arrive before the event that says so."""
        if data and self.state == PENDING:
            self.on_state(STARTING)

    def on_quiet(self, told: str, item: str = "") -> None:
        """Take, in words, that it has made no progress for long; "" once it makes progress again."""
        where = f"{told}: clusterfn stack {self.id[:SHORT]} shows where it waits" if told else ""
        if where and self._listeners:
            self._say(f"{self.id[:SHORT]} has {where}")
        self.on_state(self.state, where)

    def on_limited(self, told: str) -> None:
        """Show that it has less than it asked for; its outcome has the same note."""
        self._shown_notes.add(told)
        if self._listeners:
            self._say(told)

    def on_retry(self, told: str) -> None:
        """Show that an attempt failed for a transient cause, and another begins."""
        if self._listeners:
            self._say(told)
        self.on_state(STARTING, told)

    def on_connection(self, trouble: str) -> None:
        """Take why nothing is received from the host; "" while it is connected. The state stays as it is."""
        if trouble != self._trouble:
            self._trouble = trouble
            self.tell("connection", trouble)

    def on_outcome(self, published: Mapping[str, Any], value: Value | None) -> None:
        """Take the final outcome, in a thread of its own: loading a value runs code of the user's."""
        with self._settling:
            if self.done():
                return
            try:
                self._settle(published, value)
            except BaseException as error:  # its thread's outermost frame: those who wait must get an error
                if self.done():
                    raise
                refused = ResultError(
                    f"the job has ended, but its result could not be received: {type(error).__name__}: {error}",
                    host=self.host, job=self.id, stage="result",
                    hint=f"it stays on the host: clusterfn.attach({self.id!r}).result()",
                )  # fmt: skip
                refused.__cause__ = error
                self._fail(refused, FINAL.get(published["kind"], DIED), "its result could not be received")

    def _settle(self, published: Mapping[str, Any], value: Value | None) -> None:
        self._outcome = published
        place = self._place()
        if published["kind"] != layout.RETURNED:
            unread = place.results.data_only or outcome.is_too_large(published, place.results)
            if (self._tracker.is_fetched_apart or value is None) and published.get("value") and not unread:
                with contextlib.suppress(ResultError):  # it is gone, and the outcome has the traceback as text
                    value = self._tracker.fetch_value(self, published)
            error = outcome.exception_of(published, value, place)
            if isinstance(error, DependencyFailed):
                failed = self.inputs.get((published.get("cause") or {}).get("job") or "")
                if isinstance(failed, Job):
                    concurrent.futures.wait([failed], _SOON_S)  # its own outcome may come a moment later
                    if failed.done() and not failed.cancelled():
                        error.__cause__ = failed.exception() or error.__cause__
            if published.get("checkpoint") and published["kind"] == layout.RAISED and self._listeners:
                self._say(f"{self.id[:SHORT]} failed; {outcome.how_to_resume(self.id)}")
            self._fail(error, FINAL.get(published["kind"], DIED), published.get("message") or "")
            return
        try:
            result = self._arrived(value)
        except ResultError as unloadable:
            self._fail(unloadable, RETURNED, unloadable.message)
            return
        for pattern, to in self._outputs:
            try:
                connection, folder = self._tracker.connection, self._tracker.work_folder
                remote_files.fetch(connection, folder, pattern, to, on_transfer=self.on_transfer)
            except (ClusterfnError, OSError) as failed:
                self._say(remote_files.not_fetched(failed, pattern, self.id))
        for note in self._outcome.get("notes") or () if self._listeners else ():
            if note not in self._shown_notes:
                self._say(note)
        if self._listeners and published.get("left"):
            self._say(remote_files.left_behind(published["left"], self.host))
        self._set_state(RETURNED, self._what_is_kept() if result is _ON_HOST else "")
        self._finish(lambda: self.set_result(result))

    def _place(self) -> outcome.JobLocation:
        return outcome.JobLocation(self.host, self.id, self.folder, self._tracker.results)

    def _arrived(self, value: Value | None) -> Any:
        """Return the value of a job that has returned, unless it stays on the host."""
        if self._tracker.keeps or outcome.is_too_large(self._outcome, self._tracker.results):
            return _ON_HOST
        is_apart = self._tracker.is_fetched_apart or value is None
        return self._load(self._tracker.fetch_value(self, self._outcome) if is_apart else value)

    def _what_is_kept(self) -> str:
        large = outcome.too_large(self._outcome, self._place())
        return f"its value{f', {shown_memory(large.size_bytes)},' if large else ''} is on {self.host}"

    def _load(self, value: Value | None) -> Any:
        result = outcome.value_of(self._outcome, value, self._place())
        return files.as_given(result, self.given) if self.given else result

    def _fetch(self, timeout: float | None, most: int | None) -> R:
        """Fetch the value that was kept on the host, once; a large one only if the user wants it."""
        with self._settling:
            if not self._fetched:
                place = self._place()
                place = place._replace(results=place.results._replace(max_bytes=most)) if most else place
                large = outcome.too_large(self._outcome, place)
                if large is not None:
                    size = shown_memory(large.size_bytes)
                    if not console.agrees(f"Fetch {size}, the value of {self.name} ({self.id[:SHORT]})?", self.host):
                        raise large
                self._fetched = [self._load(self._tracker.fetch_value(self, self._outcome, timeout))]
                self._set_state(RETURNED, "")
            return self._fetched[0]

    def on_lost(self, error: ClusterfnError) -> None:
        """Take the error after which nothing more can be received; the job itself may continue."""
        self._end_apart(error, UNKNOWN)

    def on_refused(self, error: ClusterfnError, kind: str = "") -> None:
        """Take the error of a job that was not accepted, or whose outcome cannot be read.

        `kind`: of the outcome, if only the value cannot be received, for example because it does not fit here.
        """
        self._end_apart(error, FINAL.get(kind, DIED))

    def _end_apart(self, error: ClusterfnError, state: str) -> None:
        """Fail it in a thread of its own: callbacks may wait for the host, whose answers this thread reads."""

        def end() -> None:
            with self._settling:
                if not self.done():
                    self._fail(error, CANCELLED if isinstance(error, Cancelled) else state, error.message)

        exit_flush.run_in_thread(end, "clusterfn-ended")

    def _fail(self, error: BaseException, state: str, reason: str) -> None:
        self._set_state(state, reason.partition("\n")[0])
        self._finish(lambda: self.set_exception(error))

    def _finish(self, settle: Callable[[], None]) -> None:
        self.inputs = {}  # they hold values
        if not self.running():
            self.set_running_or_notify_cancel()
        settle()
        self.tell("done", None)

    def _set_state(self, state: str, reason: str, since: float | None = None) -> None:
        if state != self._now[0] or since is not None:
            self.since = since or time.time()
        self._now = (state, in_one_line(reason))
        self.tell("state", state)

    def fetch_when_done(self, patterns: Sequence[str]) -> None:
        """Fetch these files into the current working directory once the job has returned."""
        to = Path.cwd()
        self._outputs = tuple((pattern, to) for pattern in patterns)

    def _say(self, line: str) -> None:
        """Print a sentence of ours; if a display shows the job, after what the function has printed."""
        line = in_one_line(line)
        if self._listeners:
            self.tell("note", line)
        else:
            console.warn(line)


def describe_open_jobs(jobs: Sequence[concurrent.futures.Future[Any]]) -> str:
    """Say how many of these jobs have not ended, and what the first one waits for."""
    left = [job for job in jobs if isinstance(job, Job) and not job.done()]
    if not left:
        return "waiting for the last job to end"
    return f"waiting for {len(left)} of {len(jobs)} jobs: {left[0].id} on {left[0].host} is {left[0].status_since}"
