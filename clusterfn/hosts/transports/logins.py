"""Logging in once for all programs of this user: what `clusterfn login` and `logout` do.

Two ways of holding a connection: a ControlMaster of the system's ssh (`master`) where there can be one, else a process
of our own (`holding`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import held, holding, master, openssh
from clusterfn.hosts.transports.asking import Asker
from clusterfn.hosts.transports.held import Held
from clusterfn.hosts.transports.sshconfig import Settings, resolve

KINDS = {"auto": (held.MASTER, held.HOLDER), "openssh": (held.MASTER,), "paramiko": (held.HOLDER,)}
_GONE_S = 10.0
_LOOK_S = 0.05


def log_in(host: Host, asker: Asker | None) -> tuple[Held, bool]:
    """Hold a connection to the host; what is held, and whether that is new.

    Args:
        asker: Asks for passwords and codes; None: only a login that needs no person works.

    Raises:
        ConfigError: The host is this machine, or its transport can hold nothing here.
        HostError: As `Transport.open`; or what is held does not answer.
    """
    settings = _by_ssh(host)
    before = of_host(host, settings)
    if before is not None and _answers(before):
        return before, False
    if held.MASTER in KINDS[host.transport] and sys.platform != "win32" and openssh.has_ssh():
        return master.log_in(host, settings, asker), True
    if held.HOLDER not in KINDS[host.transport]:
        raise _no_way(host)
    return holding.log_in(host, asker), True


def _answers(each: Held) -> bool:
    """Whether it can be used; False if there is only a socket, and another process by its number.

    Raises:
        HostError: It is there, and was stopped: another login would leave it for ever.
    """
    if (master if each.kind == held.MASTER else holding).answers(each):
        return True
    if held.listens(each):
        raise _stuck(each)
    return False


def _stuck(each: Held) -> HostError:
    return HostError(
        f"Process {each.pid}, which holds the connection to {each.host}, does not answer",
        host=each.host,
        evidence=[each.address],
        hint=f"if it was stopped: kill -CONT {each.pid}; else end it: kill -9 {each.pid}",
    )


def _no_way(host: Host) -> ConfigError:
    return ConfigError(
        f"transport: openssh of host {host.name} cannot hold a connection on this machine",
        host=host.name,
        evidence=[host.source, "there is no ssh here, or it is Windows's, which has no ControlMaster"],
        hint="use transport: auto or paramiko",
    )


def log_out(host: Host) -> bool:
    """End what is held to the host; whether there was something. Nothing of it is left then.

    Raises:
        HostError: What holds it does not end.
    """
    settings = _by_ssh(host)
    found = [each for each in _records(host, settings) if is_alive(each)]
    for each in found:
        _end(each)
        if is_alive(each) and held.listens(each):
            raise _stuck(each)
    for each in _records(host, settings):
        held.forget(each)
    return bool(found)


def of_host(host: Host, settings: Settings) -> Held | None:
    """What is held to the host and can be used by its transport; records of what has died are removed."""
    for each in _records(host, settings):
        if is_alive(each):
            return each
        held.forget(each)
    return None


def is_held(host: Host) -> bool:
    """Whether a connection to the host is held. Looks at this machine alone."""
    return host.transport in KINDS and held.any_there() and of_host(host, resolve(host)) is not None


def every() -> Iterator[Held]:
    """All that is held; records of what has died are removed."""
    for each in held.every():
        if is_alive(each):
            yield each
        else:
            held.forget(each)


def is_alive(each: Held) -> bool:
    """Whether it is there still, as far as can be seen without using it."""
    return master.is_alive(each) if each.kind == held.MASTER else holding.is_alive(each)


def _records(host: Host, settings: Settings) -> list[Held]:
    found = (held.find(held.key_of(settings, kind)) for kind in KINDS[host.transport])
    return [each for each in found if each is not None]


def _by_ssh(host: Host) -> Settings:
    if not host.address:
        raise ConfigError(f"{host.name} is this machine, and is not reached by ssh", host=host.name)
    return resolve(host)


def _end(each: Held) -> None:
    if each.kind == held.MASTER:
        master.log_out(each)
    else:
        holding.log_out(each)
    deadline = time.monotonic() + _GONE_S
    while _is_there(each) and time.monotonic() < deadline:
        threading.Event().wait(_LOOK_S)


def _is_there(each: Held) -> bool:
    return held.find(each.key) is not None if sys.platform == "win32" else held.is_running(each.pid)
