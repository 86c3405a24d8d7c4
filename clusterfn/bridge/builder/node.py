"""An environment as one archive, for file systems that hate small files: packed once, unpacked once on each node.

The archive is made for its final path on the nodes (`<node root>/envs/<id>`, the same everywhere), so nothing is
rewritten there.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile

from ..layout import ABOUT, LOCK, PACKED, PLAN, READY, build_dir, environment_dir
from . import housekeeping, layouts, plan, sync
from .archives import TAR
from .failure import Failed
from .lock import Lock
from .place import LINK, SYMLINK, Holed, content
from .unpack import extract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .holder import Holder
    from .place import Layout, Target

_OURS = (READY, ABOUT + "/" + PLAN, ABOUT + "/" + READY)


def archive(root: str, env_id: str, node_root: str) -> str:
    """The file that holds an environment for the nodes' folder `node_root`."""
    return os.path.join(root, PACKED, "%s-%s.tar" % (env_id, hashlib.sha256(os.fsencode(node_root)).hexdigest()[:16]))


def pack(root: str, env_id: str, node_root: str, holder: "Holder", stop: "Callable[..., None]") -> "dict[str, Any]":
    """Make the archive unless it is there.

    Args:
        root: The root of environments.
        env_id: One that is there.
        node_root: The folder on the nodes, absolute.
        holder: This process.
        stop: Called now and then; may raise.
    """
    final = archive(root, env_id, node_root)
    lock = Lock(os.path.join(build_dir(root, env_id), LOCK), holder)
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
        raise Failed("there is no environment at %s" % prefix, stage="plan", hint="build it first")
    try:
        layout = layouts.layout(plan.read(os.path.join(prefix, ABOUT, PLAN)), there)
    except Holed as holed:
        raise Failed(
            "the package %s is not whole" % holed.package, stage="link", hint="mend the environment"
        ) from holed
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(housekeeping.sizes(prefix)):
            stop()
            _add(tar, name, prefix, there, layout)


def _add(tar: tarfile.TarFile, name: str, prefix: str, there: str, layout: "Layout") -> None:
    target = layout.targets.get(name)
    if target is not None and target.how not in (LINK, SYMLINK):
        _add_bytes(tar, name, _rewritten(target, there), target.executable)
    elif target is not None or name in _OURS or os.path.islink(os.path.join(prefix, name)):
        tar.add(os.path.join(prefix, name), name, recursive=False)
    elif not name.startswith(ABOUT + "/"):
        _add_found(tar, name, prefix, there)


def _rewritten(target: "Target", there: str) -> bytes:
    try:
        return content(target, there)
    except Holed as holed:
        raise Failed(
            "the package %s is not whole" % holed.package, stage="link", hint="mend the environment"
        ) from holed


def _add_found(tar: tarfile.TarFile, name: str, prefix: str, there: str) -> None:
    """What no package has: byte code, and what post-link scripts made."""
    path, old = os.path.join(prefix, name), os.fsencode(prefix)
    with open(path, "rb") as file:
        data = file.read()
    if old in data and name.endswith(".pyc"):  # Python makes it anew, there
        return
    if old in data and b"\0" in data:
        raise Failed("%s was made by a script and names the prefix: it cannot be packed" % name, stage="link")
    _add_bytes(tar, name, data.replace(old, os.fsencode(there)), bool(os.stat(path).st_mode & 0o100))


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes, executable: bool) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if executable else 0o644
    tar.addfile(info, io.BytesIO(data))


def unpack(root: str, env_id: str, node_root: str, holder: "Holder", stop: "Callable[..., None]") -> "dict[str, Any]":
    """Put the environment on this node unless it is there.

    Args:
        root: The root of environments, where the archive lies.
        env_id: Which.
        node_root: This node's folder, which the caller owns.
        holder: This process, with its beat in `node_root`.
        stop: Called now and then; may raise.
    """
    prefix = environment_dir(node_root, env_id)
    lock = Lock(os.path.join(build_dir(node_root, env_id), LOCK), holder)
    lock.wait(stop)
    try:
        reused = os.path.exists(os.path.join(prefix, READY))
        if not reused:
            housekeeping.sweep(node_root, holder)
            _unpack(archive(root, env_id, node_root), prefix, holder, stop)
    finally:
        lock.release()
    return {"id": env_id, "prefix": prefix, "reused": reused}


def _unpack(path: str, prefix: str, holder: "Holder", stop: "Callable[..., None]") -> None:
    if not os.path.exists(path):
        raise Failed("there is no archive %s" % path, stage="plan", hint="pack the environment for this folder first")
    folder, name = os.path.split(prefix)
    aside = os.path.join(folder, ".%s-%s" % (name, holder.token))
    os.makedirs(aside)
    try:
        extract(path, TAR, None, aside, stop)
        with open(os.path.join(aside, READY), "r+") as file:
            ready = dict(json.load(file), prefix=prefix)
        sync.write(os.path.join(aside, READY), json.dumps(ready).encode())
        os.rename(aside, prefix)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
