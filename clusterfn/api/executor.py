"""A concurrent.futures.Executor whose work runs on a host: that interface of `call` and `mapping`.

It has one thing of its own: with `max_workers`, calls wait in this program for their turn to be sent.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from clusterfn.api.decorator import IN_JOB_INSTEAD, inside_job, undecorated
from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.calls import call, mapping
from clusterfn.calls.at_once import at_once
from clusterfn.calls.group import JobGroup, state_of_group
from clusterfn.calls.job import Job, describe_open_jobs, entry_of, withdraw
from clusterfn.config import import_time
from clusterfn.config.options import SESSION_IS_ONE, JobOptions, Options, changed, parse_options
from clusterfn.display import console
from clusterfn.errors import Cancelled, ClusterfnError, ConfigError, SubmitError
from clusterfn.hosts import loop, spoken_wait
from clusterfn.public_api import check_arguments, public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterfn.calls.job_tracker import Tracker

R = TypeVar("R")
_Send = Callable[[], None]
# Stands for the exit of Python as the sender of what waits.
_EXIT = object()
_NO_THREAD = "no thread could be started to send it: this machine allows no more"
_FOR_MORE_THREADS = "end other programs, or raise the limit that `ulimit -u` shows"


class Executor(concurrent.futures.Executor):
    """Run functions on a host: each `submit` as a job, each `map` as one group.

    Each call has a process of its own, so there is no `initializer`: do its work in the function.
    A function decorated with `cluster` keeps its own options; those of the Executor override them.

    Args:
        host: The host's name in clusterfn.yml; None uses the function's host, or the one that `cluster` would choose.
        max_workers: How many calls of `submit` are in progress at a time, and how many items of each `map`. Further
            calls wait in your program, which does not exit until it has sent them. None leaves it to the host's queue,
            which keeps what it has when your program ends.
        options: As for `cluster`.

    Raises:
        ConfigError: An option is unknown, or has the wrong type or unit.

    Example:
        >>> with Executor("tensor01", cores=1) as executor:
        ...     list(executor.map(evaluate, models))
    """

    @public_api
    @show_options(JobOptions)
    def __init__(self, host: str | None = None, max_workers: int | None = None, **options: Unpack[JobOptions]) -> None:
        if isinstance(host, concurrent.futures.Executor):
            raise ConfigError(f"Executor({host!r}): the first argument is the name of a host", hint=SESSION_IS_ONE)
        # `ThreadPoolExecutor(8)` means eight workers, and users may carry that habit over.
        if isinstance(host, int):
            hint = f'write Executor("tensor01", max_workers={host}), with the name of your host'
            raise ConfigError(f"Executor({host!r}): the first argument is the name of a host", hint=hint)
        self._given: dict[str, object] = {**options, "host": host}
        parse_options(self._given)
        if max_workers is not None and (type(max_workers) is not int or max_workers < 1):
            hint = "give a whole number of 1 or more, or None"
            raise ConfigError(f"max_workers={max_workers!r} is not a number of calls", hint=hint)
        # Dask reads this attribute to learn how many tasks an executor runs at a time.
        self._max_workers = max_workers
        self._at_turn = _WorkerLimit(max_workers).send if max_workers else None
        # Several threads may submit at a time. Each of their changes to these is a single step.
        self._sent: list[str] = []
        # The references are weak, because a Job that ended keeps its value in memory. What follows a job holds it until
        # then.
        self._jobs: weakref.WeakValueDictionary[str, Job[Any]] = weakref.WeakValueDictionary()
        self._groups: list[JobGroup[Any, Any]] = []
        self._closed = False

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, **kwargs: Any) -> Job[R]: ...
    @overload
    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Job[R]: ...
    @public_api
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Send `fn(*args, **kwargs)` and return its Job.

        Its `cancel()` withdraws it only, as concurrent.futures has it. If it runs, `stop()` ends it.

        Raises:
            RuntimeError: After `shutdown`, or inside a job.
            ConfigError: `fn` is not a function.
        """
        self._check()
        plain, options = self._with_options(fn)
        check_arguments(plain, args, kwargs, "Executor")
        job: Job[Any] = call.submit_call(plain, args, kwargs, options, self._at_turn)
        entry_of(job).of_executor = True
        self._sent.append(job.id)
        self._jobs[job.id] = job
        return job

    @overload
    def map(
        self, fn: Callable[..., Coroutine[Any, Any, R]], *iterables: Iterable[Any], timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[..., R], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[R]: ...
    @public_api
    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Send `fn(*each)` for each tuple of `zip(*iterables)` in one round trip; the values in order, as they come.

        All calls keep running when you stop iterating, after an exception or a timeout too.

        Args:
            fn: What to call.
            iterables: One for each argument. They are read at once.
            timeout: Seconds from now after which waiting for a value ends.
            chunksize: Items that are taken from the queue at a time; 1 leaves it to measured times, as `f.map` does.

        Raises:
            RuntimeError: After `shutdown`, or inside a job.
            ConfigError: `fn` is not a function.
            TimeoutError: Of the iterator: a value did not arrive in time.
            Exception: Of the iterator: what the call raised whose turn it is.
        """
        self._check()
        until = None if timeout is None else time.monotonic() + timeout
        how = mapping.parse_map_options(self._max_workers or mapping.AT_ONCE, chunksize if chunksize != 1 else "auto")
        plain, options = self._with_options(fn)
        group = mapping.run(plain, iterables, options, how)
        self._sent.append(group.id)
        self._groups.append(group)
        # A group that has ended would keep its values in memory.
        for ended in [each for each in self._groups if each.done()]:
            # Another thread may have removed it.
            with contextlib.suppress(ValueError):
                self._groups.remove(ended)
        return _in_order(group, until)

    def _with_options(self, fn: Callable[..., R]) -> tuple[Callable[..., R], Options]:
        plain, own = undecorated(fn)
        return plain, changed(own, self._given)

    def _check(self) -> None:
        if inside_job():
            import_time.reject_sending_in_job("an Executor", IN_JOB_INSTEAD)
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")

    @public_api
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: Whether to wait for those that were taken.
            cancel_futures: Whether to withdraw those that have not started. Of a `map`, those that no process has taken
                from its queue; who waits for their values gets `Cancelled`.
        """
        self._closed = True
        jobs = [job for each in self._jobs.valuerefs() if (job := each()) is not None and not job.done()]
        if cancel_futures:
            self._withdraw(jobs)
        if wait:
            spoken_wait.wait_for(jobs, lambda: describe_open_jobs(jobs))
            for group in self._groups:
                # The host cannot be reached: `result` reports that.
                with contextlib.suppress(ClusterfnError):
                    group.wait()

    def _withdraw(self, jobs: list[Job[Any]]) -> None:
        """Withdraw these and each group, though one of them fails; then raise the first error."""
        held = dict.fromkeys(job for job in reversed(jobs) if entry_of(job).tracker.is_held_back)
        failures: list[ClusterfnError] = []
        # The jobs held back come first: the end of another job would send them.
        for job in held:
            try:
                withdraw(job)
            except ClusterfnError as error:
                # The job was sent at this moment, and its host cannot be reached.
                failures.append(error)
        each: list[Callable[[], object]] = [functools.partial(withdraw, job) for job in jobs if job not in held]
        each += [group.withdraw for group in self._groups]
        for answer in list(at_once(each, lambda take_back: take_back(), "withdrawing calls")):
            answer.result()
        for failure in failures:
            raise failure

    @public_api
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=not isinstance(error, KeyboardInterrupt))

    def __repr__(self) -> str:
        where = self._given["host"] or "each function's host"
        return f"<Executor on {where}: {len(self._sent) or 'nothing'} sent{', closed' if self._closed else ''}>"


