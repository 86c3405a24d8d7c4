"""A build from top to bottom: one builder for each environment, the others follow; whole or absent.

The environment is made aside and shown at its final path by a symbolic link while it is compiled, scripted and
verified, so that whatever embeds the prefix embeds the right one; then READY is written, and one rename puts it there.
"""

import json
import os
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from ..layout import ABOUT, ENVIRONMENTS, LOCK, OUTCOME, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..supervisor.text import portable
from . import activation, condas, holes, housekeeping, layouts, postlink, progress, pyc, sync, verify
from .failure import Failed, Stopped, of_system
from .lock import Lock
from .packages import Packages
from .place import THERE, Holed, Maker
from .plan import CLUSTERFN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any, Optional

    from .holder import Holder, Other
    from .place import Layout
    from .plan import Plan

_LINKERS = 4
_LINKED_TOGETHER = 256
_TRIES = 3  # to link, while a purging file system takes files away


class _Overtaken(Exception):
    """Another has taken the lock: this process stood still, or was not heard, until it passed for dead."""


def is_ready(root: str, env_id: str) -> bool:
    """Whether it is there, whole."""
    return os.path.exists(os.path.join(environment_dir(root, env_id), READY))


def see_through(plan: "Plan", holder: "Holder", stopping: "threading.Event") -> "dict[str, Any]":
    """Build it, or wait for who does; what outcome.json says.

    Raises:
        Stopped: `stopping` was set.
    """
    if is_ready(plan.root, plan.id) and not plan.purged:
        return _reused()
    while True:
        try:
            return _in_turn(plan, holder, stopping)
        except _Overtaken:
            continue


def _in_turn(plan: "Plan", holder: "Holder", stopping: "threading.Event") -> "dict[str, Any]":
    folder = build_dir(plan.root, plan.id)
    lock = Lock(os.path.join(folder, LOCK), holder)
    waited = _Waiting(folder, plan, stopping)
    lock.wait(waited.look)
    try:
        if is_ready(plan.root, plan.id) or holes.can_mend(environment_dir(plan.root, plan.id)):
            return _mended(plan, holder, stopping)
        told = waited.outcome()
        return told if told is not None else _conclude(_Build(plan, holder, lock, stopping), folder, holder.token)
    finally:
        lock.release()


def _mended(plan: "Plan", holder: "Holder", stopping: "threading.Event") -> "dict[str, Any]":
    """One that is there, and may have lost files if the plan says so or its READY is gone."""
    if is_ready(plan.root, plan.id) and not plan.purged:
        return _reused()
    return dict(_reused(), mended=holes.mend_locked(plan, holder, stopping))


def _reused() -> "dict[str, Any]":
    return {"ok": True, "reused": True}


class _Waiting:
    """While another builds: its progress is ours, and so is its failure."""

    def __init__(self, folder: str, plan: "Plan", stopping: "threading.Event") -> None:
        self._folder = folder
        self._plan = plan
        self._stopping = stopping
        self._follower = progress.Follower(os.path.join(folder, PROGRESS))
        self._tokens: "list[str]" = []

    def look(self, other: "Optional[Other]") -> None:
        if self._stopping.is_set():
            raise Stopped
        if other is None:
            return
        if other.token not in self._tokens:
            self._tokens.append(other.token)
            progress.say({"stage": "wait", "text": "%s builds it" % other.who()})
        self._follower.copy()

    def outcome(self) -> "Optional[dict[str, Any]]":
        """The failure of the builder that was waited for: the first error counts for all."""
        found = read_outcome(self._folder)
        return found if found and not found["ok"] and found.get("by") in self._tokens else None


