"""Find the files that a purging file system took from an environment, and link them again from the packages.

Only names and sizes are compared: `stat` of 14000 files takes a tenth of a second on a local disk. A package that has
lost files itself is unpacked again; if its archive is not available, the client is told which one to send.
"""

import json
import os

from ..layout import ABOUT, LOCK, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..supervisor import publish
from ..supervisor.text import native, portable
from . import bytecode, cleanup, link, plan
from .errors import BuildFailed, BuildStopped
from .layouts import PackageDamaged
from .link import Linker
from .locks import FolderLock
from .packages import Packages
from .progress import ProgressWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any

    from .layouts import Layout
    from .locks import LockHolder

_TRIES = 20  # packages may turn out to be damaged one after another


def repair_environment(root: str, env_id: str, holder: "LockHolder", stopping: "threading.Event") -> "dict[str, Any]":
    """Link missing files again; return how many there are, were missing and are back, and which cannot come back.

    Raises:
        BuildFailed: There is no such environment, or archives are needed (`need`).
        BuildStopped: `stopping` was set.
    """

    def stop(_: object = None) -> None:
        if stopping.is_set():
            raise BuildStopped

    lock = FolderLock(os.path.join(build_dir(root, env_id), LOCK), holder)
    lock.wait(stop)
    try:
        return repair_locked(_plan(root, env_id), holder, stopping)
    finally:
        lock.release()


def can_repair(prefix: str) -> bool:
    """Return whether an environment was whole once, and still has its list of sizes and its READY to restore."""
    about = [os.path.join(prefix, ABOUT, name) for name in (SIZES, READY)]
    return not os.path.islink(prefix) and all(os.path.exists(path) for path in about)


def repair_locked(what: "plan.BuildPlan", holder: "LockHolder", stopping: "threading.Event") -> "dict[str, Any]":
    """Repair an environment whose lock this process holds already."""

    def stop() -> None:
        if stopping.is_set():
            raise BuildStopped

    progress = ProgressWriter(os.path.join(build_dir(what.root, what.id), PROGRESS))
    return _Repair(what, Packages(what, holder, progress, stopping), holder.token).run(stop)


def _plan(root: str, env_id: str) -> "plan.BuildPlan":
    """Read the environment's own plan, else that of its last build: either may be purged."""
    own = os.path.join(environment_dir(root, env_id), ABOUT, PLAN)
    if not os.path.isdir(environment_dir(root, env_id)):
        raise BuildFailed("there is no environment %s" % env_id, stage="plan", hint="build it")
    return plan.read_plan(own if os.path.exists(own) else os.path.join(build_dir(root, env_id), PLAN))


class _Repair:
    def __init__(self, what: "plan.BuildPlan", packages: Packages, token: str) -> None:
        self._plan = what
        self._packages = packages
        self._token = token
        self._prefix = environment_dir(what.root, what.id)

    def run(self, stop: "Any") -> "dict[str, Any]":
        there = cleanup.list_sizes(self._prefix)
        expected = self._expected(there)
        missing = [path for path, size in expected.items() if there.get(path) != size]
        if missing and self._plan.installer != plan.CLUSTERFN:
            raise BuildFailed(
                "%s has lost %d files, and conda, which made it, puts no single ones back"
                % (self._plan.id, len(missing)), stage="link", hint="clusterfn env remove, then build",
            )  # fmt: skip
        if missing:
            self._again(set(missing), stop)
        lost = [path for path in missing if not os.path.lexists(os.path.join(self._prefix, path))]
        self._restore_sizes()
        self._restore_ready()
        return {
            "id": self._plan.id, "files": len(expected), "missing": len(missing), "relinked": len(missing) - len(lost),
            "lost": lost, "need": [],
        }  # fmt: skip

    def _restore_ready(self) -> None:
        ready = os.path.join(self._prefix, READY)
        if not os.path.exists(ready):
            with open(os.path.join(self._prefix, ABOUT, READY), "rb") as file:
                publish.replace(ready, file.read(), mode=0o666)

    def _expected(self, there: "dict[str, int]") -> "dict[str, int]":
        path = os.path.join(self._prefix, ABOUT, SIZES)
        try:
            with open(path) as file:
                return dict(native(json.load(file)))
        except FileNotFoundError:
            return self._by_packages(there)

    def _by_packages(self, there: "dict[str, int]") -> "dict[str, int]":
        """Expect all files of the packages, as the list of sizes is missing; those that are there count as whole."""
        if self._plan.installer != plan.CLUSTERFN:
            raise BuildFailed(
                "%s has lost its manifest" % self._plan.id, stage="link", hint="clusterfn env remove, then build"
            )
        for _ in range(_TRIES):
            try:
                names = link.layout_of_plan(self._plan, self._prefix).targets
                return dict(dict.fromkeys(names, -1), **there)
            except PackageDamaged as holed:
                self._packages.provide(again=[os.path.basename(holed.package)])
        raise BuildFailed("the packages lose their files while they are read", stage="link")

    def _restore_sizes(self) -> None:
        path = os.path.join(self._prefix, ABOUT, SIZES)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            found = {name: size for name, size in cleanup.list_sizes(self._prefix).items() if not _is_ours(name)}
            publish.replace(path, json.dumps(portable(found)).encode(), mode=0o666)

    def _again(self, missing: "set[str]", stop: "Any") -> None:
        for _ in range(_TRIES):
            try:
                self._relink(missing, stop)
                return
            except PackageDamaged as holed:
                self._packages.provide(again=[os.path.basename(holed.package)])
        raise BuildFailed("the packages lose their files while they are linked", stage="link")

    def _relink(self, missing: "set[str]", stop: "Any") -> None:
        layout = link.layout_of_plan(self._plan, self._prefix)
        maker = Linker(self._prefix, self._prefix)
        for path in sorted(missing & set(layout.targets)):
            stop()
            maker.make(layout.targets[path])
        if self._plan.compile and any(path.endswith(".pyc") for path in missing - set(layout.targets)):
            self._compile(layout, maker, missing, stop)

    def _compile(self, layout: "Layout", maker: Linker, missing: "set[str]", stop: "Any") -> None:
        for target in bytecode.compile_missing(layout, self._prefix, self._token, stop):
            if target.path in missing:
                maker.make(target)


def _is_ours(path: str) -> bool:
    return path == READY or path.startswith(ABOUT + "/")
