"""What runs around code that uses CUDA: blocks that give GPU memory back at their end, and calls that are tried again.

What fails while giving back is logged and never raised: it must not cost a result, nor hide the error that ended the
block. PyTorch is touched only if this process already uses CUDA by it.

A call is tried again where that can help: a table of errors says where (`bridge/worker/cuda_table.py`). After an error
that leaves this process unable to use CUDA it is not; the note on that error says that a new process may succeed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast, overload

from clusterfn.bridge.worker.cuda_table import NEW_PROCESS
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.gpu.devices import reject_below, torch_with_cuda
from clusterfn.gpu.guards import annotate, classify, first_line, is_asynchronous, log, swallowed

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def gpu_memory_context() -> Iterator[None]:
    """Give unused GPU memory back to the GPU at the end of the block, after success and after failure.

    What a variable outside the block still holds stays; so does, until the exception is handled, what the frames that
    it came through hold. Also a decorator of plain functions.

    Example:
        >>> with gpu_memory_context():
        ...     score = 0.5
    """
    try:
        yield
    finally:
        release_memory()


@contextlib.asynccontextmanager
async def async_gpu_memory_context() -> AsyncIterator[None]:
    """The same for `async with`; a cancelled task gives back too.

    Example:
        >>> import asyncio
        >>> async def score():
        ...     async with async_gpu_memory_context():
        ...         return 0.5
        >>> asyncio.run(score())
        0.5
    """
    try:
        yield
    finally:
        release_memory()


@contextlib.contextmanager
def sync_model_context(create: Callable[[], M], cleanup_method: str | None = "close") -> Iterator[M]:
    """Make a model, and at the end call its clean-up once and give back its memory.

    Args:
        create: Makes it; takes no arguments.
        cleanup_method: What is called on it at the end. `close` may be missing: the model is then only dropped. Any
            other name must exist. "cpu" moves a PyTorch module off the GPU even while a variable still holds it. None
            calls nothing.

    Yields:
        The model.

    Raises:
        ConfigError: The model has no such method.

    Example:
        >>> import io
        >>> with sync_model_context(lambda: io.StringIO("weights")) as model:
        ...     model.read()
        'weights'
    """
    with gpu_memory_context():
        model = create()
        clean_up = _clean_up(model, cleanup_method)
        if is_asynchronous(clean_up) or inspect.isawaitable(model):
            raise ConfigError("a coroutine creates or frees the model", hint="write `async with model_context(...)`")
        try:
            yield model
        finally:
            with swallowed(f"cleaning up {type(model).__name__}"):
                clean_up()
            # These names would keep the model in memory while the block gives the memory back.
            del model, clean_up


@overload
def model_context(
    create: Callable[[], Awaitable[M]], cleanup_method: str | None = "close"
) -> contextlib.AbstractAsyncContextManager[M]: ...
@overload
def model_context(
    create: Callable[[], M], cleanup_method: str | None = "close"
) -> contextlib.AbstractAsyncContextManager[M]: ...
@contextlib.asynccontextmanager
async def model_context(create: Callable[[], Any], cleanup_method: str | None = "close") -> AsyncIterator[Any]:
    """The same for `async with`; `create` and the clean-up may be coroutine functions.

    Args:
        create: Makes it, at once or when awaited; takes no arguments.
        cleanup_method: As for `sync_model_context`.

    Yields:
        The model.

    Raises:
        ConfigError: The model has no such method.

    Example:
        >>> import asyncio, io
        >>> async def read():
        ...     async with model_context(lambda: io.StringIO("weights")) as model:
        ...         return model.read()
        >>> asyncio.run(read())
        'weights'
    """
    async with async_gpu_memory_context():
        created = create()
        model = await created if inspect.isawaitable(created) else created
        # A second reference would keep the model in memory after the block.
        del created
        clean_up = _clean_up(model, cleanup_method)
        try:
            yield model
        finally:
            with swallowed(f"cleaning up {type(model).__name__}"):
                begun = clean_up()
                if inspect.isawaitable(begun):
                    await begun
            # These names would keep the model in memory while the block gives the memory back.
            del model, clean_up


def _clean_up(model: object, name: str | None) -> Callable[[], Any]:
    method = getattr(model, name, None) if name else None
    if callable(method):
        return cast(Callable[[], Any], method)
    # Most models do not have the default clean-up.
    if name in (None, "close") and method is None:
        return lambda: None
    hint = "pass the name of the method that frees it, or None"
    raise ConfigError(f"{type(model).__name__} has no method {name!r}", hint=hint)


def release_memory() -> None:
    """Collect what nothing refers to, and give PyTorch's unused GPU memory back; never raises.

    Example:
        >>> release_memory()
    """
    with swallowed("releasing GPU memory"):
        torch = torch_with_cuda()
        if torch is not None:
            gc.collect()
            torch.cuda.empty_cache()


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
    fn: Callable[..., Any] | None = None,
    *,
    attempts: int = 3,
    backoff_s: float = 1.0,
    also: tuple[type[BaseException], ...] = (),
) -> Any:
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
    reject_below(1, attempts=attempts)
    reject_below(0, backoff_s=backoff_s)
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
            message = "%s failed, attempt %d of %d; retrying in %.1f s: %s"
            log.warning(message, self._name, self._failed, self._attempts, self.wait_s, first_line(error))
            return True
        if self._failed > 1:
            annotate(error, f"{self._name} was called {self._failed} times")
        if classify(error).retry == NEW_PROCESS:
            annotate(error, f"a new process may succeed where this one cannot; next: {classify(error).advice}")
        return False
