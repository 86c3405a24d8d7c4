"""The file that remembers where jobs were sent: no line of it, however damaged, hides the others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.calls import history
from clusterfn.config.spec import ResultPolicy

ID = "7f3a" * 4
WHOLE = {"id": ID, "host": "box", "config": "", "name": "train", "at": 1}
DAMAGED = [
    b'{"id": "7f3a', b'\xff\xfe "id": "7f3a\xff"', b'["id", "7f3a"]', b'7 "id": "7f3a"', b'"\\ud800"', b"[" * 100_000,
    json.dumps({**WHOLE, "at": "now"}).encode(), json.dumps({**WHOLE, "at": 10**400}).encode(),
    json.dumps({**WHOLE, "results": [1]}).encode(), json.dumps({**WHOLE, "secrets": 7}).encode(), b"\0" * 100,
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_hides_no_other_job(line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = tmp_path / "jobs.jsonl"
    ledger.write_bytes(line + b"\n" + json.dumps(WHOLE).encode() + b"\n")
    monkeypatch.setattr(history, "ledger_path", lambda: ledger)

    assert {entry.host for entry in history.entries("7f3a")} == {"box"}
    assert history.hosts(None) == ["box"]
    assert history.hosts_of("train") == ["box"]
    assert history.sent_within("7f3a", 2.0**62, ["box"]) == {ID}


@pytest.mark.parametrize(
    ("sent", "usual", "counts"),
    [
        ([ResultPolicy(data_only=True)], ResultPolicy(), ResultPolicy(data_only=True)),
        ([ResultPolicy()], ResultPolicy(data_only=True, max_bytes=9), ResultPolicy(data_only=True, max_bytes=9)),
        ([ResultPolicy(max_bytes=7), ResultPolicy(max_bytes=5)], ResultPolicy(max_bytes=9), ResultPolicy(max_bytes=5)),
    ],
)
def test_no_more_is_accepted_of_a_job_than_was_said_when_it_was_sent(
    sent: list[ResultPolicy], usual: ResultPolicy, counts: ResultPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "ledger_path", lambda: tmp_path / "jobs.jsonl")
    job: Any = SimpleNamespace(id=ID, name="train", host="box")
    for policy in sent:
        history.remember(job, None, policy)

    assert history.results_of(ID[:4], usual) == counts
