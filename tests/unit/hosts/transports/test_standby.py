"""What waits on a host for the next program: it is taken once, replaced, and ends with what it depends on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.hosts.transports import held_connections, standby
from clusterfn.hosts.transports.base import Stream
from tests.fakes.standby import Held, held_here
from tests.waiting import WAIT_S, until

Make = Callable[..., Held]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    with held_here(monkeypatch) as here:
        yield here


def read_all(stream: Stream) -> bytes:
    return b"".join(iter(lambda: stream.read(65536), b""))


def keeper_of(held: Held) -> int:
    """The pid of its keeper: the parent of what waits."""
    pid = until(held.pids)[-1]
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_waits_is_taken_with_what_was_printed_before_it(held: Held) -> None:
    held.keep()

    taken = held.command("echo said; exit 7")

    assert taken.printed == b"noise"
    assert read_all(taken.stream) == b"said\n"
    assert taken.stream.cause() == "it ended with exit status 7"
    taken.stream.close()


def test_it_is_taken_once_and_the_next_program_gets_another(held: Held) -> None:
    held.keep()
    first = held.waiting()
    second = held.waiting()

    for number, taken in enumerate((first, second)):
        taken.stream.write(b"echo %d\n" % number)
        assert read_all(taken.stream) == b"%d\n" % number
        taken.stream.close()
    assert len(set(held.pids())) >= 2


def test_there_is_none_before_a_keeper_has_started_or_of_another_name(held: Held) -> None:
    assert held.take() is None
    held.keep()
    held.waiting().stream.close()
    assert held.take("other") is None


def test_programs_that_ask_at_once_get_one_each_or_none(held: Held) -> None:
    held.keep()
    until(held.pids)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(held.take())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    taken = [each for each in found if each is not None]
    assert len(found) == 8
    for number, each in enumerate(taken):
        each.stream.write(b"echo %d\n" % number)
        assert read_all(each.stream) == b"%d\n" % number
        each.stream.close()


def test_a_second_keeper_leaves_the_first_alone(held: Held) -> None:
    held.keep()
    before = until(held.address).stat().st_ino
    held.keep()
    time.sleep(0.5)

    held.waiting().stream.close()

    assert until(held.address).stat().st_ino == before


def test_a_keeper_that_was_killed_is_replaced_at_the_next_login(held: Held) -> None:
    held.keep()
    before = held.waiting()
    killed = keeper_of(held)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not held_connections.is_running(killed))

    before.stream.write(b"echo still here\n")  # what was taken goes on
    assert read_all(before.stream) == b"still here\n"
    assert held.take() is None
    held.keep()
    held.command("true").stream.close()
    before.stream.close()


def test_a_program_that_is_killed_leaves_nothing_behind(held: Held) -> None:
    held.keep()
    until(held.pids)
    code = (
        "import time\nfrom clusterfn.hosts.transports import standby\n"
        "from clusterfn.hosts.transports.held_connections import HeldConnection\n"
        f"held = {held.held!r}\n"
        "while (taken := standby.take(held, 'agent')) is None: time.sleep(0.05)\n"
        "taken.stream.write(b'echo $$; exec cat\\n')\n"
        "print(taken.stream.read(100).decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout is not None
    command = int(program.stdout.readline())
    assert held_connections.is_running(command)

    program.kill()
    program.communicate()

    until(lambda: not held_connections.is_running(command))


def test_one_that_does_not_end_when_its_program_closes_it_is_killed(held: Held) -> None:
    held.keep()
    taken = held.command("echo $$; trap '' TERM HUP; while :; do sleep 0.2; done")
    command = int(taken.stream.read(100))

    taken.stream.close()

    until(lambda: not held_connections.is_running(command))


def test_it_ends_with_the_connection(held: Held) -> None:
    held.keep()
    pid = until(held.pids)[0]
    keeper = keeper_of(held)
    held.end()
    os.kill(pid, signal.SIGKILL)  # ssh ends when its connection does
    until(lambda: not held_connections.is_running(keeper))
    assert held.address() is None


def test_an_old_one_is_replaced(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "FRESH_S", 0.3)
    held.keep()
    until(lambda: len(held.pids()) >= 3)
    held.command("true").stream.close()


def test_the_connection_is_ended_once_nothing_has_used_it_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_here(monkeypatch, ttl_s=1.0) as held:
        held.keep()
        taken = held.waiting()
        time.sleep(1.5)
        assert not held.stopped.exists()  # it is in use
        taken.stream.close()
        until(held.stopped.exists)
        until(lambda: held.address() is None)


@pytest.mark.parametrize(
    "program",
    ["raise SystemExit(255)", "import os; os.read(0, 100); os.write(1, b'no marker' * 20000)",
     "import time; time.sleep(600)"],
    ids=["ends", "prints", "hangs"],
)  # fmt: skip
def test_a_host_on_which_nothing_can_wait_is_left_alone(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(standby, "START_S", 1.0)
    with held_here(monkeypatch, program) as held:
        held.keep()
        until(lambda: len(held.pids()) == standby.TRIES)
        until(lambda: held.address() is None)
        assert held.take() is None


def test_one_that_died_while_it_waited_is_not_given(held: Held) -> None:
    held.keep()
    pid = until(held.pids)[0]
    until(lambda: held.address() is not None)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not held_connections.is_running(pid))

    taken = held.command("echo alive")

    assert read_all(taken.stream) == b"alive\n"
    taken.stream.close()


def test_programs_that_this_one_starts_do_not_inherit_it(held: Held) -> None:
    def inherited() -> int:
        code = "import os; print(len(os.listdir('/proc/self/fd')))"
        return int(subprocess.run([sys.executable, "-c", code], stdout=-1, close_fds=False, check=True).stdout)

    held.keep()
    before = inherited()
    taken = held.waiting()

    assert inherited() == before
    taken.stream.close()
