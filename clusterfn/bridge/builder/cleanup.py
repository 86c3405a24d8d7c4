"""List and remove environments and packages, and remove what dead builders have left.

Nothing that a job uses is removed. What goes is renamed, and put back if a job or a builder has come to need it.
"""

import contextlib
import os
from typing import Any, Callable, Optional

from .. import layout
from ..removal import PART_S, date_of, files_below, is_due, move_aside, paths_in, remove, size_of, sweep
from . import leases
from .locks import FolderLock, LockHolder, OtherHolder, beats_folder, is_held, try_unlink
from .plan import read_document


def list_sizes(folder: str) -> "dict[str, int]":
    """Return the size of every file below a folder."""
    return {path: found.st_size for path, found in files_below(folder)}


def delete(path: str, holder: "LockHolder", is_needed: "Optional[Callable[[str], bool]]" = None) -> bool:
    """Remove it as `move_aside` says; False if it is absent or needed; raise OSError if it may not be renamed."""
    aside = ""
    with contextlib.suppress(FileNotFoundError):
        aside = move_aside(path, holder.token, is_needed)
    if aside:
        # A later sweep tries again.
        with contextlib.suppress(OSError):
            remove(aside)
    return bool(aside)


def sweep_leftovers(root: str, holder: "LockHolder") -> None:
    """Remove what dead builders have left."""

    def is_left(path: str) -> bool:
        name = os.path.basename(path)
        if name.startswith(".lock-"):
            return not is_held(path, holder)
        # Each name ends with the token of the builder that made it.
        return name.startswith(".") and OtherHolder(name.rpartition("-")[2], holder).is_dead()

    for folder in (os.path.join(root, kind) for kind in (layout.ENVIRONMENTS, layout.PACKAGES)):
        sweep(folder, is_left)
        for path in paths_in(folder):
            # The link may belong to another user.
            with contextlib.suppress(OSError):
                # A builder may have renewed the link meanwhile.
                if os.path.islink(path) and not os.path.exists(path):
                    delete(path, holder, os.path.exists)
    sweep(beats_folder(root), lambda path: OtherHolder(os.path.basename(path), holder).is_dead())


def list_environments(root: str) -> "list[str]":
    """List the ids of all environments that are whole."""
    paths = paths_in(os.path.join(root, layout.ENVIRONMENTS))
    return [os.path.basename(path) for path in paths if os.path.isfile(os.path.join(path, layout.READY))]


def last_used(root: str, env_id: str) -> float:
    """Return when it was built, or last used by a job."""
    ready = os.path.join(layout.environment_dir(root, env_id), layout.READY)
    return max(os.stat(ready).st_mtime, leases.last_used(root, env_id))


def unused_environments(root: str, limit_s: float, spared: int) -> "list[str]":
    """List the environments that were not used for so long, without those used last."""
    used = {env_id: last_used(root, env_id) for env_id in list_environments(root)}
    by_use = sorted(used, key=lambda env_id: -used[env_id])
    return [env_id for env_id in by_use[spared:] if is_due(used[env_id], limit_s)]


def remove_environment(root: str, env_id: str, holder: "LockHolder") -> "dict[str, Any]":
    """Remove an environment, unless a job uses it or a builder holds its lock."""
    own = FolderLock(os.path.join(layout.build_dir(root, env_id), layout.LOCK), holder)
    kept: "dict[str, Any]" = {"id": env_id, "removed": False, "why": "it is being built", "used_by": []}
    if not own.take():
        return kept
    try:
        final = layout.environment_dir(root, env_id)
        exists = os.path.lexists(final)
        freed = size_of(final, 1)

        # A builder may also have taken the lock of this process for that of a dead one.
        def is_needed(_: str) -> bool:
            return bool(leases.jobs_using(root, env_id)) or not own.is_mine()

        if is_needed(final) or (exists and not delete(final, holder, is_needed)):
            used_by = leases.jobs_using(root, env_id)
            return dict(kept, used_by=used_by, why="jobs use it" if used_by else kept["why"])
        leases.sweep_ended_leases(root, env_id)
        # The files of its builds go; the lock stays, as another process may wait for it.
        for path in paths_in(layout.build_dir(root, env_id)):
            # Logs stay behind where clients disconnected before the end of a build.
            name = os.path.basename(path)
            if name in (layout.PLAN, layout.PROGRESS, layout.OUTCOME) or name.startswith("log-"):
                try_unlink(path)
        # A job may have added a lease meanwhile.
        with contextlib.suppress(OSError):
            os.rmdir(layout.uses_dir(root, env_id))
    finally:
        own.release()
    return dict(kept, removed=exists, why="" if exists else "there is none", freed=freed)


def remove_packages(root: str, holder: "LockHolder", unused_s: float = 0.0) -> "tuple[int, int]":
    """Remove packages that no environment and no builder needs; return how many, and the bytes freed."""
    count = freed = 0
    kept = _packages_in_use(root, holder)
    for path in paths_in(os.path.join(root, layout.PACKAGES)):
        name = os.path.basename(path)
        if name.startswith(".") or name in kept or not is_due(date_of(path), unused_s):
            continue
        size = size_of(path, 1)
        # A builder that has started meanwhile may need it.
        if delete(path, holder, lambda _, name=name: name in _packages_in_use(root, holder)):  # type: ignore[misc]
            count += 1
            freed += size
    return count, freed


def _packages_in_use(root: str, holder: "LockHolder") -> "set[str]":
    """Return the SHA-256 of the packages of all environments and of all current builds."""
    folders = [os.path.join(layout.environment_dir(root, env_id), layout.ABOUT) for env_id in list_environments(root)]
    builds = paths_in(os.path.join(root, layout.BUILDS))
    building = [build for build in builds if not os.path.basename(build).startswith(".")]
    # The builder of such a folder lives.
    folders += [path for path in building if is_held(os.path.join(path, layout.LOCK), holder)]
    used: "set[str]" = set()
    for folder in folders:
        document = read_document(os.path.join(folder, layout.PLAN)) or {"packages": []}
        for package in document["packages"] + ([document["zstd"]] if document.get("zstd") else []):
            archives = [package, package.get("source") or package] + package.get("requires", [])
            used.update(archive["sha256"] for archive in archives)
    return used


def remove_old_parts(root: str) -> int:
    """Remove abandoned downloads; return the bytes freed."""
    paths = [path for path in paths_in(os.path.join(root, layout.BLOBS)) if path.endswith(".part")]
    old = {path: size_of(path) for path in paths if is_due(date_of(path), PART_S)}
    sweep(os.path.join(root, layout.BLOBS), old.__contains__)
    return sum(old.values())
