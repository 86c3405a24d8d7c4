"""The agent's client: typed requests to one host over one stream, replayed after a reconnect.

`connection_for(host)` gives the connection that a process shares; `connect(host)` a new one. Requests never wait: each
gives a `Reply`. Nothing here knows of jobs, schedulers or environments. paramiko is imported when a host needs it.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from clusterfn.errors import HostError, Unreachable
from clusterfn.hosts import spoken_wait
from clusterfn.hosts.rpc import requests as _r
from clusterfn.hosts.rpc.boot import boot, commands_of
from clusterfn.hosts.rpc.frames import pack
from clusterfn.hosts.rpc.link import FIRST, ConnectionState, Link
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import CommandLook, Data, Sink, Spawned, SpawnReply
from clusterfn.hosts.transports import Asker, Transport, prompts, transport_for

if TYPE_CHECKING:
    from clusterfn.config.spec import Host
    from clusterfn.hosts.rpc.frames import AgentStream, Header

__all__ = [
    "CommandLook", "Completed", "ConnectionState", "HostConnection", "HostFacts", "ListedFile", "Needed", "Reply",
    "SpawnReply", "Spawned", "TreeFile", "connect", "connection_for",
]  # fmt: skip


class HostFacts(NamedTuple):
    """What a host says of itself when it is connected.

    Attributes:
        root: Absolute path of its clusterfn folder; it exists.
        python: The old interpreter that runs the agent, absolute.
        machine: `<machine-id>-<hostname>`, a name for this machine alone.
        umask: The user's own, as a login without a terminal has it.
        net_ns: The network namespace, as the kernel names it.
        glibc: The version of its C library, "2.17"; "" where that is another one.
        ends_jobs: Whether logind ends what the user runs there when he logs out.
        visible_gpus: What the account sets of CUDA_VISIBLE_DEVICES or its like, as NAME=VALUE; "" for nothing.
        site: What /etc/clusterfn.yml says there, as JSON; "" without one.
        have: For each path that was asked for, whether it exists.
        lacking: Commands of the host's scheduler that its PATH does not have.
    """

    root: str
    python: str
    version: tuple[int, int, int]
    platform: str
    machine: str
    boot_id: str
    hostname: str
    uid: int
    user: str
    home: str
    umask: int
    pid: int
    cpus: int
    memory_bytes: int
    net_ns: str
    glibc: str
    ends_jobs: bool
    visible_gpus: str
    site: str
    have: tuple[bool, ...]
    lacking: tuple[str, ...]


class Completed(NamedTuple):
    """How a program ended: `rc`, or None and the `signal` that ended it; and all that it printed."""

    rc: int | None
    signal: int | None
    out: bytes
    err: bytes


class TreeFile(NamedTuple):
    """One file of `put_tree`: its name below the folder, with slashes, and its bytes or the local file with them.

    Attributes:
        crc: The CRC-32 that its bytes must have when they come; None checks nothing.
    """

    name: str
    data: Data
    mode: int = 0o600
    crc: int | None = None


class Needed(NamedTuple):
    """What a folder needs beside it on the host.

    Attributes:
        paths: Absolute.
        whole: Those of them that are trees with a list of their files, `MANIFEST`, by which they are checked.
        on_lacking: Called on the reader thread with those that are gone, and a function to call once they were sent
            again, with the error if they were not.
    """

    paths: Sequence[str]
    whole: Sequence[str]
    on_lacking: Callable[[list[str], Callable[[HostError | None], None]], Any]


class ListedFile(NamedTuple):
    """One file found by `list`; `mtime` is the host's clock."""

    name: str
    size: int
    mtime: float
    mode: int


