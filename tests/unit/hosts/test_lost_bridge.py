"""A client that believes a host to have its bridge, and a host that has lost it since."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.config.spec import Host
from clusterfn.hosts import bridge_bundle, environment_builder
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.bridge_bundle import HostBridge, HostContents
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import HostState
from tests.fakes.transport import FakeTransport, agent
from tests.turns import answered, settle
from tests.waiting import WAIT_S

OK = {"end": True, "ok": True}
LOST = b"python3: can't open file '/r/supervise.py': [Errno 2] No such file or directory\n"


class Forgetful:
    """A host: what it has, and what it was asked.

    Attributes:
        has_bridge: Whether its programs are there.
        uploads: How often the bridge was sent.
        runs: How often one of its programs was started.
        keeps: Whether it keeps what it is sent.
        is_void: Whether its programs are files of zeros, which an old Python takes for programs that do nothing.
    """

    def __init__(self) -> None:
        self.has_bridge, self.keeps, self.is_void = False, True, False
        self.uploads = self.runs = 0
        self.partial = b""

    def answer(self, request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Answer one request."""
        is_program = request["do"] == "run" and "-S" in request["argv"]
        if is_program:
            self.runs += 1
            out, err = (b'{"id": "x"}\n', b"") if self.has_bridge else (b"", self.partial or LOST)
            err = err.replace(b"/r/supervise.py", request["argv"][3].encode())
            out, err = (b"", b"") if self.is_void else (out, err)
            yield {**OK, "rc": bool(err) * 2, "out": len(out), "truncated": False}, out + err
        elif request["do"] == "run":
            self.has_bridge = self.has_bridge and "rm" not in " ".join(request["argv"])
            head = b"\0" if self.is_void else b"i"
            yield {**OK, "rc": 0, "out": 1, "truncated": False}, head
        elif request["do"] == "put":  # its chunks may come after what was sent behind it
            self.uploads += 1
            self.has_bridge, self.is_void = self.keeps, False
            yield OK, b""


@pytest.fixture
def there() -> Forgetful:
    return Forgetful()


@pytest.fixture
def host(there: Forgetful, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostState]:
    """What a program knows that has used the host before."""
    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(agent(there.answer)))
    state = HostState(Host("box", f"box-{os.urandom(4).hex()}", "bare", "clusterfn.yml:3"))
    assert state.bridge.supervise("list", "/r").result(WAIT_S).rc == 0
    assert (there.uploads, there.runs) == (1, 1)
    yield state
    state.connection.close()


@pytest.mark.parametrize("said", [LOST, b"ModuleNotFoundError: No module named '_clusterfn.bridge'\n"])
def test_what_asks_a_host_that_has_lost_the_bridge_gets_its_answer(host: HostState, there: Forgetful, said: bytes):
    there.has_bridge, there.partial = False, said

    assert host.bridge.supervise("list", "/r").result(WAIT_S) == Completed(0, None, b'{"id": "x"}\n', b"")

    there.has_bridge = False
    assert environment_builder.run_builder(host, "list", "/r") == [{"id": "x"}]
    assert there.uploads == 3

    there.is_void = True
    assert host.bridge.supervise("list", "/r").result(WAIT_S).out == b'{"id": "x"}\n' and there.uploads == 4


def test_a_host_that_keeps_nothing_is_asked_twice_and_no_more(host: HostState, there: Forgetful):
    there.has_bridge = there.keeps = False

    assert host.bridge.supervise("list", "/r").result(WAIT_S).err.endswith(LOST[-20:])
    assert there.runs == 3


def test_the_bridge_of_another_version_is_not_sent(host: HostState, there: Forgetful):
    there.has_bridge = False
    other = bridge_bundle.bridge().digest[::-1]

    assert host.bridge.supervise("conclude", "/r/jobs/7", bridge=f"/r/bridge/{other}").result(WAIT_S).rc == 2
    assert there.uploads == 1


def zeroed(path: Path) -> None:
    """Leave what a crash of a file server may leave."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix")
def test_a_bridge_of_which_one_file_is_lost_or_damaged_is_sent_again_as_a_whole(tmp_path):
    here = HostState(Host(name="here", address="", source="clusterfn.yml:3", scheduler="local", root=str(tmp_path)))
    builder = [layout.BUILD, "list", here.root]  # the agent itself may have loaded the supervisor
    assert here.bridge.run(builder).result(WAIT_S).rc == 0
    damages = ((layout.BUILD, Path.unlink), (layout.BUILD, zeroed), ("_clusterfn/bridge/layout.py", zeroed))
    for name, damage in (*damages, (layout.SUPERVISE, zeroed)):
        lost = Path(here.bridge.folder, name)
        content = lost.read_bytes()
        damage(lost)
        shutil.rmtree(lost.parent / "__pycache__", ignore_errors=True)

        asks = [name, "clean", here.root, "9", "9", "dry"] if name == layout.SUPERVISE else builder
        assert here.bridge.run(asks).result(WAIT_S).rc == 0
        assert lost.read_bytes() == content
    here.connection.close()


class ByHand:
    """A connection whose commands end as the test says.

    Attributes:
        asked: The replies to its commands.
        sent: The folders that were sent, and what each came after.
    """

    def __init__(self) -> None:
        self.facts = SimpleNamespace(root="/r", python="python3")
        self.asked: list[Reply[Any]] = []
        self.sent: list[tuple[str, list[Reply[Any]]]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Reply[Any]:
        self.asked.append(Reply(lambda: None))
        return self.asked[-1]

    def put_tree(self, folder: str, files: object, after: Sequence[Reply[Any]] = ()) -> Reply[bool]:
        self.sent.append((folder, list(after)))
        return answered(True)

    def end(self, number: int, rc: int, err: bytes = b"") -> None:
        self.asked[number].resolve(Completed(rc, None, b"", err))
        settle()


@pytest.fixture
def by_hand() -> tuple[HostBridge, ByHand]:
    there: Any = ByHand()
    return HostBridge(lambda: there, HostContents(), ()), there


def test_of_requests_that_miss_the_bridge_together_the_first_sends_it_again(by_hand: tuple[HostBridge, ByHand]):
    bridge, there = by_hand
    missed = LOST.replace(b"/r/supervise.py", f"{bridge.folder}/supervise.py".encode())
    replies = [bridge.supervise("list", "/r") for _ in range(2)]

    for number in (0, 1):
        there.end(number, 2, missed)
    for number in (2, 3, 4):
        there.end(number, 0)

    assert [each.result(WAIT_S).rc for each in replies] == [0, 0]
    assert there.sent == [(bridge.folder, []), (bridge.folder, [there.asked[2]])], "once again, after a removal"


def test_a_bridge_that_was_distrusted_is_sent_again_once_it_is_removed(by_hand: tuple[HostBridge, ByHand]):
    bridge, there = by_hand
    folder = bridge.folder
    bridge.lay_out()

    bridge.distrust()
    bridge.mend(folder)

    assert there.sent == [(folder, []), (folder, there.asked)]
