"""The builder: its commands, and the build of one environment from top to bottom.

It runs in the host's old Python. The client starts it through the agent, and it outlives both. Each command prints JSON
lines. One process builds an environment, and others wait and follow its progress.

The files are put into a temporary folder. Until the result is verified, a symbolic link at the final path leads to it,
so whatever embeds the prefix embeds the final one. Then READY is written, and one rename puts the folder in its place.
An environment is whole or absent.

A purging file system may take files from it: they are linked again. Only names and sizes are compared: `stat` of 14000
files takes a tenth of a second on a local disk. A package that has lost files itself is unpacked again. If its archive
is not available, the client learns which one to send.
"""

import contextlib
import ctypes
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

from ..layout import ABOUT, BLOBS, ENVIRONMENTS, LOCK, OUTCOME, PLAN, PROGRESS, READY, SIZES, build_dir, environment_dir
from ..removal import DAY_S, size_of
from . import cleanup, leases, programs, progress
from .link import Linker, compile_missing, remove_damaged
from .locks import FolderLock, LockHolder, OtherHolder, try_unlink
from .package_formats import layout_of_plan
from .packages import Packages, find_missing_archives
from .plan import BuildPlan, check_id, read_document, read_plan, write_document
from .progress import BuildFailed, from_os_error

_USAGE = """usage: build.py build PLAN | lacking <PLAN | repair ROOT ID | list ROOT | remove ROOT ID | gc ROOT DAYS KEEP
                | gc-dry ROOT DAYS KEEP"""
_STOPPED = 143
_FAILED = 1
_REUSED = {"ok": True, "reused": True}
_LINKERS = 4
_LINKED_TOGETHER = 256
_WHO_S = 1.0


