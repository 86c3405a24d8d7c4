"""From the host's name to an agent that runs there: configuration, name, connection, key, login, shell, Python."""

from __future__ import annotations

import socket
import time

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.cli import target
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.errors import AuthenticationError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.host_state import open_session
from clusterfn.hosts.transports.ssh_config import resolve

_NOISY_LINES = 5
_QUIET = (
    "in ~/.bashrc on the host, put this before the lines that print: case $- in *i*) ;; *) return ;; esac "
    "(in ~/.cshrc: if (! $?prompt) exit)"
)


def configuration(state: CheckState) -> str:
    config, state.host, because = target.host(state.host_name, "check")
    where = state.host.source if config.path else "built in"
    by = "" if because.startswith("there is") else "chosen by "
    return f"{state.host.name} ({where}), scheduler: {state.host.scheduler}; {by}{because}"


def name(state: CheckState) -> str:
    if not state.host.address:
        raise StepSkipped("this machine, without ssh")
    settings = resolve(state.host)
    if settings.proxy_jump or settings.proxy_command:
        way = ", ".join(settings.proxy_jump) or settings.proxy_command
        return f"{settings.user}@{settings.place}, through {way}"
    try:
        address = socket.getaddrinfo(settings.hostname, settings.port, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        hint = f"check {settings.named_in(state.host)} and your network or VPN"
        raise StepFailed(f"the name {settings.hostname} cannot be resolved", hint, [str(error)]) from error
    return f"{settings.user}@{settings.place}" + (f" ({address})" if address != settings.hostname else "")


def connection(state: CheckState) -> str:
    """Connect once. A rejected login or an unknown host key is another step's: the host was reached."""
    began = time.monotonic()
    try:
        state.session = open_session(state.host)
        # This includes the agent's greeting, so the time below is that of a whole login.
        state.session.connect()
    except HostError as error:
        state.broken = error
        if isinstance(error, Unreachable) or (type(error) is HostError and error.__cause__ is not None):
            # The host could not be reached, or its sshd and this machine have no algorithm in common.
            raise
    if not state.host.address:
        return "an agent was started"
    if state.broken:
        return "the host answers"
    return f"the host answers, in {time.monotonic() - began:.2f} s, by {state.session.connection.via}"


def host_key(state: CheckState) -> str:
    if not state.host.address:
        raise StepSkipped("not reached by ssh")
    if isinstance(state.broken, HostKeyError):
        raise state.broken
    return "as remembered in known_hosts"


def login(state: CheckState) -> str:
    if isinstance(state.broken, AuthenticationError):
        raise state.broken
    if state.broken is not None:
        return "accepted"
    facts = state.session.connection.facts
    return f"{facts.user} on {facts.hostname}, {facts.cpus} CPUs, {format_size(facts.memory_bytes)} of memory"


def shell(state: CheckState) -> str:
    """Warn about an rc file that prints: clusterfn ignores it, but scp, rsync and sftp fail with it."""
    if state.broken is not None:
        raise StepSkipped("no agent was started, see python")
    lines = [line for line in state.session.connection.noise.splitlines() if line.strip()]
    if not lines:
        return "silent without a terminal, as it should be"
    more = [f"… and {len(lines) - _NOISY_LINES} more lines"] if len(lines) > _NOISY_LINES else []
    message = "a startup file on the host prints without a terminal; clusterfn ignores that, but scp and rsync may fail"
    raise StepWarning(message, _QUIET, [*lines[:_NOISY_LINES], *more])


def python(state: CheckState) -> str:
    if state.broken is not None:
        if getattr(state.broken, "kind", None):
            # An error with a kind comes from the agent, so an agent runs. Another step reports the error.
            return "runs the agent"
        raise state.broken
    facts = state.session.connection.facts
    return f"{facts.python} ({'.'.join(map(str, facts.version))}) runs the agent and the supervisor"
