"""Broken cables: what was printed arrives whole, once and in order; results arrive; nothing runs twice."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterfn import attach
from tests.chaos.calls import VALUE
from tests.chaos.inprocess import Here, Sent
from tests.chaos.onhost import session_of, stopped, until
from tests.chaos.world import HOSTS, World
from tests.lab.network import DelayProxy

pytestmark = pytest.mark.lab

SPOKEN = 250
SIZE = 40_000_000
TOLD = re.compile(r"RUNNING \(no connection to bare since \d\d:\d\d:\d\d, reconnecting: .+\)")
Breaker = Callable[[Sent, DelayProxy, float], None]


def cut(sent: Sent, proxy: DelayProxy, seconds: float) -> None:
    """The cable is cut, and the host stays away."""
    proxy.refuse()
    assert proxy.cut() >= 1
    assert until(lambda: sent.session.connection.state.name == "reconnecting", 150), sent.session.connection.state
    time.sleep(seconds)
    proxy.refuse(refusing=False)


def black_hole(sent: Sent, proxy: DelayProxy, seconds: float) -> None:
    """Nothing arrives, and nobody is told."""
    proxy.blackhole()
    time.sleep(seconds)
    proxy.restore()


def socket_killed(sent: Sent, proxy: DelayProxy, seconds: float) -> None:
    """The kernel drops the connection at sshd's end (`ss -K`), again and again."""
    for _ in range(3):
        server = session_of(sent.agent)
        argv = ["ss", "-tnpH", "state", "established"]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True)
        ports = [
            re.split(r"\s+", line)[3].rpartition(":")[2]
            for line in listed.stdout.splitlines()
            if any(f"pid={pid}," in line for pid in server)
        ]
        for port in ports[:1]:
            subprocess.run(["ss", "-K", "dport", "=", f":{port}"], capture_output=True, check=True)
        time.sleep(seconds / 3)


def sshd_stopped(sent: Sent, proxy: DelayProxy, seconds: float) -> None:
    """The session's sshd stands still."""
    with stopped(session_of(sent.agent)):
        time.sleep(seconds)


@pytest.fixture
def behind(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayProxy]:
    """A proxy before host `bare`, and a configuration that goes through it."""
    with DelayProxy(0, world.lab.host(HOSTS["bare"].alias).port) as proxy:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(world.behind(tmp_path, proxy.port, "bare", "bare-setup")))
        yield proxy


_LONG = [pytest.param(breaks, marks=pytest.mark.long) for breaks in (black_hole, socket_killed, sshd_stopped)]


@pytest.mark.fault("27")
@pytest.mark.parametrize("breaks", [cut, *_LONG])
@pytest.mark.parametrize("seconds", [3.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled(
    world: World, behind: DelayProxy, tmp_path: Path, breaks: Breaker, seconds: float
) -> None:
    here = Here(world)
    over = world.runs / f"over-{tmp_path.name}"  # until then the talker runs, however late the large value comes
    talker = here.submit("speak", "bare", live=True, lines=SPOKEN, every=0.01, over=str(over))
    large = here.submit("work", "bare", loading=0.0, seconds=0.2, keeping=0.0, size=SIZE)
    assert until(lambda: len(talker.output) > 2000, 150)
    assert until(lambda: behind.bytes_down > SIZE // 4 or large.there.is_at("published"), 150, 0.001)
    breaks(talker, behind, seconds)
    over.touch()
    assert talker.job.result(150) == SPOKEN
    assert until(lambda: talker.output.count(b"\n") >= SPOKEN, 150)
    assert [line.split()[1] for line in talker.output.splitlines()] == [b"%d" % number for number in range(SPOKEN)]
    value = large.job.result(150)
    assert value["value"] == VALUE and value["data"] == b"x" * SIZE
    for sent in (talker, large):
        sent.stands()
    if breaks is cut:
        assert any(TOLD.fullmatch(state) for state in talker.states), talker.states
    assert talker.job.status == "RETURNED"
    assert talker.session.connection.state.name == "connected"
    talker.session.connection.close()


@pytest.mark.fault("28")
@pytest.mark.long
def test_dead_link_is_found_by_keepalive(world: World, behind: DelayProxy) -> None:
    """Within 45 seconds, and the few until somebody looks; then it goes on as if nothing had been."""
    sent = Here(world).submit("speak", "bare", live=True, lines=700, every=0.1)
    assert until(lambda: len(sent.output) > 500, 150)
    behind.blackhole()
    began = time.monotonic()
    connection = sent.session.connection
    assert until(lambda: connection.state.name == "reconnecting", 150)
    assert 30 < time.monotonic() - began < 90
    behind.restore()
    assert sent.job.result(150) == 700
    assert [line.split()[1] for line in sent.output.splitlines()] == [b"%d" % number for number in range(700)]
    sent.stands()
    connection.close()


@pytest.mark.fault("28")
@pytest.mark.long
def test_a_session_whose_sshd_hangs_for_ever_is_replaced(here: Here) -> None:
    """The job's word comes by another session; the agent of the old one leaves once it can."""
    sent = here.submit("speak", "bare", live=True, lines=700, every=0.1)
    assert until(lambda: len(sent.output) > 500, 150)
    agent, pids = sent.agent, session_of(sent.agent)
    with stopped(pids):
        assert until(lambda: sent.agent != agent, 150)
        assert any(TOLD.fullmatch(state) for state in sent.states), sent.states
        assert sent.job.result(150) == 700
    assert sent.states[-1] == "RETURNED"
    assert [line.split()[1] for line in sent.output.splitlines()] == [b"%d" % number for number in range(700)]
    sent.stands()
    assert until(lambda: not Path(f"/proc/{agent}").exists(), 150)
    sent.session.connection.close()


@pytest.mark.fault("27")
def test_connection_closed_before_the_answer_leaves_the_job_alone(world: World, behind: DelayProxy) -> None:
    """The host has started the job, and the client will never hear of it: the job's folder is the job's."""
    behind.one_way_s = 0.3
    sent = Here(world).submit("speak", "bare-setup", lines=80, every=0.1)
    sent.await_at("start")
    sent.session.connection.close()
    assert sent.job.exception(150) is not None
    assert until(sent.there.finals, 150), sent.there.history()
    assert sent.stands()["notes"] == []
    assert attach(sent.job.id, "bare-setup").result(150) == 80
