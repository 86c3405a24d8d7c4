"""The builder's commands: build an environment, mend its holes, list, remove, collect what is old, pack for nodes.

Runs in the host's old Python, started by the client through the agent; outlives it. Each prints JSON lines.
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
from . import group, holes, housekeeping, lacking, leases, node, plan, progress, story
from .failure import Failed, Stopped, of_system
from .holder import Holder

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
    """Run one command; the exit code is the process's: 0 done, 1 failed, 2 not understood, 143 stopped."""
    commands: "dict[tuple[str, int], Callable[..., int]]" = {
        ("build", 1): build, ("holes", 2): mend, ("list", 1): listing, ("remove", 2): remove, ("gc", 3): collect,
        ("gc-dry", 3): would_collect,
        ("pack", 3): pack, ("unpack", 3): unpack, ("lacking", 0): tell_lacking,
    }  # fmt: skip
    command = commands.get((argv[0] if argv else "", len(argv) - 1))
    if command is None:
        sys.stderr.write(_USAGE + "\n")
        return 2
    try:
        return command(*argv[1:])
    except Failed as failed:
        return _failed(failed.document())
    except OSError as error:
        return _failed(of_system(error, argv[1] if len(argv) > 1 else "/").document())


def _failed(document: "dict[str, Any]") -> int:
    progress.say(dict(document, stage="failed", text=document["message"], at=document["stage"]))
    return _FAILED


def build(path: str) -> int:
    """Build the environment of a plan, or wait for who does."""
    return _stoppable(lambda stopping: _build(plan.read(path), stopping))


def _build(what: "plan.Plan", stopping: threading.Event) -> int:
    group.refuse_others(what.root, what.owners, what.id)
    if story.is_ready(what.root, what.id) and not what.purged:
        return _told({"ok": True, "reused": True})
    _open_to_group(what.root)
    with Holder(what.root) as holder:
        return _told(story.see_through(what, holder, stopping))


def _told(outcome: "dict[str, Any]") -> int:
    if not outcome["ok"]:
        return _failed(outcome)
    progress.say(dict(outcome, stage="done", done=1, of=1))
    return 0


def mend(root: str, env_id: str) -> int:
    """Put back what a purging file system took from an environment."""
    _open_to_group(root)

    def work(stopping: threading.Event) -> int:
        with Holder(root) as holder:
            progress.say(holes.mend(root, plan.is_id(env_id), holder, stopping))
        return 0

    return _stoppable(work)


def pack(root: str, env_id: str, node_root: str) -> int:
    """Make one archive of an environment, for a folder of the nodes."""
    _open_to_group(root)

    def work(stopping: threading.Event) -> int:
        with Holder(root) as holder:
            progress.say(node.pack(root, plan.is_id(env_id), node_root, holder, _stopper(stopping)))
        return 0

    return _stoppable(work)


def unpack(root: str, env_id: str, node_root: str) -> int:
    """Unpack that archive on this node."""
    group.own(node_root)

    def work(stopping: threading.Event) -> int:
        with Holder(node_root) as holder:
            progress.say(node.unpack(root, plan.is_id(env_id), node_root, holder, _stopper(stopping)))
        return 0

    return _stoppable(work)


def _stopper(stopping: threading.Event) -> "Callable[..., None]":
    def stop(*_: object) -> None:
        if stopping.is_set():
            raise Stopped

    return stop


def _stoppable(work: "Callable[[threading.Event], int]") -> int:
    """Until it is done, or SIGTERM or SIGINT comes: then its locks are given back, and what it made aside stays."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    try:
        return work(stopping)
    except Stopped:
        progress.say({"stage": "failed", "text": "the builder was stopped", "at": "stopped"})
        return _STOPPED


def _open_to_group(root: str) -> None:
    """What is made below a root that its group may write to, the group may write to; else only its owner."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    os.umask(group.umask(root))


def listing(root: str) -> int:
    """A line for each environment, and one for what all share."""
    for env_id in housekeeping.environments(root):
        progress.say(_described(root, env_id))
    return 0


def _described(root: str, env_id: str) -> "dict[str, Any]":
    with open(os.path.join(environment_dir(root, env_id), READY)) as file:
        ready = dict(native(json.load(file)))
    told = {
        name: ready[name] for name in ("id", "about", "python", "torch_cuda", "bytes", "files", "built", "packages")
    }
    return dict(told, used=housekeeping.last_used(root, env_id), used_by=leases.users(root, env_id))


def remove(root: str, env_id: str) -> int:
    """Remove an environment, and the packages that nobody else has."""
    _open_to_group(root)
    with Holder(root) as holder:
        told = housekeeping.remove(root, plan.is_id(env_id), holder)
        if told["removed"]:
            count, freed = housekeeping.remove_packages(root, holder)
            told = dict(told, packages=count, freed=told["freed"] + freed)
    progress.say(told)
    return 0 if told["removed"] else _FAILED


def collect(root: str, days: str, keep: str) -> int:
    """Remove environments not used for so many days, but for the so many used last; and packages likewise."""
    limit_s = float(days) * _DAY_S
    _open_to_group(root)
    with Holder(root) as holder:
        housekeeping.sweep(root, holder)
        for each in housekeeping.environments(root):
            leases.sweep(root, each)
        old = _unused(root, limit_s, int(keep))
        told = [housekeeping.remove(root, each, holder) for each in old]
        count, freed = housekeeping.remove_packages(
            root, holder, 0.0 if any(each["removed"] for each in told) else limit_s
        )
        freed += housekeeping.old_parts(root) + sum(each.get("freed") or 0 for each in told)
    progress.say({"removed": [each["id"] for each in told if each["removed"]], "packages": count, "freed": freed,
                  "kept": [each for each in told if not each["removed"]]})  # fmt: skip
    return 0


def _unused(root: str, limit_s: float, spared: int) -> "list[str]":
    used = {each: housekeeping.last_used(root, each) for each in housekeeping.environments(root)}
    by_use = sorted(used, key=lambda each: -used[each])
    return [each for each in by_use[spared:] if time.time() - used[each] > limit_s]


def would_collect(root: str, days: str, keep: str) -> int:
    """Tell what `collect` would remove, and about how many bytes that would free."""
    old = [each for each in _unused(root, float(days) * _DAY_S, int(keep)) if not leases.users(root, each)]
    progress.say({"removed": old, "kept": [], "freed": sum(housekeeping.own_bytes(root, each) for each in old)})
    return 0


def tell_lacking() -> int:
    """Which archives of the plan on standard input have to be fetched or sent; the folders for them are made."""
    what = plan.parse(native(json.loads(sys.stdin.buffer.read().decode())))
    group.refuse_others(what.root, what.owners)
    _open_to_group(what.root)
    for folder in (os.path.join(what.root, BLOBS), build_dir(what.root, what.id)):
        os.makedirs(folder, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(dir=folder))  # whether it may be written is known only then
    progress.say(lacking.lacking(what))
    return 0
