"""A job as its user sees it: a concurrent.futures.Future that can be awaited, with an id, a status, logs and files.

Has only names that a user may call; the rest is in its `job_run.JobRun`, which `run_of` gives.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
import posixpath
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, PENDING, RUNNING, SHORT, STARTING, SUSPENDED
from clusterfn.calls import job_display, remote_state, settling
from clusterfn.calls.job_run import JobRun
from clusterfn.config.units import parse_memory
from clusterfn.display import console
from clusterfn.display.notebook import NotebookDisplay
from clusterfn.errors import ClusterfnError, ConfigError, HostError
from clusterfn.hosts import remote_files, spoken_wait
from clusterfn.packing.dependencies import ArgumentSource, JobArgument, JobPart, Reference, reference_of
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.calls.following import AgentSource
    from clusterfn.hosts.connection import Reply

R = TypeVar("R")

# The time for an answer where the job seems not to have begun, and where it has begun.
_MOMENT_S, _ANSWER_S = 5.0, 30.0
# The bytes of output that a notebook shows.
_TAIL = 8192
_KEEPS_RUNNING = "cancel() leaves a running future of an Executor alone, as in concurrent.futures: stop() ends it"
_STREAMS = (layout.STDOUT, layout.STDERR, "scheduler")


class Job(concurrent.futures.Future[R], JobArgument, NotebookDisplay):
    """One call on a host.

    As an argument of another call on that host it means its value, which stays there; `job["loss"]` means a part of it.

    Everything of concurrent.futures.Future holds: `result(timeout)`, `exception()`, `done()`, callbacks, `wait`,
    `as_completed`. Waiting with a timeout, or giving up waiting, never touches the job. `await job` works.

    Attributes:
        id: 16 hex digits; four are enough where they are unambiguous.
        name: The function's name.
        host: The host's name.
        folder: The job's folder on the host.
    """

    _as_argument = "pass the value of that job: job.result()"

    def __init__(self, run: JobRun, source: AgentSource) -> None:
        super().__init__()
        self.id, self.name, self.host, self.folder = run.id, run.name, run.host, run.folder
        self._run, self._source = run, source
        run.future, run.end = self, settling.end
        self._pid = os.getpid()

    @property
    def state(self) -> str:
        """PENDING, STARTING, RUNNING, SUSPENDED, RETURNED, RAISED, DIED, CANCELLED or UNKNOWN."""
        return self._run.state

    @property
    def reason(self) -> str:
        """Why it is in that state, or why nothing is received of it, if there is something to say."""
        return self._run.reason

    @property
    def status(self) -> str:
        """State and reason in one line, such as "PENDING (waiting for its turn)"."""
        return self._run.status

    @property
    def since(self) -> float | None:
        """When it came into its state, in seconds since 1970; None if that is not known."""
        return self._run.since

    @property
    def status_since(self) -> str:
        """The same, and since when: "RUNNING since 14:03:11 (node7)"."""
        return self._run.status_since

    @property
    @public_api
    def usage(self) -> Mapping[str, Any]:
        """What it has used: wall_s, cpu_s, peak_memory_bytes, and gpus, a dict for each GPU.

        While it runs, this asks its host, and `now` says what it uses at the moment. Empty before it runs.
        """
        if self.done() or self.state not in (STARTING, RUNNING, SUSPENDED):
            return self._run.published.get("usage") or {}
        return remote_state.read_usage(self._run.at.connection, self._run.at.log_path(layout.USAGE))

    @property
    def notes(self) -> Sequence[str]:
        """What was noticed apart from the outcome: attempts before the last, processes that were left behind, …"""
        outcome = self._run.published
        return (*(outcome.get("earlier") or ()), *(outcome.get("notes") or ()))

    @property
    @public_api
    def files(self) -> list[remote_files.RemoteFile]:
        """The files that the function has left in its folder; none if it has not begun."""
        at = self._run.at
        try:
            return remote_files.list_files(at.connection, at.work_folder)
        except HostError as error:
            if error.kind != "missing":
                raise
        # The job may have begun in the meantime.
        return [] if self.state in (PENDING, STARTING) else remote_files.list_files(at.connection, at.work_folder)

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
        return remote_files.read_text(self._run.at.connection, self._run.at.log_path(stream))

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
        if os.getpid() != self._pid:
            return self.result()
        return shown_to_end(self, f"{self.name} on {self.host}", self._run.on_interrupt)

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
        at = self._run.at
        try:
            return remote_files.fetch(at.connection, at.work_folder, pattern, Path(to))
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
        return remote_files.CheckpointFolder(self._run.at.connection, folder, "job.checkpoint")

    @public_api
    def stack(self) -> str:
        """Where the job is now: the stack of every thread of its Python processes. The job continues.

        Returns:
            The text, with the lines of your files where they are known.

        Raises:
            ClusterfnError: The job does not run, or does not answer.
        """

        def goes_on(waited_s: float) -> bool:
            return not self.done() and waited_s < (_MOMENT_S if self.state == PENDING else _ANSWER_S)

        dump = remote_state.request_stack_dump(self._run.at.connection, self.folder, goes_on)
        if dump is None:
            not_now = self.done() or self.state == PENDING
            hint = "ask while it is running" if not_now else "try again; then check its machine"
            message = f"there are no stacks of job {self.id}: it is {self.status}"
            raise ClusterfnError(message, host=self.host, job=self.id, hint=hint)
        return dump

    @public_api
    def stop(self) -> None:
        """End the job and every process of it, whether it waits or runs. Its result then raises `Cancelled`."""
        self._run.stop()

    @public_api
    def cancel(self) -> bool:
        """Withdraw the job if it has not started, or end it with every process of it, as `stop()`.

        Only a running future of an `Executor` keeps running, as concurrent.futures has it: `stop()` ends that.

        Returns:
            Whether it is cancelled, or ends now: once it has, `state` is CANCELLED and `result` raises `Cancelled`.
            False means that it has ended by itself, or keeps running.
        """
        if withdraw(self):
            return True
        if self.done():
            return self.state == CANCELLED
        if self._run.of_executor:
            if console.is_new("cancel", "executor"):
                console.tell(_KEEPS_RUNNING)
            return False
        self._run.stop()
        return True

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
        until = deadline_of(timeout)
        most = None if max_result is None else parse_memory(max_result, "max_result")
        try:
            value = super().result(_await_end(self, until))
        except concurrent.futures.TimeoutError as error:
            # The function itself raised it.
            if self.done():
                raise
            raise type(error)(f"{self.id} on {self.host} has not ended within {timeout:g} s; it continues") from None
        if value is not settling.ON_HOST:
            return value
        fetched: R = settling.fetch(self._run, left_s(until), most)
        return fetched

    @public_api
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` raises, or None, as `concurrent.futures.Future.exception`."""
        return super().exception(_await_end(self, deadline_of(timeout)))

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[R]], object]) -> None:
        """Call `fn(job)` once the job has ended, as in concurrent.futures.

        Raises:
            TypeError: `asyncio.wait` has called this.
        """
        # From Python 3.11 on, `asyncio.wait` would wait for ever: its callback has no effect in another thread.
        if getattr(fn, "__module__", None) == "asyncio.tasks":
            raise TypeError(
                "asyncio.wait() takes no Jobs: write asyncio.wait([asyncio.ensure_future(job) for job in jobs]), or "
                "await asyncio.gather(*jobs)"
            )
        super().add_done_callback(fn)

    @public_api
    def __await__(self) -> Generator[Any, None, R]:
        # The import takes a seventh of the time of `import clusterfn`, and few calls are awaited.
        import asyncio

        if not self.done():
            _check_process(self)
            self._run.hurry()
        # asyncio would ask the job itself for its value in the thread of the event loop, which a transfer would stop.
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.add_done_callback(lambda _: ended.cancel() if self.cancelled() else ended.set_result(None))
        yield from asyncio.shield(asyncio.wrap_future(ended)).__await__()
        value: R = super().result(0)
        if value is settling.ON_HOST:
            value = yield from asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
        return value

    def __getitem__(self, key: Any) -> JobPart:
        """Return what means this part of its value, as an argument of another call."""
        return JobPart(reference_of(self))[key]

    # With __getitem__ alone, `list(job)` and `x in job` would never end.
    __iter__ = None
    __contains__ = None

    def _reference(self) -> Reference:
        return Reference(JobSource(self), self.id, self.name, self.host, self.folder)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"this is the Job {self.id} itself, which belongs to this process: pickle its value, or its id, and write "
            f'clusterfn.attach("{self.id[:SHORT]}") where you need it'
        )

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name} on {self.host}: {self.status}>"

    def _shown_lines(self, held_by: str = "", *more: str) -> list[str]:
        return job_display.summary(self._run, held_by or self.name, more)

    def _may_change(self) -> bool:
        if not self.done() and self._run.tail is None:
            self._run.tail = b""
            self._source.watch_output(functools.partial(_keep_tail, self._run))
        return not self.done()


