"""What kind of failure an exception is, by the table of what CUDA and its surroundings say."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterfn.bridge.worker.cuda_table import HERE, NEVER, find_known_error, message_of

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
    row = find_known_error(message_of(error))
    if row is not None:
        return Fault(DRIVER if row.is_driver else CUDA, row.name, row.retry, row.advice)
    if isinstance(error, RuntimeError):
        is_cuda_type = any(_CUDA_TYPES.search(cls.__name__) for cls in type(error).__mro__)
        kind = CUDA if is_cuda_type or _CUDA_WORDS.search(message_of(error)) else RUNTIME
    else:
        kind = DRIVER if isinstance(error, (OSError, AttributeError)) else OTHER
    return Fault(kind, type(error).__name__, NEVER, "")
