"""A concurrent.futures.Executor whose work runs on a host. Adds nothing to `dispatch` but that interface."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from clusterfn import spec
from clusterfn.decorator import ClusterFunction
from clusterfn.job import Job

R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """Runs functions on a host, each call as a job of its own.

    Args:
        host: The host's name in clusterfn.yml; None as for `cluster`.
        cores, memory, gpus, gpu_memory, gpu_type, time, environment, modules, env, secrets: As for `cluster`.

    Example:
        >>> with Executor("tensor01", cores=1) as executor:
        ...     list(executor.map(evaluate, models))
    """

    def __init__(
        self,
        host: str | None = None,
        *,
        cores: int | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        gpu_memory: str | None = None,
        gpu_type: str | None = None,
        time: spec.Time | None = None,
        environment: str | None = None,
        modules: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self" and not name.startswith("_")}
        self._options = spec.parse_options({name: value for name, value in given.items() if value is not None})
        self._jobs: list[Job[Any]] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Job[R]:
        """Send `fn(*args, **kwargs)` and return its Job.

        Raises:
            RuntimeError: After `shutdown`.
        """
        from clusterfn import dispatch

        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        job: Job[R] = dispatch.submit(
            fn.__wrapped__ if isinstance(fn, ClusterFunction) else fn, args, kwargs, self._options
        )
        with self._lock:
            self._jobs.append(job)
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: Whether to wait for those that were taken.
            cancel_futures: Whether to withdraw those that have not started.
        """
        self._closed = True
        if cancel_futures:
            for job in self._jobs:
                job.cancel()
        if wait:
            concurrent.futures.wait(self._jobs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=not isinstance(error, KeyboardInterrupt))
