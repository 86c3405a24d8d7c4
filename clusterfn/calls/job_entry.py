"""How a job ends: its outcome becomes the value or error of its `Job`. A kept value is fetched later."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, FINAL, RETURNED, RUNNING, SHORT, STARTING, SUSPENDED, UNKNOWN
from clusterfn.bridge.supervisor.text import format_size, in_one_line
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.arriving import RECEIVING, Arriving
from clusterfn.calls.job_status import JobStatus
from clusterfn.display import console
from clusterfn.errors import Cancelled, ClusterfnError, HostError, ResultError, Unreachable
from clusterfn.hosts import exit_flush, remote_files
from clusterfn.hosts.transfer import Transfer

if TYPE_CHECKING:
    from clusterfn.calls.queue_tracker import JobBackend

# The result in place of a value that stays on the host.
ON_HOST: Any = object()
# What a job uses is a short line, and is not waited for longer than this.
_MOST_BYTES, _USAGE_S = 1 << 20, 5.0
# The bytes of output that a notebook shows.
_TAIL = 8192


class JobEntry(JobStatus):
    """One job: what is known of it, and how it ends.

    Attributes:
        published: Its outcome, as its host published it; empty until then.
        given: The caller's own path of each argument that is a file, by its path there.
        of_executor: Whether `cancel()` leaves it alone once it runs, as concurrent.futures has it.
        settling: Held while it ends.
        is_watched: Whether a notebook shows what it prints.
        tail: The end of that.
    """

    given: Mapping[str, PurePath] = {}
    # Patterns, and where the files that match them go.
    outputs: tuple[tuple[str, Path], ...] = ()
    published: Mapping[str, Any] = {}
    is_watched, of_executor, tail = False, False, b""

    def __init__(
        self, job_id: str, name: str, host: str, folder: str, tracker: JobBackend,
        future: concurrent.futures.Future[Any],
    ) -> None:  # fmt: skip
        super().__init__(job_id, name, host, folder, tracker, future)
        self.settling = threading.RLock()
        # The value that was kept on the host, once it was asked for.
        self._fetched: list[Any] = []

    def usage(self) -> Mapping[str, Any]:
        """Return what it has used, or, while it runs, what its supervisor on the host has written last."""
        if self.done() or self.state not in (STARTING, RUNNING, SUSPENDED):
            return self.published.get("usage") or {}
        out, connection = io.BytesIO(), self.tracker.connection
        try:
            # The thread that brings answers cannot wait for one.
            if not connection.link.answers_here():
                connection.get(self.tracker.log_path(layout.USAGE), out.write, until=_MOST_BYTES).result(_USAGE_S)
            # The supervisor overwrites the line, so the rest of a longer line may follow it.
            usage: Any = json.loads(out.getvalue().partition(b"\n")[0])
        except (ClusterfnError, ValueError, RecursionError):
            # Nothing has been measured yet, the file is being written, or the host does not answer soon.
            return {}
        return usage if isinstance(usage, dict) and outcome.is_usage(usage) else {}

    def fetch_when_done(self, patterns: Sequence[str]) -> None:
        """Fetch these files into the current working directory once the job has returned."""
        if patterns:
            to = Path.cwd()
            # The program may change its working directory before the job ends, so the folder is noted now.
            self.outputs = tuple((pattern, to) for pattern in patterns)

    def watch_output(self) -> None:
        """Receive the end of what it prints from now on."""
        if not self.is_watched:
            self.is_watched = True
            self.tracker.watch_output(self._keep_tail)

    def _keep_tail(self, stream: str, data: bytes) -> None:
        self.tail = (self.tail + data)[-_TAIL:]

    # its end

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        self._end_apart(lambda: self._settle(published, arriving))

    def _end_apart(self, end: Callable[[], None]) -> None:
        """Call what ends it in a thread of its own, unless it has ended.

        Loading a value runs the user's code, and callbacks may wait for the host, whose answers this thread brings.
        """

        def end_once() -> None:
            with self.settling:
                if not self.done():
                    end()

        exit_flush.run_in_thread(end_once, "clusterfn-ended")

    def _settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        """Load the value, or make the exception, and end it with that."""
        kind = FINAL.get(published["kind"], DIED)
        try:
            value = arriving.take() if arriving is not None else None
        except ResultError as no_room:
            self._raise(no_room, kind, no_room.message)
            return
        try:
            self._end_with(published, value)
        except BaseException as error:  # loading runs the user's code, which may raise anything
            # This is the outermost frame of its thread: those who wait must get an error.
            if self.done():
                raise
            refused = ResultError(
                f"the job has ended, but its result could not be received: {type(error).__name__}: {error}",
                host=self.host, job=self.id, stage="result",
                hint=f"it stays on the host: clusterfn.attach({self.id!r}).result()",
            )  # fmt: skip
            refused.__cause__ = error
            self._raise(refused, kind, "its result could not be received")

    def _end_with(self, published: Mapping[str, Any], value: bytearray | None) -> None:
        self.published = published
        if published["kind"] != layout.RETURNED:
            error = self._error_of(published, value)
            if published.get("checkpoint") and published["kind"] == layout.RAISED:
                self.tell("note", f"{self.id[:SHORT]} failed; {outcome_errors.how_to_resume(self.id)}")
            self._raise(error, FINAL.get(published["kind"], DIED), published.get("message") or "")
            return
        try:
            result = self._arrived(value)
        except ResultError as unloadable:
            self._raise(unloadable, RETURNED, unloadable.message)
            return
        for pattern, to in self.outputs:
            try:
                connection, folder = self.tracker.connection, self.tracker.work_folder
                remote_files.fetch(connection, folder, pattern, to, on_transfer=self.show_transfer)
            except (ClusterfnError, OSError) as failed:
                self._say(remote_files.not_fetched(failed, pattern, self.id))
        for note in published.get("notes") or ():
            # The outcome repeats notes that came as events while the job ran.
            if note not in self._shown_notes:
                self.tell("note", note)
        if published.get("left"):
            self.tell("note", remote_files.left_behind(published["left"], self.host, self.id))
        self.finish(RETURNED, self._what_is_kept() if result is ON_HOST else "", lambda job: job.set_result(result))

    def _error_of(self, published: Mapping[str, Any], value: bytearray | None) -> BaseException:
        """Return the error of a job that has not returned; its exception is fetched if it has not come."""
        place = self._place()
        unread = place.results.data_only or outcome.is_too_large(published, place.results)
        if (self.tracker.is_fetched_apart or value is None) and published.get("value") and not unread:
            # The exception's value may be gone; the outcome also has its traceback as text.
            with contextlib.suppress(ResultError):
                value = self._fetch_value()
        return outcome_errors.exception_of(published, value, place)

    def _place(self) -> outcome.JobLocation:
        return outcome.JobLocation(self.host, self.id, self.folder, self.tracker.results)

    def _arrived(self, value: bytearray | None) -> Any:
        """Return the value of a job that has returned, unless it stays on the host."""
        if self.tracker.keeps or outcome.is_too_large(self.published, self.tracker.results):
            return ON_HOST
        return self._load(self._fetch_value() if self.tracker.is_fetched_apart or value is None else value)

    def _what_is_kept(self) -> str:
        large = outcome.too_large(self.published, self._place())
        return f"its value{f', {format_size(large.size_bytes)},' if large else ''} is on {self.host}"

    def _load(self, value: bytearray | None) -> Any:
        return outcome.value_of(self.published, value, self._place(), self.given)

    def _fetch_value(self, timeout: float | None = None) -> bytearray | None:
        """Fetch the value, or the exception, which the host has kept.

        Raises:
            ResultError: It is no longer there, or does not fit into memory.
            HostError: The host does not answer.
            TimeoutError: It has not come within `timeout` seconds.
        """
        arriving = Arriving(self._place())
        arriving.expect(self.published)
        receiving = self.tracker.connection.get(self.tracker.log_path(layout.VALUE), arriving.write)
        self.show_transfer(Transfer(RECEIVING, [receiving]))
        try:
            receiving.result(timeout)
        except Unreachable:
            if receiving.done():
                raise
            receiving.cancel()
            raise concurrent.futures.TimeoutError(f"the value has not come within {timeout} s") from None
        except HostError as error:
            if error.kind != "missing":
                raise
            raise ResultError(
                "the value is not on the host any more", host=self.host, job=self.id, stage="result",
                hint="it was removed, or was there for longer than the host's `keep:`; call the function again",
            ) from None  # fmt: skip
        except BaseException:  # a handler of a signal may raise anything
            # After Ctrl-C the rest of the value would come all the same.
            receiving.cancel()
            raise
        return arriving.value

    def fetch(self, timeout: float | None, most: int | None) -> Any:
        """Fetch the value that was kept on the host, once; a large one only if the user wants it."""
        with self.settling:
            if not self._fetched:
                place = self._place()
                place = place._replace(results=place.results._replace(max_bytes=most)) if most else place
                # The size is known from the outcome, so the user is asked before anything is fetched.
                large = outcome.too_large(self.published, place)
                if large is not None:
                    size = format_size(large.size_bytes)
                    if not console.agrees(f"Fetch {size}, the value of {self.name} ({self.id[:SHORT]})?", self.host):
                        raise large
                self._fetched = [self._load(self._fetch_value(timeout))]
                self._step(RETURNED, "")
            return self._fetched[0]

    def lose(self, error: ClusterfnError) -> None:
        self._fail_as(error, UNKNOWN)

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        self._fail_as(error, FINAL.get(kind, DIED))

    def _fail_as(self, error: ClusterfnError, state: str) -> None:
        state = CANCELLED if isinstance(error, Cancelled) else state
        self._end_apart(lambda: self._raise(error, state, error.message))

    def _raise(self, error: BaseException, state: str, reason: str) -> None:
        self.finish(state, reason.partition("\n")[0], lambda job: job.set_exception(error))

    def finish(self, state: str, reason: str, end: Callable[[concurrent.futures.Future[Any]], None]) -> None:
        """End it in this state; `end` ends its future, of which this then keeps no more."""
        future = self._future
        assert future is not None
        self._step(state, reason)
        self._begin(future)
        end(future)
        # Displays and lists may keep this entry, which must not keep the value with it.
        self._future = None
        self.tell("done", None)

    def _say(self, line: str) -> None:
        """Print a sentence of ours; if a display shows the job, after what the function has printed."""
        if self.is_shown:
            self.tell("note", line)
        else:
            console.warn(in_one_line(line))
