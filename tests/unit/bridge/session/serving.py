"""The server of a session as a process without a supervisor, and a client that speaks frames."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterfn.bridge import session
from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.hosts import serialization
from clusterfn.packing import payload
from tests.waiting import until

SERVE = (
    "import json, sys; from clusterfn.hosts import serialization; serialization.part('container'); "
    "from clusterfn.bridge.session import serve; "
    "print(json.dumps(serve.serve(sys.argv[1], json.loads(sys.argv[2]))))"
)
SPEC: dict[str, Any] = {
    "id": "7f3a000011112222", "scheduler": "bare", "secrets": [], "cwd": None, "outputs": [], "sys_path": [],
    "log_limit_bytes": 1 << 20, "grace_s": 5.0,
    "resources": {"memory_bytes": None, "time_s": None, "gpus": 0, "cores": 1},
}  # fmt: skip


def part(name: str) -> Any:
    """A module of the session, which a client's process may have no need of."""
    serialization.part("container")  # what a session's process has loaded before
    return importlib.import_module(f".{name}", session.__name__)


class Server:
    """A session's server as a process, without a supervisor."""

    def __init__(
        self, folder: Path, workers: int = 1, idle_s: float = 600.0, gpus: int = 0, python: str = sys.executable,
        before: str = "", **env: str,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.sockets: list[socket.socket] = []
        serving = {"idle_s": idle_s, "caller": list(sys.version_info[:2]), "workers": workers}
        resources = {**SPEC["resources"], "gpus": gpus}
        spec = {**SPEC, "root": str(folder / "root"), "session": serving, "resources": resources}
        argv = [python, "-c", before + SERVE, str(folder), json.dumps(spec)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
        until(lambda: (folder / "door.json").exists())
        self.address = json.loads((folder / "door.json").read_text())["socket"]

    def close(self) -> dict[str, Any]:
        """Close it as a client does; the session's value."""
        (self.folder / "calls" / "close").touch()
        out, _ = self.process.communicate(timeout=300)
        return dict(json.loads(out))

    def outcome(self, number: int) -> Path:
        return self.folder / "calls" / str(number) / "outcome.json"


class Client:
    """A client that speaks frames; the frames that have come."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(300)
        server.sockets.append(self.sock)
        self.sock.connect(server.address)
        self.inbox = Inbox()
        self.frames: list[tuple[dict[str, Any], bytes]] = []
        self.sock.sendall(frame({"what": "hello"}))
        self.next("welcome")

    def send(
        self, number: int, function: Callable[..., Any], *args: Any, live: bool = True, facts: Mapping[str, Any] = {}
    ) -> None:
        facts = {"what": "call", "n": number, "live": live, "sys_path": [], **facts}
        self.sock.sendall(frame(facts, payload_of(function, *args)))

    def values(self, calls: int, function: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
        """The values of so many calls, which are all sent first."""
        for number in range(1, calls + 1):
            self.send(number, function, *args, **more)
        return [self.end(number)[1] for number in range(1, calls + 1)]

    def next(self, what: str, number: int | None = None) -> tuple[dict[str, Any], bytes]:
        """Wait for a frame of this kind, of this call; drop it and keep those before it."""
        while True:
            for index, (header, _) in enumerate(self.frames):
                if header["what"] == what and number in (None, header.get("n")):
                    return self.frames.pop(index)
            data = self.sock.recv(1 << 20)
            assert data, f"the server closed the connection before {what!r} of {number}: {self.frames}"
            self.frames += self.inbox.feed(data)

    def printed(self) -> dict[tuple[str, int], bytes]:
        """The output that has come, by its stream and call."""
        found: dict[tuple[str, int], bytes] = {}
        for told, data in self.frames:
            if told["what"] in ("stdout", "stderr"):
                key = told["what"], told["n"]
                found[key] = found.get(key, b"") + data
        return found

    def end(self, number: int) -> tuple[dict[str, Any], Any]:
        """The outcome of a call, and its value if that came with it."""
        header, body = self.next("end", number)
        last = header["outcome"]
        outcome = json.loads(body[:last])
        found = outcome.get("value") if header["has_value"] else None
        return outcome, value_of(body[last:]) if found else None


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return pack(header, body)


def headers_of(data: bytes) -> list[dict[str, Any]]:
    """The headers of whole frames."""
    return [header for header, _ in Inbox().feed(data)]


def payload_of(function: Callable[..., Any], *args: Any) -> bytes:
    """The payload.pkl of a call."""
    return payload.pack(function, args, {}).data


def value_of(data: bytes) -> Any:
    return serialization.part("container").loads(bytearray(data))


def of_main(function: Callable[..., Any]) -> Callable[..., Any]:
    """Travels by value, as a function of a script does."""
    function.__module__ = "__main__"
    return function
