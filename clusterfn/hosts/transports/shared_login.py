"""Log in once for all programs of this user: `clusterfn login`, `logout`, and the transport that reuses a login.

`control_master` holds the connection, by the system's ssh. `ReusingTransport` prefers a held connection to a new one.
It never repeats a login that needed a person without that person: no host sees a login that cannot succeed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import control_master, held_connections, openssh, prompts
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.prompts import Asker, LoginQuestion
from clusterfn.hosts.transports.ssh_config import Settings, resolve

_GONE_S = 10.0
_LOOK_S = 0.05


def can_hold(host: Host) -> bool:
    """Whether a connection to the host can be held: by the system's ssh, if its transport may use that one."""
    return host.transport in ("auto", "openssh") and sys.platform != "win32" and openssh.has_ssh()


def log_in(host: Host, asker: Asker | None) -> tuple[HeldConnection, bool]:
    """Hold a connection to the host; return what is held, and whether that is new.

    Args:
        asker: Asks for passwords and codes; None: only a login that needs no person works.

    Raises:
        ConfigError: The host is this machine, or this machine cannot hold a connection to it.
        HostError: As `Transport.open`; or what is held does not answer.
    """
    settings = _by_ssh(host)
    if not can_hold(host):
        raise _cannot_hold(host)
    before = find_held(settings)
    if before is not None:
        if control_master.answers(before):
            return before, False
        if held_connections.listens(before):  # it was stopped: another login would leave it for ever
            raise _stuck(before)
    return control_master.log_in(host, settings, asker), True


def _cannot_hold(host: Host) -> ConfigError:
    if host.transport == "paramiko":
        message = f"transport: paramiko of host {host.name} cannot hold a connection: only the system's ssh can"
        return ConfigError(message, host=host.name, evidence=[host.source], hint="use transport: auto or openssh")
    if sys.platform == "win32":
        message = "Windows's ssh cannot hold a connection for all programs: it has no ControlMaster"
        hint = "use clusterfn inside WSL; without it each program asks you for itself"
    else:
        message = "A connection is held by the system's ssh, and there is none on this machine"
        hint = "install OpenSSH's client; without it each program asks you for itself"
    return ConfigError(message, host=host.name, hint=hint)


def _stuck(each: HeldConnection) -> HostError:
    return HostError(
        f"Process {each.pid}, which holds the connection to {each.host}, does not answer",
        host=each.host,
        evidence=[each.address],
        hint=f"if it was stopped: kill -CONT {each.pid}; else end it: kill -9 {each.pid}",
    )


def log_out(host: Host) -> bool:
    """End what is held to the host, and leave nothing of it; return whether there was something.

    Raises:
        ConfigError: The host is this machine.
        HostError: What holds it does not end.
    """
    settings = _by_ssh(host)
    found = find_held(settings) if can_hold(host) else None
    if found is None:
        return False
    end(found)
    if control_master.is_alive(found) and held_connections.listens(found):
        raise _stuck(found)
    left = held_connections.find_record(found.key)
    if left is not None:
        held_connections.forget_record(left)
    return True


def end(each: HeldConnection) -> None:
    """End it, and wait until its process is gone, but not for ever."""
    control_master.log_out(each)
    deadline = time.monotonic() + _GONE_S
    while held_connections.is_running(each.pid) and time.monotonic() < deadline:
        threading.Event().wait(_LOOK_S)


def find_held(settings: Settings) -> HeldConnection | None:
    """Return what is held by this way to the host; remove the record of a dead connection."""
    found = held_connections.find_record(held_connections.key_of(settings))
    return found if found is None or _lives(found) else None


def all_held() -> Iterator[HeldConnection]:
    """Yield all that is held; remove the records of dead connections."""
    yield from filter(_lives, held_connections.all_records() if sys.platform != "win32" else ())


def _lives(each: HeldConnection) -> bool:
    alive = control_master.is_alive(each)
    if not alive:
        held_connections.forget_record(each)
    return alive


def is_held(host: Host) -> bool:
    """Whether a connection to the host is held. Looks at this machine alone."""
    return can_hold(host) and held_connections.has_records() and find_held(resolve(host)) is not None


def _by_ssh(host: Host) -> Settings:
    if not host.address:
        raise ConfigError(f"{host.name} is this machine, and is not reached by ssh", host=host.name)
    return resolve(host)


class ReusingTransport:
    """A way to one host through what is held, else by `own`."""

    def __init__(self, host: Host, own: Transport) -> None:
        self.host = host
        self.via = ""
        self._own = own
        self._by_person = False

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """See `Transport.open`.

        Raises:
            AuthenticationError: Also where a person has logged in before, and no person can be asked now.
        """
        through = self._through_held(command) if can_hold(self.host) and held_connections.has_records() else None
        if through is not None:
            self.via = "openssh (clusterfn login)"
            return through
        if self._by_person and asker is None:
            raise prompts.needs_you(self.host.name, can_hold=can_hold(self.host))

        def ask(question: LoginQuestion) -> str:
            assert asker is not None
            self._by_person = True
            return asker(question)

        stream = self._own.open(command, ask if asker is not None else None)
        self.via = self._own.via
        return stream

    def _through_held(self, command: str) -> Stream | None:
        settings = resolve(self.host)
        found = find_held(settings)
        if found is None:
            return None
        self._by_person = self._by_person or found.asked
        try:
            stream = control_master.open_session(self.host, settings, found, command)
        except HostError:
            if found.asked:
                raise
            return None  # it takes no further session; where no person is needed there can be another connection
        # A process that was stopped still listens, and `logout` must find it; a pid may by now be another program's.
        if stream is None and not (control_master.is_alive(found) and held_connections.listens(found)):
            held_connections.forget_record(found)
        return stream
