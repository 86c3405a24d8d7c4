"""A GPU, and what nvidia-smi says of those that this process may see.

Waits for its answer for `PATIENCE_S`; raises SmiFailed. CUDA_VISIBLE_DEVICES decides which GPUs these are and in which
order, as it does for CUDA (numbers in PCI order, as clusterfn sets it). A program that hung is not asked again for a
minute.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.bridge.supervisor.text import format_duration, in_one_line

# nvidia-smi takes over ten seconds on a server with eight GPUs and no persistence mode.
PATIENCE_S = 20.0
_PAUSE_S = 60.0
_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "driver_version", "compute_cap")
_MIB_PER_GB = 1024.0

# Empty, or the one time at which nvidia-smi last did not answer.
hung_at: list[float] = []


class SmiFailed(Exception):
    """nvidia-smi gave no usable answer; the message says how. `usual`: as on every machine without a GPU."""

    def __init__(self, message: str, usual: bool = False) -> None:
        super().__init__(message)
        self.usual = usual


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: As the process counts them: cuda:0 is 0.
        name: Such as "NVIDIA RTX A6000".
        total_gb: Its memory; None if unknown.
        used_gb: In use, by any process; None if unknown.
        own_gb: In tensors of this process's PyTorch.
        utilization: Percent of the time in which it computed, lately; None if unknown, as where PyTorch was asked.
        capability: Compute capability, such as (8, 6); None if unknown.
        uuid: "GPU-…"; "" if unknown.
        unified: Whether it has no memory of its own, and `total_gb` and `used_gb` are the machine's, as on a GB10.
    """

    index: int
    name: str
    total_gb: float | None
    used_gb: float | None
    own_gb: float = 0.0
    utilization: float | None = None
    capability: tuple[int, int] | None = None
    uuid: str = ""
    unified: bool = False

    @property
    def free_gb(self) -> float:
        """Memory that no process uses; 0.0 where that is unknown."""
        return 0.0 if self.used_gb is None or self.total_gb is None else max(0.0, self.total_gb - self.used_gb)


def visible_gpus() -> tuple[list[Gpu], str]:
    """Return the GPUs that this process may see, in the order in which CUDA counts them, and their driver.

    Raises:
        SmiFailed: It is missing, hangs, fails or answers something else, or all GPUs are hidden.
    """
    if visible_names() == []:
        raise SmiFailed("CUDA_VISIBLE_DEVICES hides all GPUs, as it does in a job with gpus=0", usual=True)
    gpus, driver = all_gpus()
    return visible(gpus), driver


def all_gpus() -> tuple[list[Gpu], str]:
    """Return all GPUs of the machine, as nvidia-smi counts them, and their driver.

    Raises:
        SmiFailed: It is missing, hangs, fails or answers something else.
    """
    text = _ask()
    rows = read_rows(text)
    if not rows:
        lines = text.strip().splitlines()
        if lines:
            raise SmiFailed(f"nvidia-smi did not print a table of GPUs: {in_one_line(lines[0])}")
        raise SmiFailed("nvidia-smi: No devices were found")
    return [_gpu(cells, place) for place, cells in enumerate(rows)], rows[0]["driver_version"]


def read_rows(text: str) -> list[dict[str, str]]:
    """Return the table of GPUs that nvidia-smi printed. The last field may be missing; other lines are left out."""
    return list(nvidia_smi.read_table(text, _FIELDS).rows or nvidia_smi.read_table(text, _FIELDS[:-1]).rows)


def visible(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those that this process may see, in the order in which CUDA counts them."""
    names = visible_names()
    chosen: list[Gpu] = list(gpus) if names is None else []
    # As CUDA reads the list: up to the first entry that names no GPU; the beginning of a UUID is enough.
    for name in names or ():
        matching = [gpu for gpu in gpus if name == str(gpu.index) or (len(name) > 4 and gpu.uuid.startswith(name))]
        if not matching:
            break
        chosen.append(matching[0])
    return [replace(gpu, index=number) for number, gpu in enumerate(chosen)]


def visible_names() -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES; None if it is not set and all GPUs are visible."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    return [] if names[0] in ("", "-1", "NoDevFiles", "none", "void") else names


def _gpu(cells: dict[str, str], place: int) -> Gpu:
    machine_mib, available_mib = nvidia_smi.machine_memory()
    total, unified = nvidia_smi.total_mib(cells["memory.total"], machine_mib)
    used, use = nvidia_smi.count(cells["memory.used"]), nvidia_smi.count(cells["utilization.gpu"])
    if unified and machine_mib is not None and available_mib is not None:
        used = machine_mib - available_mib
    index = nvidia_smi.count(cells["index"])
    major, point, minor = cells.get("compute_cap", "").partition(".")
    numbers = nvidia_smi.count(major), nvidia_smi.count(minor)
    capability = None
    if point and numbers[0] is not None and numbers[1] is not None:
        capability = (numbers[0], numbers[1])
    index = place if index is None else index
    percent = None if use is None else float(use)
    name, uuid = cells["name"], cells["uuid"]
    return Gpu(index, name, _gb(total), _gb(used), 0.0, percent, capability, uuid, unified)


def _gb(mib: int | None) -> float | None:
    return None if mib is None else mib / _MIB_PER_GB


def _ask() -> str:
    if hung_at and time.monotonic() - hung_at[-1] < _PAUSE_S:
        raise SmiFailed(f"nvidia-smi did not answer within {format_duration(PATIENCE_S)}")
    try:
        return _run(_FIELDS)
    except SmiFailed as failed:
        if "is not a valid field" not in str(failed):
            raise
    # Drivers before 510 do not know the last field.
    return _run(_FIELDS[:-1])


def _run(fields: Sequence[str]) -> str:
    try:
        return nvidia_smi.run(nvidia_smi.query(fields), PATIENCE_S)
    except nvidia_smi.NoAnswer as failed:
        if failed.errno == errno.ENOENT:
            raise SmiFailed("there is no nvidia-smi on this machine", usual=True) from None
        if failed.has_hung:
            hung_at[:] = [time.monotonic()]
        lines = failed.output.decode("utf-8", "replace").strip().splitlines()
        raise SmiFailed(f"nvidia-smi {failed}{f': {lines[0]}' if lines else ''}") from None
