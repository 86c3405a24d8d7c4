"""Watches the visible GPUs from a thread while something runs: peaks of memory, and how busy they were."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.gpu import smi
from clusterfn.gpu.devices import GpuInfo, by_nvidia_smi, by_torch, own_gb, reject_below, torch_with_cuda
from clusterfn.gpu.guards import probe

_SHORTEST_S = 0.1


@dataclass
class GpuUse:
    """What was seen of one GPU.

    Attributes:
        index: As the process counts them.
        name: Such as "NVIDIA RTX A6000".
        total_gb: Its memory; None if unknown.
        peak_gb: The most that was in use at one look, by any process; 0.0 if unknown.
        own_peak_gb: The most that this process's PyTorch had in tensors, exact, since it started; 0.0 without it.
        utilization: Percent of the time in which it computed, on average over the looks; None if unknown.
        peak_utilization: The most at one look; None if unknown.
    """

    index: int
    name: str
    total_gb: float | None
    peak_gb: float = 0.0
    own_peak_gb: float = 0.0
    utilization: float | None = None
    peak_utilization: float | None = None

    def __str__(self) -> str:
        busy = "how busy is unknown"
        if self.utilization is not None and self.peak_utilization is not None:
            busy = f"busy {self.utilization:.0f} % (at most {self.peak_utilization:.0f} %)"
        total = "an unknown amount" if self.total_gb is None else format_size(self.total_gb * 2**30)
        return f"GPU {self.index}: {self.name}, at most {format_size(self.peak_gb * 2**30)} of {total}, {busy}"


class GpuMonitor:
    """Looks at the visible GPUs every so often, while its block runs; what it cannot see is left out.

    Memory between two looks can be missed; `own_peak_gb` is PyTorch's own count and misses nothing.

    Args:
        interval_s: Seconds between looks, at least 0.1. One costs some ten milliseconds of a processor.

    Attributes:
        devices: What was seen, one `GpuUse` for each GPU; empty without a GPU.
        looks: How often it looked with success.
        trouble: Why nothing was seen; "" if something was.
        peak_gb: The most GB in use on all visible GPUs together at one look; 0.0 without a GPU.

    Raises:
        ConfigError: The interval is too short.

    Example:
        >>> with GpuMonitor(interval_s=0.5) as monitor:
        ...     total = sum(range(1000))
        >>> bool(monitor.devices) != bool(monitor.trouble)
        True
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        reject_below(_SHORTEST_S, interval_s=interval_s)
        self.looks = 0
        self.trouble = ""
        self.peak_gb = 0.0
        self._interval_s = interval_s
        self._uses: dict[int, GpuUse] = {}
        # At how many looks the utilization of a GPU was known.
        self._measured: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def devices(self) -> tuple[GpuUse, ...]:
        """What was seen so far, one for each GPU."""
        return tuple(self._uses[number] for number in sorted(self._uses))

    def start(self) -> None:
        """Look from now on; the first look is taken by the thread at once."""
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="clusterfn-gpu-monitor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Take a last look and end the thread. Does nothing if it does not run."""
        self._ended.set()
        if self._thread is not None:
            # The look that was under way has ended by then.
            self._thread.join(smi.PATIENCE_S + 1.0)
            self._thread = None
            probe(self._ask_torch, "asking PyTorch for its peaks", None)

    def __enter__(self) -> GpuMonitor:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __str__(self) -> str:
        return "\n".join(str(gpu) for gpu in self.devices) or f"no GPU was seen: {self.trouble or 'not looked yet'}"

    def _watch(self) -> None:
        ended = False
        while not ended:
            # The flag is read before the look, so that the last look comes after the block.
            ended = self._ended.is_set()
            self._record(probe(_look, "looking at the GPUs", GpuInfo(trouble="the GPUs could not be queried")))
            self._ended.wait(0.0 if ended else self._interval_s)

    def _record(self, info: GpuInfo) -> None:
        if not info.devices:
            self.trouble = "" if self._uses else info.trouble
            return
        self.looks += 1
        self.trouble = ""
        self.peak_gb = max(self.peak_gb, info.used_gb)
        for gpu in info.devices:
            use = self._uses.setdefault(gpu.index, GpuUse(gpu.index, gpu.name, gpu.total_gb))
            use.peak_gb = max(use.peak_gb, gpu.used_gb or 0.0)
            if gpu.utilization is not None:
                looks = self._measured[gpu.index] = self._measured.get(gpu.index, 0) + 1
                mean, peak = use.utilization or 0.0, use.peak_utilization or 0.0
                use.utilization = mean + (gpu.utilization - mean) / looks
                use.peak_utilization = max(peak, gpu.utilization)

    def _ask_torch(self) -> None:
        torch = torch_with_cuda()
        for use in self.devices if torch is not None else ():
            _, use.own_peak_gb = own_gb(torch, use.index)


def _look() -> GpuInfo:
    # nvidia-smi first: it knows how busy a GPU is, and cannot disturb what this process's other threads do there.
    by_smi = by_nvidia_smi()
    if by_smi.devices:
        return by_smi
    own = by_torch()
    return own if own.devices else by_smi