def main(argv: "list[str]") -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 not understood, 143 stopped."""
    commands: "dict[tuple[str, int], Callable[..., int]]" = {
        ("build", 1): build,
        ("repair", 2): repair,
        ("list", 1): list_environments,
        ("remove", 2): remove,
        ("gc", 3): collect,
        ("gc-dry", 3): preview_collect,
        ("lacking", 0): print_missing,
    }
    command = commands.get((argv[0] if argv else "", len(argv) - 1))
    if command is None:
        sys.stderr.write(_USAGE + "\n")
        return 2
    try:
        return command(*argv[1:])
    except programs.BuildStopped:
        progress.print_line({"stage": "failed", "text": "the builder was stopped", "at": "stopped"})
        return _STOPPED
    except BuildFailed as failed:
        return _print_failure(failed.document())
    except OSError as error:
        return _print_failure(from_os_error(error, argv[1] if len(argv) > 1 else "/").document())


def _print_failure(document: "dict[str, Any]") -> int:
    progress.print_line(dict(document, stage="failed", text=document["message"], at=document["stage"]))
    return _FAILED


def build(path: str, is_purged: bool = False) -> int:
    """Build the environment of a plan, or wait for the process that does."""
    what = read_plan(path)
    what = what._replace(purged=what.purged or is_purged)
    programs.end_on_signals()
    leases.refuse_untrusted(what.root, what.owners, what.id)
    outcome = dict(_REUSED)
    if what.purged or not _is_ready(what.root, what.id):
        with leases.writing_below(what.root), LockHolder(what.root) as holder:
            outcome = _build_or_wait(what, holder)
    if not outcome["ok"]:
        return _print_failure(outcome)
    progress.print_line(dict(outcome, stage="done", done=1, of=1))
    return 0


def repair(root: str, env_id: str) -> int:
    """Restore the files that a purging file system took from an environment."""
    own = os.path.join(environment_dir(root, check_id(env_id)), ABOUT, PLAN)
    # A purging file system may have taken either of the two.
    path = own if os.path.exists(own) else os.path.join(build_dir(root, env_id), PLAN)
    return build(path, is_purged=True)


def list_environments(root: str) -> int:
    """Print a line for each environment."""
    names = ("id", "about", "python", "torch_cuda", "bytes", "files", "built")
    for env_id in cleanup.list_environments(root):
        ready = read_document(os.path.join(environment_dir(root, env_id), READY))
        # Another process may remove it meanwhile.
        if ready is not None:
            used = cleanup.last_used(root, env_id)
            used_by = leases.jobs_using(root, env_id)
            progress.print_line(dict({name: ready[name] for name in names}, used=used, used_by=used_by))
    return 0


def remove(root: str, env_id: str) -> int:
    """Remove an environment, and the packages that no other environment uses."""
    with leases.writing_below(root), LockHolder(root) as holder:
        result = cleanup.remove_environment(root, check_id(env_id), holder)
        if result["removed"]:
            count, freed = cleanup.remove_packages(root, holder)
            result = dict(result, packages=count, freed=result["freed"] + freed)
    progress.print_line(result)
    return 0 if result["removed"] else _FAILED


def collect(root: str, days: str, keep: str) -> int:
    """Remove environments and packages that were not used for `days` days; keep the `keep` environments used last."""
    limit_s = float(days) * DAY_S
    with leases.writing_below(root), LockHolder(root) as holder:
        cleanup.sweep_leftovers(root, holder)
        for env_id in cleanup.list_environments(root):
            leases.sweep_ended_leases(root, env_id)
        old = cleanup.unused_environments(root, limit_s, int(keep))
        results = [cleanup.remove_environment(root, env_id, holder) for env_id in old]
        removed = [result["id"] for result in results if result["removed"]]
        count, freed = cleanup.remove_packages(root, holder, 0.0 if removed else limit_s)
        freed += cleanup.remove_old_parts(root) + sum(result["freed"] for result in results if result["removed"])
    kept = [result for result in results if not result["removed"]]
    progress.print_line({"removed": removed, "packages": count, "freed": freed, "kept": kept})
    return 0


def preview_collect(root: str, days: str, keep: str) -> int:
    """Print what `collect` would remove, and about how many bytes that would free."""
    unused = cleanup.unused_environments(root, float(days) * DAY_S, int(keep))
    old = [env_id for env_id in unused if not leases.jobs_using(root, env_id)]
    # A file with a third name belongs to another environment, too. So only those with at most two are freed.
    freed = sum(size_of(environment_dir(root, env_id), 2) for env_id in old)
    progress.print_line({"removed": old, "kept": [], "freed": freed})
    return 0


def print_missing() -> int:
    """Print which archives of the plan on stdin have to be fetched or sent; create the folders for them."""
    what = read_plan(os.dup(0))
    leases.refuse_untrusted(what.root, what.owners)
    with leases.writing_below(what.root):
        for folder in (os.path.join(what.root, BLOBS), build_dir(what.root, what.id)):
            os.makedirs(folder, exist_ok=True)
            # Only an attempt shows whether the folder can be written to.
            os.rmdir(tempfile.mkdtemp(dir=folder))
    progress.print_line(find_missing_archives(what))
    return 0


class _LockLost(Exception):
    """Another builder has taken the lock, because this process was stopped until it was taken for dead."""


def _is_ready(root: str, env_id: str) -> bool:
    """Return whether the environment exists and is whole."""
    return os.path.exists(os.path.join(environment_dir(root, env_id), READY))


def _build_or_wait(plan: "BuildPlan", holder: "LockHolder") -> "dict[str, Any]":
    """Build the environment, or wait for its builder; return what outcome.json holds. May raise BuildStopped."""
    folder = build_dir(plan.root, plan.id)
    prefix = environment_dir(plan.root, plan.id)
    while True:
        lock = FolderLock(os.path.join(folder, LOCK), holder)
        waited = _Waiting(folder)
        # A builder that loses the lock, because it was stopped, waits for its successor in the next turn.
        with contextlib.suppress(_LockLost), lock.held(waited.look):
            if _is_ready(plan.root, plan.id) and not plan.purged:
                return dict(_REUSED)
            # An environment that was whole once still has its list of sizes and its READY to restore.
            about = [read_document(os.path.join(prefix, ABOUT, name)) for name in (SIZES, READY)]
            if not (os.path.islink(prefix) or None in about):
                return dict(_REUSED, mended=_Build(plan, holder, lock).repair())
            outcome = read_document(os.path.join(folder, OUTCOME)) or {"ok": True}
            # The first error counts for all: the failure of the builder that was waited for.
            if not outcome["ok"] and outcome.get("by") in waited.tokens:
                return outcome
            return _Build(plan, holder, lock).run()


class _Waiting:
    """Wait while another process builds, and repeat its progress."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._last_line: "dict[str, Any]" = {}
        self.tokens: "list[str]" = []  # of the builders that were waited for
        self._who = ""
        self._due = 0.0

    def look(self, other: "Optional[OtherHolder]") -> None:
        programs.check_stopped()
        if other is None:
            return
        if other.token not in self.tokens:
            self.tokens.append(other.token)
            self._due = 0.0
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _WHO_S
            who = other.who()
            if who != self._who:
                self._who = who
                progress.print_line({"stage": "wait", "text": "%s builds it" % who})
        line = progress.last_line(os.path.join(self._folder, PROGRESS))
        if line and line != self._last_line:
            self._last_line = line
            progress.print_line(line)


