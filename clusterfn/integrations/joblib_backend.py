"""joblib's interface to what runs its batches: each batch is a job on a host."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
)

from clusterfn.api.decorator import inside_job
from clusterfn.calls import call, mapping
from clusterfn.calls.job import Job
from clusterfn.config.options import Options, changed
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import loop

# What joblib.Parallel passes on for its own backends, with or without the user's word.
_OF_JOBLIB = ("max_nbytes", "temp_folder", "mmap_mode", "prefer", "require", "verbose", "context")


class ClusterfnBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Send joblib's batches as jobs; it takes the options of `cluster`, and an `initializer` with `initargs`."""

    supports_retrieve_callback = True
    default_n_jobs = -1
    # A job takes a tenth of a second on a server, and seconds with a scheduler: a batch must last longer.
    MIN_IDEAL_BATCH_DURATION = 10.0
    MAX_IDEAL_BATCH_DURATION = 60.0

    def __init__(self, nesting_level: int | None = None, **options: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._begin: Callable[[], Any] | None = None
        self._options = self._accept(Options(name="joblib"), options)
        self._jobs: set[Future[Any]] = set()

    def _accept(self, options: Options, keywords: Mapping[str, Any]) -> Options:
        """Return the options of each batch from what the user gave; raise ConfigError for a word that is none."""
        own = {name: value for name, value in keywords.items() if name not in ("initializer", "initargs")}
        if keywords.get("initializer") is not None:
            self._begin = functools.partial(keywords["initializer"], *keywords.get("initargs") or ())
        return changed(options, own)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches may be sent at a time; the host's free resources decide how many of them run."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return n_jobs if n_jobs is not None and n_jobs > 0 else mapping.AT_ONCE

    def configure(self, n_jobs: int = -1, parallel: Any = None, **more: Any) -> int:
        """Return how many batches may be sent at a time; inside a job, run them in its own process.

        Raises:
            ConfigError: `joblib.Parallel` got a keyword that neither joblib nor clusterfn has.
        """
        self._options = self._accept(self._options, {name: more[name] for name in more if name not in _OF_JOBLIB})
        if inside_job():
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if n_jobs == 1:
            console.warn("n_jobs=1: joblib runs this loop in this process, and not on a host")
        return int(super().configure(n_jobs, parallel, **more))

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Send a batch; the Future has the exception of one that cannot be sent.

        joblib calls this in the thread of a callback too, and waits forever for a batch whose sending raised there.
        """
        job: Future[Any]
        if self._begin is not None:
            func = functools.partial(_begun, self._begin, func)
        try:
            job = call.submit_call(func, (), {}, self._options)
        except Exception as error:  # noqa: BLE001 - raised by the loop, as the exception of this batch
            job = Future()
            job.set_exception(error)
        self._jobs.add(job)
        job.add_done_callback(functools.partial(self._end_batch, callback))
        # joblib may have aborted the loop while the batch was being sent.
        if getattr(self.parallel, "_aborting", False):
            _stop(job)
        return job

    def _end_batch(self, callback: Callable[[Any], Any] | None, job: Future[Any]) -> None:
        self._jobs.discard(job)
        if callback is not None:
            # The callback sends the next batch, which must not wait in the thread that brings answers.
            loop.begin(loop.in_thread(functools.partial(callback, job), "clusterfn-joblib"))

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the values of a batch, or raise its exception."""
        return out.result()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Let loops inside a batch use threads, as many as the job has cores."""
        level = (self.nesting_level or 0) + 1
        if (self._options.cores or 1) > 1:
            return ThreadingBackend(nesting_level=level), self._options.cores
        return SequentialBackend(nesting_level=level), None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the other batches after one has failed."""
        for _ in at_once(list(self._jobs), _stop, "stopping batches"):
            pass

    def terminate(self) -> None:
        """Forget how long the items of this loop took: the next one has others."""
        self.reset_batch_stats()


def _begun(begin: Callable[[], Any], batch: Callable[[], Any]) -> Any:
    """Run the user's initializer, then a batch: each has a process of its own."""
    begin()
    return batch()


# The function is sent by value, because jobs do not have this module.
_begun.__module__ = "__main__"


def _stop(job: Future[Any]) -> None:
    """End a batch; the exception that the loop raises matters more than one of this."""
    if isinstance(job, Job):
        with contextlib.suppress(ClusterfnError):
            job.stop()
