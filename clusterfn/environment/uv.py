"""Find uv, which resolves wheels for another platform than this one's; its settings, what it is given and says.

It says in a pylock.toml which packages a host needs, and their addresses. Which of several files fits best is decided
here. Asks no server.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename

from clusterfn.bridge.builder.plan import local_path
from clusterfn.environment.conda_solver import OLDEST_GLIBC, SolveTarget, machine_of
from clusterfn.environment.lock import LockedPackage, Unsolved, file_name
from clusterfn.environment.package_sources import without_password
from clusterfn.environment.project import (
    ProjectFile,
    admits_release,
    digest_of_archive,
    normalize,
)
from clusterfn.errors import LockError

LINUX = ("linux-64", "linux-aarch64")
# uv knows these minor versions of glibc, and rejects others.
_GLIBC = (17, 28, *range(31, 41))
# They would change what is asked for: this interpreter, its GPU, another output.
_NOT_PASSED = (
    "UV_TORCH_BACKEND", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_FROZEN", "UV_LOCKED", "UV_OFFLINE", "UV_NO_SYNC",
    "UV_REQUIRE_HASHES", "UV_CUSTOM_COMPILE_COMMAND", "UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY",
    "UV_NO_BINARY",
)  # fmt: skip
# They narrow what uv may choose, and no file of the project has them: its lock would depend on who makes it. The files
# of a uv.lock have no dates, so that UV_EXCLUDE_NEWER would leave none. `uv export` needs it, as a uv.lock notes it.
OF_CHOICE = (
    "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_EXCLUDE_NEWER", "UV_BUILD_CONSTRAINT", "UV_NO_BUILD",
    "UV_NO_BUILD_PACKAGE", "UV_NO_BINARY_PACKAGE",
)  # fmt: skip
# What uv says of a server that does not answer, or not as one should.
_NO_ANSWER = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error|[Cc]onnection (?:refused|reset)"
    r"|invalid peer certificate|operation timed out|Could not connect",
)


@dataclass(frozen=True)
class UvResult:
    """How uv ended.

    Attributes:
        status: 0 if it succeeded.
        text: What it wrote to stderr, without passwords.
        found: The pylock.toml that it has made; empty if there is no solution.
    """

    status: int
    text: str
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def unreachable(self) -> bool:
        """Whether an index does not answer, so that it is unknown whether there is a solution."""
        return bool(_NO_ANSWER.search(self.text)) and "is not defined" not in self.text

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line.rstrip() for line in self.text.splitlines() if line.strip()]


def platform_of(target: SolveTarget) -> str:
    """Return a host's platform as uv names it, "x86_64-manylinux_2_17"; raise LockError if uv knows no such platform.

    uv knows some versions of glibc, and an older one fits, too.
    """
    numbers = [int(part) for part in re.findall(r"\d+", target.glibc or OLDEST_GLIBC)[:2]]
    fitting = [minor for minor in _GLIBC if [2, minor] <= numbers]
    if target.platform not in LINUX or not fitting:
        what = f"glibc {target.glibc}" if target.platform in LINUX else target.platform
        hint = "name conda's packages, in an environment.yml or in packages="
        raise LockError(f"uv resolves nothing for {what}", hint=hint)
    return f"{machine_of(target.platform)}-manylinux_2_{fitting[-1]}"


def find_uv() -> str:
    """Return the path of the uv that was installed with clusterfn, else of the one in PATH, or raise LockError."""
    found = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if found is None:
        raise LockError("there is no uv, which finds wheels", hint="pip install 'uv>=0.12,<1'")
    return found


def plain_variables() -> dict[str, str]:
    """Return this process's variables for uv, with the certificate of other programs under the name that uv knows."""
    found = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    certificate = found.get("SSL_CERT_FILE") or found.get("REQUESTS_CA_BUNDLE")
    found |= {"SSL_CERT_FILE": certificate} if certificate else {}
    return {**found, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


_MANYLINUX = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
# Only such a version of conda's is one of an index's, too.
PEP_440 = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?")


def packages_for(tree: Mapping[str, Any], project: ProjectFile, python: str, platform: str) -> list[Mapping[str, Any]]:
    """Return the packages of a pylock.toml that are for a Python, "3.11.7", and a platform, as uv names it.

    Raise Unsolved if it is for other hosts, and LockError if a marker cannot be read.
    """
    minor = ".".join(python.split(".")[:2])
    machine = platform.partition("-")[0]
    groups = {*project.groups, *map(str, tree.get("default-groups", []))}
    host: dict[str, Any] = {"extra": "", "extras": set(project.extras), "dependency_groups": groups}
    host |= {"implementation_name": "cpython", "implementation_version": python}
    host |= {"python_full_version": python, "python_version": minor, "platform_python_implementation": "CPython"}
    host |= {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine}
    host |= {"platform_release": "0", "platform_version": "0"}
    environments = list(map(str, tree.get("environments", [])))
    release = tuple(map(int, python.split(".")))
    try:
        found = [
            package
            for package in tree.get("packages", [])
            if not package.get("marker") or Marker(str(package["marker"])).evaluate(host, "lock_file")
        ]
        wants = {str(package["name"]): str(package.get("requires-python", "")) for package in found}
        others = [name for name, versions in wants.items() if not admits_release(versions, release)]
        fits = not environments or any(Marker(marker).evaluate(host, "lock_file") for marker in environments)
    except (InvalidMarker, UndefinedComparison, ValueError) as error:
        # `packaging` compares some texts as versions, and raises ValueError for others.
        raise LockError(f"{project.path.name}: {error}", hint="correct it, or lock the project again") from error
    if others or not fits:
        message = f"{project.path.name} is for other machines or another Python than {python}"
        evidence = others or [f"environments: {', '.join(environments)}"]
        raise Unsolved(message, evidence=evidence, hint="lock the project for this one, too")
    return found


@functools.lru_cache(maxsize=8)
def wheel_tags(python: str, platform: str) -> dict[Tag, int]:
    """Return the tags of the wheels that a Python can use on a host, each with its rank: 0 fits best."""
    machine, _, glibc = platform.partition("-manylinux_2_")
    names = [name for minor in range(int(glibc), 4, -1) for name in (f"manylinux_2_{minor}", _MANYLINUX.get(minor))]
    platforms = [f"{name}_{machine}" for name in [*names, "linux"] if name]
    major, minor = map(int, python.split(".")[:2])
    own = cpython_tags((major, minor), [f"cp{major}{minor}"], platforms)
    others = compatible_tags((major, minor), f"cp{major}{minor}", platforms)
    return {tag: rank for rank, tag in enumerate([*own, *others])}


def file_rank(file: str, tags: Mapping[Tag, int]) -> tuple[int, BuildTag]:
    """Rank the files of one version: the highest is the wheel that fits best; below 0 are wheels that do not fit."""
    try:
        _, _, build, theirs = parse_wheel_filename(file)
    except InvalidWheelFilename:
        # A source distribution fits everywhere, and any wheel that fits is better.
        return 0, ()
    return max(len(tags) - tags[tag] if tag in tags else -1 for tag in theirs), build


def choose_file(package: Mapping[str, Any], base: Path, python: str, platform: str, title: str) -> tuple[str, str, str]:
    """Choose the file of a package in a pylock.toml that fits a host best; return its version, address and SHA-256.

    Paths count from `base`. Raise Unsolved if none fits.
    """
    tags = wheel_tags(python, platform)
    files = [*package.get("wheels", []), *(package[key] for key in ("archive", "sdist") if key in package)]
    addresses = [
        str(file["url"]) if "url" in file else Path(base.absolute(), str(file["path"])).resolve().as_uri()
        for file in files
    ]
    address, file = max(zip(addresses, files), key=lambda pair: file_rank(file_name(pair[0]), tags))
    url = without_password(address)
    version = str(package.get("version", "")) or _version_of(file_name(url))
    if file_rank(file_name(url), tags)[0] < 0:
        what = f"{normalize(str(package['name']))} {version} has no file for Python {python} on {platform}"
        raise Unsolved(f"there is no solution for {title}: {what}", hint="lock it again")
    sha256 = str(file.get("hashes", {}).get("sha256", "")).lower()
    # uv 0.12 writes none for a file on this machine.
    return version, url, sha256 or digest_of_archive(Path(local_path(url)))


def _version_of(file: str) -> str:
    """Return the version that a file's name has: "1.0" of my-toy-1.0.tar.gz, and of my_toy-1.0-py3-none-any.whl."""
    bare = re.sub(r"(\.tar\.\w+|\.zip|\.whl)$", "", file)
    return bare.split("-")[1] if file.endswith(".whl") else bare.rpartition("-")[2]


def write_placeholders(provided: Mapping[str, str], folder: Path) -> list[str]:
    """Write a wheel without content for each name and version; return the requirement of each."""
    folder.mkdir()
    lines = []
    for name, version in ((name, version) for name, version in provided.items() if PEP_440.fullmatch(version)):
        stem = f"{name.replace('-', '_')}-{version}"
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        lines.append(f"{name} @ {path.as_uri()}")
    return lines


def check_hashes(wheels: Sequence[LockedPackage], project: ProjectFile) -> None:
    """Raise LockError if the user names hashes, and a wheel has none of them: uv does not compare them here."""
    for wheel in wheels if project.hashes else ():
        if wheel.name not in project.hashes:
            what = f"{project.path.name} has hashes, but none for {wheel.name} {wheel.version}"
            hint = f"add {wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}"
            raise LockError(what, evidence=[wheel.file], hint=hint)
        if wheel.sha256 not in project.hashes[wheel.name]:
            raise LockError(
                f"{project.path.name}: {wheel.name} {wheel.version} has another hash than the file allows",
                evidence=[f"{wheel.file} has sha256:{wheel.sha256}"],
                hint="if the file is right, list the hashes of all of its wheels: `uv pip compile --generate-hashes`",
            )
