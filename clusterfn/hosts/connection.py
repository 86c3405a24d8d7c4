"""The agent's client: typed requests to one host over one stream, replayed after a reconnect.

`connection_for(host)` gives the connection that a process shares; `connect(host)` a new one. Requests never wait: each
gives a `Reply`. Nothing here knows of jobs, schedulers or environments. paramiko is imported when a host needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.config.host_text import shaped
from clusterfn.errors import HostError, Unreachable
from clusterfn.hosts import loop
from clusterfn.hosts.host_requests import Completed, HostRequests, ListedFile, Needed, TreeFile
from clusterfn.hosts.rpc import requests as _r
from clusterfn.hosts.rpc.boot import boot, commands_of, greeting
from clusterfn.hosts.rpc.link import ConnectionState, Link
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import CommandLook, Followed, Spawned, SpawnReply
from clusterfn.hosts.transports import Asker, Transport, prompts, transport_for
from clusterfn.hosts.transports.base import closed_on_failure, open_with_retries

if TYPE_CHECKING:
    from clusterfn.config.spec import Host
    from clusterfn.hosts.rpc.frames import AgentStream, Header

__all__ = [
    "CommandLook",
    "Completed",
    "ConnectionState",
    "Followed",
    "HostConnection",
    "HostFacts",
    "ListedFile",
    "Needed",
    "Reply",
    "SpawnReply",
    "Spawned",
    "TreeFile",
    "connect",
    "connection_for",
]


class HostFacts(NamedTuple):
    """What a host says of itself when it is connected.

    Attributes:
        root: Absolute path of its clusterfn folder; it exists.
        python: The old interpreter that runs the agent, absolute.
        machine: `<machine-id>-<hostname>`, a name for this machine alone.
        umask: The user's own, as a login without a terminal has it.
        net_ns: The network namespace, as the kernel names it.
        glibc: The version of its C library, "2.17"; "" where that is another one.
        have: For each path that was asked for, whether it exists.
        lacking: Commands of the host's scheduler that its PATH does not have.
        ahead_s: By how many seconds its clock is ahead of this machine's; 0 if both agree to the minute.
    """

    root: str
    python: str
    version: tuple[int, int, int]
    platform: str
    machine: str
    boot_id: str
    hostname: str
    user: str
    home: str
    umask: int
    pid: int
    cpus: int
    memory_bytes: int
    net_ns: str
    glibc: str
    have: tuple[bool, ...]
    lacking: tuple[str, ...]
    ahead_s: float


class HostConnection(HostRequests):
    """A connection to one host: its typed requests, and the link that sends them.

    Attributes:
        host: The host as its connection is opened the next time.
        link: The state of the connection, its stream, and the requests that are open.
        facts: What the host said when it was connected last.
        noise: What the login shell printed before the agent, of the first connection; its first 2 KB.
    """

    def __init__(self, host: Host, transport: Transport, have: Sequence[str] = (), asker: Asker | None = None) -> None:
        self.host = host
        self._transport = transport
        # Later, the link itself connects again.
        opened, self.facts = open_with_retries(
            lambda: _open(transport, host, have, asker), (ConnectionAbortedError,), _LOGIN_S
        )
        self.noise = opened.noise
        # Last, because this starts the threads of the link, which may connect again at once.
        super().__init__(Link(host, self._open_again, opened))

    @property
    def via(self) -> str:
        """The transport that reached the host last: "paramiko", "openssh (clusterfn login)"."""
        return self._transport.via

    def close(self) -> None:
        """End the connection. Open requests fail; what was spawned keeps running."""
        self.link.close()

    def _open_again(self) -> AgentStream:
        """Open another stream, whose agent may say other facts."""
        opened, self.facts = _open(self._transport, self.host)
        return opened

    def use_commands(self, host: Host) -> Reply[None]:
        """Have programs there found in the folders, and with the variables, that this host has for its scheduler's."""
        self.host = host

        def read(hello: Header, _: bytes) -> None:
            # This greeting does not ask about paths, so the answers of the first one are still the latest.
            self.facts = _facts(hello)._replace(have=self.facts.have)

        return self._send(_r.SimpleRequest("hello", greeting(host), read))


def _open(
    transport: Transport, host: Host, have: Sequence[str] = (), asker: Asker | None = None
) -> tuple[AgentStream, HostFacts]:
    """Start an agent, as `boot`, and return it with what its hello says.

    Raises:
        HostError: Also where this machine cannot open one more stream, for which there may be room later.
    """
    try:
        opened = boot(transport, host, have, asker)
    except OSError as error:
        raise Unreachable(
            f"This machine could not open a connection to {host.name}: {error}", host=host.name, retryable=True
        ) from error
    except HostError as error:
        error.host = error.host or host.name
        raise
    with closed_on_failure(opened.stream.close):
        try:
            return opened, _facts(opened.hello)
        except KeyError as error:
            raise HostError(f"The agent on {host.name} sent a greeting without {error}", host=host.name) from error
        except ValueError as error:
            message = f"The agent on {host.name} sent an invalid greeting"
            raise HostError(message, host=host.name, evidence=[str(error)]) from error


