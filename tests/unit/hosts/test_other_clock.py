"""A host whose clock is another one: what is shown of its jobs and GPUs is as old as it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.bridge.job_states import RUNNING
from clusterfn.calls.job import Job, run_of
from clusterfn.calls.job_tracker import Tracker
from clusterfn.cli.gpus import ask_machine
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.hosts import connection as hosts
from clusterfn.hosts import environment_builder
from clusterfn.hosts.connection import Followed, Reply
from clusterfn.hosts.host_state import HostState
from tests.fakes.transport import FakeTransport, agent
from tests.programs import main
from tests.waiting import until

OK = {"end": True, "ok": True}
AGO_S, RAN_S, AHEAD = 3800.0, 1800.0, (-2 * 3600.0, 3 * 3600.0, 45.0)


def answers(ahead_s: float) -> Callable[[dict[str, Any], bytes], Iterator[tuple[dict[str, Any], bytes]]]:
    """Play a host on which a job was sent an hour ago, and has run for half an hour."""

    def handler(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        sent = time.time() + ahead_s - AGO_S
        held = {"user": "ann", "own": False, "job": None, "name": None, "since": sent}
        told: dict[str, Any] = {
            "list": {
                "id": "7f3a" * 4, "name": "train", "host": "box", "state": "RUNNING", "message": "", "started": sent,
                "since": sent + AGO_S - RAN_S, "ran_s": RAN_S,
            },
            "sizes": {},
            "gpus": {
                "trouble": "", "waiting": [{**held, "asked": {"gpus": 1}, "reason": ""}],
                "gpus": [{"uuid": "u", "name": "A100", "index": 0, "total_mib": 1, "used_mib": 1, "use_percent": 9,
                          "holder": held, "without_lease": []}],
            },
            "/root": {
                "id": "e", "about": "x", "python": "3.12", "torch_cuda": None, "bytes": 1, "files": 1, "built": sent,
                "used": sent, "used_by": [],
            },
        }  # fmt: skip
        if request["do"] == "run":
            out = next((json.dumps(told[word]).encode() for word in reversed(request["argv"]) if word in told), b"")
            yield {**OK, "rc": 0, "out": len(out), "truncated": False}, out
        elif request["do"] == "follow":
            begun = {"event": "running", "t": sent + AGO_S - RAN_S}
            yield {"file": 0, "offset": 0}, json.dumps(begun).encode() + b"\n"
        elif request["do"] != "chunk" or request.get("last"):
            yield OK, b""

    return handler


@pytest.fixture(params=AHEAD)
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostState]:
    """The state of such a host, whose clock is ahead of ours by the parameter."""
    program = agent(answers(request.param), now=time.time() + request.param)
    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(program))
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n  box: {{address: box-{os.urandom(4).hex()}, scheduler: bare}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    state = HostState(Host("box", "box", "bare", "clusterfn.yml:3"))
    yield state
    state.connection.close()


def test_a_job_is_as_old_as_it_is(box: HostState, capsys: pytest.CaptureFixture[str]) -> None:
    main(["jobs", "box", "--since", "90min"])

    now = time.time() - RAN_S  # which may be in the next minute by now
    since = [time.strftime("since %H:%M", time.localtime(now + late_s)) for late_s in (-60, 0, 60)]
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:6] == ["7f3a", "train", "box", "RUNNING", "1", "h"] and " 30 min " in row
    assert any(each in row for each in since) or box.connection.facts.ahead_s == 0
    main(["jobs", "box", "--since", "30min"])
    assert "train" not in capsys.readouterr().out


def test_what_holds_a_gpu_an_environment_and_the_state_of_a_job_are_as_old_as_they_are(box: HostState) -> None:
    box.connect()
    told = ask_machine(box)
    (built,) = environment_builder.list_environments(box, "/root")
    for since in (told["gpus"][0]["holder"]["since"], told["waiting"][0]["since"], built.used, built.built):
        assert since == pytest.approx(time.time() - AGO_S, abs=60)

    tracker = Tracker(box, "7f3a" * 4, "train")
    job: Job[Any] = Job(tracker.run, tracker.source)
    tracker.follow()
    until(lambda: job.state == RUNNING)
    assert job.since == pytest.approx(time.time() - RAN_S, abs=60)
    tracker.run.close()


@pytest.mark.parametrize("told", ["1e300", "-1", "NaN", '"soon"'])
def test_a_time_that_no_clock_can_show_is_left_out(told: str) -> None:
    files: list[Followed] = []
    there = Mock(root="/root", host=Mock(result_policy=ResultPolicy), here=lambda when: when)
    there.connection.follow.side_effect = lambda some, *_, **__: files.extend(some) or Reply(lambda: None)
    tracker = Tracker(there, "7f3a000011112222", "train")
    job: Job[Any] = Job(tracker.run, tracker.source)
    tracker.follow()

    files[0].on_data(f'{{"event": "running", "t": {told}}}\n'.encode())

    assert job.state == RUNNING
    assert abs(run_of(job).since - time.time()) < 3600.0, "it is new from this moment on"
