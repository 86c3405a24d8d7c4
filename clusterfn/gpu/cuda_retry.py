"""Retry calls of CUDA where a retry can help: a table of errors says where (`bridge/worker/cuda_table.py`).

An error after which this process cannot use CUDA any more is never retried; its note says that a new process may
succeed.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

from clusterfn.bridge.worker.cuda_table import NEW_PROCESS
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.gpu.contexts import release_memory
from clusterfn.gpu.guards import annotate, classify, first_line, is_asynchronous, log

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_S = 60.0
# A separate generator, so that the program's seeds give the same numbers as without clusterfn.
_dice = random.SystemRandom()


@overload
def retry_transient(fn: F) -> F: ...
@overload
def retry_transient(
    fn: F, *, attempts: int = ..., backoff_s: float = ..., also: tuple[type[BaseException], ...] = ...
) -> F: ...
@overload
def retry_transient(
    fn: None = None, *, attempts: int = ..., backoff_s: float = ..., also: tuple[type[BaseException], ...] = ...
) -> Callable[[F], F]: ...
def retry_transient(
    fn: Callable[..., Any] | None = None, *, attempts: int = 3, backoff_s: float = 1.0,
    also: tuple[type[BaseException], ...] = (),
) -> Any:  # fmt: skip
    """Call a function again when it fails with an error that may go away. Also a decorator.

    It retries CUDA's errors whose row in the table says "here": a busy GPU, a busy port, an MPS server that starts. It
    also retries a lost connection (`ConnectionError`), and clusterfn's own errors that are `retryable`. Between
    attempts GPU memory is given back.

    Args:
        fn: A function, a coroutine function, or an object that is called as either; without side effects that must not
            happen twice.
        attempts: Calls in all.
        backoff_s: Seconds before the second; twice as long before each further one, a minute at most.
        also: Further exceptions to try again, such as `torch.cuda.OutOfMemoryError` on a GPU that is shared.

    Raises:
        ConfigError: A generator function, or a number that is not positive.

    Example:
        >>> @retry_transient(attempts=5)
        ... def load(path):
        ...     return path
        >>> load("model.pt")
        'model.pt'
        >>> retry_transient(len, attempts=2)("abc")
        3
    """
    if attempts < 1 or backoff_s < 0:
        raise ConfigError("retry_transient needs attempts >= 1 and backoff_s >= 0")
    tries = functools.partial(_Tries, attempts, backoff_s, also)
    return functools.partial(_wrapped, tries) if fn is None else _wrapped(tries, fn)


def _wrapped(make_tries: Callable[[str], _Tries], fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"retry_transient cannot call {fn.__name__!r} again: it is a generator function")
    name = getattr(fn, "__name__", type(fn).__name__)

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tries = make_tries(name)
        while True:
            with tries:
                return fn(*args, **kwargs)
            release_memory()
            time.sleep(tries.wait_s)

    @functools.wraps(fn)
    async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        tries = make_tries(name)
        while True:
            with tries:
                return await fn(*args, **kwargs)
            release_memory()
            await asyncio.sleep(tries.wait_s)

    return async_wrapper if is_asynchronous(fn) else wrapper


class _Tries:
    """The attempts of one call: each runs in the block, which ends quietly if there is to be another.

    Attributes:
        wait_s: Seconds before that one: doubling, each a little shorter by chance, a minute at most.
    """

    def __init__(self, attempts: int, backoff_s: float, also: tuple[type[BaseException], ...], name: str) -> None:
        self.wait_s = 0.0
        self._attempts, self._backoff_s, self._also = attempts, backoff_s, also
        self._name = name
        self._failed = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed += 1
        if isinstance(error, ClusterfnError):
            may_succeed = error.retryable
        else:
            may_succeed = isinstance(error, (ConnectionError, *self._also)) or classify(error).retry_here
        if may_succeed and self._failed < self._attempts:
            longest = min(_LONGEST_S, self._backoff_s * 2 ** (self._failed - 1))
            # Processes that failed together must not all retry at the same moment.
            self.wait_s = longest * _dice.uniform(0.5, 1.0)
            log.warning(
                "%s failed, attempt %d of %d; retrying in %.1f s: %s",
                self._name, self._failed, self._attempts, self.wait_s, first_line(error),
            )  # fmt: skip
            return True
        if self._failed > 1:
            annotate(error, f"{self._name} was called {self._failed} times")
        if classify(error).retry == NEW_PROCESS:
            annotate(error, f"a new process may succeed where this one cannot; next: {classify(error).advice}")
        return False
