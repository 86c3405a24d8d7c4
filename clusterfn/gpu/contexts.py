"""Things that hold GPU memory, given back at the end of a block whatever happens in it; with and without `async`.

What fails while giving back is logged and never raised: it must not cost a result, nor hide the error that ended the
block. PyTorch is touched only if this process already uses CUDA by it.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast, overload

from clusterfn.errors import ConfigError
from clusterfn.gpu.devices import torch_with_cuda
from clusterfn.gpu.guards import is_asynchronous, swallowed

M = TypeVar("M")


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
