"""List and remove environments and packages, and remove what dead builders have left.

Nothing that a job uses is removed. An environment is renamed, its leases are checked again, and it is renamed back if
one exists.
"""

import contextlib
import json
import os
import shutil
import time

from ..layout import (
    ABOUT,
    BLOBS,
    BUILDS,
    ENVIRONMENTS,
    LOCK,
    OUTCOME,
    PACKAGES,
    PACKED,
    PLAN,
    PROGRESS,
    READY,
    build_dir,
    environment_dir,
    package_dir,
    uses_dir,
)
from . import leases
from .locks import FolderLock, beats_folder, current_holder, is_long_dead, try_unlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from .locks import LockHolder

_TRASH = ".trash-"
_DAY_S = 86400.0
_OLD_PART_S = 7 * _DAY_S


def list_sizes(folder: str) -> "dict[str, int]":
    """Return the size of every file below a folder."""
    return {path: entry.stat(follow_symlinks=False).st_size for path, entry in _walk(folder, "")}


def _walk(folder: str, prefix: str) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, prefix + entry.name + "/")
            else:
                yield prefix + entry.name, entry


def delete_folder(path: str, holder: "LockHolder") -> int:
    """Remove a folder, renamed first so that no half of it is taken for the whole; return the bytes freed."""
    trash = os.path.join(os.path.dirname(path), "%s%s-%s" % (_TRASH, holder.token, os.path.basename(path).lstrip(".")))
    try:
        os.rename(path, trash)
    except FileNotFoundError:
        return 0
    return empty_trash(trash)


def empty_trash(trash: str) -> int:
    """Remove a renamed folder; return the bytes that no other name keeps."""
    freed = 0
    try:
        for _, entry in _walk(trash, ""):
            stat = entry.stat(follow_symlinks=False)
            freed += stat.st_size if stat.st_nlink == 1 else 0
    except FileNotFoundError:  # another builder removes it too
        pass
    shutil.rmtree(trash, ignore_errors=True)
    return freed


def sweep_leftovers(root: str, holder: "LockHolder") -> None:
    """Remove what dead builders have left."""
    for folder in (os.path.join(root, ENVIRONMENTS), os.path.join(root, PACKAGES)):
        for name in _names(folder):
            path = os.path.join(folder, name)
            if name.startswith(_TRASH):
                token = name[len(_TRASH) :].partition("-")[0]
                if token == holder.token or is_long_dead(root, token, holder):
                    empty_trash(path)
            elif name.startswith(".lock-"):
                token = current_holder(path)[1]
                if not token or (token != holder.token and is_long_dead(root, token, holder)):
                    shutil.rmtree(path, ignore_errors=True)
            elif name.startswith(".") and is_long_dead(root, name.rpartition("-")[2], holder):
                delete_folder(path, holder)
            elif os.path.islink(path) and not os.path.exists(path):
                os.unlink(path)
            elif folder.endswith(ENVIRONMENTS) and _is_half_made(path, name, root, holder):
                delete_folder(path, holder)
    for token in _names(beats_folder(root)):
        if token != holder.token and is_long_dead(root, token, holder):
            try_unlink(os.path.join(beats_folder(root), token))


def _is_half_made(path: str, name: str, root: str, holder: "LockHolder") -> bool:
    """Return whether the host's conda was ended while it made this at its final path, and no builder resumes it."""
    made = any(os.path.exists(os.path.join(path, each)) for each in (ABOUT, READY))  # a file system may purge either
    if made or name.startswith(".") or os.path.islink(path) or not os.path.isdir(path) or leases.jobs_using(root, name):
        return False
    return not _is_held(os.path.join(build_dir(root, name), LOCK), root, holder)


def list_environments(root: str) -> "list[str]":
    """List the ids of all environments that are whole."""
    names = _names(os.path.join(root, ENVIRONMENTS))
    return [name for name in names if os.path.isfile(os.path.join(environment_dir(root, name), READY))]


def own_bytes(root: str, env_id: str) -> int:
    """Return how many bytes only this environment has, apart from its packages."""
    stats = [entry.stat(follow_symlinks=False) for _, entry in _walk(environment_dir(root, env_id), "")]
    return sum(stat.st_size for stat in stats if stat.st_nlink <= 2)


def last_used(root: str, env_id: str) -> float:
    """Return when it was built, or last used by a job."""
    return max(os.stat(os.path.join(environment_dir(root, env_id), READY)).st_mtime, leases.last_used(root, env_id))


