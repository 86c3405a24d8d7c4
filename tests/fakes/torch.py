"""A `torch` that behaves as PyTorch with CUDA does, as far as `clusterfn.gpu` asks, and remembers what it was asked.

Put it into `sys.modules["torch"]`. Calls that would make a process use CUDA raise unless it already does.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

GB = 1 << 30


class OutOfMemoryError(RuntimeError):
    """As torch.cuda.OutOfMemoryError."""


class FakeCuda:
    """`torch.cuda`.

    Attributes:
        asked: The names of the calls that cost something, in order.
        contexts: Cards on which the process has a CUDA context; asking for a card's memory makes one, which takes some.
        uuids: Of the cards, as `get_device_properties` has them since PyTorch 2.4: without "GPU-".
        fails: Raised by every call that reaches the card.
    """

    OutOfMemoryError = OutOfMemoryError

    def __init__(self, total_gb: list[float], used_gb: list[float], initialised: bool) -> None:
        self.asked: list[str] = []
        self.contexts = {0} if initialised else set()
        self.fails: BaseException | None = None
        self.own_gb = [0.0] * len(total_gb)
        self.peak_gb = [0.0] * len(total_gb)
        self.uuids = [""] * len(total_gb)
        self._total_gb = total_gb
        self._used_gb = used_gb
        self._initialised = initialised

    def is_initialized(self) -> bool:
        return self._initialised

    def is_available(self) -> bool:
        raise AssertionError("is_available() calls cuInit: no fork is possible afterwards")

    def device_count(self) -> int:
        self._reach("device_count")
        return len(self._total_gb)

    def current_device(self) -> int:
        self._reach("current_device")
        return 0

    def get_device_properties(self, device: int) -> Any:
        self._reach("get_device_properties")
        return SimpleNamespace(
            name="NVIDIA RTX A6000", total_memory=self._total_gb[device] * GB, major=8, minor=6,
            uuid=self.uuids[device],
        )  # fmt: skip

    def mem_get_info(self, device: int) -> tuple[float, float]:
        self._reach("mem_get_info")
        self.contexts.add(device)
        return (self._total_gb[device] - self._used_gb[device]) * GB, self._total_gb[device] * GB

    def memory_allocated(self, device: int) -> float:
        return self.own_gb[device] * GB

    def memory_reserved(self, device: int) -> float:
        return self.own_gb[device] * GB

    def max_memory_allocated(self, device: int) -> float:
        return self.peak_gb[device] * GB

    def empty_cache(self) -> None:
        self._reach("empty_cache")

    def _reach(self, name: str) -> None:
        assert self._initialised, f"torch.cuda.{name} makes the process use CUDA"
        self.asked.append(name)
        if self.fails is not None:
            raise self.fails


def with_cuda(total_gb: list[float] | None = None, used_gb: list[float] | None = None, initialised: bool = True) -> Any:
    """A PyTorch for CUDA; two cards of 48 GB unless told otherwise."""
    total = total_gb or [48.0, 48.0]
    module = _module("2.7.1+cu118", "11.8", FakeCuda(total, used_gb or [1.0] * len(total), initialised))
    module._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device in module.cuda.contexts)
    return module


def without_cuda() -> Any:
    """A PyTorch for CPUs: every call of torch.cuda that matters raises as the real one does."""
    cuda = SimpleNamespace(is_initialized=lambda: False, is_available=lambda: False, device_count=_not_compiled)
    cuda.mem_get_info = cuda.empty_cache = cuda.current_device = _not_compiled
    return _module("2.7.1+cpu", None, cuda)


def _not_compiled(*_: object) -> Any:
    raise AssertionError("Torch not compiled with CUDA enabled")


def _module(version: str, cuda_version: str | None, cuda: object) -> Any:
    module: Any = ModuleType("torch")
    module.__version__ = version
    module.version = SimpleNamespace(cuda=cuda_version)
    module.cuda = cuda
    return module
