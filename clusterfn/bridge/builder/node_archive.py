"""Pack an environment into one archive, for file systems that are slow with small files, and unpack it on each node.

The archive is made for its final path on the nodes (`<node root>/envs/<id>`, the same on all), so unpacking rewrites
nothing.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile

from ..layout import ABOUT, LOCK, PACKED, PLAN, READY, build_dir, environment_dir
from ..supervisor import publish
from . import cleanup, plan
from .archives import TAR, extract_archive
from .errors import BuildFailed
from .link import LINK, SYMLINK, PackageDamaged, file_content
from .locks import FolderLock
from .package_formats import layout_of_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .link import Layout
    from .locks import LockHolder

_OURS = (READY, ABOUT + "/" + PLAN, ABOUT + "/" + READY)


def archive_path(root: str, env_id: str, node_root: str) -> str:
    """Return the archive of an environment for the nodes' folder `node_root`."""
    return os.path.join(root, PACKED, "%s-%s.tar" % (env_id, hashlib.sha256(os.fsencode(node_root)).hexdigest()[:16]))


def pack_environment(
    root: str, env_id: str, node_root: str, holder: "LockHolder", stop: "Callable[..., None]"
) -> "dict[str, Any]":
    """Make the archive of an existing environment for the nodes' folder, unless there is one."""
    final = archive_path(root, env_id, node_root)
    lock = FolderLock(os.path.join(build_dir(root, env_id), LOCK), holder)
    lock.wait(stop)
    try:
        if not os.path.exists(final):
            os.makedirs(os.path.dirname(final), exist_ok=True)
            aside = "%s.%s" % (final, holder.token)
            _write(aside, environment_dir(root, env_id), environment_dir(node_root, env_id), stop)
            os.rename(aside, final)
    finally:
        lock.release()
    return {"id": env_id, "archive": final, "bytes": os.stat(final).st_size}


def _write(path: str, prefix: str, there: str, stop: "Callable[..., None]") -> None:
    if not os.path.exists(os.path.join(prefix, READY)):
        raise BuildFailed("there is no environment at %s" % prefix, stage="plan", hint="build it first")
    try:
        layout = layout_of_plan(plan.read_plan(os.path.join(prefix, ABOUT, PLAN)), there)
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name in sorted(cleanup.list_sizes(prefix)):
                stop()
                _add(tar, name, prefix, there, layout)
    except PackageDamaged as damaged:
        raise BuildFailed(
            "the package %s is incomplete" % damaged.package, stage="link", hint="repair the environment"
        ) from damaged


def _add(tar: tarfile.TarFile, name: str, prefix: str, there: str, layout: "Layout") -> None:
    target = layout.targets.get(name)
    if target is not None and target.how not in (LINK, SYMLINK):
        _add_bytes(tar, name, file_content(target, there), target.executable)
    elif target is not None or name in _OURS or os.path.islink(os.path.join(prefix, name)):
        tar.add(os.path.join(prefix, name), name, recursive=False)
    elif not name.startswith(ABOUT + "/"):  # no package has it: byte code, or what a post-link script made
        path, old = os.path.join(prefix, name), os.fsencode(prefix)
        with open(path, "rb") as file:
            data = file.read()
        if old in data and name.endswith(".pyc"):  # Python makes it again on the node
            return
        if old in data and b"\0" in data:
            raise BuildFailed("%s was made by a script and names the prefix: it cannot be packed" % name, stage="link")
        _add_bytes(tar, name, data.replace(old, os.fsencode(there)), bool(os.stat(path).st_mode & 0o100))


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes, executable: bool) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(info, io.BytesIO(data))


def unpack_environment(
    root: str, env_id: str, node_root: str, holder: "LockHolder", stop: "Callable[..., None]"
) -> "dict[str, Any]":
    """Unpack the environment into this node's folder, where `holder` has its heartbeat, unless it is there."""
    prefix = environment_dir(node_root, env_id)
    lock = FolderLock(os.path.join(build_dir(node_root, env_id), LOCK), holder)
    lock.wait(stop)
    try:
        reused = os.path.exists(os.path.join(prefix, READY))
        if not reused:
            cleanup.sweep_leftovers(node_root, holder)
            _unpack(archive_path(root, env_id, node_root), prefix, holder, stop)
    finally:
        lock.release()
    return {"id": env_id, "prefix": prefix, "reused": reused}


def _unpack(path: str, prefix: str, holder: "LockHolder", stop: "Callable[..., None]") -> None:
    if not os.path.exists(path):
        raise BuildFailed(
            "there is no archive %s" % path, stage="plan", hint="pack the environment for this folder first"
        )
    folder, name = os.path.split(prefix)
    aside = os.path.join(folder, ".%s-%s" % (name, holder.token))
    os.makedirs(aside)
    try:
        extract_archive(path, TAR, None, aside, stop)
        with open(os.path.join(aside, READY), "r+") as file:
            ready = dict(json.load(file), prefix=prefix)
        publish.replace(os.path.join(aside, READY), json.dumps(ready).encode(), mode=0o666)
        os.rename(aside, prefix)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
