"""Copy what lies below a root to another one, and correct the paths in it.

On one file system every file gets a second name instead of a copy. A file that is there already stays, so a copy that
was interrupted continues, and a second one takes only what has changed.
"""

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import stat

from ..layout import BRIDGE, CALL, INPUTS, JOBS, SCRIPT, SPEC
from . import publish
from .text import native, portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

# Relative to a root: the files of ours that hold absolute paths below it, and are read once a job has ended.
_DESCRIPTIONS = re.compile(
    r"jobs/[^/]+/(%s|calls/\d+/%s|((elements|calls)/\d+/)?attempts/\d+/%s)\Z"
    % (re.escape(SPEC), re.escape(CALL), re.escape(INPUTS))
)
_SCRIPTS = re.compile(r"jobs/[^/]+/%s\Z" % re.escape(SCRIPT))  # which `retry_failed` sends again
_LEASES = re.compile(r"uses/[^/]+/[^/]+\Z")
_NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
_CLOSE_S = 1e-3  # to which a file system may round a date
_BUFFER = 4 * 1024 * 1024
_OPEN = 0o700


class RootCopy:
    """One root and the other to which it is copied.

    Attributes:
        files, bytes: How much has been looked at, in this copy.

    Args:
        on_file: Called after each file.
    """

    def __init__(self, old: str, new: str, on_file: "Callable[[RootCopy], None]") -> None:
        self._old, self._new = old, new
        self._names = [old] + [name for name in (os.path.realpath(old),) if name != old]  # how paths may begin
        self._on_file = on_file
        self._links = os.stat(old).st_dev == os.stat(new).st_dev
        self.files = self.bytes = 0

    def copy(self, name: str, to: str = "") -> None:
        """Copy a file or a folder below the old root; remove from the new one what the old one does not have.

        Args:
            to: Its name in the new root, if that is another.
        """
        source, target = os.path.join(self._old, name), os.path.join(self._new, to or name)
        found = os.lstat(source)
        if stat.S_ISDIR(found.st_mode):
            self._copy_folder(name, to or name)
        elif stat.S_ISLNK(found.st_mode):
            remove(target)
            os.symlink(self._target_of(source), target)
        elif stat.S_ISREG(found.st_mode):
            self._copy_file(name, source, target, found)
            self.files += 1
            self.bytes += found.st_size
            self._on_file(self)
        # A socket or a pipe belongs to a process that has ended.

    def copy_each(self, name: str) -> None:
        """Copy each entry of a folder that the new root lacks: whole or not at all. Leave out hidden ones."""
        os.makedirs(os.path.join(self._new, name), mode=_OPEN, exist_ok=True)
        for entry in sorted(os.listdir(os.path.join(self._old, name))):
            final = os.path.join(self._new, name, entry)
            if entry.startswith(".") or os.path.lexists(final):
                continue
            aside = os.path.join(name, ".moving-" + entry)
            self.copy(os.path.join(name, entry), aside)
            os.rename(os.path.join(self._new, aside), final)

    def _copy_folder(self, name: str, to: str) -> None:
        source, target = os.path.join(self._old, name), os.path.join(self._new, to)
        if not os.path.isdir(target) or os.path.islink(target):
            remove(target)
            os.mkdir(target, _OPEN)
        os.chmod(target, _OPEN)
        names = sorted(os.listdir(source))
        for entry in set(os.listdir(target)).difference(names):
            remove(os.path.join(target, entry))
        for entry in names:
            self.copy(os.path.join(name, entry), os.path.join(to, entry))
        shutil.copystat(source, target)

    def _copy_file(self, name: str, source: str, target: str, found: os.stat_result) -> None:
        if _DESCRIPTIONS.match(name):
            self._copy_corrected(source, target, self._corrected_json)
        elif _SCRIPTS.match(name):
            self._copy_corrected(source, target, self._corrected_script)
        elif _LEASES.match(name):
            self._copy_corrected(source, target, lambda data: os.fsencode(self._moved(os.fsdecode(data))))
        elif not _is_copied(found, target):
            remove(target)
            if not self._linked(source, target):
                with open(source, "rb") as file, open(target, "wb") as copy:
                    shutil.copyfileobj(file, copy, _BUFFER)
                shutil.copystat(source, target)

    def _linked(self, source: str, target: str) -> bool:
        if not self._links:
            return False
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        return True

    def _copy_corrected(self, source: str, target: str, corrected: "Callable[[bytes], bytes]") -> None:
        with open(source, "rb") as file:
            data = corrected(file.read())
        publish.replace(target, data, sync=False)
        shutil.copystat(source, target)

    def _corrected_json(self, data: bytes) -> bytes:
        try:
            found = native(json.loads(data.decode("utf-8")))
        except ValueError:  # it is damaged, and stays so
            return data
        return json.dumps(portable(self._corrected(found))).encode("ascii")

    def _corrected(self, value: "Any") -> "Any":
        if isinstance(value, str):
            return self._moved(value)
        if isinstance(value, dict):
            return {key: self._corrected(item) for key, item in value.items()}
        return [self._corrected(item) for item in value] if isinstance(value, list) else value

    def _corrected_script(self, data: bytes) -> bytes:
        """Return a job.sh with the words that begin with the old root, each of which is quoted if it must be."""
        text = os.fsdecode(data)
        for old in self._names:
            quoted = shlex.quote(old)
            is_plain = quoted == old
            begin = r"(?<![^\s>\"])" + re.escape(old if is_plain else quoted[:-1])
            new = shlex.quote(self._new) + ("" if is_plain else "'")
            text = re.sub(r"%s(?=/(?:%s|%s)/)" % (begin, JOBS, BRIDGE), new.replace("\\", r"\\"), text)
        return os.fsencode(text)

    def _target_of(self, link: str) -> str:
        """Return where a link is to point; a relative one out of the root means another place from the new one."""
        text = os.readlink(link)
        if os.path.isabs(text):
            return self._moved(text)
        meant = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(link)), text))
        return text if self._moved(meant) != meant else meant

    def _moved(self, path: str) -> str:
        """Return a path below the old root as one below the new one; any other text as it is."""
        for old in self._names:
            if path == old or path.startswith(old + "/"):
                return self._new + path[len(old) :]
        return path


def size_below(path: str) -> int:
    """Return the bytes of all files in a folder, or of a file."""
    return sum(os.lstat(each).st_size for each in _files_below(path))


def _files_below(path: str) -> "Iterator[str]":
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, _, names in os.walk(path):
            for name in names:
                yield os.path.join(folder, name)
    elif os.path.lexists(path):
        yield path


def _is_copied(found: os.stat_result, target: str) -> bool:
    try:
        there = os.lstat(target)
    except FileNotFoundError:
        return False
    if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino):
        return True
    same = stat.S_ISREG(there.st_mode) and there.st_size == found.st_size
    return same and abs(there.st_mtime - found.st_mtime) < _CLOSE_S


def remove(path: str) -> None:
    """Remove a file or a folder, also one that a function has made read-only; nothing if there is none."""
    if not os.path.isdir(path) or os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    _open(path)
    for folder, names, _ in os.walk(path):
        for name in names:
            below = os.path.join(folder, name)
            if not os.path.islink(below):
                _open(below)
    shutil.rmtree(path)


def _open(folder: str) -> None:
    with contextlib.suppress(OSError):  # another's, or gone meanwhile: its removal says what matters
        os.chmod(folder, _OPEN)
