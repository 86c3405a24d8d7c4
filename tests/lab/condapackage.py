"""Conda packages from files in memory, and a channel's index: both formats, with what installers read in them.

`zstandard` is imported late: only the channel's own tools have it. Archives are the same bytes each time, so that a
channel made again has the same hashes.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOMENT = 1_700_000_000  # every date in a package
ZSTD_LEVEL = 3
_BZIP_LEVEL = 1


@dataclass(frozen=True)
class Entry:
    """One file of a package: its bytes, or where it points.

    Attributes:
        placeholder: What stands for the prefix in it, to be replaced at installation; "" for most files.
        binary: Whether the replacement keeps the file's length.
    """

    data: bytes = b""
    mode: int = 0o644
    link: str = ""
    placeholder: str = ""
    binary: bool = False


@dataclass(frozen=True)
class Package:
    """What one archive holds and what its index says.

    Attributes:
        noarch: "" for linux-64, else "python" or "generic".
        entry_points: Of a noarch: python package, "name = module:function".
        formats: ".conda", ".tar.bz2".
    """

    name: str
    version: str
    build: str
    files: Mapping[str, Entry]
    build_number: int = 0
    depends: Sequence[str] = ()
    constrains: Sequence[str] = ()
    noarch: str = ""
    entry_points: Sequence[str] = ()
    formats: Sequence[str] = (".conda",)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def subdir(self) -> str:
        return "noarch" if self.noarch else "linux-64"

    def index(self) -> dict[str, Any]:
        """info/index.json, and with hashes and size the package's lines in repodata.json."""
        facts: dict[str, Any] = {
            "name": self.name, "version": self.version, "build": self.build, "build_number": self.build_number,
            "depends": list(self.depends), "constrains": list(self.constrains), "subdir": self.subdir,
            "timestamp": MOMENT * 1000, "license": "toy", **self.extra,
        }  # fmt: skip
        if self.noarch:
            return {**facts, "noarch": self.noarch, "arch": None, "platform": None}
        return {**facts, "arch": "x86_64", "platform": "linux"}


def path_record(name: str, entry: Entry) -> dict[str, Any]:
    """One line of info/paths.json."""
    record: dict[str, Any] = {
        "_path": name,
        "path_type": "softlink" if entry.link else "hardlink",
        "sha256": hashlib.sha256(entry.data).hexdigest(),
        "size_in_bytes": len(entry.data),
    }
    if entry.placeholder:
        record["prefix_placeholder"] = entry.placeholder
        record["file_mode"] = "binary" if entry.binary else "text"
    return record


def has_prefix(files: Mapping[str, Entry]) -> str:
    """info/has_prefix, which an old conda reads instead of info/paths.json."""
    marked = {name: entry for name, entry in files.items() if entry.placeholder}
    return "".join(
        f'"{entry.placeholder}" {"binary" if entry.binary else "text"} "{name}"\n' for name, entry in marked.items()
    )


def information(package: Package) -> dict[str, Entry]:
    """The files below info/."""
    paths = {"paths": [path_record(*item) for item in sorted(package.files.items())], "paths_version": 1}
    texts = {
        "info/index.json": json.dumps(package.index(), indent=1, sort_keys=True),
        "info/paths.json": json.dumps(paths, indent=1),
        "info/files": "".join(f"{name}\n" for name in sorted(package.files)),
        "info/about.json": "{}",
    }
    if prefixes := has_prefix(package.files):
        texts["info/has_prefix"] = prefixes
    if package.noarch == "python":
        noarch = {"type": "python", "entry_points": list(package.entry_points)}
        texts["info/link.json"] = json.dumps({"noarch": noarch, "package_metadata_version": 1})
        texts["info/noarch.json"] = texts["info/link.json"]
    return {name: Entry(text.encode()) for name, text in texts.items()}


def tar(files: Mapping[str, Entry]) -> bytes:
    """An uncompressed tar, sorted and with one date."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mtime, member.mode, member.size = MOMENT, entry.mode, len(entry.data)
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def as_tar_bz2(package: Package) -> bytes:
    return bz2.compress(tar({**information(package), **package.files}), _BZIP_LEVEL)


def as_conda(package: Package) -> bytes:
    """A zip of three uncompressed members, the payload and the information compressed by zstd."""
    import zstandard

    def squeezed(data: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)

    members = {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        f"pkg-{package.stem}.tar.zst": squeezed(tar(package.files)),
        f"info-{package.stem}.tar.zst": squeezed(tar(information(package))),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2023, 11, 14, 0, 0, 0)), data)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[Package], bytes]] = {".conda": as_conda, ".tar.bz2": as_tar_bz2}


def write(package: Package, channel: Path) -> list[dict[str, Any]]:
    """The package's archives in their folder; their lines for repodata.json, each with its file name as "fn"."""
    lines = []
    for suffix in package.formats:
        data = WRITERS[suffix](package)
        place = channel / package.subdir / f"{package.stem}{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        hashes = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
        lines.append({**package.index(), **hashes, "size": len(data), "fn": place.name})
    return lines


def write_index(channel: Path, lines: Sequence[dict[str, Any]]) -> None:
    """repodata.json of both folders; each must exist, or no client takes the channel for one."""
    for subdir in ("linux-64", "noarch"):
        ours = [line for line in lines if line["subdir"] == subdir]
        repodata = {
            "info": {"subdir": subdir},
            "packages": {line["fn"]: line for line in ours if line["fn"].endswith(".tar.bz2")},
            "packages.conda": {line["fn"]: line for line in ours if line["fn"].endswith(".conda")},
            "removed": [],
            "repodata_version": 1,
        }
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        (channel / subdir / "repodata.json").write_text(json.dumps(repodata, indent=1, sort_keys=True))