def remove_environment(root: str, env_id: str, holder: "LockHolder") -> "dict[str, Any]":
    """Remove an environment, unless a job uses it or a builder holds its lock."""
    own = FolderLock(os.path.join(build_dir(root, env_id), LOCK), holder)
    if not own.take():
        return {"id": env_id, "removed": False, "why": "it is being built", "used_by": []}
    try:
        final = environment_dir(root, env_id)
        aside = os.path.join(os.path.dirname(final), "%s%s-%s" % (_TRASH, holder.token, env_id))
        used_by = leases.jobs_using(root, env_id)
        if not used_by and os.path.lexists(final):
            os.rename(final, aside)
            used_by = leases.jobs_using(root, env_id)
            if used_by:
                os.rename(aside, final)
        if used_by:
            return {"id": env_id, "removed": False, "why": "jobs use it", "used_by": used_by}
        leases.sweep_ended_leases(root, env_id)
        freed = None
        if os.path.islink(aside):
            os.unlink(aside)
            freed = 0
        elif os.path.isdir(aside):
            freed = empty_trash(aside)
        _forget(root, env_id)
    finally:
        own.release()
    why = "" if freed is not None else "there is none"
    return {"id": env_id, "removed": freed is not None, "why": why, "freed": freed}


def _forget(root: str, env_id: str) -> None:
    # The files of its builds; the lock stays, as another process may wait for it.
    folder = build_dir(root, env_id)
    logs = [name for name in _names(folder) if name.startswith("log-")]
    for name in [PLAN, PROGRESS, OUTCOME] + logs:  # logs of builders whose clients disconnected before the end
        try_unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # a job has added a lease meanwhile
        os.rmdir(uses_dir(root, env_id))
    for name in _names(os.path.join(root, PACKED)):
        if name.startswith(env_id + "-"):
            try_unlink(os.path.join(root, PACKED, name))


def remove_packages(root: str, holder: "LockHolder", unused_s: float = 0.0) -> "tuple[int, int]":
    """Remove packages that no environment and no builder needs; return how many, and the bytes freed."""
    count = freed = 0
    kept = packages_in_use(root, holder)
    for name in _names(os.path.join(root, PACKAGES)):
        path = package_dir(root, name)
        if name.startswith(".") or name in kept or time.time() - _mtime(path) < unused_s:
            continue
        trash = os.path.join(root, PACKAGES, "%s%s-%s" % (_TRASH, holder.token, name))
        os.rename(path, trash)
        if name in packages_in_use(root, holder):  # by a builder that has started meanwhile
            os.rename(trash, path)
            continue
        count += 1
        freed += empty_trash(trash)
    return count, freed


def packages_in_use(root: str, holder: "LockHolder") -> "set[str]":
    """Return the SHA-256 of the packages of all environments and of all current builds."""
    found: "set[str]" = set()
    for env_id in list_environments(root):
        found |= _hashes(os.path.join(environment_dir(root, env_id), ABOUT, PLAN))
    for name in builds_under_way(root, holder):
        found |= _hashes(os.path.join(root, BUILDS, name, PLAN))
    return found


def builds_under_way(root: str, holder: "LockHolder") -> "list[str]":
    """Return the ids of the environments that living builders make or repair."""
    names = [name for name in _names(os.path.join(root, BUILDS)) if not name.startswith(".")]
    return [name for name in names if _is_held(os.path.join(root, BUILDS, name, LOCK), root, holder)]


def _is_held(folder: str, root: str, holder: "LockHolder") -> bool:
    token = current_holder(folder)[1]
    return token not in ("", holder.token) and not is_long_dead(root, token, holder)


def remove_old_parts(root: str) -> int:
    """Remove incomplete downloads and uploads that are a week old; return the bytes freed."""
    freed = 0
    for name in _names(os.path.join(root, BLOBS)):
        path = os.path.join(root, BLOBS, name)
        if not name.endswith((".part", ".pieces")) or time.time() - _mtime(path) <= _OLD_PART_S:
            continue
        for piece in [os.path.join(path, each) for each in _names(path)] or [path]:
            freed += os.stat(piece).st_size
            try_unlink(piece)
        if os.path.isdir(path):
            os.rmdir(path)
    return freed


def _hashes(path: str) -> "set[str]":
    try:
        with open(path) as file:
            document = json.load(file)
    except (OSError, ValueError):
        return set()
    return {each["sha256"] for each in document["packages"] + ([document["zstd"]] if document.get("zstd") else [])}


def _names(folder: str) -> "list[str]":
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return time.time()
