"""Let the host's own conda fill the prefix (`installer: conda`): any from 4.3 on, a mamba or a micromamba.

We check what it gets, as an old conda accepts a file with a wrong hash. It gets only `.tar.bz2` files: a `.conda` is
converted, because conda before 4.7 cannot read one, and some later ones cannot when offline. It has a package cache and
a home of its own, as conda's cache has no locks and the user's settings may not fit. Our own linker adds the wheels,
and packages that this conda is too old for.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import urllib.parse

from ..layout import PACKAGES, blob
from .archives import read_members
from .errors import BuildFailed
from .link import THERE, TargetFile
from .plan import CONDA, WHEEL
from .programs import ProgramFailed, ProgramLimit, run_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Mapping, Optional

    from .archives import Opener
    from .link import Layout
    from .locks import LockHolder
    from .plan import BuildPlan, PlannedPackage

_NAMES = ("conda", "mamba", "micromamba")
_BASES = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda", "/opt/miniconda3")
_OLDEST = (4, 3)
_KNOWS_3_10 = (4, 11)  # before, it puts noarch packages into lib/python3.1
_VERSION = re.compile(r"^conda (\d+)\.(\d+)", re.MULTILINE)
_DROPPED = ("CONDA_", "MAMBA_", "PYTHON", "LD_", "XDG_", "_CE_", "VIRTUAL_ENV")
_OURS = "let clusterfn itself make environments there (installer: clusterfn)"


class HostConda:
    """A conda of this host, and its share of one plan.

    Attributes:
        said: Its version as it prints it, "conda 4.3.16".
        share: The part of the plan that it installs.
        rest: The part that our own linker adds.
    """

    def __init__(self, path: str, said: str, plan: "BuildPlan", holder: "LockHolder") -> None:
        self.said = said.splitlines()[0] if said else "conda"
        self._path = path
        self._plan = plan
        self._scratch = os.path.join(plan.root, PACKAGES, ".conda-" + holder.token)
        version = _version(said)
        too_old = bool(version and version < _KNOWS_3_10 and plan.python >= (3, 10))
        share = [each for each in plan.packages if each.kind != WHEEL and not (too_old and _subdir(each) == "noarch")]
        self.share = plan._replace(packages=share)
        self.rest = plan._replace(packages=[each for each in plan.packages if each not in share])

    def take(self, package: "PlannedPackage", archive: str, zstd: "Optional[Opener]") -> None:
        """Put a checked archive where conda will read it."""
        place = self._place(package)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.lexists(place):
            os.unlink(place)
        if package.kind == CONDA:
            convert_to_tar_bz2(archive, zstd, place)
        else:
            os.symlink(archive, place)

    def fill(self, prefix: str, stopping: "Callable[[], None]") -> None:
        """Let conda make the prefix, which must not exist.

        Raises:
            BuildFailed: conda says no, or leaves something out.
        """
        listed = os.path.join(self._scratch, "explicit.txt")
        os.makedirs(os.path.join(self._scratch, "home"), exist_ok=True)
        with open(listed, "w") as file:
            file.write("@EXPLICIT\n" + "".join(map(self._line, self.share.packages)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        own = {"HOME": os.path.join(self._scratch, "home"), "CONDA_PKGS_DIRS": os.path.join(self._scratch, "packages")}
        argv = [self._path, "create", "-y", "--offline", "-p", prefix, "--file", listed]
        try:
            run_program(argv, dict(kept, **own), stopping, ProgramLimit(self._plan.timeout_s))
        except ProgramFailed as error:
            message = "%s (%s) could not make the environment: %s" % (self.said, self._path, error)
            raise BuildFailed(message, stage="conda", evidence=error.evidence, hint=_OURS) from error
        record = os.path.join(prefix, "conda-meta", "%s.json")
        left_out = [each.label for each in self.share.packages if not os.path.exists(record % _stem(each))]
        if left_out:
            raise BuildFailed("%s left out %s" % (self.said, ", ".join(left_out[:5])), stage="conda", hint=_OURS)

    def clear(self) -> None:
        """Remove its cache."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def forget(self) -> None:
        """Remove its cache and the archives that were sent for it: the environment has their files."""
        self.clear()
        for package in self._plan.packages:
            if package.kind != WHEEL and os.path.exists(blob(self._plan.root, package.sha256)):
                os.unlink(blob(self._plan.root, package.sha256))

    def _place(self, package: "PlannedPackage") -> str:
        return os.path.join(self._scratch, "channel", _subdir(package), _stem(package) + ".tar.bz2")

    def _line(self, package: "PlannedPackage") -> str:
        place, md5 = self._place(package), hashlib.md5()
        with open(place, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                md5.update(block)
        return "file://%s#%s\n" % (urllib.parse.quote(place), md5.hexdigest())


def find_conda(plan: "BuildPlan", holder: "LockHolder", stopping: "Callable[[], None]") -> HostConda:
    """Find the conda that the plan names, else the first that this host has.

    Raises:
        BuildFailed: The host has no conda, or it is too old.
    """
    path = os.path.expanduser(plan.installer) if "/" in plan.installer else next(_installed(), "")
    if not path:
        raise BuildFailed(
            "there is no conda on this host", stage="conda", evidence=["searched: PATH, " + ", ".join(_BASES)],
            hint="name its path (installer: /opt/conda/bin/conda), or " + _OURS,
        )  # fmt: skip
    try:
        patience = ProgramLimit(plan.timeout_s)
        said = run_program([path, "--version"], dict(os.environ), stopping, patience).decode("utf-8", "replace").strip()
    except ProgramFailed as error:
        message = "%s does not say its version: %s" % (path, error)
        raise BuildFailed(message, stage="conda", evidence=error.evidence, hint=_OURS) from error
    version = _version(said)
    if version and version < _OLDEST:
        raise BuildFailed("%s is %s, and needs to be 4.3 or newer" % (path, said), stage="conda", hint=_OURS)
    return HostConda(path, said, plan, holder)


def _installed() -> "Iterator[str]":
    for name in _NAMES:
        found = os.environ.get("%s_EXE" % name.upper()) or shutil.which(name)
        if found:
            yield found
    for base in _BASES:
        path = os.path.join(os.path.expanduser(base), "bin", "conda")
        if os.access(path, os.X_OK):
            yield path


def _version(said: str) -> "Optional[tuple[int, int]]":
    """Return the version of a conda; None for a micromamba."""
    match = _VERSION.search(said)
    return (int(match.group(1)), int(match.group(2))) if match else None


def _subdir(package: "PlannedPackage") -> str:
    folder = os.path.dirname(urllib.parse.urlsplit(package.url).path)
    return os.path.basename(folder) or "linux-64"


def _stem(package: "PlannedPackage") -> str:
    return package.file[: -len(package.kind)]


def convert_to_tar_bz2(archive: str, zstd: "Optional[Opener]", target: str) -> None:
    """Convert a .conda to a .tar.bz2 with the same files, dates and names."""
    with tarfile.open(target, "w:bz2", compresslevel=1, encoding="utf-8", errors="surrogateescape") as out:
        for member, stream in read_members(archive, CONDA, zstd):
            info = tarfile.TarInfo(member.path)
            info.mtime, info.mode = member.mtime, 0o755 if member.executable else 0o644
            if stream is not None:
                info.size = member.size
            else:
                info.type = tarfile.SYMTYPE if member.link is not None else tarfile.LNKTYPE
                info.linkname = str(member.same if member.link is None else member.link)
            out.addfile(info, stream)


def find_site_packages(prefix: str) -> "Optional[str]":
    """Return the site-packages of this Python, if it is not the usual folder."""
    folder = os.path.join(prefix, "conda-meta")
    for name in os.listdir(folder):
        if name.startswith("python-"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found: "Mapping[str, str]" = json.load(file)
            if found.get("name") == "python":
                return found.get("python_site_packages_path")
    return None


def add_installed_files(layout: "Layout", prefix: str) -> None:
    """Add the files that conda has installed to the layout."""
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), prefix)
            if path not in layout.targets and not os.path.islink(os.path.join(folder, name)):
                layout.add(TargetFile(path, THERE, ""))
