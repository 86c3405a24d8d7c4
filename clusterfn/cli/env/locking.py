"""`clusterfn env lock`: the lock of a specification for each host that is named."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from clusterfn.cli import screen
from clusterfn.cli.env import which
from clusterfn.config.spec import Resources
from clusterfn.environment import cuda, making, solving
from clusterfn.environment.lock import Lock
from clusterfn.environment.making import Made
from clusterfn.environment.solving import Target
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_facts
from clusterfn.hosts.host_state import CALLER, Session

_HEAD = ("LOCK", "HOST", "PLATFORM", "ENVIRONMENT", "PACKAGES", "PYTHON", "CUDA")
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le")


def lock(given: argparse.Namespace) -> int:
    """Write or check the lock; on stdout a table of what it means on each host."""
    words = which.told_apart(given.words)
    if given.platform:
        return _for_platform(given, words)
    sessions = [which.session(name, "lock") for name in words.hosts or [None]]
    spec = which.specification(words.file, given.packages, sessions[0].host)
    if given.check:
        return _check(spec, sessions, given.gpus)
    made = [_made(session, spec, given.gpus) for session in sessions]
    print(screen.table(_HEAD, [_row(each.lock, each.host.name, each.platform) for each in made]))
    return 0


def _made(session: Session, spec: Specification, gpus: int | None) -> Made:
    session.enough(Resources(gpus=gpus or 0))
    made = environment_facts.made(session, spec, _cards(session, gpus), CALLER, which.say)
    if made.why:
        which.say(f"{session.host.name}: {made.why}")
    return made


def _cards(session: Session, gpus: int | None) -> int:
    """What was said, else whether the host is known to have cards: a lock for cards does for jobs without, too."""
    return (
        int(environment_facts.known_cards(session, environment_facts.root(session)) is not None)
        if gpus is None
        else gpus
    )


def _row(found: Lock, host: str, platform: str) -> list[str]:
    packages = found.on(platform)
    python = next(each.version for each in packages if each.name == "python")
    torch = making.torch_of(packages, cuda.table())
    identity = found.id(platform)[: making.ID_DIGITS]
    built_for = torch.cuda or "none" if torch else "-"
    return [found.path.name, host, platform, identity, str(len(packages)), python, built_for]


def _check(spec: Specification, sessions: list[Session], gpus: int | None) -> int:
    old = list(_out_of_date(spec, sessions, gpus))
    for host, why in old:
        which.say(f"{host}: {why}; clusterfn env lock {spec.file.name if spec.file else ''} {host}")
    if not old:
        which.say(f"the lock of {spec.title} is up to date for {', '.join(each.host.name for each in sessions)}")
    return int(bool(old))


def _out_of_date(spec: Specification, sessions: list[Session], gpus: int | None) -> Iterator[tuple[str, str]]:
    for session in sessions:
        why = environment_facts.stale(session, spec, _cards(session, gpus), CALLER)
        if why:
            yield session.host.name, why


def _for_platform(given: argparse.Namespace, words: which.Words) -> int:
    """No host is asked."""
    if words.hosts or given.gpus:
        raise ConfigError("--platform stands instead of a host and its cards", hint="leave out one of them")
    if given.platform not in _PLATFORMS:
        raise ConfigError(f"{given.platform!r} is no platform of hosts", hint=f"one of {', '.join(_PLATFORMS)}")
    spec = which.specification(words.file, given.packages, None)
    target = Target(given.platform, "", None, f"{CALLER[0]}.{CALLER[1]}")
    if given.check:
        there = solving.current(spec, target) is not None
        which.say(f"the lock of {spec.title} is {'up to date' if there else 'out of date'} for {given.platform}")
        return int(not there)
    found = solving.lock_for(spec, target, which.say)
    print(screen.table(_HEAD, [_row(found, "-", given.platform)]))
    return 0
