"""A machine that gives its user few processes or descriptors delays programs, and refuses none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from tests.fakes.agent_client import Client, wait_for
from tests.waiting import stays, until

ROOT = Path(__file__).parents[4]
STARTING, STARTING_FOR_S = "starting", 120.0  # the note that jobs wait for their turn, and how long others believe it
MANY = """
import sys
from tests.fakes.agent_client import connect_here
here = connect_here(sys.argv[1])
ran = [here.run(["sh", "-c", "sleep 0.05; echo x"]) for _ in range(60)]
spawned = [here.spawn(["sleep", "0.05"], "/", sys.argv[1] + "/log") for _ in range(60)]
print(sum(reply.result(60).out == b"x\\n" for reply in ran), sum(reply.result(60).pid > 0 for reply in spawned))
here.close()
"""
LEAVES = """
import os, signal, sys
from tests.fakes.agent_client import connect_here
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])  # four jobs begin at a time, and none before the gate
root, way = sys.argv[1:]
here = connect_here(root)
gate = here.run(["sh", "-c", "until [ -e gate ]; do sleep 0.1; done"], cwd=root, timeout_s=600)
begin = [["sh", "-c", f"echo >begun-{number}; exec sleep 1"] for number in range(12)]
jobs = [here.spawn(argv, root, f"{root}/log", after=[gate]) for argv in begin]
jobs[6].cancel()
here.run(["touch", root + "/gate"]).result(60)
gate.result(60)
if way == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
here.close()
"""


@pytest.fixture(autouse=True)
def tries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(monkeypatch, "program starts again", 0.02)


def answer(client: Client, number: int) -> dict[str, object]:
    until(lambda: bool(client.turns() or client.listen() or any(each["id"] == number for each in client.heard)))
    return [each for each in client.heard if each["id"] == number][-1]


@pytest.mark.parametrize("argv", [False, [], ["true", 1], "true"], ids=str)
def test_words_that_are_none_are_rejected_before_a_program_starts(client: Client, argv: object):
    client.ask(id=2, do="run", argv=argv, timeout_s=0)

    assert client.answer_of(2)["error"]["kind"] == "bad"


@pytest.mark.skipif(sys.platform != "linux", reason="what is open elsewhere differs")
def test_more_programs_than_there_are_descriptors_for_all_run(tmp_path):
    argv = ["bash", "-c", 'ulimit -n 96 && exec "$0" -c "$1" "$2"', sys.executable, MANY, str(tmp_path)]

    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True).stdout == "60 60\n"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("what", ["fork", "pipe"])
def test_a_program_starts_once_there_is_a_process_for_it(client: Client, monkeypatch, number: int, what: str):
    real, refused = getattr(os, what), []

    def maybe() -> object:
        if len(refused) < 5:
            refused.append(1)
            raise OSError(number, os.strerror(number))
        return real()

    monkeypatch.setattr(os, what, maybe)
    client.ask(id=2, do="run", argv=["echo", "x"])
    client.ask(id=3, do="run", argv=["echo", "y"])

    assert answer(client, 3)["rc"] == answer(client, 2)["rc"] == 0


def wait_for_process(client: Client, monkeypatch: pytest.MonkeyPatch, go: Path) -> None:
    """Let no process be had until this file is there."""
    real = os.fork

    def fork() -> int:
        if not go.exists():
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(os, "fork", fork)


def test_that_no_process_can_be_had_is_reported_after_a_while(client: Client, monkeypatch, tmp_path):
    wait_for(monkeypatch, "program starts at last", 0.1)
    wait_for_process(client, monkeypatch, tmp_path / "go")
    client.ask(id=2, do="run", argv=["true"])

    assert answer(client, 2)["error"]["message"] == "Resource temporarily unavailable"  # type: ignore[index]


def test_a_request_that_is_stopped_while_it_waits_starts_nothing(client: Client, monkeypatch, tmp_path):
    wait_for_process(client, monkeypatch, tmp_path / "go")
    client.ask(id=2, do="run", argv=["true"])
    client.ask(id=3, do="stop", target=2)
    assert answer(client, 2)["error"]["kind"] == "stopped"  # type: ignore[index]
    (tmp_path / "go").touch()
    client.ask(id=4, do="run", argv=["echo", "x"])
    assert answer(client, 4)["rc"] == 0


def load_slowly(client: Client, monkeypatch: pytest.MonkeyPatch, go: Path) -> None:
    """Let each process take until then to load its program."""
    monkeypatch.setattr(os, "setsid", lambda: until(go.exists))


@pytest.mark.parametrize("delay", [wait_for_process, load_slowly])
def test_of_a_process_that_is_cancelled_before_its_number_is_known_nothing_stays(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    delay: Callable[[Client, pytest.MonkeyPatch, Path], None],
) -> None:  # fmt: skip
    go, ran = tmp_path / "go", tmp_path / "ran"
    delay(client, monkeypatch, go)
    client.ask(id=2, do="spawn", argv=["touch", str(ran)], cwd="/", log=str(tmp_path / "log"))
    client.turns()
    client.ask(id=3, do="stop", target=2)
    answer(client, 3)

    go.touch()
    client.ask(id=4, do="run", argv=["true"])

    assert answer(client, 4)["rc"] == 0
    until(lambda: bool(client.turns() or not client.agent.children))
    assert not ran.exists() and not client.agent.requests


def test_programs_that_run_for_long_keep_no_other_from_starting(client: Client, monkeypatch):
    client.start_few_programs(monkeypatch, 64)  # room for four that start
    for first in (100, 200, 300, 400):  # what one round kept would keep the last one from starting
        for number in range(first, first + 6):
            client.ask(id=number, do="run", argv=["sleep", "600"], timeout_s=900)
        for number, argv in ((first + 6, ["/no/such/program"]), (first + 7, ["true"])):
            client.ask(id=number, do="run", argv=argv)

        assert answer(client, first + 7)["rc"] == 0
        for number in range(first, first + 6):
            client.ask(id=number + 10, do="stop", target=number)
        until(lambda: bool(client.turns(1) or not client.agent.children))


def spawn(client: Client, number: int, log: Path, *argv: str) -> None:
    """Ask for the start of a job."""
    client.ask(id=number, do="spawn", argv=argv, cwd="/", log=str(log))


def end_all(client: Client) -> None:
    """End the processes of all jobs that have begun."""
    while client.agent.children:
        for pid in list(client.agent.children):
            os.kill(pid, signal.SIGKILL)
        client.turns()


def test_few_jobs_begin_at_a_time_and_one_that_ends_lets_the_next_begin(client: Client, monkeypatch, tmp_path):
    wait_for(monkeypatch, "job begins", 600.0)
    client.start_few(2)
    log = tmp_path / "log"
    first, second, waits, last = 2, 3, 4, 5
    spawn(client, first, log, "sleep", "600")
    spawn(client, second, log, "sleep", "600")
    spawn(client, waits, log, "touch", str(tmp_path / "ran"))
    spawn(client, last, log, "sleep", "600")
    client.turns()

    assert len(client.agent.children) == 2
    client.ask(id=100, do="run", argv=["true"])
    assert answer(client, 100)["rc"] == 0, "a program that is no job does not wait for jobs"
    client.ask(id=101, do="stop", target=waits)
    os.kill(answer(client, first)["pid"], signal.SIGKILL)  # type: ignore[arg-type]
    until(lambda: bool(client.turns() or client.listen() or any(each["id"] == last for each in client.heard)))

    assert len(client.agent.children) == 2 and not (tmp_path / "ran").exists()
    end_all(client)


def test_a_job_that_cannot_start_or_goes_on_lets_the_next_begin(client: Client, monkeypatch, tmp_path):
    wait_for(monkeypatch, "job begins", 0.05)
    client.start_few(1)
    spawn(client, 2, tmp_path / "log", "/no/such/program")
    spawn(client, 3, tmp_path / "log", "sleep", "600")
    spawn(client, 4, tmp_path / "log", "touch", str(tmp_path / "ran"))

    until(lambda: bool(client.turns(1) or (tmp_path / "ran").exists()))
    end_all(client)


def test_the_folder_of_a_job_that_was_removed_before_its_turn_does_not_come_back(client: Client, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    client.start_few(0)
    client.ask(id=2, do="spawn", argv=["true"], cwd=str(folder), log=str(folder / "log"))
    client.turns()
    folder.rmdir()
    client.agent.job_starts.has_room(1)

    assert answer(client, 2)["error"]["path"] == str(folder)  # type: ignore[index]
    assert not folder.exists()


def test_other_programs_can_see_that_jobs_wait_for_their_turn(client: Client, monkeypatch, tmp_path):
    wait_for(monkeypatch, "note is renewed", 0.01)
    wait_for(monkeypatch, "job begins", 600.0)
    first, waits = 2, 3
    note = tmp_path / "machines" / "m-1" / STARTING
    client.start_few(1)
    client.note_in(tmp_path, "m-1")
    spawn(client, first, tmp_path / "log", "sleep", "600")
    client.turns()
    assert not note.exists()

    spawn(client, waits, tmp_path / "log", "sleep", "600")
    until(lambda: client.turns(1) or note.exists())
    os.utime(note, (0, 0))
    until(lambda: client.turns(1) or time.time() - note.stat().st_mtime < STARTING_FOR_S)
    client.agent.job_starts.has_room(1)
    assert len(client.agent.children) == 2
    os.utime(note, (0, 0))

    stays(lambda: client.turns(1) or note.stat().st_mtime == 0, 0.05, "no job waits any more")
    end_all(client)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="how many begin at a time is not known")
@pytest.mark.parametrize("way", ["is killed", "ends"])
def test_jobs_that_wait_for_their_turn_begin_although_their_client_has_gone(tmp_path, way: str):
    wanted = {f"begun-{number}" for number in range(12) if number != 6}

    subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path), way], cwd=ROOT, timeout=100, check=False)

    until(lambda: {path.name for path in tmp_path.glob("begun-*")} >= wanted)
    assert not (tmp_path / "begun-6").exists(), "it was canceled while it waited"
