"""Compute the layout of a whole environment from its plan and packages, and link or write each of its files."""

import errno
import os
import shutil

from ..layout import MANIFEST, package_dir
from . import conda_package, layouts, wheel
from .errors import BuildFailed
from .layouts import LINK, SCRIPT, SYMLINK, TEXT, WRITE, Layout, PackageDamaged, TargetFile
from .prefix import PrefixTooLong, replace_in_binary, replace_in_text, shebang

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .plan import BuildPlan, PlannedPackage

    Known = tuple[PlannedPackage, str, layouts.Manifest]

_HISTORY = b"==> made by clusterfn from a lock <==\n"
_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)


def layout_of_plan(plan: "BuildPlan", prefix: str) -> Layout:
    """Compute where every file of a plan's environment comes from.

    Raises:
        PackageDamaged: A package is not there, or has lost its manifest.
    """
    known = _known(plan)
    python = next((each for _, _, each in known if each.kind == "conda" and each.name == "python"), None)
    if python is None:
        raise BuildFailed("the lock has no python", stage="plan", hint="name python in the environment's specification")
    made = Layout(prefix, plan.python, python.facts.get("python_site_packages_path"))
    _place_packages(made, known)
    made.add(TargetFile("conda-meta/history", WRITE, known[0][1], content=_HISTORY))
    return made


def layout_beside_conda(plan: "BuildPlan", prefix: str, site: "Optional[str]") -> Layout:
    """Compute what is added to an environment that conda has filled with a Python.

    Raises:
        PackageDamaged: As `layout_of_plan`.
    """
    made = Layout(prefix, plan.python, site)
    _place_packages(made, _known(plan))
    return made


def _place_packages(made: Layout, known: "list[Known]") -> None:
    for package, folder, each in known:
        (conda_package if each.kind == "conda" else wheel).place(made, each, package, folder)


def _known(plan: "BuildPlan") -> "list[Known]":
    found = [(package, package_dir(plan.root, package.sha256)) for package in plan.packages]
    return [(package, folder, _read_manifest(folder)) for package, folder in found]


def _read_manifest(folder: str) -> layouts.Manifest:
    found = layouts.read_manifest(os.path.join(folder, MANIFEST))
    if found is None:
        raise PackageDamaged(folder)
    return found


class Linker:
    """Links or writes files into a folder that is, or will become, the prefix."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._made = {folder}

    def make(self, target: TargetFile) -> None:
        """Put a file in its place, replacing what is there.

        Raises:
            PackageDamaged: Its package has lost the file.
            BuildFailed: It would be outside the environment, or the prefix is too long for it.
        """
        path = os.path.join(self._folder, target.path)
        self._parent(os.path.dirname(path), target)
        try:
            self._put(target, path)
        except FileExistsError:  # a truncated file, or one of an earlier builder
            os.unlink(path)
            self._put(target, path)

    def _put(self, target: TargetFile, path: str) -> None:
        if target.how == LINK:
            _link(target, path)
        elif target.how == SYMLINK:
            os.symlink(os.fsdecode(target.content), path)
        else:
            _write(path, file_content(target, self._prefix), target.executable)

    def _parent(self, folder: str, target: TargetFile) -> None:
        if folder in self._made:
            return
        self._refuse_outside(folder, target)
        os.makedirs(folder, exist_ok=True)
        self._refuse_outside(folder, target)  # another thread may have made a link meanwhile
        self._made.add(folder)

    def _refuse_outside(self, folder: str, target: TargetFile) -> None:
        real, root = os.path.realpath(folder), os.path.realpath(self._folder)
        if not (real + "/").startswith(root + "/"):
            raise BuildFailed("%s would be written to %s, by way of a link" % (target.path, real), stage="link")


def file_content(target: TargetFile, prefix: str) -> bytes:
    """Return the content of a file that is not a link.

    Raises:
        PackageDamaged: Its package has lost the file.
        BuildFailed: The prefix is too long for it.
    """
    if target.how == WRITE:
        return target.content
    data = _read(target)
    if target.how == SCRIPT:
        return shebang(os.path.join(prefix, "bin", "python")) + data.partition(b"\n")[2]
    old, new = os.fsencode(target.placeholder), os.fsencode(prefix)
    if target.how == TEXT:
        return replace_in_text(data, old, new)
    try:
        return replace_in_binary(data, old, new)
    except PrefixTooLong as error:
        raise BuildFailed(
            "the folder of environments has too long a path for %s: %s" % (target.path, error), stage="link",
            evidence=[prefix], hint="choose a shorter env_root:",
        ) from None  # fmt: skip


def _read(target: TargetFile) -> bytes:
    try:
        with open(target.source, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise PackageDamaged(target.package) from None
    if len(data) != target.size:
        raise PackageDamaged(target.package)
    return data


def _link(target: TargetFile, path: str) -> None:
    try:
        whole = os.stat(target.source).st_size == target.size
    except FileNotFoundError:
        raise PackageDamaged(target.package) from None
    if not whole:
        raise PackageDamaged(target.package)
    try:
        os.link(target.source, path)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        shutil.copy(target.source, path)


def _write(path: str, data: bytes, executable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if executable else 0o666)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
