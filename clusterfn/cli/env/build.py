"""`clusterfn env lock` and `build`: lock a specification for hosts, and build it on one before any job needs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from clusterfn.calls import environment_upload
from clusterfn.cli import screen
from clusterfn.cli.env import manage, selection
from clusterfn.config.spec import Resources
from clusterfn.environment import cuda, resolve, solver, torch_build
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.solver import SolveTarget
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.environment_builder import BuildProgress
from clusterfn.hosts.host_state import CALLER, HostState

_HEAD = ("LOCK", "HOST", "PLATFORM", "ENVIRONMENT", "PACKAGES", "PYTHON", "CUDA")
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le")


def lock(given: argparse.Namespace) -> int:
    """Write or check the lock; print a table of what it means on each host."""
    words = selection.split_file_and_hosts(given.words)
    if given.platform:
        return _for_platform(given, words)
    sessions = [selection.host_state(name, "lock") for name in words.hosts or [None]]
    spec = selection.specification(words.file, given.packages, sessions[0].host)
    if given.check:
        return _check(spec, sessions, given.gpus)
    made = [_made(session, spec, given.gpus) for session in sessions]
    print(screen.table(_HEAD, [_row(each.lock, each.host.name, each.platform) for each in made]))
    return 0


def _made(session: HostState, spec: Specification, gpus: int | None) -> LockedEnvironment:
    session.enough(Resources(gpus=gpus or 0))
    made = environment_facts.lock_environment(session, spec, _cards(session, gpus), CALLER, selection.say)
    if made.why:
        selection.say(f"{session.host.name}: {made.why}")
    return made


def _cards(session: HostState, gpus: int | None) -> int:
    """Return --gpus, else 1 if the host is known to have GPUs: a lock for GPUs also fits jobs without."""
    return (
        int(environment_facts.known_gpus(session, environment_facts.environments_root(session)) is not None)
        if gpus is None
        else gpus
    )


def _row(found: EnvironmentLock, host: str, platform: str) -> list[str]:
    packages = found.on(platform)
    python = next(each.version for each in packages if each.name == "python")
    torch = torch_build.find_torch(packages, cuda.load_table())
    identity = found.id(platform)[: resolve.ID_DIGITS]
    built_for = torch.cuda or "none" if torch else "-"
    return [found.path.name, host, platform, identity, str(len(packages)), python, built_for]


def _check(spec: Specification, sessions: list[HostState], gpus: int | None) -> int:
    old = list(_out_of_date(spec, sessions, gpus))
    for host, why in old:
        selection.say(f"{host}: {why}; clusterfn env lock {spec.file.name if spec.file else ''} {host}")
    if not old:
        selection.say(f"the lock of {spec.title} is up to date for {', '.join(each.host.name for each in sessions)}")
    return int(bool(old))


def _out_of_date(spec: Specification, sessions: list[HostState], gpus: int | None) -> Iterator[tuple[str, str]]:
    for session in sessions:
        why = environment_facts.explain_stale_lock(session, spec, _cards(session, gpus), CALLER)
        if why:
            yield session.host.name, why


def _for_platform(given: argparse.Namespace, words: selection.FileAndHosts) -> int:
    """Lock for a platform, without asking a host."""
    if words.hosts or given.gpus:
        raise ConfigError("--platform stands instead of a host and its cards", hint="leave out one of them")
    if given.platform not in _PLATFORMS:
        raise ConfigError(f"{given.platform!r} is no platform of hosts", hint=f"one of {', '.join(_PLATFORMS)}")
    spec = selection.specification(words.file, given.packages, None)
    target = SolveTarget(given.platform, "", None, f"{CALLER[0]}.{CALLER[1]}")
    if given.check:
        there = solver.current_lock(spec, target) is not None
        selection.say(f"the lock of {spec.title} is {'up to date' if there else 'out of date'} for {given.platform}")
        return int(not there)
    found = solver.lock_for(spec, target, selection.say)
    print(screen.table(_HEAD, [_row(found, "-", given.platform)]))
    return 0


_QUARTERS = 4


def build(given: argparse.Namespace) -> int:
    """Build an environment; print its id."""
    words = selection.split_file_and_hosts(given.words)
    if len(words.hosts) > 1:
        raise ConfigError(f"several hosts are named: {', '.join(words.hosts)}", hint="build on one after the other")
    session = selection.host_state(words.hosts[0] if words.hosts else None, "build")
    spec = selection.specification(words.file, given.packages, session.host)
    session.enough(Resources(gpus=given.gpus))
    made = environment_facts.lock_environment(session, spec, given.gpus, CALLER, selection.say)
    if made.why:
        selection.say(made.why)
    shown = _ProgressLine()
    try:
        new = environment_upload.build(session, made, shown.say, shown.progress)
    except KeyboardInterrupt:
        shown.say(f"the build goes on on {session.host.name}, unless nothing was sent yet; the same command follows it")
        raise
    finally:
        shown.clear()
    selection.say(_result(session, made, new))
    print(made.id)
    return 0


def _result(session: HostState, made: LockedEnvironment, new: bool) -> str:
    ready = manage.read_ready(session, made.prefix)
    size = f"{len(ready['packages'])} packages, {screen.size(ready['bytes'])}, {ready['files']} files"
    what = f"Python {ready['python']}, {size}"
    if not new:
        return f"{made.title} is there already, on {session.host.name}: {what}"
    return f"{made.title} is built on {session.host.name}: {what}; {manage.seconds(ready['seconds'])}"


class _ProgressLine:
    """One line rewritten on a terminal; elsewhere a line for each quarter of a stage."""

    def __init__(self) -> None:
        self._line = screen.Line(sys.stderr)

    def say(self, sentence: str) -> None:
        """Write a sentence that is not overwritten."""
        self._line.clear()
        selection.say(sentence)

    def progress(self, told: BuildProgress) -> None:
        """Show how far the build is."""
        of = told.get("of") or 1
        self._line.show(
            f"clusterfn: {environment_builder.describe_progress(told)}",
            f"{told['stage']} {told.get('done', 0) * _QUARTERS // of}",
        )

    def clear(self) -> None:
        self._line.clear()
