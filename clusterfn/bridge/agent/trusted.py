"""Check whether another user of the host could replace a path, by its owner, its mode, or a folder above it.

Trusted are this user, root, and the users and groups that the host's `owners:` names. The bridge uses this file too.
"""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Tuple

# Linux follows no more symbolic links in one path either.
_MOST_LINKS = 40
# Names of folders in the folder of a job, as `layout` has them.
_OF_FUNCTIONS = ("work", "checkpoint")
_OF_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class Trusted:
    """Who may own folders, and write to them, by the `names` of users and groups, or their numbers."""

    def __init__(self, names: "Iterable[str]" = ()) -> None:
        self.names = sorted(names)
        self.uids = {0, os.geteuid()}
        self.named = set()  # type: set[int]
        for name in self.names:
            self._add(name)
        if not _maps_all_users():
            # All users without an id in this container, the host's root among them, share this id.
            self.uids.add(int(read_text("/proc/sys/fs/overflowuid") or "65534"))

    def _add(self, name: str) -> None:
        # These imports are late, because a supervisor names no owners, and each job waits for what it imports.
        import contextlib
        import grp
        import pwd

        if name.isdecimal():
            self.named.add(int(name))
            self.uids.add(int(name))
            return
        with contextlib.suppress(KeyError):
            self.named.add(grp.getgrnam(name).gr_gid)
        with contextlib.suppress(KeyError):
            self.uids.add(pwd.getpwnam(name).pw_uid)

    def owns(self, status: "os.stat_result") -> bool:
        """Whether its owner or its group is trusted."""
        return status.st_uid in self.uids or status.st_gid in self.named

    def writes(self, status: "os.stat_result") -> str:
        """Return who else may write to it; "" if no other user may."""
        if status.st_mode & stat.S_IWOTH:
            return "everybody"
        if status.st_mode & stat.S_IWGRP and status.st_gid not in self.named | private_groups(os.geteuid()):
            return "the group %s" % group_name(status.st_gid)
        return ""

    def objection(self, path: str) -> "Optional[Tuple[str, str]]":
        """Return the folder by which another user could replace `path`, and how; None if there is none.

        Check every folder on the way, and those on the way of each symbolic link. In a sticky folder users cannot
        replace what belongs to others. Check a path that does not exist yet as far as it exists.
        """
        names = _names(path)
        path_so_far = "/"
        links = 0
        while True:
            try:
                status = os.lstat(path_so_far)
            except FileNotFoundError:
                return None
            if not self.owns(status):
                return path_so_far, "it belongs to %s" % user_name(status.st_uid)
            if stat.S_ISLNK(status.st_mode) and links < _MOST_LINKS:
                links += 1
                target = os.readlink(path_so_far)
                names += _names(target)
                path_so_far = "/" if target.startswith("/") else os.path.dirname(path_so_far)
                continue
            if not stat.S_ISDIR(status.st_mode):
                return path_so_far, "it is not a folder"
            writer = self.writes(status)
            if writer and not (names and status.st_mode & stat.S_ISVTX):
                return path_so_far, "%s may write to it" % writer
            if not names:
                return None
            name = names.pop()
            path_so_far = os.path.dirname(path_so_far) if name == ".." else os.path.join(path_so_far, name)

    def objection_below(self, root: str, path: str) -> "Optional[Tuple[str, str]]":
        """Return the folder between a root and a file by which another user could replace the file, and how.

        A function may share the folders in which it works, so what is in those is not checked.
        """
        folder = root
        for name in _names(path[len(root) :])[:0:-1] if path.startswith(root + "/") else ():
            folder = os.path.join(folder, name)
            if name in _OF_FUNCTIONS:
                break
            try:
                status = os.stat(folder)
            except OSError:
                # What is not there, or cannot be entered, is reported when the file is opened.
                break
            if not self.owns(status):
                return folder, "it belongs to %s" % user_name(status.st_uid)
            writer = self.writes(status)
            if writer:
                return folder, "%s may write to it" % writer
        return None


def _names(path: str) -> "list[str]":
    """Split a path into names, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def private_groups(uid: int) -> "set[int]":
    """Return groups without other members: root's, and the one that many systems make for each user, by its name."""
    import grp
    import pwd

    groups = set()
    for number in (0, uid):
        try:
            name = pwd.getpwuid(number).pw_name
            group = grp.getgrgid(0) if number == 0 else grp.getgrnam(name)
        except KeyError:
            continue
        if set(group.gr_mem) <= {name, "root"}:
            groups.add(group.gr_gid)
    return groups


def _maps_all_users() -> bool:
    """Whether every user has an id; in some containers all other users, root too, share one unmapped id."""
    lines = read_text("/proc/self/uid_map").split("\n")
    return not lines[0] or any(line.split()[2:] == ["4294967295"] for line in lines)


def read_text(path: str) -> str:
    """Return a small file without the blanks around its text; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def first_line(path: str) -> str:
    return read_text(path).partition("\n")[0].strip()


def machine_name() -> str:
    """Return <machine-id>-<hostname>: cloned images share the first, a home may be shared by machines."""
    number = first_line("/etc/machine-id") or first_line("/var/lib/dbus/machine-id") or "unknown"
    return "".join(sign if sign in _OF_NAMES else "_" for sign in "%s-%s" % (number, os.uname()[1]))


def user_name(uid: int) -> str:
    """Return the name of a user, or its id in words."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "the user with id %d" % uid


def group_name(gid: int) -> str:
    """Return the name of a group, or its id."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
