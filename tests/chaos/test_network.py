"""Broken cables: what was printed arrives whole, once and in order; results arrive; nothing runs twice."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
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


def cut(sent: Sent, proxy: DelayProxy, seconds: float) -> None:
    """The cable is cut, and the host stays away."""
    proxy.refuse()
    assert proxy.cut() >= 1
    link = sent.host_state.connection.link
    assert until(lambda: link.state.name == "reconnecting", 150), link.state
    time.sleep(seconds)
    proxy.refuse(refusing=False)


@pytest.fixture
def behind(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayProxy]:
    """A proxy before host `bare`, and a configuration that goes through it."""
    with DelayProxy(0, world.lab.host(HOSTS["bare"].alias).port) as proxy:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(world.behind(tmp_path, proxy.port, "bare", "bare-setup")))
        yield proxy


@pytest.mark.fault("27")
def test_nothing_is_lost_or_doubled(world: World, behind: DelayProxy, tmp_path: Path) -> None:
    here = Here(world)
    over = world.runs / f"over-{tmp_path.name}"  # until then the talker runs, however late the large value comes
    talker = here.submit("speak", "bare", live=True, lines=SPOKEN, every=0.01, over=str(over))
    large = here.submit("work", "bare", loading=0.0, seconds=0.2, keeping=0.0, size=SIZE)
    assert until(lambda: len(talker.output) > 2000, 150)
    assert until(lambda: behind.bytes_down > SIZE // 4 or large.there.is_at("published"), 150, 0.001)
    cut(talker, behind, 3.0)
    over.touch()
    assert talker.job.result(150) == SPOKEN
    assert until(lambda: talker.output.count(b"\n") >= SPOKEN, 150)
    assert [line.split()[1] for line in talker.output.splitlines()] == [b"%d" % number for number in range(SPOKEN)]
    value = large.job.result(150)
    assert value["value"] == VALUE and value["data"] == b"x" * SIZE
    for sent in (talker, large):
        sent.stands()
    assert any(TOLD.fullmatch(state) for state in talker.states), talker.states
    assert talker.job.status == "RETURNED"
    assert talker.host_state.connection.link.state.name == "connected"
    talker.host_state.connection.close()


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
    sent.host_state.connection.close()


@pytest.mark.fault("27")
@pytest.mark.long
def test_connection_closed_before_the_answer_leaves_the_job_alone(world: World, behind: DelayProxy) -> None:
    """The host has started the job, and the client will never hear of it: the job's folder is the job's."""
    behind.one_way_s = 0.3
    sent = Here(world).submit("speak", "bare-setup", lines=80, every=0.1)
    sent.await_at("start")
    sent.host_state.connection.close()
    assert sent.job.exception(150) is not None
    assert until(sent.there.finals, 150), sent.there.history()
    assert sent.stands()["notes"] == []
    assert attach(sent.job.id, "bare-setup").result(150) == 80
