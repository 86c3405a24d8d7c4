"""A stream that breaks in the middle costs time and nothing else: no byte is lost, none comes twice."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostError, Unreachable
from clusterfn.config.spec import Host
from tests.contract.conftest import WAYS, Break, Connect
from tests.waiting import WAIT_S, until


def test_get_goes_on_where_it_broke(there: Any, broken: Break, folder: str, tmp_path: Path) -> None:
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


def test_a_get_joins_no_two_files_after_a_break(there: Any, broken: Break, folder: str) -> None:
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


def test_a_part_of_what_grows_goes_on_where_it_broke(there: Any, broken: Break, folder: str) -> None:
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


def test_puts_are_sent_again(there: Any, broken: Break, folder: str) -> None:
    data = [os.urandom(2**20) * 20 for _ in range(3)]
    puts = [there.put(f"{folder}/{i}", each) for i, each in enumerate(data)]
    until(lambda: puts[0].done() or os.listdir(folder))
    broken()

    for put in puts:
        put.result(WAIT_S)

    assert [Path(folder, str(i)).read_bytes() for i in range(3)] == data


def test_a_spawned_program_is_not_started_again_and_its_end_is_unknown(there: Any, broken: Break, folder: str) -> None:
    reply = there.spawn(["sh", "-c", f"echo x >> '{folder}/count'; exec sleep 60"], folder, f"{folder}/log")
    reply.result(WAIT_S)
    until(lambda: Path(folder, "count").exists())
    broken()

    assert there.run(["cat", f"{folder}/count"]).result(WAIT_S).out == b"x\n"
    assert reply.exited.result(WAIT_S) is None


def test_who_learns_of_an_unknown_end_can_ask_the_host_at_once(there: Any, broken: Break, folder: str) -> None:
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    replies = [there.spawn(["sleep", "60"], folder, f"{folder}/log") for _ in range(2)]
    for reply in replies:
        reply.result(WAIT_S)
        reply.exited.future.add_done_callback(lambda _: asked.put(there.have([folder])))
    broken()

    assert [asked.get(timeout=WAIT_S).result(WAIT_S) for _ in replies] == [[True], [True]]


def test_what_came_after_a_failure_stays_skipped(there: Any, broken: Break, folder: str) -> None:
    failed = there.run(["/no/such/program"])
    assert failed.exception(WAIT_S)
    broken()

    with pytest.raises(HostError, match="No such file"):
        there.run(["touch", f"{folder}/ran"], after=[failed]).result(WAIT_S)


def test_repeats_and_stills_go_on(there: Any, broken: Break, folder: str) -> None:
    looks, words = [], []
    Path(folder, "beat").touch()
    Path(folder, "beat").write_text("1")
    asked = there.repeat(["echo", "x"], 0.05, looks.append)
    there.still(f"{folder}/beat", 0.2, lambda: words.append(1))
    until(lambda: looks and words)
    broken()
    looks.clear()
    words.clear()

    until(lambda: looks and words)
    asked.cancel()


def test_the_state_is_reported(there: Any, broken: Break) -> None:
    states: list[Any] = []
    there.link.on_state(states.append)
    broken()

    there.ping().result(WAIT_S)

    names = [state.name for state in states]
    assert names == ["reconnecting"] * (len(names) - 1) + ["connected"]  # the first again for each try that fails
    assert len(names) > 1
    assert states[0].cause


def test_an_idle_connection_is_made_again_by_the_next_request(there: Any, broken: Break) -> None:
    before = there.facts.pid
    broken()
    until(lambda: not Path(f"/proc/{before}").exists() or there.ping().result(WAIT_S) is None)

    assert there.run(["echo", "back"]).result(WAIT_S).out == b"back\n"


@pytest.mark.lab
def test_an_agent_whose_session_was_killed_is_gone_soon(there: Any, broken: Break) -> None:
    before = there.facts.pid
    broken()

    until(lambda: not Path(f"/proc/{before}").exists())


# An interpreter that is killed before the agent says hello, or whose connection is, as often as `times` says.
KILLS = """#!/bin/sh
echo >>"{folder}/came"
if [ "$(wc -l <"{folder}/came")" -gt {times} ]; then exec {python} "$@"; fi
victim=$$
if [ {victim} = session ]; then
    while [ "$(cat /proc/$victim/comm)" != sshd ]; do victim=$(awk '{{ print $4 }}' /proc/$victim/stat); done
fi
kill -KILL "$victim"
sleep 60
"""


@pytest.mark.parametrize(
    ("transport", "victim", "times"),
    [
        ("local", "agent", 2),
        ("local", "agent", 9),
        *(
            pytest.param(way, victim, times, marks=[pytest.mark.lab, *([pytest.mark.long] if times == 9 else [])])
            for way in WAYS
            for victim in ("agent", "session")
            for times in (2, 9)
        ),
    ],
)
def test_what_is_killed_before_its_hello_is_tried_again_and_not_for_ever(
    request: pytest.FixtureRequest, connect_to: Connect, local_host: Host, transport: str, victim: str,
    times: int,
) -> None:  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-kills-"))
    folder.chmod(0o777)
    script = folder / "python3"
    script.write_text(KILLS.format(folder=folder, times=times, victim=victim, python="/usr/bin/python3"))
    script.chmod(0o755)
    host = local_host
    if transport != "local":
        host = request.getfixturevalue("lab_host")("py36-bash")._replace(transport=transport)
    host = host._replace(python=str(script))

    if times == 2:
        assert connect_to(host).run(["echo", "back"]).result(WAIT_S).out == b"back\n"
    else:
        with pytest.raises(Unreachable, match="agent"):
            connect_to(host)

    assert len((folder / "came").read_text().splitlines()) == min(times + 1, 4)
    shutil.rmtree(folder)
