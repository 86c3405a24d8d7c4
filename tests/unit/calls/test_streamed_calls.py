"""Calls of a session on this machine, which go through its socket once it listens."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import clusterfn
from clusterfn import Session
from clusterfn.config import config_file
from clusterfn.hosts.connection import connection_for
from tests.unit.bridge.session.serving import of_main
from tests.waiting import WAIT_S, until


def agent() -> int:
    """The process of the agent that serves this program."""
    host, _ = config_file.load().resolve(None)
    return connection_for(host).facts.pid


@of_main
def speak(word: str) -> str:
    import sys

    print(word)
    print(word.upper(), file=sys.stderr)
    if word == "wrong":
        raise KeyError(word)
    return word


def through_the_socket(session: Session, sent: list[int]) -> None:
    """Call until calls go through the socket."""
    until(lambda: session.call(abs, -1) and sent)


@of_main
def runner() -> int:
    import os

    return os.getppid()


@of_main
def talk_around(gate: str) -> str:
    import os
    import time

    print("before", flush=True)
    while not os.path.exists(gate):
        time.sleep(0.02)
    print("after", flush=True)
    return "through"


def test_a_lost_connection_costs_neither_a_value_nor_a_line_and_repeats_none(sent: list[int], tmp_path: Path):
    # Not capfd, which loses what is printed between its look and its truncation.
    with contextlib.redirect_stdout(io.StringIO()) as printed, Session() as session:
        through_the_socket(session, sent)
        beside = ThreadPoolExecutor(1)
        talking = beside.submit(session.call, talk_around, str(tmp_path / "gate"))
        waiting = [session.submit(speak, str(number)) for number in range(5)]
        until(lambda: "before" in printed.getvalue())
        os.kill(agent(), signal.SIGKILL)
        (tmp_path / "gate").touch()

        assert talking.result(150) == "through"
        assert [job.result(150) for job in waiting] == ["0", "1", "2", "3", "4"]
        sent.clear()
        through_the_socket(session, sent)
        beside.shutdown()

    assert printed.getvalue() == "before\nafter\n"
    assert session.job is not None and session.job.result(150)["why"] == "closed"


def test_a_value_that_is_too_large_for_the_stream_comes_from_its_file(sent: list[int]):
    with Session() as session:
        through_the_socket(session, sent)
        large = session.submit(bytes, 3 << 20)
        assert len(large.result(150)) == 3 << 20
        assert len(session.call(bytes, 1 << 10)) == 1 << 10


def test_workers_run_the_calls_of_a_map_beside_one_another(sent: list[int], tmp_path: Path):
    @of_main
    def meet(folder: str, name: int) -> int:
        import os
        import time
        from pathlib import Path

        Path(folder, str(name)).touch()
        while len(os.listdir(folder)) < 2:
            time.sleep(0.02)
        return name * name

    (tmp_path / "met").mkdir()
    with Session(workers=2, cores=2) as session:
        through_the_socket(session, sent)
        assert list(session.map(meet, [str(tmp_path / "met")] * 2, [3, 4])) == [9, 16]
        with pytest.raises(clusterfn.ConfigError, match="asks for cores=2, each worker of the session has 1"):
            session.submit(clusterfn.cluster(cores=2)(speak), "never")


def test_calls_that_are_withdrawn_together_do_not_wait_for_one_another(sent, tmp_path, withdrawing):
    together = threading.Barrier(3)
    withdrawing += [lambda: together.wait(WAIT_S)] * 3
    with Session() as session:
        through_the_socket(session, sent)
        running = session.submit(talk_around, str(tmp_path / "gate"))
        until(lambda: running.state == "RUNNING")
        waiting = [session.submit(speak, "never") for _ in range(3)]

        session.shutdown(wait=False, cancel_futures=True)
        (tmp_path / "gate").touch()

        assert [call.cancelled() for call in waiting] == [True] * 3
        assert running.result(150) == "through"


def test_a_session_is_closed_even_if_ctrl_c_interrupts_the_withdrawal_of_its_calls(sent, tmp_path, withdrawing):
    def interrupt() -> None:
        raise KeyboardInterrupt

    session = Session()
    through_the_socket(session, sent)
    running = session.submit(talk_around, str(tmp_path / "gate"))
    until(lambda: running.state == "RUNNING")
    session.submit(speak, "never")
    withdrawing.append(interrupt)

    with pytest.raises(KeyboardInterrupt):
        session.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "gate").touch()

    assert session.job is not None and session.job.result(150)["why"] == "closed"
