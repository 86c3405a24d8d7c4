"""The eight cards of tensor01: installs the playing nvidia-smi and lets a test change what it answers.

`up` calls build(); tests get a GpuBox as `lab.gpubox`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .layout import GPUBOX, HOSTS
from .processes import LabError, State

STATE_FILE = GPUBOX / "state.json"
MODES = ("ok", "hang", "garbage", "nvml-mismatch", "no-devices")


def make_card(index: int) -> dict[str, Any]:
    """One idle RTX A6000."""
    digits = hashlib.sha256(b"clusterfn lab card %d" % index).hexdigest()
    uuid = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
    return {
        "index": index,
        "uuid": uuid,
        "name": "NVIDIA RTX A6000",
        "total_mib": 49140,
        "hidden_used_mib": 4,
        "utilization": 0,
        "temperature": 31 + index,
        "compute_cap": "8.6",
        "bus_id": f"00000000:{index * 0x20 + 1:02X}:00.0",
        "processes": [],
    }


def fresh() -> dict[str, Any]:
    """Eight idle cards that answer."""
    return {
        "mode": "ok",
        "driver_version": "575.57.08",
        "cuda_version": "12.9",
        "cards": [make_card(index) for index in range(8)],
    }


class GpuBox:
    """What nvidia-smi on tensor01 says. Every change holds until the next one or reset()."""

    def __init__(self, path: Path = STATE_FILE) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """The whole state, to look at or to change and write()."""
        state: dict[str, Any] = json.loads(self.path.read_text())
        return state

    def write(self, state: dict[str, Any]) -> None:
        """Replace the whole state at once."""
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(state, indent=1))
        beside.chmod(0o644)
        beside.replace(self.path)

    def reset(self) -> None:
        """Eight idle cards again."""
        self.write(fresh())

    def uuid(self, gpu: int) -> str:
        """The UUID of a card."""
        return str(self.read()["cards"][gpu]["uuid"])

    def set(self, mode: str = "ok") -> None:
        """ok, hang, garbage, nvml-mismatch or no-devices."""
        if mode not in MODES:
            raise ValueError(f"{mode!r} is none of {', '.join(MODES)}")
        self.write({**self.read(), "mode": mode})

    @contextlib.contextmanager
    def mode(self, name: str) -> Iterator[None]:
        """The same for the length of a with block."""
        with self.kept():
            self.set(name)
            yield

    @contextlib.contextmanager
    def process(
        self, gpu: int, pid: int, used_mib: int = 20000, name: str = "python", utilization: int = 97
    ) -> Iterator[None]:
        """Somebody's process on a card for the length of a with block; the pid may be a real one of another account."""
        with self.kept():
            state = self.read()
            card = state["cards"][gpu]
            card["processes"].append({"pid": pid, "used_mib": used_mib, "name": name})
            card["utilization"] = utilization
            self.write(state)
            yield

    @contextlib.contextmanager
    def hidden_memory(self, gpu: int, used_mib: int) -> Iterator[None]:
        """Memory in use on a card with no process to be seen (another container, a driver leak)."""
        with self.kept():
            state = self.read()
            state["cards"][gpu]["hidden_used_mib"] = used_mib
            self.write(state)
            yield

    @contextlib.contextmanager
    def cards(self, count: int) -> Iterator[None]:
        """Only the first so many cards."""
        with self.kept():
            state = self.read()
            self.write({**state, "cards": state["cards"][:count]})
            yield

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever happens inside, the state afterwards is the one from before."""
        before = copy.deepcopy(self.read())
        try:
            yield
        finally:
            self.write(before)


def build(state: State) -> None:
    """Install the program for tensor01 and give it idle cards."""
    GPUBOX.mkdir(exist_ok=True)
    if not STATE_FILE.exists():
        GpuBox().reset()
    python = state.pythons.get("3.6") or next(iter(state.pythons.values()), None)
    if python is None:
        raise LabError("nvidia-smi needs one of the lab's interpreters")
    program = HOSTS / "tensor01" / "bin" / "nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    source = (Path(__file__).parent / "nvidia_smi.py").read_text()
    program.write_text(f"#!{python['path']} -I\n{source}")
    program.chmod(0o755)
