"""From the host's name to an agent that runs there: configuration, name, connection, key, login, shell, Python."""

from __future__ import annotations

import socket
import time

from clusterfn.cli import screen, target
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.errors import AuthenticationError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.host_state import open_session
from clusterfn.hosts.transports.ssh_config import resolve

_NOISY_LINES = 5
_QUIET = (
    "in ~/.bashrc on the host, put this before the lines that print: case $- in *i*) ;; *) return ;; esac "
    "(in ~/.cshrc: if (! $?prompt) exit)"
)


def configuration(found: CheckState) -> str:
    known, found.host, because = target.host(found.wanted, "check")
    where = found.host.source if known.path else "built in"
    by = "" if because.startswith("there is") else "chosen by "
    return f"{found.host.name} ({where}), scheduler: {found.host.scheduler}; {by}{because}"


def name(found: CheckState) -> str:
    if not found.host.address:
        raise StepSkipped("this machine, without ssh")
    settings = resolve(found.host)
    if settings.proxy_jump or settings.proxy_command:
        way = ", ".join(settings.proxy_jump) or settings.proxy_command
        return f"{settings.user}@{settings.place}, through {way}"
    try:
        address = socket.getaddrinfo(settings.hostname, settings.port, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        hint = f"check {settings.named_in(found.host)} and your network or VPN"
        raise StepFailed(f"the name {settings.hostname} cannot be resolved", hint, [str(error)]) from error
    return f"{settings.user}@{settings.place}" + (f" ({address})" if address != settings.hostname else "")


def connection(found: CheckState) -> str:
    """Connect once. A refused login or a strange host key is another step's: the host was reached."""
    began = time.monotonic()
    try:
        found.session = open_session(found.host)
        found.session.connect()  # the agent's first words have come, too
    except HostError as error:
        found.broken = error
        if isinstance(error, Unreachable) or (type(error) is HostError and error.__cause__ is not None):
            raise  # no way there, or no common word with its sshd
    if not found.host.address:
        return "an agent was started"
    if found.broken:
        return "the host answers"
    return f"the host answers, in {time.monotonic() - began:.2f} s, by {found.session.connection.via}"


def host_key(found: CheckState) -> str:
    if not found.host.address:
        raise StepSkipped("not reached by ssh")
    if isinstance(found.broken, HostKeyError):
        raise found.broken
    return "as remembered in known_hosts"


def login(found: CheckState) -> str:
    if isinstance(found.broken, AuthenticationError):
        raise found.broken
    if found.broken is not None:
        return "accepted"
    facts = found.session.connection.facts
    return f"{facts.user} on {facts.hostname}, {facts.cpus} CPUs, {screen.size(facts.memory_bytes)} of memory"


def shell(found: CheckState) -> str:
    """Warn about an rc file that prints: clusterfn ignores it, but scp, rsync and sftp fail with it."""
    if found.broken is not None:
        raise StepSkipped("no agent was started, see python")
    lines = [line for line in found.session.connection.noise.splitlines() if line.strip()]
    if not lines:
        return "silent without a terminal, as it should be"
    more = [f"… and {len(lines) - _NOISY_LINES} more lines"] if len(lines) > _NOISY_LINES else []
    message = "a startup file on the host prints without a terminal; clusterfn ignores that, but scp and rsync may fail"
    raise StepWarning(message, _QUIET, [*lines[:_NOISY_LINES], *more])


def python(found: CheckState) -> str:
    if found.broken is not None:
        if getattr(found.broken, "kind", None):  # the agent itself said no
            return "runs the agent"
        raise found.broken
    facts = found.session.connection.facts
    return f"{facts.python} ({'.'.join(map(str, facts.version))}) runs the agent and the supervisor"
