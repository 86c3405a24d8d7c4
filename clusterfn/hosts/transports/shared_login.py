"""Log in once for all programs of this user: `clusterfn login`, `logout`, and the transport that reuses a login.

Two ways to hold a connection: a ControlMaster of the system's ssh (`control_master`) where possible, else a process of
our own (`holder_client`, `holder_process`). `ReusingTransport` prefers a held connection to a new one. It never repeats
a login that needed a person without that person: no host sees a login that cannot succeed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import control_master, held_connections, holder_client, openssh, prompts
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.prompts import Asker, Question
from clusterfn.hosts.transports.ssh_config import Settings, resolve

KINDS = {
    "auto": (held_connections.MASTER, held_connections.HOLDER),
    "openssh": (held_connections.MASTER,),
    "paramiko": (held_connections.HOLDER,),
}
_GONE_S = 10.0
_LOOK_S = 0.05


def log_in(host: Host, asker: Asker | None) -> tuple[HeldConnection, bool]:
    """Hold a connection to the host; what is held, and whether that is new.

    Args:
        asker: Asks for passwords and codes; None: only a login that needs no person works.

    Raises:
        ConfigError: The host is this machine, or its transport can hold nothing here.
        HostError: As `Transport.open`; or what is held does not answer.
    """
    settings = _by_ssh(host)
    before = find_held(host, settings)
    if before is not None and _answers(before):
        return before, False
    if held_connections.MASTER in KINDS[host.transport] and sys.platform != "win32" and openssh.has_ssh():
        return control_master.log_in(host, settings, asker), True
    if held_connections.HOLDER not in KINDS[host.transport]:
        raise _no_way(host)
    return holder_client.log_in(host, asker), True


def _answers(each: HeldConnection) -> bool:
    """Whether it can be used; False if there is only a socket, and another process by its number.

    Raises:
        HostError: It is there, and was stopped: another login would leave it for ever.
    """
    if (control_master if each.kind == held_connections.MASTER else holder_client).answers(each):
        return True
    if held_connections.listens(each):
        raise _stuck(each)
    return False


def _stuck(each: HeldConnection) -> HostError:
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
        if is_alive(each) and held_connections.listens(each):
            raise _stuck(each)
    for each in _records(host, settings):
        held_connections.forget_record(each)
    return bool(found)


def find_held(host: Host, settings: Settings) -> HeldConnection | None:
    """What is held to the host and can be used by its transport; records of what has died are removed."""
    for each in _records(host, settings):
        if is_alive(each):
            return each
        held_connections.forget_record(each)
    return None


def is_held(host: Host) -> bool:
    """Whether a connection to the host is held. Looks at this machine alone."""
    return host.transport in KINDS and held_connections.has_records() and find_held(host, resolve(host)) is not None


def all_held() -> Iterator[HeldConnection]:
    """All that is held; records of what has died are removed."""
    for each in held_connections.all_records():
        if is_alive(each):
            yield each
        else:
            held_connections.forget_record(each)


def is_alive(each: HeldConnection) -> bool:
    """Whether it is there still, as far as can be seen without using it."""
    return control_master.is_alive(each) if each.kind == held_connections.MASTER else holder_client.is_alive(each)


def _records(host: Host, settings: Settings) -> list[HeldConnection]:
    found = (held_connections.find_record(held_connections.key_of(settings, kind)) for kind in KINDS[host.transport])
    return [each for each in found if each is not None]


def _by_ssh(host: Host) -> Settings:
    if not host.address:
        raise ConfigError(f"{host.name} is this machine, and is not reached by ssh", host=host.name)
    return resolve(host)


def _end(each: HeldConnection) -> None:
    if each.kind == held_connections.MASTER:
        control_master.log_out(each)
    else:
        holder_client.log_out(each)
    deadline = time.monotonic() + _GONE_S
    while _is_there(each) and time.monotonic() < deadline:
        threading.Event().wait(_LOOK_S)


def _is_there(each: HeldConnection) -> bool:
    return (
        held_connections.find_record(each.key) is not None
        if sys.platform == "win32"
        else held_connections.is_running(each.pid)
    )


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
        through = self._through_held(command) if held_connections.has_records() else None
        if through is not None:
            return through
        if self._by_person and asker is None:
            raise prompts.needs_you(self.host.name)
        return self._anew(command, asker)

    def _anew(self, command: str, asker: Asker | None) -> Stream:
        def ask(question: Question) -> str:
            assert asker is not None
            self._by_person = True
            return asker(question)

        stream = self._own.open(command, ask if asker is not None else None)
        self.via = self._own.via
        return stream

    def _through_held(self, command: str) -> Stream | None:
        settings = resolve(self.host)
        found = find_held(self.host, settings)
        if found is None:
            return None
        self._by_person = self._by_person or found.asked
        stream = self._session(settings, found, command)
        if stream is not None:
            self.via = f"{'openssh' if found.kind == held_connections.MASTER else 'paramiko'} (clusterfn login)"
        return stream

    def _session(self, settings: Settings, found: HeldConnection, command: str) -> Stream | None:
        open_session = (
            control_master.open_session if found.kind == held_connections.MASTER else holder_client.open_session
        )
        try:
            stream: Stream | None = open_session(self.host, settings, found, command)
        except HostError:
            if found.asked:
                raise
            return None  # it takes no further session; where no person is needed there can be another connection
        # A process that was stopped still listens, and `logout` must find it; a pid may by now be another program's.
        if stream is None and not (is_alive(found) and held_connections.listens(found)):
            held_connections.forget_record(found)
        return stream
