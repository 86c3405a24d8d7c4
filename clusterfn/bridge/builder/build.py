"""Build one environment, from top to bottom: one process builds it, others wait and follow its progress.

The files are put into a temporary folder. Until the result is verified, a symbolic link at the final path leads to it,
so whatever embeds the prefix embeds the final one. Then READY is written, and one rename puts the folder in its place.
An environment is whole or absent.
"""

import contextlib
import ctypes
import json
import os
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from ..layout import ABOUT, ENVIRONMENTS, LOCK, OUTCOME, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..supervisor import publish
from ..supervisor.text import portable
from . import base_python, bytecode, cleanup, conda_installer, package_formats, programs, progress, repair
from .errors import BuildFailed, BuildStopped, from_os_error, stopper
from .link import THERE, Linker
from .locks import FolderLock
from .packages import Packages
from .plan import CLUSTERFN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any, Optional

    from .link import Layout
    from .locks import LockHolder, OtherHolder
    from .plan import BuildPlan

_LINKERS = 4
_LINKED_TOGETHER = 256
_TRIES = 3  # to link, while a purging file system takes files away
REUSED = {"ok": True, "reused": True}


class _LockLost(Exception):
    """Another builder has taken the lock, because this process was stopped until it was taken for dead."""


def is_ready(root: str, env_id: str) -> bool:
    """Return whether the environment exists and is whole."""
    return os.path.exists(os.path.join(environment_dir(root, env_id), READY))


def build_or_wait(plan: "BuildPlan", holder: "LockHolder", stopping: "threading.Event") -> "dict[str, Any]":
    """Build the environment, or wait for the process that does; return the content of outcome.json."""
    folder = build_dir(plan.root, plan.id)
    while True:
        lock = FolderLock(os.path.join(folder, LOCK), holder)
        waited = _Waiting(folder, stopping)
        lock.wait(waited.look)
        try:
            if is_ready(plan.root, plan.id) and not plan.purged:
                return dict(REUSED)
            if is_ready(plan.root, plan.id) or repair.can_repair(environment_dir(plan.root, plan.id)):
                return dict(REUSED, mended=repair.repair_locked(plan, holder, stopping))
            build = _Build(plan, holder, lock, stopping)
            return waited.outcome() or _conclude(build, folder, holder.token)
        except _LockLost:
            continue
        finally:
            lock.release()


class _Waiting:
    """Wait while another process builds: copy its progress, and adopt its failure."""

    def __init__(self, folder: str, stopping: "threading.Event") -> None:
        self._folder = folder
        self._stop = stopper(stopping)
        self._follower = progress.ProgressFollower(os.path.join(folder, PROGRESS))
        self._tokens: "list[str]" = []

    def look(self, other: "Optional[OtherHolder]") -> None:
        self._stop()
        if other is None:
            return
        if other.token not in self._tokens:
            self._tokens.append(other.token)
            progress.print_line({"stage": "wait", "text": "%s builds it" % other.who()})
        self._follower.copy()

    def outcome(self) -> "Optional[dict[str, Any]]":
        """Return the failure of the builder that was waited for: the first error counts for all."""
        try:
            with open(os.path.join(self._folder, OUTCOME)) as file:
                found = dict(json.load(file))
        except (OSError, ValueError):
            return None
        return found if not found["ok"] and found.get("by") in self._tokens else None


def _conclude(build: "_Build", folder: str, token: str) -> "dict[str, Any]":
    try:
        outcome: "dict[str, Any]" = {"ok": True, "reused": False, "ready": build.run()}
    except BuildFailed as failed:
        outcome = failed.document()
    except OSError as error:
        outcome = from_os_error(error, build.plan.root).document()
    except (BuildStopped, _LockLost):
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame: a package may hold anything
        message = "the builder itself failed: %s: %s" % (type(error).__name__, error)
        lines = traceback.format_exc().splitlines()[-20:]
        outcome = BuildFailed(message, stage="builder", evidence=lines, hint="report it with these lines").document()
    if not outcome["ok"]:
        build.check_lock()  # whatever failed, may have failed because of the files of another builder
    document = json.dumps({key: value for key, value in dict(outcome, by=token).items() if key != "ready"})
    with contextlib.suppress(OSError):  # the disk is full: our output says it too
        publish.replace(os.path.join(folder, OUTCOME), document.encode(), mode=0o666)
    return outcome


