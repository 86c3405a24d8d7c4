"""Compares a text with the one that was approved. A missing file fails; CLUSTERFN_UPDATE_GOLDEN=1 writes it."""

import os
from pathlib import Path

HERE = Path(__file__).parent
UPDATE = os.environ.get("CLUSTERFN_UPDATE_GOLDEN") == "1"  # read now: each test runs without such variables


def matches(text: str, name: str) -> bool:
    path = HERE / name
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; look at the text, then run with CLUSTERFN_UPDATE_GOLDEN=1:\n{text}"
    assert text == path.read_text(encoding="utf-8"), f"differs from {path}"
    return True


def recorded(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