def read_outcome(folder: str) -> "dict[str, Any]":
    """What the last build came to; empty if there was none."""
    try:
        with open(os.path.join(folder, OUTCOME)) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def _conclude(build: "_Build", folder: str, token: str) -> "dict[str, Any]":
    try:
        outcome: "dict[str, Any]" = {"ok": True, "reused": False, "ready": build.run()}
    except Failed as failed:
        outcome = failed.document()
    except OSError as error:
        outcome = of_system(error, build.plan.root).document()
    except (Stopped, _Overtaken):
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame: a package may hold what nobody thought of
        outcome = _unforeseen(error).document()
    if not outcome["ok"]:
        build.see_that_it_is_ours()  # whatever failed, failed among another's files
    document = json.dumps({key: value for key, value in dict(outcome, by=token).items() if key != "ready"})
    try:
        sync.write(os.path.join(folder, OUTCOME + ".new"), document.encode())
        os.rename(os.path.join(folder, OUTCOME + ".new"), os.path.join(folder, OUTCOME))
    except OSError:  # the disk is full: whoever started this is told by our output
        return outcome
    return outcome


def _unforeseen(error: Exception) -> Failed:
    lines = traceback.format_exc().splitlines()
    message = "the builder itself failed: %s: %s" % (type(error).__name__, error)
    return Failed(message, stage="builder", evidence=lines[-20:], hint="report it with these lines")


