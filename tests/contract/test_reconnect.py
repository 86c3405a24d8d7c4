"""A stream that breaks in the middle costs time and nothing else: no byte is lost, none comes twice."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts import loop
from clusterfn.hosts.connection import ConnectionState, Followed, HostConnection, TreeFile
from clusterfn.hosts.rpc.reply import Reply
from tests.contract.conftest import Connect
from tests.processes import parent_of
from tests.waiting import WAIT_S, until

Break = Callable[[], None]


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def kill_agent(there: HostConnection) -> None:
    with contextlib.suppress(ProcessLookupError):  # broken already, and not yet seen
        os.kill(there.facts.pid, signal.SIGKILL)


def kill_session(there: HostConnection) -> None:
    """The sshd process that carries this connection, found from the agent upwards."""
    pid = there.facts.pid
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while name(pid) != "sshd":
            pid = parent_of(pid)
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["local", pytest.param("session", marks=pytest.mark.lab)])
def there(request: pytest.FixtureRequest, connect_to: Connect, local_host: Host) -> HostConnection:
    """A connection with `request.param` to be killed by `broken`."""
    if request.param == "local":
        return connect_to(local_host)
    return connect_to(request.getfixturevalue("lab_host")("py36-bash"))


@pytest.fixture
def broken(request: pytest.FixtureRequest, there: HostConnection) -> Break:
    """Breaks the connection: kills the agent here, or the sshd of a session there, by pid."""
    kind = request.node.callspec.params["there"]
    return lambda: kill_session(there) if kind == "session" else kill_agent(there)


@pytest.fixture
def folder(there: HostConnection) -> Iterator[str]:
    """A folder on the host, removed after the test."""
    path = f"{there.facts.root}/test-{os.getpid()}-{os.urandom(4).hex()}"
    there.run(["mkdir", "-p", path]).result(WAIT_S)
    yield path
    there.run(["rm", "-rf", path]).result(WAIT_S)


def test_get_goes_on_where_it_broke(there: HostConnection, broken: Break, folder: str, tmp_path: Path) -> None:
    data = os.urandom(2**20) * 30
    there.put(f"{folder}/big", data).result(WAIT_S)
    got = bytearray()
    breaks = iter([broken, broken])

    def sink(piece: bytes) -> None:
        got.extend(piece)
        if len(got) > 5 * 2**20:
            next(breaks, lambda: None)()

    there.get(f"{folder}/big", sink).result(WAIT_S)

    assert bytes(got) == data


def test_a_get_joins_no_two_files_after_a_break(there: HostConnection, broken: Break, folder: str) -> None:
    # On a busy machine all of a file that can be compressed may have left it by then. Both files are made before, since
    # the first is sent on while the second is written.
    old, new = (os.urandom(2**20) * 100 for _ in range(2))
    Path(folder, "big").write_bytes(old)
    Path(folder, "new").write_bytes(new)
    got = bytearray()

    def sink(piece: bytes) -> None:
        if len(got) < 5 * 2**20 <= len(got) + len(piece):
            os.replace(f"{folder}/new", f"{folder}/big")
            broken()
        got.extend(piece)

    with pytest.raises(HostError, match="has changed: another file took its name"):
        there.get(f"{folder}/big", sink).result(WAIT_S)
    assert bytes(got) == old[: len(got)]


def test_a_part_of_what_grows_goes_on_where_it_broke(there: HostConnection, broken: Break, folder: str) -> None:
    there.put(f"{folder}/big", b"1" * 2**20 * 30).result(WAIT_S)
    got = bytearray()

    def sink(piece: bytes) -> None:
        if len(got) < 5 * 2**20 <= len(got) + len(piece):
            with Path(folder, "big").open("ab") as growing:
                growing.write(b"2")
            broken()
        got.extend(piece)

    there.get(f"{folder}/big", sink, until=2**20 * 30).result(WAIT_S)
    assert bytes(got) == b"1" * 2**20 * 30


def test_puts_are_sent_again(there: HostConnection, broken: Break, folder: str) -> None:
    data = [os.urandom(2**20) * 20 for _ in range(3)]
    puts = [there.put(f"{folder}/{i}", each) for i, each in enumerate(data)]
    until(lambda: puts[0].done() or os.listdir(folder))
    broken()

    for put in puts:
        put.result(WAIT_S)

    assert [Path(folder, str(i)).read_bytes() for i in range(3)] == data


@pytest.mark.parametrize("kind", ["file", "tree"])
def test_a_large_upload_continues_with_what_is_there(
    there: HostConnection, broken: Break, folder: str, kind: str
) -> None:
    data = os.urandom(2**20) * 30
    if kind == "file":
        put = there.put(f"{folder}/big", data, crc=zlib.crc32(data))
    else:
        put = there.put_tree(f"{folder}/big", [TreeFile("first", data), TreeFile("last", b"x")])
    until(lambda: put.moved > 5 * 2**20)
    (part,) = Path(folder).glob("big.part-*")
    inode = part.stat().st_ino
    broken()
    put.result(WAIT_S)

    whole = Path(folder, "big")
    assert (whole if kind == "file" else whole / "first").read_bytes() == data
    assert whole.stat().st_ino == inode
    assert [path.name for path in Path(folder).iterdir()] == ["big"]


def test_what_is_followed_loses_no_line_and_doubles_none(there: HostConnection, broken: Break, folder: str) -> None:
    seen, value = bytearray(), bytearray()
    breaks = iter([broken, broken])

    def on_value(piece: bytes) -> None:
        value.extend(piece)
        next(breaks, lambda: None)()

    out = Followed(f"{folder}/out", seen.extend)
    wait = there.follow([out], f"{folder}/outcome", [(f"{folder}/value", on_value)])
    script = (
        "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; head -c 9000000 /dev/urandom > value; "
        "echo {} > o; mv o outcome"
    )
    there.spawn(["sh", "-c", script], folder, f"{folder}/out").result(WAIT_S)
    until(lambda: seen)
    broken()

    assert wait.result(WAIT_S) == b"{}\n"
    assert seen.decode() == "".join(f"line {i}\n" for i in range(3000))
    assert bytes(value) == Path(folder, "value").read_bytes()


def test_a_spawned_program_is_not_started_again_and_its_end_is_unknown(
    there: HostConnection, broken: Break, folder: str
) -> None:
    reply = there.spawn(["sh", "-c", f"echo x >> '{folder}/count'; exec sleep 60"], folder, f"{folder}/log")
    reply.result(WAIT_S)
    until(lambda: Path(folder, "count").exists())
    broken()

    assert there.run(["cat", f"{folder}/count"]).result(WAIT_S).out == b"x\n"
    assert reply.exited.result(WAIT_S) is None


def test_who_learns_of_an_unknown_end_can_ask_the_host_at_once(
    there: HostConnection, broken: Break, folder: str
) -> None:
    asked: queue.SimpleQueue[Reply[list[bool]]] = queue.SimpleQueue()
    replies = [there.spawn(["sleep", "60"], folder, f"{folder}/log") for _ in range(2)]
    for reply in replies:
        reply.result(WAIT_S)
        reply.exited.future.add_done_callback(lambda _: asked.put(there.have([folder])))
    broken()

    assert [asked.get(timeout=WAIT_S).result(WAIT_S) for _ in replies] == [[True], [True]]


def test_what_came_after_a_failure_stays_skipped(there: HostConnection, broken: Break, folder: str) -> None:
    failed = there.run(["/no/such/program"])
    assert failed.exception(WAIT_S)
    broken()

    with pytest.raises(HostError, match="No such file"):
        there.run(["touch", f"{folder}/ran"], after=[failed]).result(WAIT_S)


def test_repeats_and_stills_go_on(there: HostConnection, broken: Break, folder: str) -> None:
    looks, words = [], []
    Path(folder, "beat").touch()
    Path(folder, "beat").write_text("1")
    asked = there.repeat(["echo", "x"], 0.05, None, looks.append)
    there.still(f"{folder}/beat", 0.2, lambda: words.append(1))
    until(lambda: looks and words)
    broken()
    looks.clear()
    words.clear()

    until(lambda: looks and words)
    asked.cancel()


def test_the_state_is_reported(there: HostConnection, broken: Break) -> None:
    states: list[ConnectionState] = []
    there.on_state(states.append)
    broken()

    there.ping().result(WAIT_S)

    names = [state.name for state in states]
    assert names == ["reconnecting"] * (len(names) - 1) + ["connected"]  # the first again for each try that fails
    assert len(names) > 1
    assert states[0].cause


def test_an_idle_connection_is_made_again_by_the_next_request(there: HostConnection, broken: Break) -> None:
    before = there.facts.pid
    broken()
    until(lambda: not Path(f"/proc/{before}").exists() or there.ping().result(WAIT_S) is None)

    assert there.run(["echo", "back"]).result(WAIT_S).out == b"back\n"


@pytest.mark.lab
def test_an_agent_whose_session_was_killed_is_gone_soon(there: HostConnection, broken: Break) -> None:
    before = there.facts.pid
    broken()

    until(lambda: not Path(f"/proc/{before}").exists())


def test_an_agent_that_hangs_is_noticed_and_another_one_asked(there: HostConnection) -> None:
    stopped = there.facts.pid
    os.kill(stopped, signal.SIGSTOP)
    asked = there.run(["echo", "back"])
    now = time.monotonic()

    for passed in range(3, 49, 3):  # as it is checked
        loop.start(there.check(now + passed)).result(WAIT_S)
        time.sleep(0.02)  # what it asks is sent, and answered by nobody

    assert asked.result(WAIT_S).out == b"back\n"
    assert there.facts.pid != stopped
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGKILL)
