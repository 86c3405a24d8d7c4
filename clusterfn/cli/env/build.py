"""`clusterfn env lock` and `build`: lock a specification for hosts, and build it on one before any job needs it."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterfn.calls import console, environment_upload
from clusterfn.calls.pace import Pace
from clusterfn.cli import screen
from clusterfn.cli.env.manage import host_state, read_ready, say, seconds
from clusterfn.config import config_file
from clusterfn.config.options import names_a_file
from clusterfn.config.spec import Host, Resources
from clusterfn.environment import cuda, resolve, solver, torch_build
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.lock import EnvironmentLock
from clusterfn.environment.python_source import HOST
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.environment_builder import BuildProgress
from clusterfn.hosts.host_state import CALLER, HostState

_HEAD = ("LOCK", "HOST", "PLATFORM", "ENVIRONMENT", "PACKAGES", "PYTHON", "CUDA")
USUAL_FILE = "environment.yml"
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le")


@dataclass(frozen=True)
class FileAndHosts:
    """The arguments, which may come in any order."""

    file: str | None
    hosts: tuple[str, ...]


def split_file_and_hosts(words: Sequence[str]) -> FileAndHosts:
    """Split arguments into the file of packages, by its suffix, and hosts.

    Raises:
        ConfigError: There are two files.

    Example:
        >>> split_file_and_hosts(["tensor01", "environment.yml"])
        FileAndHosts(file='environment.yml', hosts=('tensor01',))
    """
    files = [word for word in words if names_a_file(word)]
    if len(files) > 1:
        raise ConfigError(f"two files are named: {files[0]} and {files[1]}", hint="name one of them")
    return FileAndHosts(files[0] if files else None, tuple(word for word in words if word not in files))


def specification(file: str | None, packages: Sequence[str], where: Host | None) -> Specification:
    """Read the specification: from the file, from the packages, else from the host's own file, else environment.yml.

    Raises:
        ConfigError: None of these exists, or two do.
    """
    known = config_file.load().named if packages else []
    host = next((each for each in packages if each in known), None)
    if host:
        raise ConfigError(
            f"--packages takes {host} for a package, but it is a host of {config_file.load().path}",
            hint=f"name the host first: clusterfn env build {host} --packages …",
        )
    if file or packages:
        return resolve.read_specification(file, packages)
    of_host = where.environment if where else None
    if of_host and names_a_file(of_host):
        return resolve.read_specification(of_host, ())
    if not Path(USUAL_FILE).is_file():
        raise ConfigError(
            f"no file is named, and there is no {USUAL_FILE} in this folder",
            hint="name a file, or give the packages: --packages python=3.11 numpy",
        )
    return resolve.read_specification(USUAL_FILE, ())


def lock(given: argparse.Namespace) -> int:
    """Write or check the lock; print a table of what it means on each host."""
    words = split_file_and_hosts(given.words)
    if given.platform:
        return _for_platform(given, words)
    sessions = [host_state(name, "lock") for name in words.hosts or [None]]
    spec = specification(words.file, given.packages, sessions[0].host)
    if given.check:
        return _check(spec, sessions, given)
    made = [_made(session, spec, given.gpus) for session in sessions]
    _print_locks(given.json, [_row(each.lock, each.host.name, each.platform) for each in made])
    return 0


def _print_locks(as_json: bool, rows: Sequence[Sequence[str]]) -> None:
    if as_json:
        print(screen.as_json([dict(zip(map(str.lower, _HEAD), row)) for row in rows]))
    else:
        print(screen.table(_HEAD, rows))


def _made(session: HostState, spec: Specification, gpus: int | None) -> LockedEnvironment:
    session.enough(Resources(gpus=gpus or 0))
    made = environment_facts.lock_environment(session, spec, _gpus_to_lock_for(session, gpus), CALLER, say)
    if made.why:
        say(f"{session.host.name}: {made.why}")
    return made


def _gpus_to_lock_for(session: HostState, gpus: int | None) -> int:
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


def _check(spec: Specification, sessions: list[HostState], given: argparse.Namespace) -> int:
    old = dict(_out_of_date(spec, sessions, given.gpus))
    if given.json:
        hosts = [session.host.name for session in sessions]
        print(screen.as_json([{"host": name, "up_to_date": name not in old, "why": old.get(name)} for name in hosts]))
        return int(bool(old))
    for host, why in old.items():
        say(f"{host}: {why}; clusterfn env lock {shlex.quote(spec.title) if spec.file else ''} {host}")
    if not old:
        say(f"the lock of {spec.title} is up to date for {', '.join(each.host.name for each in sessions)}")
    return int(bool(old))


def _out_of_date(spec: Specification, sessions: list[HostState], gpus: int | None) -> Iterator[tuple[str, str]]:
    for session in sessions:
        why = environment_facts.explain_stale_lock(session, spec, _gpus_to_lock_for(session, gpus), CALLER)
        if why:
            yield session.host.name, why


def _for_platform(given: argparse.Namespace, words: FileAndHosts) -> int:
    """Lock for a platform, without asking a host."""
    if words.hosts or given.gpus:
        raise ConfigError("--platform cannot be combined with a HOST or --gpus", hint="leave out one of them")
    if given.platform not in _PLATFORMS:
        raise ConfigError(f"no host has the platform {given.platform!r}", hint=f"one of {', '.join(_PLATFORMS)}")
    spec = specification(words.file, given.packages, None)
    if spec.python.kind == HOST:
        raise ConfigError(
            f"--platform asks no host, but {spec.title} takes Python from one",
            hint=f"clusterfn env lock {shlex.quote(spec.title)} HOST",
        )
    target = SolveTarget(given.platform, "", None, f"{CALLER[0]}.{CALLER[1]}")
    if given.check:
        there = solver.current_lock(spec, target) is not None
        if given.json:
            print(screen.as_json([{"platform": given.platform, "up_to_date": there}]))
        else:
            say(f"the lock of {spec.title} is {'up to date' if there else 'out of date'} for {given.platform}")
        return int(not there)
    _print_locks(given.json, [_row(solver.lock_for(spec, target, say), "-", given.platform)])
    return 0


_QUARTERS = 4


def build(given: argparse.Namespace) -> int:
    """Build an environment; print its id."""
    words = split_file_and_hosts(given.words)
    if len(words.hosts) > 1:
        raise ConfigError(f"several hosts are named: {', '.join(words.hosts)}", hint="name one host at a time")
    session = host_state(words.hosts[0] if words.hosts else None, "build")
    spec = specification(words.file, given.packages, session.host)
    session.enough(Resources(gpus=given.gpus))
    made = environment_facts.lock_environment(session, spec, given.gpus, CALLER, say)
    if made.why:
        say(made.why)
    shown = BuildDisplay()
    try:
        new = environment_upload.build(session, made, say, shown.show)
    except KeyboardInterrupt:
        shown.clear()
        console.warn(
            f"the build keeps running on {session.host.name}, unless nothing was sent yet; "
            "run the same command to follow it"
        )
        raise
    finally:
        shown.clear()
    say(_result(session, made, new))
    facts = {"id": made.id, "host": session.host.name, "prefix": made.prefix, "new": new}
    print(screen.as_json(facts) if given.json else made.id)
    return 0


def _result(session: HostState, made: LockedEnvironment, new: bool) -> str:
    ready = read_ready(session, made.prefix)
    size = f"{len(ready['packages'])} packages, {screen.size(ready['bytes'])}, {ready['files']} files"
    what = f"Python {ready['python']}, {size}"
    if not new:
        return f"{made.title} already exists on {session.host.name}: {what}"
    return f"{made.title} is built on {session.host.name}: {what}; {seconds(ready['seconds'])}"


class BuildDisplay(console.StatusLine):
    """How far a build is: one bar for each stage on a terminal, elsewhere a line for each quarter of a stage.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began = clock()
        self._stage = ""
        self._pace = Pace(clock, self._began)
        self._quarter = ""

    def show(self, told: BuildProgress) -> None:
        """Show how far it is."""
        done, of, words = told.get("done") or 0, told.get("of") or 0, environment_builder.describe_progress(told)
        if told["stage"] != self._stage:
            self._stage, self._pace = told["stage"], Pace(self._clock, self._began)
        left = "" if told.get("text") else self._pace.left(done, of)  # that of files says it itself
        if console.can_redraw():
            progress = (done, of) if of > 1 else None
            self.redraw(", ".join(filter(None, [words, self._pace.elapsed(), left])), progress)
        elif (quarter := f"{self._stage} {done * _QUARTERS // (of or 1)}") != self._quarter:
            self._quarter = quarter
            console.tell(words)

    def clear(self) -> None:
        """Remove the line."""
        if self.line:
            self.redraw("")
