"""The files that a pylock.toml names: their addresses, which of several fits best, and an index that has these alone.

Writes below the folder that it is given; asks no server.
"""

from __future__ import annotations

import hashlib
import html
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from clusterfn.bridge.builder.fetch import local_path, masked
from clusterfn.environment.project import ProjectFile, normalize
from clusterfn.errors import LockError

_MANYLINUX = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
_WHEEL = ".whl"
_PEP_440 = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?")


@dataclass(frozen=True)
class Wheel:
    """One file that uv chose.

    Attributes:
        url: Without a password.
        sha256: "" if neither the index nor the lock has one.
    """

    name: str
    version: str
    url: str
    sha256: str


def write_index(tree: Mapping[str, Any], base: Path, folder: Path, title: str) -> Iterator[str]:
    """Write an index of the files that a pylock.toml names; yield the requirement of each package."""
    pages: dict[str, list[str]] = {}
    wanted: list[tuple[str, str, str]] = []
    for package in tree.get("packages", []):
        name = normalize(str(package["name"]))
        if "directory" in package:
            continue  # the user's own, sent as source
        if "vcs" in package:
            raise repository_error(name, package["vcs"], title)
        files = [*package.get("wheels", []), *(package[key] for key in ("archive", "sdist") if key in package)]
        version = str(package.get("version", "")) or version_of(file_name(address_of(files[0], base)))
        needs = html.escape(str(package.get("requires-python", "")))
        for file in files:
            address, sha256 = without_password(address_of(file, base)), file.get("hashes", {}).get("sha256", "")
            href = html.escape(f"{address}#sha256={sha256}" if sha256 else address)
            attribute = f' data-requires-python="{needs}"' if needs else ""
            pages.setdefault(name, []).append(f'<a href="{href}"{attribute}>{html.escape(file_name(address))}</a>')
        marker = f" ; {package['marker']}" if package.get("marker") else ""
        wanted.append((name, version, marker))
    for name, version, marker in wanted:
        # PEP 440: ==1.0 also matches 1.0+cpu, and uv would prefer that.
        builds = {other for known, other, _ in wanted if known == name and _is_build_of(other, version)}
        yield f"{name}=={version}{''.join(f',!={other}' for other in sorted(builds))}{marker}"
    for name, lines in pages.items():
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"<!DOCTYPE html><html><body>{''.join(lines)}</body></html>", encoding="utf-8")
    folder.mkdir(exist_ok=True)