_ANSWER_S = 60.0
# What is killed later than this has hung, or waited for a person.
_LOGIN_S = 30.0
_JOIN_S = 1.0
# Smaller differences may come from the time that the greeting takes, and not from the clocks.
_SAME_CLOCK_S = 60.0
# The largest time, in seconds since 1970, that `time.localtime` accepts on every platform.
_LATEST = 1 << 40
_SHAPE = {
    **dict.fromkeys([name for name in HostFacts._fields if name != "ahead_s"], str),
    **dict.fromkeys(("umask", "pid", "cpus", "memory_bytes"), int),
    "version": [int],
    "have": [bool],
    "lacking": [str],
}


def _facts(hello: Header) -> HostFacts:
    """Read the facts of a hello; raise KeyError if one is missing, ValueError if one has another type."""
    values: dict[str, Any] = {name: shaped(hello[name], shape) for name, shape in _SHAPE.items()}
    if len(hello["version"]) != 3 or not hello["root"].startswith("/"):
        raise ValueError(f"version: {hello['version']}, root: {hello['root']!a:.80}")
    if type(hello["now"]) not in (int, float) or not 0 <= hello["now"] < _LATEST:
        raise ValueError(f"now: {hello['now']!a:.80}")
    ahead_s = hello["now"] - time.time()
    values.update({name: tuple(hello[name]) for name in ("version", "have", "lacking")})
    return HostFacts(**values, ahead_s=ahead_s if abs(ahead_s) > _SAME_CLOCK_S else 0.0)


def connect(host: Host, *, have: Sequence[str] = ()) -> HostConnection:
    """Open a new connection to `host`; `facts.have` says which of the paths exist.

    The person at this process is asked for what the login needs, now and never again: not at a reconnect.

    Raises:
        HostError: Unreachable, AuthenticationError, HostKeyError; or no agent could be started there.
        ConfigError: The host's address or another of its keys cannot be used.
    """
    connection = HostConnection(host, transport_for(host), have, prompts.person())
    _opened[connection] = None
    if _exiting and threading.current_thread() is not threading.main_thread():
        # This thread was connecting when the program ended.
        connection.close()
    for ended in [other for other in list(_opened) if not other.link.usable()]:
        _opened.pop(ended, None)
    return connection


# The keys are in the order in which they were opened, and any thread may remove one.
_opened: dict[HostConnection, None] = {}
_exiting = False
_shared: dict[Any, tuple[threading.Lock, list[HostConnection]]] = {}


def connection_for(host: Host, *, have: Sequence[str] = ()) -> HostConnection:
    """Return the connection to `host` that this process shares; open one if there is none that can be used.

    A callback of a connection that has ended gets that one, whose requests raise why: it must not log in again, nor
    keep others waiting. So does a background thread once the program exits.

    Raises:
        HostError: As `connect`.
    """
    login = (host.address, host.transport, host.scheduler == "local", host.ssh_config)
    way = (host.name, *login, host.root, host.python)
    # `setdefault` is atomic: two threads that want the same host at once share one lock, and only one of them connects.
    lock, held = _shared.setdefault(way, (threading.Lock(), []))
    # This must not wait for the lock: its holder may wait for an answer that only this thread brings.
    if held and (
        held[0].link.answers_here() or (_exiting and threading.current_thread() is not threading.main_thread())
    ):
        return held[0]
    with lock:
        if not held or not held[0].link.usable():
            # This machine has no address.
            at = f"{host.name} ({host.address})" if host.address else host.name
            with loop.speaking(lambda: f"connecting to {at}: it does not answer yet"):
                held[:] = [connect(host, have=have)]
        elif (host.scheduler_path or host.scheduler_env) and commands_of(held[0].host) != commands_of(host):
            # `clusterfn init` may have written these folders to clusterfn.yml after this process had connected.
            held[0].use_commands(host).result(_ANSWER_S)
        return held[0]


def _close_all() -> None:
    # Set this first, so that background threads open no further connections, which would stay open.
    global _exiting
    _exiting = True
    closed = []
    while _opened:
        closed.append(_opened.popitem()[0])
        closed[-1].close()
    # A daemon thread that runs while the interpreter ends can crash the process. Ctrl-C ends the wait for them.
    until = time.monotonic() + _JOIN_S
    with contextlib.suppress(KeyboardInterrupt):
        for connection in closed:
            connection.link.join_until(until)


def _forget_all() -> None:
    """Drop the connections and locks of the parent in a forked child."""
    # Keep a reference to each: when Python collects them, it would close pipes that the parent process still uses.
    _inherited.extend(_opened)
    _opened.clear()
    _shared.clear()


_inherited: list[HostConnection] = []
atexit.register(_close_all)
# A forked child has the parent's sockets but none of its threads, so it could only garble the parent's streams.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
