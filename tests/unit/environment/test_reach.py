"""Servers that do not answer: they are found out soon, and the Python of an environment then comes from elsewhere."""

from __future__ import annotations

import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.config.spec import EnvironmentSettings, Host
from clusterfn.environment import conda_solver, reach, resolve, standalone
from clusterfn.errors import LockError
from clusterfn.hosts import environment_facts
from tests.unit.environment.shelf import Shelf, shelf_in

CALLER = (sys.version_info[0], sys.version_info[1])


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/channel"


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a server that answers everything by 404."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/channel"
    server.shutdown()
    server.server_close()


def test_any_answer_counts_and_silence_is_told_once(silent: str, refusing: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "ANSWER_S", 0.3)

    assert reach.why_unreachable([refusing, "file:///srv/channel"], {}) == ""
    assert re.search("no answer within 0 s|timed out", reach.why_unreachable([silent, refusing], {}))
    began = time.monotonic()
    assert reach.why_unreachable([silent], {}) and time.monotonic() - began < 0.3
    refused = reach.why_unreachable(["http://127.0.0.1:9/x", "http://ada:secret@no-such-host.invalid"], {})
    assert "127.0.0.1:9: [Errno 111]" in refused and "secret" not in refused


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with shelf_in(tmp_path, monkeypatch) as made:
        yield made


def session(host: Host) -> Any:
    """A connection to this machine, which says that it is a host."""

    def run(argv: list[str], **_: object) -> Any:
        done = subprocess.run(argv, capture_output=True, check=False)
        return SimpleNamespace(result=lambda _: SimpleNamespace(rc=done.returncode, out=done.stdout, err=done.stderr))

    facts = SimpleNamespace(platform="linux-x86_64", glibc="2.28", uid=0, python=sys.executable)
    return SimpleNamespace(host=host, root="/root", connection=SimpleNamespace(run=run, facts=facts))


def test_where_no_other_place_answers_the_hosts_python_is_taken_and_kept(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def nowhere(what: str) -> Any:
        def ask(*_: object) -> None:
            asked.append(what)
            raise LockError(f"{what} does not answer")

        return ask

    monkeypatch.setattr(conda_solver, "refuse_unreachable", nowhere("the channel"))
    monkeypatch.setattr(standalone, "find_python", nowhere("the mirror"))
    shelf.wheel("toy")
    shelf.write("toy\n", "requirements.txt")
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")

    def locked(on: Host = host) -> resolve.LockedEnvironment:
        spec = shelf.read("requirements.txt")
        return environment_facts.lock_environment(session(on), spec, 0, CALLER, shelf.said.append)

    made = locked()
    assert made.base is not None and made.lock.python_package("linux-64").manager == "host"
    assert "no place gives a Python for requirements.txt: the Python of tensor01 is tried" in shelf.said
    assert asked == ["the channel", "the mirror"] and shelf.pythons == []

    assert locked() == made
    assert asked == ["the channel", "the mirror"]  # not once more
    with pytest.raises(LockError, match="the channel does not answer"):
        monkeypatch.setattr(conda_solver, "solve", nowhere("the channel"))
        locked(host._replace(making=EnvironmentSettings(python="conda")))
