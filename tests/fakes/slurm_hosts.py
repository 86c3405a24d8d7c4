"""Login nodes of a SLURM cluster in memory: they take every job, count what they are asked, and end jobs when told to.

With `scheduler="bare"` they are machines without a scheduler, whose agent starts each job.

with slurm_hosts(monkeypatch, folder, 3) as hosts:
    job = clusterfn.Executor("node0").submit(abs, -1)
    hosts.nodes["node0"].end_all()
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.config.spec import Host
from clusterfn.hosts import connection
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.rpc.frames import Header, pack
from clusterfn.hosts.serialization import part
from tests.fakes.transport import FakeTransport, Far, agent

_FOUND = {
    "path": "/usr/bin/python3", "version": list(sys.version_info[:2]), "prefix": "/usr", "named": True, "script": False,
    "missing": [], "torch": ["", ""], "conda": False, "venv": False, "set": {},
}  # fmt: skip
_OK = {"end": True, "ok": True}


class LoginNode(agent):
    """One login node, whose agent answers at once.

    Attributes:
        asked: How often it was asked for each thing: "put", "follow", "squeue", "scontrol", …
        log: The kinds of requests, in order; "follow still" for those about a heartbeat.
        received: How many bytes it was sent.
        silent_jobs: The still requests by number: answering one says that a heartbeat has stopped.
    """

    asked: collections.Counter[str]  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        super().__init__(self._answers, root=f"/home/{name}/.clusterfn", hostname=name)
        self.asked = collections.Counter()
        self.log: list[str] = []
        self.received = 0
        self.silent_jobs: list[int] = []
        self._jobs: dict[int, Header] = {}  # the waits for outcomes, by request
        self._have_ended = False
        self._names: dict[str, str] = {}  # of jobs, in their scheduler, and the state
        self._looks: list[int] = []
        self._far: Far | None = None
        self._lock = threading.Lock()

    def answer(self, far: Far, header: Header, body: bytes) -> None:
        self._far = far
        if header["do"] == "hello":
            super().answer(far, header, body)
            return
        self.received += len(body) + len(json.dumps(header))
        for fields, content in self._answers(header, body):
            far.write(pack({"id": header["id"], **fields}, content))

    def _answers(self, request: Header, body: bytes) -> Iterator[tuple[Header, bytes]]:
        do, number = request["do"], request["id"]
        program = request["argv"][0].rpartition("/")[2] if "argv" in request else ""
        with self._lock:
            if do == "follow" and request.get("until", "").endswith(layout.OUTCOME):
                self._jobs[number] = request
            elif "still" in request:
                self.silent_jobs.append(number)
            elif do == "repeat":
                self._looks.append(number)
        self.asked[program if do in ("run", "repeat") else "still" if "still" in request else do] += 1
        self.log.append(f"{do} still" if "still" in request else do)
        if do == "stop" or (do == "chunk" and request.get("last")):
            yield _OK, b""
        elif do == "have":
            yield {**_OK, "have": [True for _ in request["paths"]]}, b""
        elif do == "get":
            yield {**_OK, "size": 0}, b""
        elif do == "run":
            yield from self.ran(program, request, body)
        elif do == "spawn":
            yield {"pid": 1000 + self.asked["spawn"], "starttime": 1}, b""
        elif do == "repeat":
            yield self._look()
        elif do == "follow" and self._have_ended:
            self.end_all(later_too=True)

    def ran(self, program: str, request: Header, stdin: bytes) -> Iterator[tuple[Header, bytes]]:
        """Answer a program that was run to its end."""
        out = b""
        if program == "sbatch":
            out = b"%d\n" % (100 + self.asked["sbatch"])
            self._names[next((each[11:] for each in request["argv"] if each.startswith("--job-name=")), "")] = "PENDING"
        elif program == "sh":
            out = json.dumps(_FOUND).encode()
        yield {**_OK, "rc": 0, "signal": None, "out": len(out), "truncated": False}, out

    def looked(self) -> bytes:
        """Return what squeue prints."""
        lines = [f"{number}|{state}|None|1|N/A|{name}" for number, (name, state) in enumerate(self._names.items(), 101)]
        return "\n".join(lines).encode()

    def _look(self) -> tuple[Header, bytes]:
        out = self.looked()
        return {"rc": 0, "out": len(out), "err": 0, "same": False, "took_s": 0.0}, out

    # what happens there, as the test wants it

    def look(self) -> None:
        """Let a look at the scheduler come, as after its interval."""
        header, out = self._look()
        self._say({**header, "id": self._looks[-1]}, out)

    def forget_all(self) -> None:
        """Let the scheduler list no job any more."""
        self._names = {}

    def fall_silent(self) -> None:
        """Say of each job that its heartbeat has stopped, all in one piece: no look comes between them."""
        assert self._far is not None
        self._far.write(b"".join(pack({"id": number, "silent_s": 12.0}, b"") for number in self.silent_jobs))

    def run_one(self, number: int) -> None:
        """Let the scheduler say from now on that the job of this number, from 0 on, runs."""
        self._names[list(self._names)[number]] = "RUNNING"

    def end_all(self, later_too: bool = False) -> None:
        """Publish the outcome of each job that is followed: it has returned 7; with `later_too`, of all others, too."""
        with self._lock:
            jobs, self._jobs = self._jobs, {}
            self._have_ended = later_too
        value = io.BytesIO()
        told = json.dumps({"kind": layout.RETURNED, "value": part("container").dump(7, value)}).encode()
        for number, request in jobs.items():
            files = request.get("with")
            if files:
                self._say({"id": number, "content": True}, told)
                self._say({"id": number, "file": 0, "size": len(value.getvalue())}, value.getvalue())
            self._say({"id": number, **_OK}, b"" if files else told)

    def _say(self, header: Header, body: bytes = b"") -> None:
        assert self._far is not None
        self._far.write(pack(header, body))


class SlurmHosts:
    """Some login nodes, each by the name of its host."""

    def __init__(self, names: list[str], node: Callable[[str], Any] = LoginNode) -> None:
        self.nodes = {name: node(name) for name in names}

    @property
    def asked(self) -> collections.Counter[str]:
        """How often all of them together were asked for each thing."""
        return sum((collections.Counter(each.asked) for each in self.nodes.values()), collections.Counter())


@contextlib.contextmanager
def slurm_hosts(
    monkeypatch: pytest.MonkeyPatch, folder: Path, count: int, first: int = 0, scheduler: str = "slurm",
    node: Callable[[str], Any] = LoginNode,
) -> Iterator[SlurmHosts]:  # fmt: skip
    """Let clusterfn.yml name so many hosts, and connect to them; `first` is the number of the first."""
    names = [f"node{number}" for number in range(first, first + count)]
    made, opened = SlurmHosts(names, node), []
    lines = [
        f"  {name}: {{address: {name}, scheduler: {scheduler}, environment: 'python:/usr/bin/python3'}}"
        for name in names
    ]
    config = folder / "clusterfn.yml"
    config.write_text("\n".join(["hosts:", *lines]) + "\n", encoding="utf-8")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))

    def connect(host: Host, **more: Any) -> HostConnection:
        opened.append(HostConnection(host, FakeTransport(made.nodes[host.name]), more.get("have", ())))
        return opened[-1]

    monkeypatch.setattr(connection, "connect", connect)
    try:
        yield made
    finally:
        for each in opened:
            each.close()
