"""The builder's commands: build, repair, list, remove and collect environments, and pack them for nodes.

Runs in the host's old Python. The client starts it through the agent, and it outlives both. Each command prints JSON
lines.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time

from ..layout import BLOBS, READY, build_dir, environment_dir
from ..supervisor.text import native
from . import build as building
from . import cleanup, leases, node_archive, packages, permissions, plan, progress, repair
from .errors import BuildFailed, BuildStopped, from_os_error, stopper
from .locks import LockHolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_USAGE = """usage: build.py build PLAN | lacking <PLAN | holes ROOT ID | list ROOT | remove ROOT ID | gc ROOT DAYS KEEP
                | gc-dry ROOT DAYS KEEP
                | pack ROOT ID NODE_ROOT | unpack ROOT ID NODE_ROOT"""
_STOPPED = 143
_FAILED = 1
_DAY_S = 86400.0


def main(argv: "list[str]") -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 not understood, 143 stopped."""
    commands: "dict[tuple[str, int], Callable[..., int]]" = {
        ("build", 1): build, ("holes", 2): repair_files, ("list", 1): list_environments,
        ("remove", 2): remove, ("gc", 3): collect,
        ("gc-dry", 3): preview_collect,
        ("pack", 3): pack, ("unpack", 3): unpack, ("lacking", 0): print_missing,
    }  # fmt: skip
    command = commands.get((argv[0] if argv else "", len(argv) - 1))
    if command is None:
        sys.stderr.write(_USAGE + "\n")
        return 2
    try:
        return command(*argv[1:])
    except BuildFailed as failed:
        return _failed(failed.document())
    except OSError as error:
        return _failed(from_os_error(error, argv[1] if len(argv) > 1 else "/").document())


def _failed(document: "dict[str, Any]") -> int:
    progress.print_line(dict(document, stage="failed", text=document["message"], at=document["stage"]))
    return _FAILED


def build(path: str) -> int:
    """Build the environment of a plan, or wait for the process that does."""

    def work(stopping: threading.Event) -> int:
        what = plan.read_plan(path)
        permissions.refuse_untrusted(what.root, what.owners, what.id)
        if building.is_ready(what.root, what.id) and not what.purged:
            outcome = dict(building.REUSED)
        else:
            _open_to_group(what.root)
            with LockHolder(what.root) as holder:
                outcome = building.build_or_wait(what, holder, stopping)
        if not outcome["ok"]:
            return _failed(outcome)
        progress.print_line(dict(outcome, stage="done", done=1, of=1))
        return 0

    return _stoppable(work)


def repair_files(root: str, env_id: str) -> int:
    """Restore the files that a purging file system took from an environment."""
    _open_to_group(root)
    return _print_result(
        root, lambda holder, stopping: repair.repair_environment(root, plan.check_id(env_id), holder, stopping)
    )


def pack(root: str, env_id: str, node_root: str) -> int:
    """Make one archive of an environment, for a folder on the nodes."""
    _open_to_group(root)
    return _print_result(
        root,
        lambda holder, stopping: node_archive.pack_environment(
            root, plan.check_id(env_id), node_root, holder, stopper(stopping)
        ),
    )


def unpack(root: str, env_id: str, node_root: str) -> int:
    """Unpack the archive of an environment on this node."""
    permissions.make_private_folder(node_root)
    return _print_result(
        node_root,
        lambda holder, stopping: node_archive.unpack_environment(
            root, plan.check_id(env_id), node_root, holder, stopper(stopping)
        ),
    )


def _print_result(root: str, command: "Callable[[LockHolder, threading.Event], dict[str, Any]]") -> int:
    def work(stopping: threading.Event) -> int:
        with LockHolder(root) as holder:
            progress.print_line(command(holder, stopping))
        return 0

    return _stoppable(work)


def _stoppable(work: "Callable[[threading.Event], int]") -> int:
    """Run `work` until it is done or a signal asks to end; then release the locks and keep partial files."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    try:
        return work(stopping)
    except BuildStopped:
        progress.print_line({"stage": "failed", "text": "the builder was stopped", "at": "stopped"})
        return _STOPPED


def _open_to_group(root: str) -> None:
    """Create a root; set the umask so that its group may write below it if it may write to the root itself."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    os.umask(permissions.umask_for(root))


def list_environments(root: str) -> int:
    """Print a line for each environment."""
    for env_id in cleanup.list_environments(root):
        with open(os.path.join(environment_dir(root, env_id), READY)) as file:
            ready = dict(native(json.load(file)))
        names = ("id", "about", "python", "torch_cuda", "bytes", "files", "built", "packages")
        used, used_by = cleanup.last_used(root, env_id), leases.jobs_using(root, env_id)
        progress.print_line(dict({name: ready[name] for name in names}, used=used, used_by=used_by))
    return 0


def remove(root: str, env_id: str) -> int:
    """Remove an environment, and the packages that no other environment uses."""
    _open_to_group(root)
    with LockHolder(root) as holder:
        result = cleanup.remove_environment(root, plan.check_id(env_id), holder)
        if result["removed"]:
            count, freed = cleanup.remove_packages(root, holder)
            result = dict(result, packages=count, freed=result["freed"] + freed)
    progress.print_line(result)
    return 0 if result["removed"] else _FAILED


def collect(root: str, days: str, keep: str) -> int:
    """Remove environments and packages that were not used for `days` days; keep the `keep` environments used last."""
    limit_s = float(days) * _DAY_S
    _open_to_group(root)
    with LockHolder(root) as holder:
        cleanup.sweep_leftovers(root, holder)
        for each in cleanup.list_environments(root):
            leases.sweep_ended_leases(root, each)
        old = _unused(root, limit_s, int(keep))
        results = [cleanup.remove_environment(root, each, holder) for each in old]
        removed = [each["id"] for each in results if each["removed"]]
        count, freed = cleanup.remove_packages(root, holder, 0.0 if removed else limit_s)
        freed += cleanup.remove_old_parts(root) + sum(each.get("freed") or 0 for each in results)
    kept = [each for each in results if not each["removed"]]
    progress.print_line({"removed": removed, "packages": count, "freed": freed, "kept": kept})
    return 0


def _unused(root: str, limit_s: float, spared: int) -> "list[str]":
    used = {each: cleanup.last_used(root, each) for each in cleanup.list_environments(root)}
    by_use = sorted(used, key=lambda each: -used[each])
    return [each for each in by_use[spared:] if time.time() - used[each] > limit_s]


def preview_collect(root: str, days: str, keep: str) -> int:
    """Print what `collect` would remove, and about how many bytes that would free."""
    old = [each for each in _unused(root, float(days) * _DAY_S, int(keep)) if not leases.jobs_using(root, each)]
    progress.print_line({"removed": old, "kept": [], "freed": sum(cleanup.own_bytes(root, each) for each in old)})
    return 0


def print_missing() -> int:
    """Print which archives of the plan on stdin have to be fetched or sent; create the folders for them."""
    what = plan.parse_plan(native(json.loads(sys.stdin.buffer.read().decode())))
    permissions.refuse_untrusted(what.root, what.owners)
    _open_to_group(what.root)
    for folder in (os.path.join(what.root, BLOBS), build_dir(what.root, what.id)):
        os.makedirs(folder, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(dir=folder))  # only this shows whether the folder is writable
    progress.print_line(packages.find_missing_archives(what))
    return 0
