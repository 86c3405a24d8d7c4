"""What reaches the agent on a host, with damage in it: a request fails by itself, and the agent goes on."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

pytest.importorskip("fcntl")

from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.bridge.agent.processes import Program
from clusterfn.bridge.agent.server import Agent
from tests.fuzz import ODD, damaged, fuzzed, twisted

# A scratch folder by a fixed name, as samples are made before tests begin; each test process has its own.
FOLDER = os.path.join(tempfile.gettempdir(), f"clusterfn-fuzz-{os.getpid()}")
REQUESTS: list[dict[str, Any]] = [
    {"id": 2, "do": "hello", "root": f"{FOLDER}/root", "have": [FOLDER]},
    {"id": 3, "do": "have", "paths": [FOLDER, f"{FOLDER}/x"]},
    {"id": 4, "do": "put", "path": f"{FOLDER}/put", "size": 4, "mode": 0o600, "sync": False, "after": [3]},
    {"id": 5, "do": "put", "path": f"{FOLDER}/tree", "files": [["a", 2, 0o600], ["b", 2, 0o600, 7]]},
    {"id": 6, "do": "get", "path": f"{FOLDER}/file", "offset": 0},
    {"id": 15, "do": "get", "path": FOLDER, "files": [["file", 7], ["none", 1]]},
    {"id": 7, "do": "follow", "files": [[f"{FOLDER}/file", 2]]},
    {
        "id": 8,
        "do": "follow",
        "files": [[f"{FOLDER}/file", 2]],
        "until": f"{FOLDER}/file",
        "with": [[f"{FOLDER}/file", 0]],
    },
    {"id": 9, "do": "follow", "still": {"path": f"{FOLDER}/file", "silent_s": 1.0}},
    {"id": 10, "do": "run", "argv": ["true"], "cwd": None, "unset": ["X"], "timeout_s": 5},
    {"id": 11, "do": "repeat", "argv": ["true"], "interval_s": 1.0, "share": "looks", "timeout_s": 5},
    {"id": 12, "do": "have", "path": FOLDER, "glob": "**", "limit": 10},
    {"id": 13, "do": "stop", "target": 7},
    {"id": 14, "do": "have", "paths": [], "after": [13, 12]},
    {"id": 4, "do": "chunk", "last": True},
]
# Nothing outside the folder may be written or read: no path of this machine, no variable, no `..`.
HARMLESS = [odd for odd in ODD if not (isinstance(odd, str) and ("/" in odd or "$" in odd or "." in odd))]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(FOLDER)
    path.mkdir(mode=0o700, exist_ok=True)
    (path / "file").write_bytes(b"content")
    yield path
    os.system(f"rm -rf '{FOLDER}'")


@fuzzed(data=damaged([pack(request, b"data") for request in REQUESTS]))
def test_the_agents_inbox_gives_frames_or_says_that_there_is_none(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        for _ in Inbox().feed(data):
            pass


@contextlib.contextmanager
def an_agent() -> Iterator[Agent]:
    """An agent in this process, of which nothing stays: no file, and no program that it has started."""
    source, asking = os.pipe()
    answers, sink = os.pipe()
    os.set_blocking(sink, False)
    agent = Agent(source, sink)
    try:
        yield agent
    finally:
        # also those whose request was stopped: it is no longer among the requests
        callers = [getattr(call, "__self__", None) for call in (*agent.children.values(), *agent.readers.values())]
        programs = [each for each in callers if isinstance(each, Program)]
        for open_request in list(agent.requests.values()):
            open_request.release()
        while agent.children:
            agent.reap()
        for program in programs:
            program.finish()
        watching = [agent.watcher.inotify.fd] if agent.watcher.inotify else []
        for fd in (source, asking, answers, sink, *watching):
            os.close(fd)


@fuzzed(weight=0.1, requests=st.tuples(twisted(REQUESTS, HARMLESS), twisted(REQUESTS, HARMLESS)))
def test_a_request_that_makes_no_sense_ends_by_itself_and_the_agent_goes_on(requests: Any, folder: Path) -> None:
    with an_agent() as agent:
        for request in requests:
            with contextlib.suppress(ValueError):
                agent.dispatch(request, b"data")
        for _ in range(3):
            agent.at(0, lambda: None)
            agent.turn()
        agent.dispatch({"id": 2**31, "do": "have", "paths": []}, b"")
        assert agent.out.pending()


def test_no_program_of_a_request_that_was_stopped_stays_behind(folder: Path) -> None:
    before = os.listdir("/dev/fd")
    with an_agent() as agent:
        agent.dispatch({"id": 10, "do": "repeat", "argv": ["true"], "interval_s": 5.0}, b"")
        assert agent.children
        agent.dispatch({"id": 11, "do": "stop", "target": 10}, b"")

    assert os.listdir("/dev/fd") == before
