"""Apptainer, for the tests that take minutes: Debian's package of a newer release, beside its own C library.

Nothing is installed into the machine: apt has lists and a cache of its own, and the programs get another loader.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .layout import IMAGES, ROOT
from .processes import run
from .pythons import patchelf

PLACE = ROOT / "apptainer"
_LIBRARIES = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libseccomp.so.2", "libsqlite3.so.0")
_SOURCES = """\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main
"""


def build() -> Path:
    """Make it if it is missing, and return the folder of its program, which no host has in PATH.

    Raises:
        LabError: A package could not be had, or a program failed.
    """
    program = PLACE / "usr" / "bin" / "apptainer"
    if not program.exists():
        with tempfile.TemporaryDirectory() as folder:
            _download(Path(folder))
            part = PLACE.with_name(".apptainer")
            shutil.rmtree(part, ignore_errors=True)
            for package in Path(folder).glob("*.deb"):
                into = part if package.name.startswith("apptainer") else Path(folder) / "libraries"
                run(["dpkg", "-x", str(package), str(into)])
            _give_libraries(part, Path(folder) / "libraries")
            # It finds its settings and its place for a session's mounts beside itself.
            shutil.copytree(part / "etc" / "apptainer", part / "usr" / "etc" / "apptainer")
            (part / "usr/var/lib/apptainer/mnt/session").mkdir(parents=True)
            for name in ("etc", "var"):  # its starter is in a folder below lib
                (part / "usr/lib" / name).symlink_to(f"../{name}")
            part.rename(PLACE)
    return program.parent


def image(minor: str) -> Path:
    """Make a `.sif` file of an image if it is missing, and return it; what unpacks one is beside Apptainer then.

    Raises:
        LabError: The package could not be had, or a program failed.
    """
    programs, file = build(), IMAGES / f"python{minor}.sif"
    if not (programs / "unsquashfs").exists():
        with tempfile.TemporaryDirectory() as folder:
            run(["env", "-C", folder, "apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", "squashfs-tools"])
            run(["dpkg", "-x", str(next(Path(folder).glob("*.deb"))), folder])
            for name in ("mksquashfs", "unsquashfs"):
                shutil.copy2(Path(folder) / "usr" / "bin" / name, programs)
    if not file.exists():
        part = file.with_suffix(".part")
        run(["env", f"PATH={programs}:/usr/sbin:/usr/bin:/sbin:/bin", str(programs / "apptainer"), "build", "--force",
             "--mksquashfs-args=-comp lz4", str(part), str(file.with_suffix(""))])  # fmt: skip
        part.rename(file)
    return file


def _download(folder: Path) -> None:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(_SOURCES)
    places = {"Etc::SourceList": "sources.list", "State::Lists": "lists", "Cache": "cache"}
    options = [word for key, path in places.items() for word in ("-o", f"Dir::{key}={folder / path}")]
    options += ["-o", "Dir::Etc::SourceParts=-", "-o", "APT::Sandbox::User=root"]
    run(["apt-get", *options, "update", "-q"])
    for package in ("apptainer/sid", "libc6/trixie", "libseccomp2/trixie", "libsqlite3-0/trixie"):
        run(["env", "-C", str(folder), "apt-get", *options, "download", "-q", package])


def _give_libraries(tree: Path, libraries: Path) -> None:
    own = tree / "usr" / "lib" / "own"
    own.mkdir(parents=True)
    for name in _LIBRARIES:
        found = next(path for path in libraries.rglob(name) if path.exists())
        shutil.copy2(found.resolve(), own / name)
    final = PLACE / own.relative_to(tree)
    programs = [tree / "usr/bin/apptainer", *(path for path in (tree / "usr").glob("lib*/**/apptainer/**/*"))]
    for path in programs:
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            options = ["--force-rpath", "--set-rpath", str(final)]
            if path.suffix != ".so":
                options += ["--set-interpreter", str(final / _LIBRARIES[0])]
            run([str(patchelf()), *options, str(path)])
