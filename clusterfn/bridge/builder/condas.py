"""The host's own conda fills the prefix (`installer: conda`): any from 4.3 on, a mamba or a micromamba.

What it gets was checked by us: an old conda takes a file whose hash is not the one it was told. It gets `.tar.bz2`
alone, a `.conda` packed anew, which before 4.7 none can read and some later ones cannot offline; in a package cache
and a home of its own, for conda's cache has no locks and its settings are for somebody else. Wheels, and packages that
this conda is too old for, are left to our own linker.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import urllib.parse

from ..layout import PACKAGES, blob
from .archives import members
from .failure import Failed
from .place import THERE, Target
from .plan import CONDA, WHEEL
from .running import Ended, Patience, run_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Mapping, Optional

    from .holder import Holder
    from .place import Layout
    from .plan import Package, Plan
    from .zstd import Opener

_NAMES = ("conda", "mamba", "micromamba")
_BASES = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda", "/opt/miniconda3")
_OLDEST = (4, 3)
_KNOWS_3_10 = (4, 11)  # before, it puts noarch packages into lib/python3.1
_VERSION = re.compile(r"^conda (\d+)\.(\d+)", re.MULTILINE)
_DROPPED = ("CONDA_", "MAMBA_", "PYTHON", "LD_", "XDG_", "_CE_", "VIRTUAL_ENV")
_OURS = "let clusterfn itself make environments there (installer: clusterfn)"


class Conda:
    """One conda of this host, and its share of one plan.

    Attributes:
        said: What it says of itself, "conda 4.3.16".
        share: The plan of what it installs.
        rest: The plan of what our own linker adds.
    """

    def __init__(self, path: str, said: str, plan: "Plan", holder: "Holder") -> None:
        self.said = said.splitlines()[0] if said else "conda"
        self._path = path
        self._plan = plan
        self._scratch = os.path.join(plan.root, PACKAGES, ".conda-" + holder.token)
        share = [each for each in plan.packages if each.kind != WHEEL and not _is_beyond(each, plan, _version(said))]
        self.share = plan._replace(packages=share)
        self.rest = plan._replace(packages=[each for each in plan.packages if each not in share])

    def take(self, package: "Package", archive: str, zstd: "Optional[Opener]") -> None:
        """Lay an archive, whose hash is right, where it will be read."""
        place = self._place(package)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.lexists(place):
            os.unlink(place)
        if package.kind == CONDA:
            pack_anew(archive, zstd, place)
        else:
            os.symlink(archive, place)

    def fill(self, prefix: str, stopping: "Callable[[], None]") -> None:
        """Make the prefix, which is not there yet.

        Raises:
            Failed: conda says no, or leaves something out.
        """
        listed = os.path.join(self._scratch, "explicit.txt")
        os.makedirs(os.path.join(self._scratch, "home"), exist_ok=True)
        with open(listed, "w") as file:
            file.write("@EXPLICIT\n" + "".join(map(self._line, self.share.packages)))
        argv = [self._path, "create", "-y", "--offline", "-p", prefix, "--file", listed]
        try:
            run_with(argv, self._environ(), stopping, Patience(self._plan.timeout_s))
        except Ended as error:
            message = "%s (%s) could not make the environment: %s" % (self.said, self._path, error)
            raise Failed(message, stage="conda", evidence=error.evidence, hint=_OURS) from error
        record = os.path.join(prefix, "conda-meta", "%s.json")
        left_out = [each.label for each in self.share.packages if not os.path.exists(record % _stem(each))]
        if left_out:
            raise Failed("%s left out %s" % (self.said, ", ".join(left_out[:5])), stage="conda", hint=_OURS)

    def clear(self) -> None:
        """Remove its cache."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def forget(self) -> None:
        """Remove what was sent for it too: the environment has its files."""
        self.clear()
        for package in self._plan.packages:
            if package.kind != WHEEL and os.path.exists(blob(self._plan.root, package.sha256)):
                os.unlink(blob(self._plan.root, package.sha256))

    def _place(self, package: "Package") -> str:
        return os.path.join(self._scratch, "channel", _subdir(package), _stem(package) + ".tar.bz2")

    def _line(self, package: "Package") -> str:
        place = self._place(package)
        return "file://%s#%s\n" % (urllib.parse.quote(place), _md5(place))

    def _environ(self) -> "dict[str, str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        own = {"HOME": os.path.join(self._scratch, "home"), "CONDA_PKGS_DIRS": os.path.join(self._scratch, "packages")}
        return dict(kept, **own)