class _Build:
    """One build by this process, which holds the lock."""

    def __init__(self, plan: "BuildPlan", holder: "LockHolder", lock: FolderLock, stopping: "threading.Event") -> None:
        self.plan = plan
        self._holder = holder
        self._lock = lock
        self._stopping = stopping
        self._stop = stopper(stopping)
        self._conda: "Optional[conda_installer.HostConda]" = None
        self._final = environment_dir(plan.root, plan.id)
        self._aside = os.path.join(plan.root, ENVIRONMENTS, ".%s-%s" % (plan.id, holder.token))
        self._seconds: "dict[str, float]" = {}
        self._messages: "list[str]" = []

    def run(self) -> "dict[str, Any]":
        self._prepare()
        if self.plan.base is not None:
            base_python.refuse_changed(self.plan.base)
        if self.plan.installer != CLUSTERFN:
            self._conda = conda_installer.find_conda(self.plan, self._holder, self._stop)
        self._ours = self._conda.rest if self._conda else self.plan
        packages = Packages(self._ours, self._holder, self._progress, self._stopping)
        self._timed("packages", packages.provide)
        brought = 0
        if self._conda:
            for_conda = Packages(self._conda.share, self._holder, self._progress, self._stopping)
            self._timed("archives", for_conda.archives, self._conda.take)
            brought = for_conda.fetched

        def make_and_finish() -> "dict[str, Any]":
            self._make()
            return self._finish(brought + packages.fetched)

        try:
            return packages.with_whole_packages(make_and_finish, _TRIES, "linked", "is this file system purged?")
        except BuildStopped:
            raise
        except BaseException:  # whatever the reason: an incomplete environment must not stay
            self._clean()
            raise

    def _prepare(self) -> None:
        folder = build_dir(self.plan.root, self.plan.id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, OUTCOME))
        self._progress = progress.ProgressWriter(os.path.join(folder, PROGRESS))
        plan = json.dumps(portable(self.plan.document)).encode()
        publish.replace(os.path.join(folder, PLAN), plan, mode=0o666)
        os.makedirs(os.path.dirname(self._final), exist_ok=True)
        cleanup.sweep_leftovers(self.plan.root, self._holder)

    def _timed(self, name: str, step: "Any", *arguments: "Any") -> "Any":
        self.check_lock()
        begun = time.monotonic()
        done = step(*arguments)
        self._seconds[name] = round(time.monotonic() - begun, 3)
        return done

    def _make(self) -> None:
        cleanup.delete_folder(self._aside, self._holder)
        if self._conda is None:
            os.mkdir(self._aside)
            layout = package_formats.layout_of_plan(self.plan, self._final)
        else:
            self._timed("conda", self._run_conda, self._conda)
            site = conda_installer.find_site_packages(self._aside)
            layout = package_formats.layout_beside_conda(self._ours, self._final, site)
            conda_installer.add_installed_files(layout, self._aside)
        maker = Linker(self._aside, self._final)
        self._timed("link", self._link, layout, maker)
        self._clear_final_path()
        os.symlink(os.path.basename(self._aside), self._final)  # without READY no job uses it
        if self.plan.compile:
            self._progress.report("compile", 0, 1)
            self._timed("compile", self._compile, layout, maker)
        self._messages = self._timed(
            "scripts", programs.run_post_link_scripts, self._ours, self._final, self._stop, self._progress
        )
        self._variables = programs.find_activation_variables(self._final, self._stop, self.plan.timeout_s)
        self._progress.report("verify", 0, 1)
        self._found = self._timed("verify", programs.verify_environment, self.plan, self._final, self._stop)

    def _run_conda(self, conda: conda_installer.HostConda) -> None:
        # At its final path, which must not exist: some condas refuse any other folder.
        self._clear_final_path()
        self._progress.report("conda", 0, 1, text=conda.said)
        conda.fill(self._final, self._stop)
        os.rename(self._final, self._aside)

    def _link(self, layout: "Layout", maker: Linker) -> None:
        # In a few threads: on a network file system each link waits for an answer.
        paths = sorted(path for path, target in layout.targets.items() if target.how != THERE)
        parts = [paths[at : at + _LINKED_TOGETHER] for at in range(0, len(paths), _LINKED_TOGETHER)]

        def link(part: "list[str]") -> None:
            self._stop()
            for path in part:
                maker.make(layout.targets[path])

        with ThreadPoolExecutor(_LINKERS) as pool:
            for number, _ in enumerate(pool.map(link, parts), 1):
                self._progress.report("link", min(number * _LINKED_TOGETHER, len(paths)), len(paths))

    def _compile(self, layout: "Layout", maker: Linker) -> None:
        for target in bytecode.compile_missing(layout, self._final, self._holder.token, self._stop):
            maker.make(target)

    def check_lock(self) -> None:
        if not self._lock.is_mine():
            raise _LockLost

    def _clear_final_path(self) -> None:
        self.check_lock()
        if os.path.islink(self._final):
            os.unlink(self._final)
        elif os.path.isdir(self._final):
            cleanup.delete_folder(self._final, self._holder)

    def _finish(self, fetched: int) -> "dict[str, Any]":
        about = os.path.join(self._aside, ABOUT)
        os.makedirs(about, exist_ok=True)
        sizes = cleanup.list_sizes(self._aside)
        ready = {
            "format": 1, "id": self.plan.id, "about": self.plan.about, "prefix": self._final,
            "built": round(time.time(), 3), "host": os.uname()[1], "python": self._found["python"],
            "modules": self._found["modules"],
            "torch_cuda": self._found["torch_cuda"], "seconds": self._seconds, "fetched": fetched,
            "bytes": sum(sizes.values()), "files": len(sizes), "messages": self._messages,
            "told": {"set": portable(self._variables)},
            "packages": [[each.name, each.version, each.build, each.manager] for each in self.plan.packages],
        }  # fmt: skip
        if self.plan.base is not None:
            ready["base"] = portable(dict(self.plan.base._asdict()))
            ready["packages"].append(["python", self.plan.base.version, "", "host"])
        for name, document in ((SIZES, portable(sizes)), (PLAN, portable(self.plan.document)), (READY, ready)):
            publish.replace(os.path.join(about, name), json.dumps(document).encode(), mode=0o666)
        sync_file_system(self._aside)
        publish.replace(os.path.join(self._aside, READY), json.dumps(ready).encode(), mode=0o666)
        self.check_lock()
        os.unlink(self._final)
        os.rename(self._aside, self._final)
        sync_file_system(os.path.dirname(self._final))
        if self._conda:
            self._conda.forget()
        return ready

    def _clean(self) -> None:
        if os.path.islink(self._final) and os.readlink(self._final) == os.path.basename(self._aside):
            os.unlink(self._final)
        elif self._conda and self._lock.is_mine() and not is_ready(self.plan.root, self.plan.id):
            self._clear_final_path()
        cleanup.delete_folder(self._aside, self._holder)
        if self._conda:
            self._conda.clear()


def sync_file_system(folder: str) -> None:
    """Flush the whole file system of a folder to the disk: one call instead of one for each of 20000 files."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        sync = getattr(ctypes.CDLL(None), "syncfs", None)
        if sync is None or sync(fd):
            os.sync()
    finally:
        os.close(fd)
