"""What kind of failure an exception is: CUDA's, the driver's, another RuntimeError, or anything else.

Reads the exception's type and text and decides nothing else.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from clusterfn.gpu.known import HERE, NEVER, TABLE, Known

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
        """Whether programs that use cards must reckon with it: CUDA's failures and the driver's."""
        return self.kind in (CUDA, DRIVER)

    @property
    def transient(self) -> bool:
        """Whether the same job may succeed later, unchanged."""
        return self.retry != NEVER

    @property
    def retry_here(self) -> bool:
        """Whether the same call may succeed later in this process."""
        return self.retry == HERE


def classify(error: BaseException) -> Fault:
    """Say what an exception means; one that is not known keeps its own name and has no advice.

    Example:
        >>> fault = classify(RuntimeError("CUDA error: invalid device ordinal"))
        >>> fault.kind, fault.name, fault.transient
        ('cuda', 'cudaErrorInvalidDevice', False)
    """
    known = find(message_of(error))
    if known is not None:
        return Fault(DRIVER if known.is_driver else CUDA, known.name, known.retry, known.advice)
    return Fault(_kind_of(error), type(error).__name__, NEVER, "")


def message_of(error: BaseException) -> str:
    """An exception's text; "" where its own `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the error's own __str__, which may raise anything
        return ""


@functools.lru_cache(maxsize=256)
def find(text: str) -> Known | None:
    """The first row of the table that occurs in a message; None if none does."""
    return next((row for row in TABLE if row.occurs_in(text)), None)


def _kind_of(error: BaseException) -> str:
    if isinstance(error, RuntimeError):
        return CUDA if _CUDA_WORDS.search(message_of(error)) or _is_cuda_type(error) else RUNTIME
    return DRIVER if isinstance(error, (OSError, AttributeError)) else OTHER


def _is_cuda_type(error: BaseException) -> bool:
    return any(_CUDA_TYPES.search(cls.__name__) for cls in type(error).__mro__)