class _Build:
    """One build by this process, which holds the lock."""

    def __init__(self, plan: "Plan", holder: "Holder", lock: Lock, stopping: "threading.Event") -> None:
        self.plan = plan
        self._holder = holder
        self._lock = lock
        self._stopping = stopping
        self._conda: "Optional[condas.Conda]" = None
        self._final = environment_dir(plan.root, plan.id)
        self._aside = os.path.join(plan.root, ENVIRONMENTS, ".%s-%s" % (plan.id, holder.token))
        self._seconds: "dict[str, float]" = {}
        self._messages: "list[str]" = []

    def run(self) -> "dict[str, Any]":
        """Build it; what READY says."""
        self._prepare()
        if self.plan.installer != CLUSTERFN:
            self._conda = condas.find(self.plan, self._holder, self._stop)
        self._ours = self._conda.rest if self._conda else self.plan
        packages = Packages(self._ours, self._holder, self._progress, self._stopping)
        self._timed("packages", packages.provide)
        brought = self._timed("archives", self._bring, self._conda) if self._conda else 0
        try:
            for _ in range(_TRIES):
                try:
                    self._make()
                    return self._finish(brought + packages.fetched)
                except Holed as holed:
                    packages.provide(again=[os.path.basename(holed.package)])
        except Stopped:
            raise
        except BaseException:  # whatever ends it: a half-made environment must not stay
            self._clean()
            raise
        raise Failed(
            "the packages lose their files while they are linked", stage="link", hint="is this file system purged?"
        )

    def _prepare(self) -> None:
        folder = build_dir(self.plan.root, self.plan.id)
        _remove(os.path.join(folder, OUTCOME))
        self._progress = progress.Progress(os.path.join(folder, PROGRESS))
        sync.write(os.path.join(folder, PLAN + ".new"), json.dumps(portable(self.plan.document)).encode())
        os.rename(os.path.join(folder, PLAN + ".new"), os.path.join(folder, PLAN))
        os.makedirs(os.path.dirname(self._final), exist_ok=True)
        housekeeping.sweep(self.plan.root, self._holder)

    def _bring(self, conda: condas.Conda) -> int:
        """Have the archives that conda unpacks; the bytes that came for that."""
        packages = Packages(conda.share, self._holder, self._progress, self._stopping)
        packages.archives(conda.take)
        return packages.fetched

    def _timed(self, name: str, step: "Any", *arguments: "Any") -> "Any":
        self.see_that_it_is_ours()
        begun = time.monotonic()
        done = step(*arguments)
        self._seconds[name] = round(time.monotonic() - begun, 3)
        return done

    def _make(self) -> None:
        housekeeping.delete(self.plan.root, self._aside, self._holder)
        layout = self._begun()
        maker = Maker(self._aside, self._final)
        self._timed("link", self._link, layout, maker)
        self._show()
        if self.plan.compile:
            self._progress.tell("compile", 0, 1)
            self._timed("compile", self._compile, layout, maker)
        self._messages = self._timed("scripts", postlink.run_all, self._ours, self._final, self._stop, self._progress)
        self._variables = activation.variables(self._final, self._stop, self.plan.timeout_s)
        self._progress.tell("verify", 0, 1)
        self._found = self._timed("verify", verify.verify, self.plan, self._final, self._stop)

    def _begun(self) -> "Layout":
        """The folder aside with what is not ours to link, and the layout of all."""
        if self._conda is None:
            os.mkdir(self._aside)
            return layouts.layout(self.plan, self._final)
        self._timed("conda", self._fill, self._conda)
        layout = layouts.beside(self._ours, self._final, condas.site(self._aside))
        condas.add_to(layout, self._aside)
        return layout

    def _fill(self, conda: condas.Conda) -> None:
        """Let conda make it at its final path, which must not be there: some refuse a folder that is none of theirs."""
        self._vacate()
        self._progress.tell("conda", 0, 1, text=conda.said)
        conda.fill(self._final, self._stop)
        os.rename(self._final, self._aside)

    def _link(self, layout: "Layout", maker: Maker) -> None:
        """A few at a time: on a network file system each waits for an answer."""
        paths = sorted(path for path, target in layout.targets.items() if target.how != THERE)
        parts = [paths[at : at + _LINKED_TOGETHER] for at in range(0, len(paths), _LINKED_TOGETHER)]

        def link(part: "list[str]") -> None:
            self._stop()
            for path in part:
                maker.make(layout.targets[path])

        with ThreadPoolExecutor(_LINKERS) as pool:
            for number, _ in enumerate(pool.map(link, parts), 1):
                self._progress.tell("link", min(number * _LINKED_TOGETHER, len(paths)), len(paths))

    def _compile(self, layout: "Layout", maker: Maker) -> None:
        for target in pyc.compile_missing(layout, self._final, self._holder.token, self._stop):
            maker.make(target)

    def _show(self) -> None:
        """Let the final path lead to the folder aside; without READY it is nobody's environment."""
        self._vacate()
        os.symlink(os.path.basename(self._aside), self._final)

    def see_that_it_is_ours(self) -> None:
        """Raises _Overtaken unless this process still holds the lock."""
        if not self._lock.is_mine():
            raise _Overtaken

    def _vacate(self) -> None:
        self.see_that_it_is_ours()
        if os.path.islink(self._final):
            os.unlink(self._final)
        elif os.path.isdir(self._final):
            housekeeping.delete(self.plan.root, self._final, self._holder)

    def _finish(self, fetched: int) -> "dict[str, Any]":
        about = os.path.join(self._aside, ABOUT)
        os.makedirs(about, exist_ok=True)
        sizes = housekeeping.sizes(self._aside)
        ready = self._ready(sizes, fetched)
        for name, document in ((SIZES, portable(sizes)), (PLAN, portable(self.plan.document)), (READY, ready)):
            sync.write(os.path.join(about, name), json.dumps(document).encode())
        sync.everything(self._aside)
        sync.write(os.path.join(self._aside, READY), json.dumps(ready).encode())
        self.see_that_it_is_ours()
        os.unlink(self._final)
        os.rename(self._aside, self._final)
        sync.everything(os.path.dirname(self._final))
        if self._conda:
            self._conda.forget()
        return ready

    def _ready(self, sizes: "dict[str, int]", fetched: int) -> "dict[str, Any]":
        return {
            "format": 1, "id": self.plan.id, "about": self.plan.about, "prefix": self._final,
            "built": round(time.time(), 3), "host": os.uname()[1], "python": self._found["python"],
            "modules": self._found["modules"],
            "torch_cuda": self._found["torch_cuda"], "seconds": self._seconds, "fetched": fetched,
            "bytes": sum(sizes.values()), "files": len(sizes), "messages": self._messages,
            "told": {"set": portable(self._variables)},
            "packages": [[each.name, each.version, each.build, each.manager] for each in self.plan.packages],
        }  # fmt: skip

    def _clean(self) -> None:
        if os.path.islink(self._final) and os.readlink(self._final) == os.path.basename(self._aside):
            os.unlink(self._final)
        elif self._conda and self._lock.is_mine() and not is_ready(self.plan.root, self.plan.id):
            self._vacate()
        housekeeping.delete(self.plan.root, self._aside, self._holder)
        if self._conda:
            self._conda.clear()

    def _stop(self) -> None:
        if self._stopping.is_set():
            raise Stopped


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
