"""Calls of CUDA with their operation named: what fails is sorted, logged with its context, and raised or replaced.

`cuda_error_context` never swallows, `safe_cuda_operation` always does, and `probe` does for this package's own
questions. All is logged under "clusterfn.gpu": what must be reckoned with as a warning, anything else as an error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, overload

from clusterfn.bridge.worker.cuda_table import HERE, NEVER, find_known_error, message_of
from clusterfn.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D")

log = logging.getLogger("clusterfn.gpu")


@contextlib.contextmanager
def cuda_error_context(operation: str) -> Iterator[None]:
    """Log and annotate what fails inside, and let it pass as itself. Works around `await` too.

    Args:
        operation: What is done, in words that fit before "failed": "loading CLIP".

    Raises:
        Exception: What was raised inside, unchanged, with a note that names operation, machine, job and advice.

    Example:
        >>> with cuda_error_context("adding up"):
        ...     total = 1 + 1
    """
    try:
        yield
    except Exception as error:
        # The user's block may raise anything, which is explained and passed on.
        fault = classify(error)
        annotate(error, f"{operation} failed on {_where()}{_meaning(fault)}")
        _report(error, fault, operation)
        raise


@overload
def safe_cuda_operation(fn: Callable[[], T], name: str) -> T | float: ...
@overload
def safe_cuda_operation(fn: Callable[[], T], name: str, default_return: D) -> T | D: ...


def safe_cuda_operation(fn: Callable[[], object], name: str, default_return: object = 0.0) -> object:
    """Call `fn`; if it raises, log that and give the default instead. For questions and clean-up, never for results.

    Args:
        fn: Takes no arguments.
        name: What it does, in words that fit before "failed".
        default_return: The value to return if the operation fails.

    Raises:
        ConfigError: `fn` is a coroutine function, whose failure would come later.

    Example:
        >>> safe_cuda_operation(lambda: 7, "counting")
        7
        >>> safe_cuda_operation(lambda: [][0], "reading the first", default_return=None)
    """
    if is_asynchronous(fn):
        problem = f"safe_cuda_operation cannot guard {getattr(fn, '__name__', fn)!r}, a coroutine function"
        raise ConfigError(problem, hint="write `with cuda_error_context(...)` around the await")
    with swallowed(name):
        return fn()
    return default_return


def is_asynchronous(fn: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine: a coroutine function, or an object with `async def __call__`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def probe(fn: Callable[[], T], name: str, fallback: T) -> T:
    """Call `fn` as `safe_cuda_operation` does, and log the same failure once: it may be asked every second."""
    with swallowed(name, once=True):
        return fn()
    return fallback


@contextlib.contextmanager
def swallowed(operation: str, once: bool = False) -> Iterator[None]:
    """Log what fails inside and continue after the block. Nothing else in this package does that."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the promise is that nothing which fails in here is raised
        _report(error, classify(error), operation, once)


def _report(error: BaseException, fault: Fault, operation: str, once: bool = False) -> None:
    level = logging.WARNING if fault.expected else logging.ERROR
    text = f"{operation} failed on {_where()}: {first_line(error)}{_meaning(fault)}"
    if once:
        say_once(level, text)
    else:
        log.log(level, "%s", text, exc_info=None if fault.expected else error)


@functools.lru_cache(maxsize=64)
def say_once(level: int, text: str) -> None:
    """Log a text unless it was logged before."""
    log.log(level, "%s", text)


def _meaning(fault: Fault) -> str:
    return f" [{fault.name}]; next: {fault.advice}" if fault.advice else ""


def _where() -> str:
    job = os.environ.get("CLUSTERFN_JOB", "").partition("/")[0]
    return f"{platform.node()}, job {job}" if job else platform.node()


def first_line(error: BaseException) -> str:
    """Return the exception's type and the first line of its message."""
    lines = message_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def annotate(error: BaseException, note: str) -> None:
    """Add a note to an exception, on Pythons before 3.11 too: jobs bring it home with the exception."""
    if not hasattr(error, "add_note"):
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]
    else:
        error.add_note(note)


CUDA, DRIVER, RUNTIME, OTHER = "cuda", "driver", "runtime", "other"
_CUDA_WORDS = re.compile(
    r"CUDA (driver |runtime |kernel )?(error|failure|initialization)|Cuda failure|NCCL|"
    r"\bcu(BLAS|DNN|SOLVER|SPARSE|FFT)\b|\bCU(BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS",
)
_CUDA_TYPES = re.compile(r"cuda|AcceleratorError|DistBackendError", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """What an exception means.

    Attributes:
        kind: "cuda", "driver" (OSError, AttributeError and what the driver says), "runtime" or "other".
        name: What its makers call it ("cudaErrorECCUncorrectable"); the exception's type where it is not known.
        retry: Whether trying again can help: "here", in a "new process", or "never".
        advice: One thing to do; "" where nothing is known.
    """

    kind: str
    name: str
    retry: str
    advice: str

    @property
    def expected(self) -> bool:
        """Whether programs that use GPUs must reckon with it: CUDA's failures and the driver's."""
        return self.kind in (CUDA, DRIVER)

    @property
    def retry_here(self) -> bool:
        """Whether the same call may succeed later in this process."""
        return self.retry == HERE


def classify(error: BaseException) -> Fault:
    """Say what an exception means; one that is not known keeps its own name and has no advice.

    Example:
        >>> fault = classify(RuntimeError("CUDA error: invalid device ordinal"))
        >>> fault.kind, fault.name, fault.retry
        ('cuda', 'cudaErrorInvalidDevice', 'never')
    """
    row = find_known_error(message_of(error))
    if row is not None:
        return Fault(DRIVER if row.is_driver else CUDA, row.name, row.retry, row.advice)
    if isinstance(error, RuntimeError):
        is_cuda_type = any(_CUDA_TYPES.search(cls.__name__) for cls in type(error).__mro__)
        kind = CUDA if is_cuda_type or _CUDA_WORDS.search(message_of(error)) else RUNTIME
    else:
        kind = DRIVER if isinstance(error, (OSError, AttributeError)) else OTHER
    return Fault(kind, type(error).__name__, NEVER, "")
