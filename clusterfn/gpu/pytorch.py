"""The PyTorch of this process, if it is there and already uses CUDA.

Never imports it and never makes it use CUDA: that would take seconds, fix the visible cards, take some hundred
megabytes on each, and forbid every later fork (https://github.com/pytorch/pytorch/pull/85951). Called by `cards`,
`contexts`, `hardware` and `monitor`.
"""

from __future__ import annotations

import sys
from typing import Any

_GB = float(1 << 30)


def loaded() -> Any:
    """PyTorch, if somebody has imported it; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None


def with_cuda() -> Any:
    """PyTorch, if this process has used CUDA by it; else None."""
    torch = loaded()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def lacks_cuda() -> str:
    """The version of a PyTorch that is built without CUDA, loaded or only installed; "" otherwise."""
    torch = loaded()
    if torch is not None:
        return "" if any(getattr(torch.version, name, None) for name in ("cuda", "hip")) else str(torch.__version__)
    version = installed_version()
    return version if version.endswith("+cpu") else ""


def installed_version() -> str:
    """The version of the PyTorch that could be imported, without importing it; "" if there is none."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def memory_gb(torch: Any, device: int) -> tuple[float, float]:
    """Free and total GB of a card. CUDA is asked only for cards that the process uses: asking alone takes memory."""
    if device == torch.cuda.current_device() or torch.cuda.memory_reserved(device):
        free, total = torch.cuda.mem_get_info(device)
    else:
        total = torch.cuda.get_device_properties(device).total_memory
        free = total
    return free / _GB, total / _GB


def own_gb(torch: Any, device: int) -> tuple[float, float]:
    """GB of a card in tensors of this process, and the most that there ever were."""
    return torch.cuda.memory_allocated(device) / _GB, torch.cuda.max_memory_allocated(device) / _GB
