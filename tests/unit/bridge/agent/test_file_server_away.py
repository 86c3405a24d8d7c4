"""A file server that is away for a while ends no request about a job: as /proc/self/mem, it answers EIO."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from tests.fakes.agent_client import Client, away_for, wait_for
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
AWAY = "/proc/self/mem"


@pytest.fixture(autouse=True)
def tries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(monkeypatch, "read again", 0.05)


def put(path: Path, text: str) -> None:
    """Replace it at once."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def heard(client: Client, number: int) -> list[dict[str, object]]:
    client.listen()
    return [header for header in client.heard if header["id"] == number]


def ended(client: Client) -> list[dict[str, object]]:
    """What was heard of request 2, once it has ended."""
    until(lambda: bool(client.turns() or any("end" in header for header in heard(client, 2))))
    return heard(client, 2)


def test_the_end_and_the_output_of_a_job_arrive_once_the_server_is_back(client: Client, tmp_path):
    output, outcome = tmp_path / "stdout", tmp_path / "outcome.json"
    for path in (output, outcome):
        path.symlink_to(AWAY)

    client.ask(id=2, do="follow", files=[[str(output), 0]], until=str(outcome))
    for _ in range(20):
        assert heard(client, 2) == []
        client.turns()
    put(output, "late words\n")
    put(outcome, "{}")

    said = ended(client)
    assert [header.get("offset") for header in said] == [0, None], "what it printed, and the outcome"
    assert said[-1]["ok"] is True


def test_a_server_that_stays_away_is_reported(client: Client, tmp_path, monkeypatch):
    wait_for(monkeypatch, "server is away", 0.2)
    (tmp_path / "outcome.json").symlink_to(AWAY)

    client.ask(id=2, do="follow", until=str(tmp_path / "outcome.json"))

    until(lambda: bool(client.turns() or heard(client, 2)))
    assert heard(client, 2)[-1]["error"]["kind"] == "io"  # type: ignore[index]


def test_what_a_server_does_not_say_is_not_missing(client: Client, tmp_path, monkeypatch):
    def stat(path: object, **more: object) -> os.stat_result:
        raise OSError(5, "Input/output error", path) if str(path).endswith("job") else FileNotFoundError(2, "none")

    client.ask(id=2, do="have", paths=[str(tmp_path), str(tmp_path / "none")])
    until(lambda: bool(client.turns() or heard(client, 2)))
    assert heard(client, 2)[-1]["have"] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        client.ask(id=3, do="have", paths=[str(tmp_path / "job")])
        client.turns()
    assert heard(client, 3)[-1]["error"]["kind"] == "io"  # type: ignore[index]


def test_a_server_that_is_away_at_the_first_look_keeps_nothing_from_being_watched(client, tmp_path, monkeypatch):
    output, outcome = tmp_path / "stdout", tmp_path / "outcome.json"
    away_for(monkeypatch, output, 1)
    client.ask(id=2, do="follow", files=[[str(output), 0]], until=str(outcome))
    again = time.monotonic() + 0.3
    until(lambda: bool(client.turns() or time.monotonic() > again))
    put(outcome, "{}")

    assert ended(client)[-1]["ok"] is True


def test_an_outcome_that_is_away_comes_before_what_belongs_to_it(client: Client, tmp_path, monkeypatch):
    outcome, value = tmp_path / "outcome.json", tmp_path / "value"
    value.write_text("value")
    outcome.symlink_to(AWAY)
    client.ask(id=2, do="follow", until=str(outcome), **{"with": [[str(value), 0]]})
    for _ in range(20):
        client.turns()
    put(outcome, "{}")

    assert [("content" in header, "file" in header) for header in ended(client)] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip


@pytest.mark.parametrize("has_outcome", [True, False])
def test_a_log_whose_server_stays_away_is_left_out_if_an_outcome_is_waited_for(
    client: Client, tmp_path, monkeypatch, has_outcome: bool
):
    wait_for(monkeypatch, "server is away at the end" if has_outcome else "server is away", 0.2)
    (tmp_path / "stdout").symlink_to(AWAY)
    wanted = {"until": str(tmp_path / "outcome.json")} if has_outcome else {}
    client.ask(id=2, do="follow", files=[[str(tmp_path / "stdout"), 0]], **wanted)
    client.turns()
    put(tmp_path / "outcome.json", "{}")

    assert ended(client)[-1]["ok"] is has_outcome
