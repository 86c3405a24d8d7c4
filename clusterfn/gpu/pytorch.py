"""The PyTorch of this process, if it is there and already uses CUDA.

Never imports it and never makes it use CUDA. That would take seconds, fix the visible GPUs, and take some hundred
megabytes on each. It would also forbid every later fork (https://github.com/pytorch/pytorch/pull/85951).
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

_GB = float(1 << 30)
_KINDS_OF_GPUS = ("cuda", "hip")
# A line of PyTorch's version.py that names the version of CUDA or HIP.
_BUILT_FOR = re.compile(r"^(?:cuda|hip)\s*(?::[^=\n]*)?=\s*([^\s#]+)", re.MULTILINE)


def loaded() -> Any:
    """Return PyTorch if it has been imported; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None


def with_cuda() -> Any:
    """Return PyTorch if this process has used CUDA by it; else None."""
    torch = loaded()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def lacks_cuda() -> str:
    """Return the version of a PyTorch that is built without CUDA, loaded or only installed; "" otherwise."""
    torch = loaded()
    if torch is not None:
        return "" if any(getattr(torch.version, name, None) for name in _KINDS_OF_GPUS) else str(torch.__version__)
    version, path = installed_version(), find_version_file()
    # Each entry is "None", or a version in quotation marks such as "'12.8'". The version alone does not suffice: only
    # some builds for CPUs say "+cpu", and neither conda-forge's nor PyPI's for ARM do.
    built_for = _BUILT_FOR.findall(path.read_text(encoding="utf-8")) if path else []
    lacks = set(built_for) == {"None"} if built_for else version.endswith("+cpu")
    return version or "of unknown version" if lacks else ""


def installed_version() -> str:
    """Return the version of the PyTorch that could be imported, without importing it; "" if there is none."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def find_version_file() -> Path | None:
    """Return the path of the importable PyTorch's `version.py`; None if there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        # Other code has put a module of that name into sys.modules without a spec.
        return None
    places = [Path(folder) / "version.py" for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_file()), None)


def memory_gb(torch: Any, device: int) -> tuple[float | None, float]:
    """Return free and total GB of a GPU; None for the free ones without a CUDA context there: asking would make one."""
    has_primary_context = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
    if has_primary_context is not None:
        has_context = bool(has_primary_context(device))
    else:
        has_context = device == torch.cuda.current_device() or bool(torch.cuda.memory_reserved(device))
    if not has_context:
        return None, torch.cuda.get_device_properties(device).total_memory / _GB
    free, total = torch.cuda.mem_get_info(device)
    return free / _GB, total / _GB


def own_gb(torch: Any, device: int) -> tuple[float, float]:
    """Return the GB of a GPU in tensors of this process, and the most that there ever were."""
    return torch.cuda.memory_allocated(device) / _GB, torch.cuda.max_memory_allocated(device) / _GB
