"""What waits on a host for the next program: it is taken once, replaced, and ends with what it depends on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.standby import TRIES, WAITS, Held, held_here, is_running, wait_for
from tests.waiting import WAIT_S, until

ENDS_READY = "os.write(1, os.read(0, 100)); import time; time.sleep(0.2)"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    with held_here(monkeypatch) as here:
        yield here


def read_all(stream: Any) -> bytes:
    return b"".join(iter(lambda: stream.read(65536), b""))


def kill_keeper(held: Held) -> None:
    """Kill its keeper, which is the parent of what waits."""
    pid = until(held.pids)[-1]
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not is_running(keeper))


def test_there_is_none_before_a_keeper_has_started_or_of_another_name(held: Held) -> None:
    assert held.take() is None
    held.keep()
    held.waiting().stream.close()
    assert held.take("other") is None


def test_of_programs_that_ask_at_once_one_gets_it(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(monkeypatch, "pause", 600.0)
    held.keep()
    held.becomes_ready()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(held.take())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    taken = [each for each in found if each is not None]
    assert (len(found), len(taken)) == (8, 1)
    taken[0].stream.write(b"echo alive\n")
    assert read_all(taken[0].stream) == b"alive\n"
    taken[0].stream.close()


def test_a_second_keeper_leaves_the_first_and_what_waits_alone(held: Held) -> None:
    held.keep()
    held.becomes_ready()
    before = held.made()
    for _ in range(5):
        held.keep()
        time.sleep(0.2)

    taken = held.take()

    taken.stream.close()
    assert (held.made(), len(held.pids()) <= 2) == (before, True)


def test_keepers_that_start_at_once_leave_one(held: Held) -> None:
    for _ in range(4):
        held.keep()
    held.becomes_ready()
    until(lambda: held.keepers() == 1)
    held.waiting().stream.close()


def test_a_keeper_takes_the_place_of_one_whose_connection_has_ended(held: Held) -> None:
    now = held.held
    with subprocess.Popen(["sleep", "600"]) as ssh:
        held.connection_ends_with(ssh.pid)
        held.keep()
        held.becomes_ready()
        before = held.made()
        ssh.kill()
    held.held = now

    held.keep()

    until(lambda: held.address() and held.made() != before)
    held.waiting().stream.close()


def test_a_keeper_that_was_killed_is_replaced_at_the_next_login(held: Held) -> None:
    held.keep()
    before = held.waiting()
    kill_keeper(held)

    before.stream.write(b"echo still here\n")  # what was taken goes on
    assert read_all(before.stream) == b"still here\n"
    assert "exit status is unknown" in str(before.stream.cause())
    assert held.take() is None
    held.keep()
    held.command("true").stream.close()
    before.stream.close()


def test_the_address_of_a_keeper_that_was_killed_is_removed_with_the_login(held: Held) -> None:
    held.keep()
    held.becomes_ready()
    kill_keeper(held)
    held.log_out()
    assert held.address() is None


def test_a_program_that_is_killed_leaves_nothing_behind(held: Held) -> None:
    held.keep()
    until(held.pids)
    program = subprocess.Popen(held.program("echo $$; exec cat\n"), stdout=subprocess.PIPE)
    command = int(program.stdout.readline())
    assert is_running(command)

    program.kill()
    program.communicate()

    until(lambda: not is_running(command))


def test_one_that_does_not_end_when_its_program_closes_it_is_killed(held: Held) -> None:
    held.keep()
    taken = held.command("echo $$; trap '' TERM HUP; while :; do sleep 0.2; done")
    command = int(taken.stream.read(100))

    taken.stream.close()

    until(lambda: not is_running(command))


def test_an_old_one_is_replaced(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(monkeypatch, "stays fresh", 0.3)
    held.keep()
    until(lambda: len(held.pids()) >= 3)
    held.command("true").stream.close()


@pytest.mark.parametrize(
    "program",
    ["raise SystemExit(255)", "import os; os.read(0, 100); os.write(1, b'no marker' * 20000)",
     "import time; time.sleep(600)", ENDS_READY],
    ids=["ends", "prints", "hangs", "ends once it waits"],
)  # fmt: skip
def test_a_host_on_which_nothing_can_wait_is_left_alone(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    wait_for(monkeypatch, "starts", 1.0)
    with held_here(monkeypatch, program) as held:
        held.keep()
        until(lambda: len(held.pids()) == TRIES)
        until(lambda: held.address() is None)
        assert (held.take(), len(held.pids())) == (None, TRIES)


def test_what_fills_stderr_while_it_waits_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_here(monkeypatch, "import os; os.write(2, b'x' * 1000000); " + WAITS) as held:
        held.keep()
        taken = held.command("echo alive")
        assert read_all(taken.stream) == b"alive\n"
        taken.stream.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"{}\n", b"[1]\n", b"x\n", None], ids=str)
def test_a_keeper_that_answers_otherwise_gives_nothing(
    monkeypatch: pytest.MonkeyPatch, held: Held, answer: bytes | None
) -> None:
    wait_for(monkeypatch, "answers", 0.2)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(held.folder / f"{held.held.key}-agent.a"))
        other.listen()
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(held.take()))
        asking.start()
        line, _ = other.accept()
        if answer is not None:
            socket.send_fds(line, [answer or b"\n"], [0, 0, 0])
            line.close()
        asking.join(WAIT_S)
        line.close()
    (held.folder / f"{held.held.key}-agent.a").unlink()
    assert found == [None]


def test_programs_that_this_one_starts_do_not_inherit_it(held: Held) -> None:
    def inherited() -> int:
        code = "import os; print(len(os.listdir('/proc/self/fd')))"
        return int(subprocess.run([sys.executable, "-c", code], stdout=-1, close_fds=False, check=True).stdout)

    held.keep()
    before = inherited()
    taken = held.waiting()

    assert inherited() == before
    taken.stream.close()