def find(plan: "Plan", holder: "Holder", stopping: "Callable[[], None]") -> Conda:
    """The conda that the plan names, else the first that this host has.

    Raises:
        Failed: There is none, or it is too old.
    """
    path = os.path.expanduser(plan.installer) if "/" in plan.installer else next(_installed(), "")
    if not path:
        raise Failed(
            "there is no conda on this host", stage="conda", evidence=["searched: PATH, " + ", ".join(_BASES)],
            hint="name its path (installer: /opt/conda/bin/conda), or " + _OURS,
        )  # fmt: skip
    try:
        patience = Patience(plan.timeout_s)
        said = run_with([path, "--version"], dict(os.environ), stopping, patience).decode("utf-8", "replace").strip()
    except Ended as error:
        message = "%s does not say its version: %s" % (path, error)
        raise Failed(message, stage="conda", evidence=error.evidence, hint=_OURS) from error
    version = _version(said)
    if version and version < _OLDEST:
        raise Failed("%s is %s, and needs to be 4.3 or newer" % (path, said), stage="conda", hint=_OURS)
    return Conda(path, said, plan, holder)


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
    """Of conda; none for a micromamba."""
    match = _VERSION.search(said)
    return (int(match.group(1)), int(match.group(2))) if match else None


def _is_beyond(package: "Package", plan: "Plan", version: "Optional[tuple[int, int]]") -> bool:
    """Whether a conda of that age does not know where this package's files go."""
    return bool(version and version < _KNOWS_3_10 and plan.python >= (3, 10) and _subdir(package) == "noarch")


def _subdir(package: "Package") -> str:
    folder = os.path.dirname(urllib.parse.urlsplit(package.url).path)
    return os.path.basename(folder) or "linux-64"


def _stem(package: "Package") -> str:
    return package.file[: -len(package.kind)]


def _md5(path: str) -> str:
    found = hashlib.md5()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def pack_anew(archive: str, zstd: "Optional[Opener]", target: str) -> None:
    """A .conda as .tar.bz2: the same files, dated and named as they were."""
    with tarfile.open(target, "w:bz2", compresslevel=1, encoding="utf-8", errors="surrogateescape") as out:
        for member, stream in members(archive, CONDA, zstd):
            info = tarfile.TarInfo(member.path)
            info.mtime, info.mode = member.mtime, 0o755 if member.executable else 0o644
            if stream is not None:
                info.size = member.size
            else:
                info.type = tarfile.SYMTYPE if member.link is not None else tarfile.LNKTYPE
                info.linkname = str(member.same if member.link is None else member.link)
            out.addfile(info, stream)


def site(prefix: str) -> "Optional[str]":
    """Where this Python has its packages, if that is not the usual place."""
    folder = os.path.join(prefix, "conda-meta")
    for name in os.listdir(folder):
        if name.startswith("python-"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found: "Mapping[str, str]" = json.load(file)
            if found.get("name") == "python":
                return found.get("python_site_packages_path")
    return None


def add_to(layout: "Layout", prefix: str) -> None:
    """Let the layout know of what conda has put there."""
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), prefix)
            if path not in layout.targets and not os.path.islink(os.path.join(folder, name)):
                layout.add(Target(path, THERE, ""))
