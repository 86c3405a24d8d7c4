"""The host's root and its file system: may one write there, how much, and can files do there what they must."""

from __future__ import annotations

import posixpath

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.cli import clean
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.config.forms import ENVIRONMENT_KINDS
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.survey import Volume

# Below the first of each pair, the step warns. Below the second, it fails.
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 50 * 2**20, 10 * 2**20
_FEW_FILES, _TOO_FEW_FILES = 10_000, 500
_MEASURING_S = 20.0
_IN_MEMORY = ("tmpfs", "ramfs")


def root(state: CheckState) -> str:
    if state.broken is not None:
        raise state.broken
    path, volume = state.session.root, state.site.root
    if "root" in state.site.silent:
        hint = f"log in and see whether `ls {path}` answers; ask the administrator, or {_elsewhere(state)}"
        raise StepFailed(f"the file system of {path} does not answer", hint)
    if volume is not None and not volume.writable:
        raise StepFailed(f"{path} cannot be written to", _elsewhere(state))
    if state.has_nodes and volume is not None and volume.kind in _IN_MEMORY:
        raise StepFailed(f"{path} is in this machine's memory, where no compute node sees it", _elsewhere(state))
    if other := _other_scheduler(state):
        message = f"{path} also holds jobs of a host with `scheduler: {other}`, so each host lists the other's jobs"
        raise StepWarning(
            message, f"give {state.place} a root of its own, such as `root: {path}-{state.host.scheduler}`"
        )
    return f"{path} ({', '.join(each for each in (volume.kind, volume.mode) if each)})" if volume else path


def _other_scheduler(state: CheckState) -> str:
    """Return another scheduler than this host's to which recent jobs in the root were sent; "" if none were."""
    specs, _ = state.jobs
    others = {spec["scheduler"] for spec in specs} - {"local", state.host.scheduler}
    return others.pop() if others and state.host.scheduler != "local" else ""


def _elsewhere(state: CheckState) -> str:
    """Return the line that moves the root to the best other file system."""
    proposed, now = state.site.proposed_root(), state.site.root
    if proposed is None or (now is not None and proposed[0].device == now.device):
        return f"set root: of {state.place} to a folder on another file system that you may write to"
    volume, reason = proposed
    return f"set `root: {posixpath.join(volume.path, '.clusterfn')}` for {state.place}: {reason}"


def space(state: CheckState) -> str:
    volume = state.site.root
    if volume is None or volume.room_bytes is None:
        raise StepSkipped("df does not report the free space")
    folder, size = posixpath.dirname(volume.path), format_size(volume.room_bytes)
    if volume.room_bytes < _LITTLE_BYTES:
        bound = " under your quota" if volume.room_bytes == volume.quota_bytes else ""
        mend = f"free some space (`du -xhd1 {folder} | sort -h`), or {_elsewhere(state)}"
        wrong = StepFailed if volume.room_bytes < _TOO_LITTLE_BYTES else StepWarning
        raise wrong(f"only {size} is left{bound} in {volume.path}", mend)
    if volume.room_files is not None and volume.room_files < _FEW_FILES:
        bound = " under your quota" if volume.room_files == volume.quota_files else ""
        mend = f"remove some files (`du --inodes -xd1 {folder} | sort -n`), or {_elsewhere(state)}"
        wrong = StepFailed if volume.room_files < _TOO_FEW_FILES else StepWarning
        raise wrong(f"only {volume.room_files} more files can be created{bound} in {volume.path}", mend)
    return _free(volume)


def _free(volume: Volume) -> str:
    left = volume.quota_bytes
    quota = "no quota reported" if left is None else f"your quota leaves {format_size(left)}"
    free = "" if volume.free_bytes is None else f"{format_size(volume.free_bytes)} free, "
    return free + ("" if volume.free_files is None else f"{volume.free_files} files free, ") + quota


def stored(state: CheckState) -> str:
    try:
        usage = clean.look(state.session, None, dry=True, timeout_s=_MEASURING_S)
    except ClusterfnError as error:
        raise StepSkipped(f"its content could not be measured: {error.message}") from error
    freed = sum(each["freed"] for each in usage["kinds"].values())
    more = f"; `clusterfn clean {state.name}` would free {format_size(freed)}" if freed else ""
    return f"{clean.total(usage['kinds']) or 'nothing yet'}{more}"


def noexec(state: CheckState) -> str:
    volume = state.site.root
    if volume is None or volume.links is None:
        raise StepSkipped("not tried, because nothing could be written")
    if not volume.noexec:
        return "programs on it can be started"
    message = f"programs in {volume.path} cannot be started: it is mounted noexec"
    if _is_elsewhere(state.environment or state.host.environment):
        raise StepWarning(f"{message}; no environment can be built on it", _elsewhere(state))
    raise StepFailed(message, _elsewhere(state))


def _is_elsewhere(environment: str | None) -> bool:
    """Whether the environment is one that clusterfn did not make: nothing of it must start from the root."""
    return environment is None or environment.partition(":")[0] in (*ENVIRONMENT_KINDS, "current")


def links(state: CheckState) -> str:
    volume = state.site.root
    if volume is None or volume.links is None:
        raise StepSkipped("not tried, because nothing could be written")
    if volume.links:
        return "hard links work, so a result appears whole or not at all"
    return "hard links do not work; clusterfn publishes results by renaming a folder instead, which works too"