class _Build:
    """One build by this process, which holds the lock."""

    def __init__(self, plan: "BuildPlan", holder: "LockHolder", lock: FolderLock) -> None:
        self._plan = plan
        self._holder = holder
        self._lock = lock
        self._final = environment_dir(plan.root, plan.id)
        self._aside = os.path.join(plan.root, ENVIRONMENTS, ".%s-%s" % (plan.id, holder.token))
        self._folder = build_dir(plan.root, plan.id)
        self._progress = progress.ProgressWriter(os.path.join(self._folder, PROGRESS))
        self._packages = Packages(plan, holder, self._progress)
        self._seconds: "dict[str, float]" = {}

    def run(self) -> "dict[str, Any]":
        """Build it; return the content of outcome.json."""
        try:
            outcome: "dict[str, Any]" = {"ok": True, "reused": False, "ready": self._build()}
        except (programs.BuildStopped, _LockLost):
            raise
        except Exception as error:  # noqa: BLE001 - the outermost frame: a package may hold anything
            failed = from_os_error(error, self._plan.root) if isinstance(error, OSError) else error
            if not isinstance(failed, BuildFailed):
                message = "the builder itself failed: %s: %s" % (type(error).__name__, error)
                lines = traceback.format_exc().splitlines()[-20:]
                failed = BuildFailed(message, stage="builder", evidence=lines, hint="report it with these lines")
            outcome = failed.document()
            # Whatever failed may have failed because of the files of another builder.
            self._check_lock()
        # The disk may be full. The output of this process has the outcome, too.
        with contextlib.suppress(OSError):
            content = {name: value for name, value in outcome.items() if name != "ready"}
            write_document(os.path.join(self._folder, OUTCOME), dict(content, by=self._holder.token))
        return outcome

    def _build(self) -> "dict[str, Any]":
        """Build it; return the content of READY."""
        try_unlink(os.path.join(self._folder, OUTCOME))
        write_document(os.path.join(self._folder, PLAN), self._plan.document)
        os.makedirs(os.path.dirname(self._final), exist_ok=True)
        cleanup.sweep_leftovers(self._plan.root, self._holder)
        if self._plan.base is not None:
            programs.refuse_changed(self._plan.base)
        self._timed("packages", self._packages.provide)
        try:
            facts = self._packages.retry_on_damage(self._make)
            return self._finish(dict(facts, fetched=self._packages.moved["fetch"]))
        except programs.BuildStopped:
            raise
        except BaseException:
            # An incomplete environment must not stay, whatever the reason.
            if os.path.islink(self._final) and os.readlink(self._final) == os.path.basename(self._aside):
                os.unlink(self._final)
            cleanup.delete(self._aside, self._holder)
            raise

    def _timed(self, name: str, step: "Any", *arguments: "Any") -> "Any":
        self._check_lock()
        begun = time.monotonic()
        done = step(*arguments)
        self._seconds[name] = round(time.monotonic() - begun, 3)
        return done

    def _make(self) -> "dict[str, Any]":
        """Make the environment; return what it says about itself."""
        cleanup.delete(self._aside, self._holder)
        os.mkdir(self._aside)
        layout = layout_of_plan(self._plan, self._final)
        maker = Linker(self._aside, self._final)
        targets = sorted(layout.targets.values())

        def link() -> None:
            parts = [targets[at : at + _LINKED_TOGETHER] for at in range(0, len(targets), _LINKED_TOGETHER)]
            # In a few threads: on a network file system each link waits for an answer.
            with ThreadPoolExecutor(_LINKERS) as pool:
                for number, _ in enumerate(pool.map(maker.make, parts), 1):
                    self._progress.report("link", min(number * _LINKED_TOGETHER, len(targets)), len(targets))

        self._timed("link", link)
        self._check_lock()
        if os.path.islink(self._final):
            os.unlink(self._final)
        elif os.path.isdir(self._final):
            cleanup.delete(self._final, self._holder)
        # No job uses an environment without READY, so the link can exist before the environment is whole.
        os.symlink(os.path.basename(self._aside), self._final)
        self._progress.report("compile", 0, 1)
        self._timed("compile", lambda: maker.make(compile_missing(layout)))
        self._progress.report("activate", 0, 1)
        variables = self._timed("activate", programs.find_activation_variables, self._final, self._plan.timeout_s)
        self._progress.report("verify", 0, 1)
        facts = self._timed("verify", programs.verify_environment, self._plan, self._final)
        return dict(facts, told={"set": variables})

    def _check_lock(self) -> None:
        if not self._lock.is_mine():
            raise _LockLost

    def _finish(self, facts: "dict[str, Any]") -> "dict[str, Any]":
        plan = self._plan
        sizes = cleanup.list_sizes(self._aside)
        ready = dict(facts, format=1, id=plan.id, about=plan.about, prefix=self._final, built=round(time.time(), 3))
        ready.update(host=os.uname()[1], seconds=self._seconds, bytes=sum(sizes.values()), files=len(sizes))
        ready["packages"] = [
            [package.name, package.version, package.build, package.manager] for package in plan.packages
        ]
        if self._plan.base is not None:
            ready["base"] = self._plan.base
            ready["packages"].append(["python", self._plan.base["version"], "", "host"])
        os.makedirs(os.path.join(self._aside, ABOUT), exist_ok=True)
        for name, document in ((SIZES, sizes), (PLAN, self._plan.document), (READY, ready)):
            write_document(os.path.join(self._aside, ABOUT, name), document)
        # All files must be on the disk before READY says that they are.
        _sync_file_system(self._aside)
        self._check_lock()
        # The link goes before READY exists. If this process were killed between them, jobs would use a folder that is
        # swept.
        os.unlink(self._final)
        write_document(os.path.join(self._aside, READY), ready)
        self._check_lock()
        os.rename(self._aside, self._final)
        _sync_file_system(os.path.dirname(self._final))
        return ready

    def repair(self) -> "dict[str, Any]":
        """Link missing files again; return how many there are, were missing and are back, and which cannot come back.

        Raises:
            BuildFailed: Archives are needed (`need`).
        """
        prefix = self._final
        there = cleanup.list_sizes(prefix)
        expected: "dict[str, int]" = read_document(os.path.join(prefix, ABOUT, SIZES)) or {}
        missing = {path: size for path, size in expected.items() if there.get(path) != size}

        def link_again() -> None:
            layout = layout_of_plan(self._plan, prefix)
            maker = Linker(prefix, prefix)
            maker.make(layout.targets[path] for path in sorted(missing.keys() & layout.targets.keys()))
            if any(path.endswith(".pyc") for path in missing.keys() - layout.targets.keys()):
                remove_damaged(layout, missing)
                maker.make(target for target in compile_missing(layout) if target.path in missing)

        if missing:
            self._packages.retry_on_damage(link_again)
        lost = [path for path in missing if not os.path.lexists(os.path.join(prefix, path))]
        if not os.path.exists(os.path.join(prefix, READY)):
            write_document(os.path.join(prefix, READY), read_document(os.path.join(prefix, ABOUT, READY)) or {})
        return {"files": len(expected), "missing": len(missing), "relinked": len(missing) - len(lost), "lost": lost}


def _sync_file_system(folder: str) -> None:
    """Flush the whole file system of a folder to the disk: one call instead of one for each of 20000 files."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        sync = getattr(ctypes.CDLL(None), "syncfs", None)
        if sync is None or sync(fd):
            os.sync()
    finally:
        os.close(fd)
