"""A project of the user's own in a folder, and which files of it travel with a function."""

from __future__ import annotations

from pathlib import Path

from clusterfn.packing.project import modules


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/").replace("/init", "/__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent_files(*names: str) -> dict[str, bytes]:
    parcel = modules.collect(names)[0]
    return dict(parcel.files) if parcel else {}


def sent(*names: str) -> set[str]:
    return set(sent_files(*names))
