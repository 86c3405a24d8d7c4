"""Find the files that a purging file system took from an environment, and link them again from the packages.

Only names and sizes are compared: `stat` of 14000 files takes a tenth of a second on a local disk. A package that has
lost files itself is unpacked again; if its archive is not available, the client learns which one to send.
"""

import contextlib
import json
import os

from ..layout import ABOUT, LOCK, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..supervisor import publish
from ..supervisor.text import native, portable
from . import bytecode, cleanup, package_formats, plan
from .errors import BuildFailed, stopper
from .link import Linker
from .locks import FolderLock
from .packages import Packages
from .progress import ProgressWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any, Callable

    from .link import Layout
    from .locks import LockHolder

_TRIES = 20  # packages may turn out to be damaged one after another


def repair_environment(root: str, env_id: str, holder: "LockHolder", stopping: "threading.Event") -> "dict[str, Any]":
    """Link missing files again; return how many there are, were missing and are back, and which cannot come back.

    Raises:
        BuildFailed: There is no such environment, or archives are needed (`need`).
    """
    lock = FolderLock(os.path.join(build_dir(root, env_id), LOCK), holder)
    lock.wait(stopper(stopping))
    try:
        if not os.path.isdir(environment_dir(root, env_id)):
            raise BuildFailed("there is no environment %s" % env_id, stage="plan", hint="build it")
        own = os.path.join(environment_dir(root, env_id), ABOUT, PLAN)
        path = own if os.path.exists(own) else os.path.join(build_dir(root, env_id), PLAN)  # either may be purged
        return repair_locked(plan.read_plan(path), holder, stopping)
    finally:
        lock.release()


def can_repair(prefix: str) -> bool:
    """Return whether an environment was whole once, and still has its list of sizes and its READY to restore."""
    about = [os.path.join(prefix, ABOUT, name) for name in (SIZES, READY)]
    return not os.path.islink(prefix) and all(os.path.exists(path) for path in about)


def repair_locked(what: "plan.BuildPlan", holder: "LockHolder", stopping: "threading.Event") -> "dict[str, Any]":
    """Repair an environment whose lock this process holds already."""
    progress = ProgressWriter(os.path.join(build_dir(what.root, what.id), PROGRESS))
    return _Repair(what, Packages(what, holder, progress, stopping), holder.token, stopper(stopping)).run()


class _Repair:
    def __init__(self, what: "plan.BuildPlan", packages: Packages, token: str, stop: "Callable[..., None]") -> None:
        self._plan = what
        self._packages = packages
        self._token = token
        self._stop = stop
        self._prefix = environment_dir(what.root, what.id)

    def run(self) -> "dict[str, Any]":
        there = cleanup.list_sizes(self._prefix)
        expected = self._expected(there)
        missing = [path for path, size in expected.items() if there.get(path) != size]
        if missing and self._plan.installer != plan.CLUSTERFN:
            raise BuildFailed(
                "%s has lost %d files, and conda, which made it, puts no single ones back"
                % (self._plan.id, len(missing)), stage="link", hint="clusterfn env remove, then build",
            )  # fmt: skip
        if missing:
            self._packages.with_whole_packages(lambda: self._relink(set(missing)), _TRIES, "linked")
        lost = [path for path in missing if not os.path.lexists(os.path.join(self._prefix, path))]
        self._restore_sizes()
        ready = os.path.join(self._prefix, READY)
        if not os.path.exists(ready):
            with open(os.path.join(self._prefix, ABOUT, READY), "rb") as file:
                publish.replace(ready, file.read(), mode=0o666)
        return {
            "id": self._plan.id, "files": len(expected), "missing": len(missing), "relinked": len(missing) - len(lost),
            "lost": lost, "need": [],
        }  # fmt: skip

    def _expected(self, there: "dict[str, int]") -> "dict[str, int]":
        path = os.path.join(self._prefix, ABOUT, SIZES)
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            return dict(native(json.load(file)))
        # Without the list of sizes, expect all files of the packages; those that are there count as whole.
        if self._plan.installer != plan.CLUSTERFN:
            raise BuildFailed(
                "%s has lost its manifest" % self._plan.id, stage="link", hint="clusterfn env remove, then build"
            )
        names = self._packages.with_whole_packages(self._layout, _TRIES, "read").targets
        return dict(dict.fromkeys(names, -1), **there)

    def _layout(self) -> "Layout":
        return package_formats.layout_of_plan(self._plan, self._prefix)

    def _restore_sizes(self) -> None:
        path = os.path.join(self._prefix, ABOUT, SIZES)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            sizes = cleanup.list_sizes(self._prefix).items()
            found = {name: size for name, size in sizes if name != READY and not name.startswith(ABOUT + "/")}
            publish.replace(path, json.dumps(portable(found)).encode(), mode=0o666)

    def _relink(self, missing: "set[str]") -> None:
        layout = self._layout()
        maker = Linker(self._prefix, self._prefix)
        for path in sorted(missing & set(layout.targets)):
            self._stop()
            maker.make(layout.targets[path])
        if self._plan.compile and any(path.endswith(".pyc") for path in missing - set(layout.targets)):
            for target in bytecode.compile_missing(layout, self._prefix, self._token, self._stop):
                if target.path in missing:
                    maker.make(target)
