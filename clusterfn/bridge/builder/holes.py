"""Finds what a purging file system took from an environment, and links it again from the packages.

By names and sizes, nothing is read: `stat` of 14000 files takes a tenth of a second on a local disk. A package that
has lost files itself is unpacked again; if its archive cannot be had, the client is told which it must send.
"""

import json
import os

from ..layout import ABOUT, LOCK, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..supervisor.text import native, portable
from . import housekeeping, layouts, plan, pyc, sync
from .failure import Failed, Stopped
from .lock import Lock
from .packages import Packages
from .place import Holed, Maker
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any

    from .holder import Holder
    from .place import Layout

_TRIES = 20  # packages may turn out to have holes one after another


def mend(root: str, env_id: str, holder: "Holder", stopping: "threading.Event") -> "dict[str, Any]":
    """Relink what is missing; how many files there are, were missing and are back, and what cannot come back.

    Raises:
        Failed: There is no such environment, or archives are needed (`need`).
        Stopped: `stopping` was set.
    """

    def stop(_: object = None) -> None:
        if stopping.is_set():
            raise Stopped

    lock = Lock(os.path.join(build_dir(root, env_id), LOCK), holder)
    lock.wait(stop)
    try:
        return mend_locked(_plan(root, env_id), holder, stopping)
    finally:
        lock.release()


def can_mend(prefix: str) -> bool:
    """Whether an environment was whole once, and is still known well enough to become so again."""
    about = [os.path.join(prefix, ABOUT, name) for name in (SIZES, READY)]
    return not os.path.islink(prefix) and all(os.path.exists(path) for path in about)


def mend_locked(what: "plan.Plan", holder: "Holder", stopping: "threading.Event") -> "dict[str, Any]":
    """The same, where this process holds the environment's lock already."""

    def stop() -> None:
        if stopping.is_set():
            raise Stopped

    progress = Progress(os.path.join(build_dir(what.root, what.id), PROGRESS))
    return _Mending(what, Packages(what, holder, progress, stopping), holder.token).run(stop)


def _plan(root: str, env_id: str) -> "plan.Plan":
    """The environment's own plan, else the one of its last build: either may be purged."""
    own = os.path.join(environment_dir(root, env_id), ABOUT, PLAN)
    if not os.path.isdir(environment_dir(root, env_id)):
        raise Failed("there is no environment %s" % env_id, stage="plan", hint="build it")
    return plan.read(own if os.path.exists(own) else os.path.join(build_dir(root, env_id), PLAN))


class _Mending:
    def __init__(self, what: "plan.Plan", packages: Packages, token: str) -> None:
        self._plan = what
        self._packages = packages
        self._token = token
        self._prefix = environment_dir(what.root, what.id)

    def run(self, stop: "Any") -> "dict[str, Any]":
        there = housekeeping.sizes(self._prefix)
        expected = self._expected(there)
        missing = [path for path, size in expected.items() if there.get(path) != size]
        if missing and self._plan.installer != plan.CLUSTERFN:
            raise Failed(
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
                sync.write(ready + ".new", file.read())
            os.rename(ready + ".new", ready)

    def _expected(self, there: "dict[str, int]") -> "dict[str, int]":
        path = os.path.join(self._prefix, ABOUT, SIZES)
        try:
            with open(path) as file:
                return dict(native(json.load(file)))
        except FileNotFoundError:
            return self._by_packages(there)

    def _by_packages(self, there: "dict[str, int]") -> "dict[str, int]":
        """The list of sizes itself was taken: what the packages have must be there; what is, counts as whole."""
        if self._plan.installer != plan.CLUSTERFN:
            raise Failed(
                "%s has lost its manifest" % self._plan.id, stage="link", hint="clusterfn env remove, then build"
            )
        for _ in range(_TRIES):
            try:
                names = layouts.layout(self._plan, self._prefix).targets
                return dict(dict.fromkeys(names, -1), **there)
            except Holed as holed:
                self._packages.provide(again=[os.path.basename(holed.package)])
        raise Failed("the packages lose their files while they are read", stage="link")

    def _restore_sizes(self) -> None:
        path = os.path.join(self._prefix, ABOUT, SIZES)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            found = {name: size for name, size in housekeeping.sizes(self._prefix).items() if not _is_ours(name)}
            sync.write(path + ".new", json.dumps(portable(found)).encode())
            os.rename(path + ".new", path)

    def _again(self, missing: "set[str]", stop: "Any") -> None:
        for _ in range(_TRIES):
            try:
                self._relink(missing, stop)
                return
            except Holed as holed:
                self._packages.provide(again=[os.path.basename(holed.package)])
        raise Failed("the packages lose their files while they are linked", stage="link")

    def _relink(self, missing: "set[str]", stop: "Any") -> None:
        layout = layouts.layout(self._plan, self._prefix)
        maker = Maker(self._prefix, self._prefix)
        for path in sorted(missing & set(layout.targets)):
            stop()
            maker.make(layout.targets[path])
        if self._plan.compile and any(path.endswith(".pyc") for path in missing - set(layout.targets)):
            self._compile(layout, maker, missing, stop)

    def _compile(self, layout: "Layout", maker: Maker, missing: "set[str]", stop: "Any") -> None:
        for target in pyc.compile_missing(layout, self._prefix, self._token, stop):
            if target.path in missing:
                maker.make(target)


def _is_ours(path: str) -> bool:
    return path == READY or path.startswith(ABOUT + "/")
