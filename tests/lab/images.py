"""Images for containers: folders with a Python, a shell and their libraries, and nothing else of this machine.

They are made of the lab's interpreters by hard links, so one takes a second and hardly any disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from .layout import ACCOUNT_LIST, HOMES, IMAGES, PYTHONS
from .processes import State

MINORS = (9, 11, 13)
_PROGRAMS = ("env", "bash", "dash", "cat", "ls", "sleep")
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
# What the runtimes mount, or what they need to be there: nobody may write into these images.
_FOLDERS = (
    "dev", "proc", "sys", "tmp", "etc", "root", "home", "mnt", "opt", "work", "usr/sbin", "usr/lib64", "run", "var/tmp",
)  # fmt: skip


def build(_: State) -> None:
    """Make the images that are missing."""
    for minor in MINORS:
        if (PYTHONS / f"3.{minor}").exists() and not (IMAGES / f"python3.{minor}").exists():
            _make(IMAGES / f"python3.{minor}", PYTHONS / f"3.{minor}")


def _make(image: Path, python: Path) -> None:
    image.parent.mkdir(mode=0o755, exist_ok=True)
    part = image.with_name(f".{image.name}")
    shutil.rmtree(part, ignore_errors=True)
    homes = [str(HOMES / account.name).lstrip("/") for account in ACCOUNT_LIST]  # Charliecloud cannot add folders
    for folder in (*_FOLDERS, "usr/bin", "usr/lib", *homes):
        (part / folder).mkdir(parents=True)
    for link, target in _LINKS.items():
        (part / link).symlink_to(target)
    shutil.copytree(python.resolve(), part / "usr/local", symlinks=True, copy_function=os.link)
    programs = [Path("/usr/bin") / name for name in _PROGRAMS]
    for program in programs:
        shutil.copy2(program, part / "usr/bin")
    (part / "usr/bin/sh").symlink_to("dash")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (part / "etc" / name).touch()
    binaries = [*programs, python.joinpath("bin/python3").resolve(), *(part / "usr/local/lib").rglob("*.so*")]
    for library in _libraries(binaries):
        target = part / str(library.resolve().parent).lstrip("/") / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if loader.exists():
        shutil.copy2(loader, part / "usr/lib64" / loader.name)
    part.rename(image)


def _libraries(files: list[Path]) -> list[Path]:
    """Return what the dynamic loader takes for these files from this machine."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"=> (/(?:usr/)?lib\S+)", said)}
    # What wheels of the package index expect of every Linux (PEP 600).
    names = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6")
    return sorted({*found, *(path for name in names for path in Path("/usr/lib").glob(f"*-linux-gnu/{name}"))})