@public_api
def _in_order(group: JobGroup[R, Any], until: float | None) -> Iterator[R]:
    """Yield each value and keep none: together they may be larger than memory."""
    for index in range(len(group)):
        yield state_of_group(group).give_away(index, until)


class _WorkerLimit:
    """Sends at most so many calls at a time: the others wait in this program, in their order.

    A host has its own queue; this limit leaves room in it for others. What waits here ends with this program, so Python
    waits at its exit until all of it is sent.

    Calls are sent one after another, in their order: a later one may take the value of an earlier one. Those that
    waited are sent in another thread, as the callbacks of a job must not wait for a host. No thread waits for room.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._going: set[Job[Any]] = set()
        self._waiting: collections.OrderedDict[Job[Any], tuple[Tracker, _Send]] = collections.OrderedDict()
        self._changed = threading.Condition()
        # Whether a thread sends a call: the others wait for that, so that the calls keep their order.
        self._is_sending = False
        # Who sends the calls that wait: a thread as long as there is room, the exit of Python until none is left.
        self._sender: object | None = None
        self._awaits_exit = False

    def send(self, job: Job[Any], tracker: Tracker, send: _Send) -> None:
        """Call `send` now, or when fewer calls are in progress; then an error of it is the job's."""
        # A forked child has none of the threads, and its parent sends the calls that wait.
        if os.getpid() != self._pid:
            self._begin()
        entry_of(job).set_state(PENDING, f"not sent yet: {_calls(self.most)} in progress (max_workers={self.most})")
        job.add_done_callback(self._ended)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_sending)
            # Calls keep their order: even with room, a call waits behind those that already wait.
            if self._waiting or len(self._going) >= self.most:
                self._hold(job, tracker, send)
                return
            self._begin_sending(job)
        try:
            entry_of(job).set_state(PENDING)
            send()
        except BaseException:  # a handler of a signal may raise anything
            # After Ctrl-C too, the place of the call would stay taken.
            self._ended(job)
            raise
        finally:
            self._end_sending()

    def _hold(self, job: Job[Any], tracker: Tracker, send: _Send) -> None:
        self._waiting[job] = tracker, send
        tracker.hold_back(lambda: self._withdraw(job), f"max_workers={self.most}")
        if not self._awaits_exit:
            self._awaits_exit = True
            # Without this, calls that wait would end with the program.
            atexit.register(self.send_all)

    def _ended(self, job: Any) -> None:
        """Free the place of a call, and have a thread send those that wait for one. Does not wait."""
        with self._changed:
            self._going.discard(job)
            self._changed.notify_all()
            # A forked child must not send what waits in its parent.
            if self._sender is not None or not self._has_next() or os.getpid() != self._pid:
                return
            self._sender = sender = object()
        loop.begin(loop.in_thread(lambda: self._send_waiting(sender), "clusterfn-limit"))

    def send_all(self) -> None:
        """Send all that waits, each at its turn. After Ctrl-C drop what is left."""
        if os.getpid() != self._pid:
            return
        try:
            with self._changed:
                # No other thread sends from now on: at exit, Python 3.12 starts none, and the one in reserve has other
                # work, for which a call that it sends may wait.
                self._sender = _EXIT
                if self._waiting:
                    text = f"{_calls(len(self._waiting))} not sent yet (max_workers={self.most}); Ctrl-C drops"
                    console.tell(f"{text} {'them' if len(self._waiting) > 1 else 'it'}")
            self._send_waiting(_EXIT)
            with self._changed:
                self._changed.wait_for(lambda: not self._is_sending)
        except KeyboardInterrupt:
            with self._changed:
                left = list(self._waiting)
            dropped = [job for job in left if self._withdraw(job)]
            console.warn(f"{_calls(len(dropped))} not sent, and will not run")
        finally:
            # Exit functions after this one may send calls, too.
            with self._changed:
                self._sender = None

    def _send_waiting(self, sender: object) -> None:
        """Send calls that wait: a thread as many as there is room for, the exit all of them."""
        while (call := self._take_next(sender)) is not None:
            job, tracker, send = call
            try:
                entry_of(job).set_state(PENDING)
                send()
            except BaseException as error:  # `send` may raise anything
                # Where no thread can be started, the loop's own thread runs this, and it cannot wait for a host.
                if loop.is_here() and isinstance(error, RuntimeError):
                    error = SubmitError(_NO_THREAD, hint=_FOR_MORE_THREADS)
                # The caller has continued, so the error belongs to the call.
                self._refuse(job, error)
                # In a thread it must not keep the other calls waiting.
                if sender is _EXIT and not isinstance(error, Exception):
                    raise
            finally:
                tracker.release()
                self._end_sending()

    def _take_next(self, sender: object) -> tuple[Job[Any], Tracker, _Send] | None:
        """Take the next call and a place for it, at exit once there is one; None if this sender has no more to send."""
        with self._changed:
            if sender is _EXIT:
                self._changed.wait_for(lambda: not self._waiting or (self._has_next() and not self._is_sending))
            # A thread leaves the rest to the exit.
            if self._sender is not sender:
                return None
            if not self._has_next():
                # The look and the leaving are one step: who frees a place after it starts another thread.
                self._sender = None
                return None
            job, (tracker, send) = self._waiting.popitem(last=False)
            self._begin_sending(job)
            return job, tracker, send

    def _has_next(self) -> bool:
        """Whether a call waits, and there is room for it; `_changed` must be held."""
        return bool(self._waiting) and len(self._going) < self.most

    def _begin_sending(self, job: Job[Any]) -> None:
        """Take a place for a call that this thread sends; `_changed` must be held."""
        self._going.add(job)
        self._is_sending = True

    def _end_sending(self) -> None:
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()

    def _refuse(self, job: Job[Any], error: BaseException) -> None:
        refused = error if isinstance(error, ClusterfnError) else SubmitError(repr(error))
        refused.host, refused.stage = job.host, refused.stage or "submit"
        console.warn(f"{job.id[:SHORT]} {job.name} was not sent: {refused.message}")
        entry_of(job).fail(refused)

    def _withdraw(self, job: Job[Any]) -> bool:
        """Take a call out of those that wait; false if it has been sent."""
        with self._changed:
            # A call that is being sent counts as sent, and is withdrawn as such.
            self._changed.wait_for(lambda: not self._is_sending)
            if self._waiting.pop(job, None) is None:
                return False
            self._changed.notify_all()
        entry_of(job).fail(Cancelled("the call was withdrawn before it was sent", host=job.host, stage="submit"))
        return True


def _calls(count: int) -> str:
    return f"{count} calls are" if count != 1 else "1 call is"