def _keep_tail(run: JobRun, stream: str, data: bytes) -> None:
    run.tail = ((run.tail or b"") + data)[-_TAIL:]


class JobSource(ArgumentSource):
    """A job whose value another call takes."""

    argument: Job[Any]

    def has_ended(self) -> bool:
        return self.argument.done()

    def value_here(self, item: int | None, timeout: float | None = None) -> Any:
        return self.argument.result(timeout)

    def await_end(self) -> None:
        _await_end(self.argument, None)
        # A job that a display shows was not waited for above.
        concurrent.futures.wait([self.argument])

    def open_requests(self) -> Sequence[Reply[Any]]:
        return self.argument._run.queue.open_requests()


def run_of(job: Job[Any]) -> JobRun:
    """Return the run of a job, for other parts of the library."""
    return job._run


def shown_to_end(job: Job[R], where: str, on_interrupt: str = "detach") -> R:
    """Wait for the job, show it meanwhile as `job_display.show` does, and return its value or raise its exception."""
    job_display.show(job._run, where, on_interrupt, job._source.shown_output)
    return job.result()


def withdraw(job: Job[Any]) -> bool:
    """Keep the job from ever starting; return whether it was withdrawn, now or before."""
    run = job._run
    if job.done() or job.running():
        return job.cancelled()
    # The outcome of this withdrawal comes back too, and must find the job cancelled.
    with run.settling:
        if job.done() or not run.withdraw() or not concurrent.futures.Future.cancel(job):
            return job.cancelled()
        settling.finish(run, CANCELLED, "withdrawn before it started", lambda _: None)
    return True


def deadline_of(timeout: float | None) -> float | None:
    """Return by time.monotonic() when a wait of so many seconds ends; raise ConfigError if that is no number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or math.isnan(timeout):
        raise ConfigError(f"timeout={timeout!r} is not a number of seconds", hint="give seconds: timeout=60")
    return time.monotonic() + float(timeout)


def left_s(deadline: float | None) -> float | None:
    """Return the seconds until then; None for as long as it takes."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _check_process(job: Job[Any]) -> None:
    """Raise RuntimeError in a forked child, which receives nothing of the job."""
    if os.getpid() != job._pid:
        how = f"clusterfn.attach({job.id!r}).result()"
        raise RuntimeError(f"job {job.id} was submitted by another process: {how}")


def _await_end(job: Job[Any], until: float | None) -> float | None:
    """Wait as a Future does, and say what for unless a display shows that; return how many seconds are left."""
    run = job._run
    if not job.done():
        _check_process(job)
        run.hurry()
        if not run.is_shown:
            what = f"{job.id} {job.name} on {job.host} is"
            spoken_wait.wait_for([job], lambda: f"{what} {run.status_since}; waiting for it", left_s(until))
    return left_s(until)
