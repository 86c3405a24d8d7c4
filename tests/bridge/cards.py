"""An nvidia-smi of a test's own: the lab's program with other cards, whose UUIDs nobody else has. No test in here."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from tests.lab import gpubox
from tests.programs import python_program

PROGRAM = Path(gpubox.__file__).with_name("nvidia_smi.py")


def machine(folder: Path, *kinds: tuple[str, int]) -> gpubox.GpuBox:
    """A machine with a card for each (name, MiB); `folder` then belongs at the front of PATH."""
    folder.mkdir(exist_ok=True)
    box = gpubox.GpuBox(folder / "cards.json")
    box.write({**gpubox.fresh(), "cards": [card(index, *kind) for index, kind in enumerate(kinds)]})
    text = PROGRAM.read_text().replace(str(gpubox.STATE_FILE), str(box.path))
    python_program(folder / "nvidia-smi", text, "-I")
    return box


def card(index: int, name: str, total_mib: int) -> dict[str, Any]:
    """One idle card."""
    uuid = f"GPU-{secrets.token_hex(16)}"
    return {**gpubox.make_card(index), "uuid": uuid, "name": name, "total_mib": total_mib}
