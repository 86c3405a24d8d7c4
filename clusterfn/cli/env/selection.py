"""Resolve the arguments of `clusterfn env`: which specification, which host, which of its environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterfn.calls import job_display
from clusterfn.cli import target
from clusterfn.config import config_file
from clusterfn.config.options import names_a_file
from clusterfn.config.spec import Host
from clusterfn.environment import resolve
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.environment_builder import Built
from clusterfn.hosts.host_state import CALLER, HostState, open_session

USUAL_FILE = "environment.yml"
_LEAST_DIGITS = 4


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


def resolve_host(name: str | None, command: str) -> Host:
    """Return the host of that name, else the one that a call would use."""
    return target.host(name, f"env {command}")[1]


def specification(file: str | None, packages: Sequence[str], where: Host | None) -> Specification:
    """Read the specification: from the file, from the packages, else from the host's own file, else environment.yml.

    Raises:
        ConfigError: There is none of these, or two.
    """
    known = config_file.load().named if packages else []
    host = next((each for each in packages if each in known), None)
    if host:
        raise ConfigError(
            f"--packages takes {host} for a package, and it is a host of {config_file.load().path}",
            hint=f"name the host first: clusterfn env build {host} --packages …",
        )
    if file or packages:
        return resolve.read_specification(file, packages)
    of_host = where.environment if where else None
    if of_host and names_a_file(of_host):
        return resolve.read_specification(of_host, ())
    if not Path(USUAL_FILE).is_file():
        raise ConfigError(
            f"no file is named, and there is no {USUAL_FILE} here",
            hint="name one: clusterfn env build FILE, or --packages python=3.11 numpy",
        )
    return resolve.read_specification(USUAL_FILE, ())


def find_environment(word: str, session: HostState) -> Built:
    """Find an environment on the host by its id, the beginning of its id, or its file.

    Raises:
        ConfigError: There is none, or there are several.
        LockError: The lock beside the file cannot be read.
    """
    root = environment_facts.environments_root(session)
    begin = _id_of_file(word, session) if names_a_file(word) else word.lower()
    there = environment_builder.list_environments(session, root)
    found = [each for each in there if each.id == begin] or [each for each in there if each.id.startswith(begin)]
    if len(found) == 1 and len(begin) >= _LEAST_DIGITS:
        return found[0]
    hint = f"clusterfn env list {session.host.name}"
    if found:
        raise ConfigError(f"{word!r} fits several environments", evidence=[each.id for each in found], hint=hint)
    raise ConfigError(f"there is no environment {word!r} on {session.host.name}", hint=hint)


def _id_of_file(word: str, session: HostState) -> str:
    """Return the id of the existing lock; solve nothing."""
    spec = resolve.read_specification(word, ())
    why = environment_facts.explain_stale_lock(session, spec, 0, CALLER)
    if why:
        raise ConfigError(f"{word} is not locked: {why}", hint=f"clusterfn env lock {word} {session.host.name}")
    return environment_facts.lock_environment(session, spec, 0, CALLER, say).id


def host_state(name: str | None, command: str) -> HostState:
    """Connect to a host."""
    return open_session(resolve_host(name, command))


def say(sentence: str) -> None:
    """Write a sentence to stderr, beside the data on stdout."""
    job_display.say(f"clusterfn: {sentence}\n")
