"""A concurrent.futures.Executor whose work runs on a host: that interface of `call` and `mapping`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from clusterfn.api.decorator import IN_JOB_INSTEAD, inside_job, undecorated
from clusterfn.calls import call, mapping
from clusterfn.calls.group import JobGroup, state_of_group
from clusterfn.calls.job import Job, deadline_of, run_of, withdraw
from clusterfn.config import import_time
from clusterfn.config.options import SESSION_IS_ONE, Hosts, JobOptions, Options, changed, parse_options
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import spoken_wait
from clusterfn.public_api import check_arguments, public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """Run functions on a host: each `submit` as a job, each `map` as one group.

    Each call has a process of its own, so there is no `initializer`: do its work in the function.
    A function decorated with `cluster` keeps its own options; those of the Executor override them.

    Args:
        host: The host's name in clusterfn.yml; None uses the function's host, or the one that `cluster` would choose.
        max_workers: How many items of each `map` run at a time, at most. All calls of `submit` are sent at once. They
            wait in the host's queue, which starts as many as there is room for and keeps them when your program ends.
        options: As for `cluster`.

    Raises:
        ConfigError: An option is unknown, or has the wrong type or unit.

    Example:
        >>> with Executor("tensor01", cores=1) as executor:
        ...     list(executor.map(evaluate, models))
    """

    @public_api
    @show_options(JobOptions)
    def __init__(
        self, host: Hosts | None = None, max_workers: int | None = None, **options: Unpack[JobOptions]
    ) -> None:
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
        job: Job[Any] = call.submit_call(plain, args, kwargs, options)
        run_of(job).of_executor = True
        self._sent.append(job.id)
        self._jobs[job.id] = job
        if self._max_workers == len(self._sent) - 1 and console.is_new("max_workers", job.host):
            how = f"{job.host} runs as many calls of submit as have room; limits: {{jobs: N}} of the host caps them"
            console.tell(f"max_workers={self._max_workers} limits map alone: {how}")
        return job

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, R]],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]: ...
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
        until = deadline_of(timeout)
        how = mapping.parse_map_options(self._max_workers or mapping.AT_ONCE, chunksize if chunksize != 1 else "auto")
        plain, options = self._with_options(fn)
        group = mapping.run(plain, iterables, options, how)
        self._sent.append(group.id)
        self._groups.append(group)
        # A group that has ended would keep its values in memory.
        for ended in [sent for sent in self._groups if sent.done()]:
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
        jobs = [job for reference in self._jobs.valuerefs() if (job := reference()) is not None and not job.done()]
        if cancel_futures:
            self._withdraw(jobs)
        if wait:
            spoken_wait.wait_for(jobs, lambda: _describe_open(jobs))
            for group in self._groups:
                # The host cannot be reached: `result` reports that.
                with contextlib.suppress(ClusterfnError):
                    group.wait()

    def _withdraw(self, jobs: list[Job[Any]]) -> None:
        """Withdraw these and each group, though one of them fails; then raise the first error."""
        steps: list[Callable[[], object]] = [functools.partial(withdraw, job) for job in jobs]
        steps += [group.withdraw for group in self._groups]
        for answer in list(at_once(steps, lambda take_back: take_back(), "withdrawing calls")):
            answer.result()

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


def _describe_open(jobs: list[Job[Any]]) -> str:
    """Say how many of these jobs have not ended, and what the first one waits for."""
    left = [job for job in jobs if not job.done()]
    if not left:
        return "waiting for the last job to end"
    return f"waiting for {len(left)} of {len(jobs)} jobs: {left[0].id} on {left[0].host} is {left[0].status_since}"