def entries_of_one_version(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries that share name and version with another: from two indexes, whose files may have one name."""
    keys = [(normalize(str(each["name"])), str(each.get("version", ""))) for each in tree.get("packages", [])]
    return [each for each, key in zip(tree.get("packages", []), keys) if key[1] and keys.count(key) > 1]


def stand_ins(named: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a lock with a package for each entry, under another name: uv chooses those whose markers hold."""
    return {
        "packages": [
            {"name": name, "version": "1", "marker": entry.get("marker", ""),
             "wheels": [{"url": f"https://stand-in.invalid/{name.replace('-', '_')}-1-py3-none-any.whl",
                         "hashes": {"sha256": "0" * 64}}]}
            for name, entry in named.items()
        ]
    }  # fmt: skip


def _is_build_of(other: str, version: str) -> bool:
    """Whether another version is a local version of one that has no local part: 1.0+cpu of 1.0."""
    public, plus, _ = other.partition("+")
    return bool(plus) and "+" not in version and re.sub(r"(\.0)+$", "", public) == re.sub(r"(\.0)+$", "", version)


def repository_error(name: str, vcs: Mapping[str, Any], title: str) -> LockError:
    """Return the error for a package that no lock can hold."""
    where = masked(str(vcs.get("url", "unknown")))
    return LockError(
        f"{title}: {name} comes from a repository ({where}), which cannot be locked to a wheel",
        hint=f"clone it and name its folder in [tool.uv.sources], or name a released version of {name}",
    )


def address_of(file: Mapping[str, Any], base: Path) -> str:
    """Return the address of a file, which a pylock.toml may give as a path."""
    return str(file["url"]) if "url" in file else Path(base.absolute(), str(file["path"])).resolve().as_uri()


def without_password(url: str) -> str:
    """Return an address without user, password and fragment.

    Example:
        >>> without_password("https://ada:secret@example.org/x-1.whl#sha256=00")
        'https://example.org/x-1.whl'
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def hash_of_local(url: str) -> str:
    """Return the SHA-256 of a file on this machine, for which uv 0.12 writes none; "" for any other address."""
    path = local_path(url)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def file_name(url: str) -> str:
    """Return the name of the file at an address."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def version_of(file: str) -> str:
    """Return the version that a file's name has.

    Example:
        >>> version_of("my-toy-1.0.tar.gz"), version_of("my_toy-1.0-py3-none-any.whl")
        ('1.0', '1.0')
    """
    bare = re.sub(r"(\.tar\.\w+|\.zip|\.whl)$", "", file)
    return bare.split("-")[1] if file.endswith(_WHEEL) else bare.rpartition("-")[2]


def wheel_rank(file: str) -> tuple[int, int, int, int]:
    """Rank one of several wheels that fit: the highest is the one for this very Python, and the newest glibc.

    Example:
        >>> wheel_rank("x-1-cp311-cp311-manylinux_2_17_x86_64.whl") > wheel_rank("x-1-py3-none-any.whl")
        True
    """
    tags = file[: -len(_WHEEL)].split("-") if file.endswith(_WHEEL) else []
    if len(tags) < 5:
        return (-1, 0, 0, 0)
    python, abi, platform = tags[-3:]
    kind = 2 if re.search(r"cp\d", abi) else 1 if "abi3" in abi else 0
    minor = max((int(found[1] or 0) for found in re.finditer(r"(?:cp|py)\d(\d*)", python)), default=0)
    glibc = [int(found) for found in re.findall(r"manylinux_2_(\d+)_", f"{platform}_")]
    glibc += [number for name, number in _MANYLINUX.items() if name in re.split(r"[_.]", platform)]
    build = re.match(r"\d+", tags[2]) if len(tags) > 5 else None
    return (kind, minor, max(glibc, default=0), int(build[0]) if build else 0)


def write_stand_ins(provided: Mapping[str, str], folder: Path) -> Path:
    """Write a wheel without content for each package that conda brings, and return a file that names them for uv."""
    folder.mkdir()
    lines = []
    for name, version in provided.items():
        if _PEP_440.fullmatch(version):
            stem = f"{name.replace('-', '_')}-{version}"
            path = folder / f"{stem}-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                archive.writestr(f"{stem}.dist-info/METADATA", head)
                archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
                archive.writestr(f"{stem}.dist-info/RECORD", "")
            lines.append(f"{name} @ {path.as_uri()}")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return constraints


def check_hashes(wheels: Sequence[Wheel], project: ProjectFile) -> None:
    """Raise if the user names hashes, and a wheel has none of them: uv does not compare them here.

    Raises:
        LockError: There is such a wheel.
    """
    if not project.hashes:
        return
    for wheel in wheels:
        file = file_name(wheel.url)
        if wheel.name not in project.hashes:
            raise LockError(
                f"{project.path.name} has hashes, but none for {wheel.name} {wheel.version}", evidence=[file],
                hint=f"add {wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}",
            )  # fmt: skip
        if wheel.sha256 not in project.hashes[wheel.name]:
            raise LockError(
                f"{project.path.name}: {wheel.name} {wheel.version} has another hash than the file allows",
                evidence=[f"{file} has sha256:{wheel.sha256}"],
                hint="if the file is right, list the hashes of all of its wheels: `uv pip compile --generate-hashes`",
            )
