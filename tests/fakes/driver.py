"""An nvidia-smi that answers each field of each GPU as a test says, "[N/A]" for all others. No test in here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.programs import python_program

_PROGRAM = """\
import json, sys
told = json.loads({told!r})
for name in ("gpu", "compute-apps"):
    fields = [each.split("=", 1)[1].split(",") for each in sys.argv if each.startswith("--query-%s=" % name)]
    for row in told[name] if fields else []:
        print(row if isinstance(row, str) else ", ".join(row.get(field, "[N/A]") for field in fields[0]))
sys.exit(told["rc"])
"""
# As driver 580.95 says of a DGX Spark.
GB10 = {
    "pci.bus_id": "0000000F:01:00.0", "index": "0", "uuid": "GPU-2dee1e25", "name": "NVIDIA GB10",
    "utilization.gpu": "3", "driver_version": "580.95.05", "compute_cap": "12.1",
}  # fmt: skip


def a6000(index: int) -> dict[str, str]:
    """One of several idle GPUs."""
    return {
        "pci.bus_id": f"00000000:{index:02X}:00.0", "index": str(index), "uuid": f"GPU-{index}", "memory.used": "4",
        "name": "NVIDIA RTX A6000", "memory.total": "49140", "utilization.gpu": "0", "driver_version": "575.57.08",
        "compute_cap": "8.6",
    }  # fmt: skip


def install(
    folder: Path, gpus: Sequence[Mapping[str, str] | str], apps: Sequence[Mapping[str, str] | str] = (), rc: int = 0
) -> Path:
    """Put the program into a folder that is to be first in PATH; a GPU given as a text is a line as it is."""
    folder.mkdir(exist_ok=True)
    program = folder / "new"
    told = json.dumps({"gpu": list(gpus), "compute-apps": list(apps), "rc": rc})
    python_program(program, _PROGRAM.format(told=told), "-IS")
    program.rename(folder / "nvidia-smi")
    return folder
