"""Three clocks may differ by minutes: that of the machine that lists jobs, of the file server, and of a job's node."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor import file_clock, listing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")
ID = "0123456789abcdef"
SPEC = {
    "id": ID, "name": "train", "host": "cluster", "scheduler": "slurm", "keep_days": 14.0, "resources": {"cores": 1},
}  # fmt: skip
CLOCKS = [(0, 0), (300, 0), (-300, 0), (0, 300), (0, -300), (300, -300)]


@pytest.fixture(params=CLOCKS, ids=lambda each: f"node {each[0]:+d} s, login node {each[1]:+d} s")
def clocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """By how many seconds the clocks of the node and of the login node are ahead of that of the file server."""
    node, login = request.param
    clock = SimpleNamespace(time=lambda: time.time() + login, monotonic=time.monotonic)
    for module in (listing, file_clock):
        monkeypatch.setattr(module, "time", clock)
    return node, login


def sent(root: Path, node: float) -> Path:
    """The folder of a job that was sent 200 s ago, and whose function began 120 s ago."""
    folder, now = root / "jobs" / ID, time.time()
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({**SPEC, "root": str(root)}))
    os.utime(folder / "spec.json", (now - 200, now - 200))
    (attempt / "owner").touch()
    told = (("starting", 130), ("running", 120), ("note", 0))
    lines = [json.dumps({"event": event, "t": now + node - ago, "n": 1}) for event, ago in told]
    (attempt / "events.jsonl").write_text("\n".join(lines) + "\n")
    (attempt / "heartbeat").write_text("00000001")
    return folder


def beat(folder: Path, ago: float) -> None:
    when = time.time() - ago
    os.utime(folder / "attempts" / "1" / "heartbeat", (when, when))


def listed(folder: Path, login: float) -> dict[str, Any]:
    """What is listed, with its times as seconds before now."""
    told = listing.describe(str(folder))
    times = {name: time.time() + login - told[name] for name in ("started", "since", "ended") if told.get(name)}
    return {**told, **times}


def test_a_job_is_listed_by_the_clock_of_who_lists_it(tmp_path: Path, clocks: tuple[int, int]) -> None:
    node, login = clocks
    folder = sent(tmp_path, node)
    told = listed(folder, login)

    assert told["state"] == "RUNNING"
    assert told["ran_s"] == pytest.approx(120, abs=5) and told["since"] == pytest.approx(120, abs=5)
    assert told["started"] == pytest.approx(200, abs=5)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"], "nothing stays of the look at the clock"

    beat(folder, 200)
    assert listed(folder, login)["state"] == "UNKNOWN", "its supervisor is silent by the clock of its file server"

    outcome = {"kind": "returned", "final": True, "usage": {"wall_s": 110.0}}
    (folder / "attempts" / "1" / "outcome.json").write_text(json.dumps(outcome))
    told = listed(folder, login)
    assert (told["state"], told["ran_s"]) == ("RETURNED", 110.0)
    assert told["ended"] == pytest.approx(0, abs=5)


@pytest.mark.parametrize("rest", [b'{"event": "no', b"\0\0\0\n"], ids=["cut off", "damaged"])
def test_a_last_line_that_was_cut_off_is_no_clock(tmp_path: Path, rest: bytes) -> None:
    folder = sent(tmp_path, 0)
    events = folder / "attempts" / "1" / "events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:2]) + rest)

    told = listed(folder, 0)

    assert told["state"] == "RUNNING"
    assert told["ran_s"] == pytest.approx(120, abs=5)


def test_a_file_that_stays_hides_no_other_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("the folder takes no change now")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "unlink", refuse)
    assert file_clock.ahead_s(str(tmp_path)) == 0.0

    monkeypatch.setattr(os, "fstat", interrupt)
    (tmp_path / "another").mkdir()
    with pytest.raises(KeyboardInterrupt):
        file_clock.ahead_s(str(tmp_path / "another"))