class HostConnection:
    """A connection to one host. All methods may be called from any thread; callbacks come on its reader thread.

    Attributes:
        link: The requests and the stream below it.
        facts: What the host said when it was connected last.
        noise: What the login shell printed before the agent, of the first connection; its first 2 KB.
    """

    def __init__(
        self, host: Host, transport: Transport, have: Sequence[str] = (), asker: Asker | None = None,
        probe: Sequence[str] = (), meanwhile: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.host = host
        self._transport = transport
        first = self._run_request(probe) if probe else None
        if first is not None:
            first.register(FIRST, host.name)
        self._probed = (tuple(probe), first.reply) if first else None
        ahead = pack(first.header(lambda _: False), first.body) if first else b""
        opened = _open(transport, host, have, asker, ahead, meanwhile)
        self.facts = _facts(opened.hello)
        self.noise = opened.noise
        self.link = Link(host, lambda: _open(transport, self.host), opened, self._on_hello, first)

    @property
    def via(self) -> str:
        """The transport that reached the host last, and the reason: "paramiko", "openssh (a ControlMaster is open)"."""
        return self._transport.via

    def _on_hello(self, hello: Header) -> None:
        self.facts = _facts(hello)

    def put(
        self,
        path: str,
        data: Data,
        mode: int = 0o600,
        crc: int | None = None,
        *,
        sync: bool | Literal["later"] = True,
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[bool]:
        """Write a file: whole or not at all. True if it was written, False if it was there and is named by its content.

        Args:
            sync: Whether it must survive a power cut from then on; "later": soon afterwards, and nothing waits for it.
            crc: The CRC-32 of the content that the file is named by, which what comes must have; None for other files.
        """
        fields: Header = {"path": path, "size": _r.size_of(data), "mode": mode, "sync": sync}
        if crc is not None:
            fields["crc"] = crc
        return self._send(_r.UploadRequest("put", fields, _written, [data], after))

    def put_tree(
        self, path: str, files: Sequence[TreeFile], *, sync: bool = True, after: Sequence[Reply[Any]] = (),
        needs: Needed | None = None,
    ) -> Reply[bool]:  # fmt: skip
        """Write a folder: whole or not at all. True if it was written, False if it was there.

        Args:
            sync: Whether it must survive a power cut. Not needed for what is useless after one.
            needs: What must be there before.
        """
        names = [
            [file.name, _r.size_of(file.data), file.mode, *(() if file.crc is None else (None, file.crc))]
            for file in files
        ]
        fields = {"path": path, "files": names, "sync": sync}
        data = [file.data for file in files]
        if needs is None:
            return self._send(_r.UploadRequest("put_tree", fields, _written, data, after))
        fields.update(needs=list(needs.paths), whole=list(needs.whole))
        return self._send(_r.UploadRequest("put_tree", fields, _written, data, after, needs.on_lacking))

    def have(self, paths: Sequence[str], *, after: Sequence[Reply[Any]] = ()) -> Reply[list[bool]]:
        """Whether each path exists."""

        def read(header: Header, _: bytes) -> list[bool]:
            told = header.get("have")
            kinds = [type(each) for each in told] if isinstance(told, list) else None
            if kinds != [bool] * len(paths):
                raise _r.MalformedAnswer(f"have: {ascii(told)[:80]}, for {len(paths)} paths")
            return list(told or ())

        return self._send(_r.SimpleRequest("have", {"paths": list(paths)}, read, after=after))

    def get(
        self,
        path: str,
        sink: Sink,
        offset: int = 0,
        *,
        after: Sequence[Reply[Any]] = (),
        on_size: Callable[[int], Any] | None = None,
        until: int | None = None,
    ) -> Reply[int]:
        """Give a file's bytes from `offset` to `sink` (a function or a binary file); the reply is the file's size.

        Args:
            until: Where the part of the file ends that is wanted; its size then counts as the file's.
            on_size: Called with the file's size before its first byte comes; what it raises ends the request.
        """
        return self._send(_r.GetRequest(path, sink, offset, after, on_size, until))

    def get_each(
        self, folder: str, sizes: Mapping[str, int], on_file: Callable[[str, bytes | None], Any], *,
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[None]:  # fmt: skip
        """Give small files below a folder to `on_file`, one after another, each whole: a frame brings many.

        Args:
            sizes: How many bytes each file has, by its name below the folder; a host sends no more.
            on_file: Called with the name and the bytes. It gets None for a file that `get` has to fetch, or say why it
                cannot: it has become larger, or cannot be read.
        """
        return self._send(_r.GetEachRequest(folder, sizes, on_file, after))

    def follow(
        self, path: str, on_data: Callable[[bytes], Any], offset: int = 0, *, after: Sequence[Reply[Any]] = ()
    ) -> Reply[int]:
        """Give a file's bytes to `on_data` as it grows; it may not exist yet. Ends by `cancel` or when drained."""
        return self._send(_r.FollowRequest(path, on_data, offset, after))

    def wait(
        self,
        path: str,
        with_files: Sequence[tuple[str, Sink]] = (),
        drain: Sequence[Reply[Any]] = (),
        *,
        after: Sequence[Reply[Any]] = (),
        on_content: Callable[[bytes], Any] | None = None,
        on_early: Callable[[bool], Any] | None = None,
    ) -> Reply[bytes]:
        """Return a file's bytes once it exists; the rest of the drained follows comes first, then `with_files`.

        Args:
            on_content: Called with these bytes before those of `with_files`; what it raises ends the request.
            on_early: If given, large `with_files` come as they are written, before `path` exists. Called before each of
                these pieces; with True if the file was begun again, and what has come of it is void.
        """
        return self._send(_r.WaitRequest(path, with_files, drain, after, on_content, on_early))

    def still(
        self, path: str, silent_s: float, on_silent: Callable[[], Any], *, unless: str = "",
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[None]:  # fmt: skip
        """Call `on_silent` each time a file has not changed for `silent_s`, once it exists; until `cancel`.

        Args:
            unless: What explains the silence, once it exists.
        """
        return self._send(_r.StillRequest(path, silent_s, unless, on_silent, after))

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        timeout_s: float = 60,
        *,
        after: Sequence[Reply[Any]] = (),
        forks: bool = False,
        stop_at: str = "",
    ) -> Reply[Completed]:
        """Run a program to its end. It may run twice if the connection breaks, so it must bear that.

        Args:
            forks: Whether it is `supervise.py`, and may run in a fork of the agent: that saves an interpreter's start.
            stop_at: Kill it once it has printed this to stderr.

        Raises (by the reply):
            HostError: It does not exist, may not be run, was killed after `timeout_s`, or printed more than 4 MB.
        """
        more = {**({"fork": True} if forks else {}), **({"stop_at": stop_at} if stop_at else {})}
        return self._send(self._run_request(argv, stdin, cwd, env, unset, timeout_s, after=after, **more))

    def _run_request(
        self, argv: Sequence[str], stdin: bytes = b"", cwd: str | None = None, env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (), timeout_s: float = 60, *, after: Sequence[Reply[Any]] = (), **more: Any,
    ) -> _r.SimpleRequest[Completed]:  # fmt: skip
        fields = {**_program(argv, env, unset), "cwd": cwd, "timeout_s": timeout_s, **more}
        return _r.SimpleRequest("run", fields, functools.partial(_completed, self.host.name, argv), stdin, after)

    def probed(self, argv: Sequence[str]) -> Reply[Completed] | None:
        """Return the reply to the probe that was sent with the hello if this is its command: once, else None."""
        found, self._probed = self._probed, None
        return found[1] if found and found[0] == tuple(argv) else None

    def spawn(
        self,
        argv: Sequence[str],
        cwd: str,
        log: str,
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        *,
        after: Sequence[Reply[Any]] = (),
    ) -> SpawnReply:
        """Start a program that outlives this connection; `reply.exited` reports its end as long as the agent runs."""
        request = _r.SpawnRequest("spawn", {**_program(argv, env, unset), "cwd": cwd, "log": log}, after=after)
        self.link.send(request)
        return request.reply

    def repeat(
        self,
        argv: Sequence[str],
        interval_s: float,
        share: str | None,
        on_look: Callable[[CommandLook], Any],
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        *,
        timeout_s: float = 60,
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[None]:
        """Run a program now and every `interval_s`, until `cancel`. Equal `share` and argv share an answer per user."""
        fields = {**_program(argv, env, unset), "interval_s": interval_s, "share": share, "timeout_s": timeout_s}
        request = _r.RepeatRequest(fields, on_look, after)
        self.link.send(request)
        return request.reply

    def connect_socket(self, path: str, first: bytes, on_data: Callable[[bytes], Any]) -> Reply[None]:
        """Connect to a unix socket of this user on the host, and send the `first` bytes; `on_data` gets what it says.

        The reply comes when the socket is closed, and raises Unreachable when the connection to the host is lost: it
        is not connected again. `cancel` closes it.
        """
        return self._send(_r.ConversationRequest("connect", {"path": path}, first, on_data))

    def converse(
        self,
        argv: Sequence[str],
        first: bytes,
        on_data: Callable[[bytes], Any],
        unset: Sequence[str] = (),
        nudge: bytes = b"",
    ) -> Reply[None]:
        """Start a program on the host as `connect_socket` connects: `write` goes to its stdin, and its stdout comes.

        It ends with the connection, or by `cancel`. If its exit status is not 0, the reply raises a HostError with its
        last words. Its kind is "unavailable" for EX_UNAVAILABLE, and "program" for all others.

        Args:
            nudge: What its input gets while srun brings its output in pieces, which come sooner so. It comes between
                the data of two calls of `write`, never inside. ASCII, and nothing that the program acts on.
        """
        fields = {**_program(argv, None, unset), **({"nudge": nudge.decode("ascii")} if nudge else {})}
        return self._send(_r.ConversationRequest("converse", fields, first, on_data))

    def write(self, connected: Reply[None], data: bytes) -> None:
        """Send bytes to a socket or a program, after an answer to the first; they are lost if it is gone."""
        self.link.write(connected.id, data)

    def list(
        self, path: str, glob: str = "**", limit: int = 10_000, *, after: Sequence[Reply[Any]] = ()
    ) -> Reply[list[ListedFile]]:
        """List files below a folder whose relative name matches: `*` stays within one name, `**` crosses folders."""
        fields = {"path": path, "glob": glob, "limit": limit}
        return self._send(
            _r.SimpleRequest("list", fields, functools.partial(_listed, self.host.name, path), after=after)
        )

    def use_commands(self, host: Host) -> Reply[None]:
        """Have programs there found in the folders, and with the variables, that this host has for its scheduler's."""
        self.host = host

        def read(header: Header, _: bytes) -> None:
            told = header.get("lacking")
            if not isinstance(told, list) or any(type(each) is not str for each in told):
                raise _r.MalformedAnswer(f"lacking: {ascii(told)[:80]}")
            self.facts = self.facts._replace(lacking=tuple(told))

        return self._send(_r.SimpleRequest("commands", commands_of(host), read))

    def ping(self) -> Reply[None]:
        """Ask for an answer, as soon as the host can."""
        return self._send(_r.SimpleRequest("ping", {}, lambda *_: None))

    def on_state(self, listener: Callable[[ConnectionState], None]) -> Callable[[], None]:
        """Call `listener` when the connection breaks and when it is back, on the reader thread.

        Returns:
            What ends that.
        """
        return self.link.on_state(listener)

    @property
    def state(self) -> ConnectionState:
        """The present state of the connection."""
        return self.link.state

    def usable(self) -> bool:
        """Whether requests can be sent: not closed, not refused for good, not a parent process's."""
        return self.link.usable()

    def answers_here(self) -> bool:
        """Whether this thread brings the answers of this connection, so that it cannot wait for them."""
        return self.link.answers_here()

    def has_room(self, within_s: float) -> bool:
        """Wait until little is queued for the host; return False if too much of it is left after that time.

        Waits for nothing on a thread that brings answers, or if the connection has ended.
        """
        return self.link.has_room(within_s)

    def close(self) -> None:
        """End the connection. Open requests fail; what was spawned keeps running."""
        self.link.close()

    def _send(self, request: _r.OpenRequest[_r.T]) -> Reply[_r.T]:
        self.link.send(request)
        return request.reply


class ConnectedHost(Protocol):
    """A host with its connection; `host_state.HostState` is one.

    Attributes:
        root: The host's root, absolute.
    """

    host: Host

    @property
    def connection(self) -> HostConnection: ...

    @property
    def root(self) -> str: ...


def _open(
    transport: Transport, host: Host, have: Sequence[str] = (), asker: Asker | None = None, ahead: bytes = b"",
    meanwhile: Callable[[], object] = lambda: None,
) -> AgentStream:  # fmt: skip
    """Start an agent, as `boot`, and check that its hello holds all facts.

    Raises:
        HostError: Also where this machine cannot open one more stream, for which there may be room later.
    """
    try:
        opened = boot(transport, host, have, asker, ahead, meanwhile)
    except OSError as error:
        raise Unreachable(
            f"This machine could not open a connection to {host.name}: {error}", host=host.name, retryable=True
        ) from error
    except HostError as error:
        error.host = error.host or host.name
        raise
    try:
        _facts(opened.hello)
    except KeyError as error:
        opened.stream.close()
        raise HostError(f"The agent on {host.name} sent a greeting without {error}", host=host.name) from error
    except ValueError as error:
        opened.stream.close()
        raise HostError(
            f"The agent on {host.name} sent an invalid greeting", host=host.name, evidence=[str(error)]
        ) from error
    return opened


_ANSWER_S = 60.0
_LISTS = {"version": int, "have": bool, "lacking": str}
_NUMBERS = {"uid", "umask", "pid", "cpus", "memory_bytes"}


def _facts(hello: Header) -> HostFacts:
    """Read the facts of a hello.

    Raises:
        KeyError: It lacks a fact.
        ValueError: A fact has another type.
    """
    values: dict[str, Any] = {name: hello[name] for name in HostFacts._fields}
    for name, value in values.items():
        each = _LISTS.get(name)
        wanted = list if each else int if name in _NUMBERS else bool if name == "ends_jobs" else str
        if type(value) is not wanted or (isinstance(value, list) and any(type(entry) is not each for entry in value)):
            raise ValueError(f"{name}: {ascii(value)[:80]}")
    if len(hello["version"]) != 3 or min(hello["version"]) < 0 or not hello["root"].startswith("/"):
        raise ValueError(f"version: {hello['version']}, root: {hello['root']!a:.80}")
    values.update({name: tuple(hello[name]) for name in _LISTS})
    return HostFacts(**values)


def _program(argv: Sequence[str], env: Mapping[str, str] | None, unset: Sequence[str]) -> Header:
    return {"argv": list(argv), "env": dict(env or {}), "unset": list(unset)}


def _written(header: Header, _: bytes) -> bool:
    return not header.get("existed")


def _completed(host: str, argv: Sequence[str], header: Header, body: bytes) -> Completed:
    """Read how a program ended. An answer that was cut off is an error: its end is missing."""
    rc, signal = (None if header.get(name) is None else _r.number(header, name) for name in ("rc", "signal"))
    out = _r.number(header, "out", below=len(body) + 1)
    if _r.boolean(header, "truncated"):
        raise HostError(
            f"`{argv[0]}` printed more than the 4 MB that clusterfn reads", host=host,
            evidence=body[:out][-200:].decode("utf-8", "replace").splitlines()[-1:],
        )  # fmt: skip
    return Completed(rc, signal, body[:out], body[out:])


def _listed(host: str, path: str, header: Header, _: bytes) -> list[ListedFile]:
    told = header.get("files")
    rows = [entry if isinstance(entry, list) else [] for entry in told] if isinstance(told, list) else [[]]
    kinds = ([str, int, float, int], [str, int, int, int])
    if any([type(each) for each in row] not in kinds or row[1] < 0 for row in rows):
        raise _r.MalformedAnswer(f"files: {ascii(told)[:80]}")
    if _r.boolean(header, "truncated"):
        raise HostError(
            f"{path} has more files that match than the {len(rows)} that fit into one answer", host=host,
            hint="use a narrower pattern, or pack them into one file on the host",
        )  # fmt: skip
    return [ListedFile(*row) for row in rows]


def connect(
    host: Host, *, have: Sequence[str] = (), probe: Sequence[str] = (), meanwhile: Callable[[], object] = lambda: None
) -> HostConnection:
    """Open a new connection to `host`; `facts.have` says which of the paths exist.

    The command `probe` runs there as soon as the agent does, which saves a round trip: `probed` has its reply.
    `meanwhile` is called here while the agent starts.

    The person at this process is asked for what the login needs, now and never again: not at a reconnect.

    Raises:
        HostError: Unreachable, AuthenticationError, HostKeyError; or no agent could be started there.
        ConfigError: The host's address or another of its keys cannot be used.
    """
    connection = HostConnection(host, transport_for(host), have, prompts.person(), probe, meanwhile)
    with _lock:
        _opened[:] = [each for each in _opened if each.usable()] + [connection]
    return connection


_lock = threading.Lock()
_opened: list[HostConnection] = []
_exiting = False
_shared: dict[Any, tuple[threading.Lock, list[HostConnection]]] = {}


def connection_for(
    host: Host, *, have: Sequence[str] = (), probe: Sequence[str] = (), meanwhile: Callable[[], object] = lambda: None
) -> HostConnection:
    """Return the connection to `host` that this process shares; open one if there is none that can be used.

    A callback of a connection that has ended gets that one, whose requests raise why: it must not log in again, nor
    keep others waiting. So does a background thread once the program exits.

    Raises:
        HostError: As `connect`.
    """
    with _lock:
        login = (host.address, host.transport, host.scheduler == "local", host.ssh_config)
        way = (host.name, *login, host.root, host.python)
        lock, held = _shared.setdefault(way, (threading.Lock(), []))
    if held and (held[0].answers_here() or (_exiting and threading.current_thread() is not threading.main_thread())):
        return held[0]
    with lock:
        if not held or not held[0].usable():
            with spoken_wait.speaking(lambda: f"connecting to {host.name} ({host.address}): it does not answer yet"):
                held[:] = [connect(host, have=have, probe=probe, meanwhile=meanwhile)]
        elif (host.scheduler_path or host.scheduler_env) and commands_of(held[0].host) != commands_of(host):
            held[0].use_commands(host).result(_ANSWER_S)  # `init` has written down where they are
        return held[0]


def _close_all() -> None:
    global _exiting
    _exiting = True
    with _lock:
        connections = list(_opened)
        _opened.clear()
    for connection in connections:
        connection.close()


def _forget_all() -> None:
    """Drop the connections and locks of the parent in a forked child."""
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_opened)  # kept alive, or their pipes would be closed under the parent's threads
    _opened.clear()
    _shared.clear()


_inherited: list[HostConnection] = []
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
