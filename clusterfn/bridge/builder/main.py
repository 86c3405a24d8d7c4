"""The builder's commands: build, repair, list, remove and collect environments.

Runs in the host's old Python. The client starts it through the agent, and it outlives both. Each command prints JSON
lines.
"""

import os
import sys
import tempfile
from typing import Any, Callable

from ..layout import ABOUT, BLOBS, PLAN, READY, build_dir, environment_dir
from ..removal import DAY_S, size_of
from . import build as building
from . import cleanup, leases, packages, permissions, plan, progress, stopping
from .errors import BuildFailed, from_os_error
from .locks import LockHolder

_USAGE = """usage: build.py build PLAN | lacking <PLAN | repair ROOT ID | list ROOT | remove ROOT ID | gc ROOT DAYS KEEP
                | gc-dry ROOT DAYS KEEP"""
_STOPPED = 143
_FAILED = 1


def main(argv: "list[str]") -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 not understood, 143 stopped."""
    commands: "dict[tuple[str, int], Callable[..., int]]" = {
        ("build", 1): build, ("repair", 2): repair, ("list", 1): list_environments, ("remove", 2): remove,
        ("gc", 3): collect, ("gc-dry", 3): preview_collect, ("lacking", 0): print_missing,
    }  # fmt: skip
    command = commands.get((argv[0] if argv else "", len(argv) - 1))
    if command is None:
        sys.stderr.write(_USAGE + "\n")
        return 2
    try:
        return command(*argv[1:])
    except stopping.BuildStopped:
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
    what = plan.read_plan(path)
    what = what._replace(purged=what.purged or is_purged)
    stopping.begin()
    permissions.refuse_untrusted(what.root, what.owners, what.id)
    outcome = dict(building.REUSED)
    if what.purged or not building.is_ready(what.root, what.id):
        with permissions.writing_below(what.root), LockHolder(what.root) as holder:
            outcome = building.build_or_wait(what, holder)
    if not outcome["ok"]:
        return _print_failure(outcome)
    progress.print_line(dict(outcome, stage="done", done=1, of=1))
    return 0


def repair(root: str, env_id: str) -> int:
    """Restore the files that a purging file system took from an environment."""
    own = os.path.join(environment_dir(root, plan.check_id(env_id)), ABOUT, PLAN)
    # A purging file system may have taken either of the two.
    path = own if os.path.exists(own) else os.path.join(build_dir(root, env_id), PLAN)
    return build(path, is_purged=True)


def list_environments(root: str) -> int:
    """Print a line for each environment."""
    names = ("id", "about", "python", "torch_cuda", "bytes", "files", "built")
    for env_id in cleanup.list_environments(root):
        ready = plan.read_document(os.path.join(environment_dir(root, env_id), READY))
        # Another process may remove it meanwhile.
        if ready is not None:
            used, used_by = cleanup.last_used(root, env_id), leases.jobs_using(root, env_id)
            progress.print_line(dict({name: ready[name] for name in names}, used=used, used_by=used_by))
    return 0


def remove(root: str, env_id: str) -> int:
    """Remove an environment, and the packages that no other environment uses."""
    with permissions.writing_below(root), LockHolder(root) as holder:
        result = cleanup.remove_environment(root, plan.check_id(env_id), holder)
        if result["removed"]:
            count, freed = cleanup.remove_packages(root, holder)
            result = dict(result, packages=count, freed=result["freed"] + freed)
    progress.print_line(result)
    return 0 if result["removed"] else _FAILED


def collect(root: str, days: str, keep: str) -> int:
    """Remove environments and packages that were not used for `days` days; keep the `keep` environments used last."""
    limit_s = float(days) * DAY_S
    with permissions.writing_below(root), LockHolder(root) as holder:
        cleanup.sweep_leftovers(root, holder)
        for each in cleanup.list_environments(root):
            leases.sweep_ended_leases(root, each)
        old = cleanup.unused_environments(root, limit_s, int(keep))
        results = [cleanup.remove_environment(root, each, holder) for each in old]
        removed = [each["id"] for each in results if each["removed"]]
        count, freed = cleanup.remove_packages(root, holder, 0.0 if removed else limit_s)
        freed += cleanup.remove_old_parts(root) + sum(each["freed"] for each in results if each["removed"])
    kept = [each for each in results if not each["removed"]]
    progress.print_line({"removed": removed, "packages": count, "freed": freed, "kept": kept})
    return 0


def preview_collect(root: str, days: str, keep: str) -> int:
    """Print what `collect` would remove, and about how many bytes that would free."""
    unused = cleanup.unused_environments(root, float(days) * DAY_S, int(keep))
    old = [each for each in unused if not leases.jobs_using(root, each)]
    # A file with a third name belongs to another environment, too. So only those with at most two are freed.
    freed = sum(size_of(environment_dir(root, each), 2) for each in old)
    progress.print_line({"removed": old, "kept": [], "freed": freed})
    return 0


def print_missing() -> int:
    """Print which archives of the plan on stdin have to be fetched or sent; create the folders for them."""
    what = plan.read_plan(os.dup(0))
    permissions.refuse_untrusted(what.root, what.owners)
    with permissions.writing_below(what.root):
        for folder in (os.path.join(what.root, BLOBS), build_dir(what.root, what.id)):
            os.makedirs(folder, exist_ok=True)
            # Only an attempt shows whether the folder can be written to.
            os.rmdir(tempfile.mkdtemp(dir=folder))
    progress.print_line(packages.find_missing_archives(what))
    return 0
