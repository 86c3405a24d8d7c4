"""The process that holds one paramiko connection for this user's programs, where the system's ssh cannot.

Runs apart from any terminal. It ends when it is told to, when the connection was unused for its time, or when
the connection dies; nothing of it is left then. It never connects a second time. `holder_client` starts it,
and answers its questions.

    starter -> holder  {"host": base64 of a pickled Host, "asks": bool}, then {"answer": text or null} to each question
    holder -> starter  {"ask": {...}} any number of times, then {"held": {...}} or {"error": base64 of a pickled error}
    client -> holder   {"open": command}, then raw input; or {"end": true}; or {"there": true}, which asks nothing
    holder -> client   {"ok": true} or {"refused": text}, then "o" + stdout, "e" + stderr, "x" + {"cause": text}
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import secrets
import sys
import threading
import time
from dataclasses import asdict
from multiprocessing.connection import Connection, Listener
from typing import Any, Callable

import paramiko

from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.transports import held_connections
from clusterfn.hosts.transports import paramiko as by_paramiko
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.prompts import NotAnswered, Question
from clusterfn.hosts.transports.ssh_config import Settings, resolve

_LOOK_S = 1.0
_PIECE = 64 * 1024
_WAITING = 128  # clients that may knock at once
_GONE = (OSError, EOFError)


def main() -> None:
    """Log in, tell the starter, and hold the connection until its end."""
    given = _hear()
    host: Host = pickle.loads(base64.b64decode(given["host"]))
    asker = _Relay()
    try:
        settings = resolve(host)
        hops = by_paramiko.connect(host, settings, asker if given["asks"] else None)
        try:
            _hold(host, settings, hops, asker.count > 0)
        finally:
            by_paramiko.close(hops)
    except ClusterfnError as error:
        _tell({"error": base64.b64encode(pickle.dumps(error)).decode()})


def _hold(host: Host, settings: Settings, hops: list[paramiko.Transport], asked: bool) -> None:
    key = held_connections.key_of(settings, held_connections.HOLDER)
    windows = sys.platform == "win32"
    # a name of its own: a holder that ends unlinks it, and a later login may have taken the place
    own = str(held_connections.socket_path(f"{key}-{secrets.token_hex(4)}"))
    address = rf"\\.\pipe\clusterfn-{secrets.token_hex(16)}" if windows else own
    secret = secrets.token_hex(16) if windows else ""  # an old Python's handshake needs MD5, which some machines forbid
    place = f"{settings.user}@{settings.place}"
    made = HeldConnection(
        key,
        held_connections.HOLDER,
        host.name,
        place,
        os.getpid(),
        time.time(),
        host.login_ttl_s,
        asked,
        address,
        secret,
    )
    with _listener(made) as listener:
        held_connections.write_record(made)
        try:
            _tell({"held": asdict(made)})
            _leave_the_starter()
            _Holder(host, settings, hops[-1], made).run(listener)
        finally:
            held_connections.forget_record(made)


def _listener(made: HeldConnection) -> Listener:
    try:
        return Listener(made.address, backlog=_WAITING, authkey=made.secret.encode() or None)
    except OSError as error:
        raise held_connections.unwritable(error) from error


class _Relay:
    """Asks the person through the starter. `count`: how many questions there were."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, question: Question) -> str:
        self.count += 1
        _tell({"ask": asdict(question)})
        answer = _hear()["answer"]
        if answer is None:
            raise NotAnswered
        return str(answer)


def _hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:  # the starter is gone: no program waits for a login
        os._exit(1)
    given: dict[str, Any] = json.loads(line)
    return given


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _leave_the_starter() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


class _Holder:
    """The connection, and who uses it."""

    def __init__(self, host: Host, settings: Settings, ssh: paramiko.Transport, made: HeldConnection) -> None:
        self.host, self.settings, self.ssh, self.made = host, settings, ssh, made
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._clients = 0
        self._used = time.monotonic()

    def run(self, listener: Listener) -> None:
        """Until it is over."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        while self.ssh.is_active() and not self._is_idle() and not self._over.wait(_LOOK_S):
            pass

    def _is_idle(self) -> bool:
        """Whether it was unused for its time, or cannot be found any more: its record is gone, or a later login's."""
        with self._lock:
            if self._clients:
                return False
            return (
                time.monotonic() - self._used > self.made.ttl_s
                or held_connections.find_record(self.made.key) != self.made
            )

    def _accept(self, listener: Listener) -> None:
        while not self._over.is_set():
            try:
                client = listener.accept()
            except _GONE:
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Connection[Any, Any]) -> None:
        with contextlib.suppress(*_GONE), client, self._counted():
            asked = json.loads(client.recv_bytes())
            if asked.get("end"):
                self._over.set()
            if "open" in asked:
                self._open(client, asked["open"])
            else:
                client.send_bytes(b"{}")

    @contextlib.contextmanager
    def _counted(self) -> Any:
        with self._lock:
            self._clients += 1
        try:
            yield
        finally:
            with self._lock:
                self._clients -= 1
                self._used = time.monotonic()

    def _open(self, client: Connection[Any, Any], command: str) -> None:
        try:
            channel = by_paramiko.session(self.host, self.settings, self.ssh, command)
        except HostError as error:
            client.send_bytes(json.dumps({"refused": [error.message, *error.evidence]}).encode())
            return
        client.send_bytes(b'{"ok": true}')
        with channel:
            _Pumps(client, channel, self.ssh).run()


class _Pumps:
    """One channel and its client, until either has ended."""

    def __init__(self, client: Connection[Any, Any], channel: paramiko.Channel, ssh: paramiko.Transport) -> None:
        self.client, self.channel, self.ssh = client, channel, ssh
        self._sending = threading.Lock()

    def run(self) -> None:
        stream = by_paramiko.ParamikoStream(self.channel, [self.ssh])
        threads = [
            threading.Thread(target=self._out, args=(tag, receive), daemon=True)
            for tag, receive in ((b"o", self.channel.recv), (b"e", self.channel.recv_stderr))
        ]
        threading.Thread(target=self._in, daemon=True).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._send(b"x" + json.dumps({"cause": stream.cause()}).encode())

    def _in(self) -> None:
        with contextlib.suppress(*by_paramiko.BROKEN):
            while data := self.client.recv_bytes():
                self.channel.sendall(data)
        self.channel.close()  # the client is gone, or the command no longer reads

    def _out(self, tag: bytes, receive: Callable[[int], bytes]) -> None:
        with contextlib.suppress(*by_paramiko.BROKEN):
            while piece := receive(_PIECE):
                self._send(tag + piece)

    def _send(self, data: bytes) -> None:
        with self._sending:
            self.client.send_bytes(data)


if __name__ == "__main__":
    main()
