"""Where everything in an environment comes from, and putting one thing in its place.

A `Layout` is computed from the packages alone, so the same one that makes an environment finds what is missing in it
and mends it.
"""

import errno
import os
import shutil
from typing import NamedTuple

from ..layout import ABOUT, READY
from .failure import Failed
from .prefix import TooLong, in_binary, in_text, shebang

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
LINK, SYMLINK, TEXT, BINARY, SCRIPT, WRITE = "link", "symlink", "text", "binary", "script", "write"
THERE = "there"
_READ = (TEXT, BINARY, SCRIPT)


class Holed(Exception):
    """A file of an unpacked package is missing or cut off: a purging file system, or a crash of the machine.

    Attributes:
        package: The package's folder.
    """

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


class Target(NamedTuple):
    """One file of an environment.

    Attributes:
        path: Below the prefix.
        how: LINK to the package's file; SYMLINK to `content`; TEXT, BINARY or SCRIPT: a copy with the prefix in it;
            WRITE of `content`; THERE: another installer has put it there.
        package: The folder of its package.
        source: The file there.
        size: Of that.
    """

    path: str
    how: str
    package: str
    source: str = ""
    size: int = 0
    executable: bool = False
    placeholder: str = ""
    content: bytes = b""

    @property
    def inside(self) -> str:
        """The source's path in its package."""
        return os.path.relpath(self.source, os.path.join(self.package, "files"))


class Layout:
    """All files of an environment.

    Attributes:
        prefix: Its final path.
        python: Its interpreter there.
        site: site-packages, below the prefix.
        targets: Path -> where it comes from.
    """

    def __init__(self, prefix: str, version: "tuple[int, int]", site: "Optional[str]" = None) -> None:
        self.prefix = prefix
        self.version = version
        self.python = os.path.join(prefix, "bin", "python")
        self.library = "lib/python%d.%d" % version
        self.site = site or self.library + "/site-packages"
        self.tag = "cpython-%d%d" % version
        self.targets: "dict[str, Target]" = {}

    def add(self, target: Target) -> None:
        """A package's file; a later package's stands over an earlier one's.

        Raises:
            Failed: It would be taken for what the builder itself says of the environment.
        """
        if os.path.normpath(target.path).startswith(("../", "/")):
            raise Failed("%s would lie outside of the environment" % target.path, stage="link")
        if os.path.normpath(target.path).partition("/")[0] in (READY, ABOUT):
            raise Failed("a package brings %s, which only the builder may write" % target.path, stage="link")
        self.targets[target.path] = target

    def sources(self) -> "list[Target]":
        """The Python modules, in order."""
        return [
            target
            for path, target in sorted(self.targets.items())
            if path.endswith(".py") and path.startswith(self.library + "/") and target.how != SYMLINK
        ]


class Maker:
    """Puts targets into a folder that is, or will become, the prefix."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._made = {folder}

    def make(self, target: Target) -> None:
        """Put it there, in place of whatever is there.

        Raises:
            Holed: Its package has lost the file.
            Failed: It cannot be right there.
        """
        path = os.path.join(self._folder, target.path)
        self._parent(os.path.dirname(path), target)
        try:
            self._put(target, path)
        except FileExistsError:  # a file that is cut off; or an earlier builder's
            os.unlink(path)
            self._put(target, path)

    def _put(self, target: Target, path: str) -> None:
        if target.how == LINK:
            _link(target, path)
        elif target.how == SYMLINK:
            os.symlink(os.fsdecode(target.content), path)
        else:
            _write(path, content(target, self._prefix), target.executable)

    def _parent(self, folder: str, target: Target) -> None:
        if folder in self._made:
            return
        self._refuse_outside(folder, target)
        os.makedirs(folder, exist_ok=True)
        self._refuse_outside(folder, target)  # another thread may have made a link meanwhile
        self._made.add(folder)

    def _refuse_outside(self, folder: str, target: Target) -> None:
        real, root = os.path.realpath(folder), os.path.realpath(self._folder)
        if not (real + "/").startswith(root + "/"):
            raise Failed("%s would be written to %s, by way of a link" % (target.path, real), stage="link")


def content(target: Target, prefix: str) -> bytes:
    """What stands in a file that is not a link.

    Raises:
        Holed: Its package has lost the file.
        Failed: The prefix is too long for it.
    """
    if target.how == WRITE:
        return target.content
    data = _read(target)
    if target.how == SCRIPT:
        return shebang(os.path.join(prefix, "bin", "python")) + data.partition(b"\n")[2]
    old, new = os.fsencode(target.placeholder), os.fsencode(prefix)
    if target.how == TEXT:
        return in_text(data, old, new)
    try:
        return in_binary(data, old, new)
    except TooLong as error:
        raise Failed(
            "the folder of environments has too long a path for %s: %s" % (target.path, error), stage="link",
            evidence=[prefix], hint="choose a shorter env_root:",
        ) from None  # fmt: skip


def _read(target: Target) -> bytes:
    try:
        with open(target.source, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise Holed(target.package) from None
    if len(data) != target.size:
        raise Holed(target.package)
    return data


def _link(target: Target, path: str) -> None:
    try:
        whole = os.stat(target.source).st_size == target.size
    except FileNotFoundError:
        raise Holed(target.package) from None
    if not whole:
        raise Holed(target.package)
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
