"""Clocks and clients that change while something is removed, between two steps of that in the process of the test."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from clusterfn.bridge.supervisor.expire import tidy
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.main import remove_expired
from tests.bridge.host import Bench
from tests.bridge.test_expire import DAY_S, ONE, age, aged_job, stored
from tests.waiting import replace_here


def tidied(bench: Bench) -> dict[str, Any]:
    return tidy(str(bench.root), time.time(), 14 * DAY_S, measure=True).summary


@pytest.mark.fault("36")
@pytest.mark.parametrize("ahead_days", [20, 20_000])
def test_a_clock_that_was_ahead_while_one_job_ended_removes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ahead_days: int
):
    young, last = aged_job(bench, 0), bench.job(ONE)
    age(bench.root / "expired", 1.1)
    right = time.time()

    for days in (ahead_days, 0, 1.1):
        replace_here(monkeypatch, time, "time", lambda now=right + days * DAY_S: now)
        monkeypatch.setattr(os, "utime", lambda path, times=None, utime=os.utime: utime(path, (time.time(),) * 2))
        remove_expired(JobFolder(str(last.folder)))

    assert young.folder.exists()


def test_what_a_client_asks_for_while_it_is_being_removed_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    blob, rename = stored(bench, 15)["blobs"], os.rename

    def asked_for_first(source: str, target: str) -> None:
        if source == str(blob):
            os.utime(source)  # as the agent does
        rename(source, target)

    monkeypatch.setattr(os, "rename", asked_for_first)
    told = tidied(bench)

    assert blob.exists() and told["kinds"]["blobs"]["gone"] == 0


def test_what_one_process_looks_at_again_no_other_removes(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    modules, rename = stored(bench, 15)["sources"], os.rename

    def then_another_looks(source: str, target: str) -> None:
        rename(source, target)
        if source == str(modules):
            os.utime(target)  # a client has asked for it just before
            tidied(bench)

    monkeypatch.setattr(os, "rename", then_another_looks)
    tidied(bench)

    assert [path.name for path in modules.iterdir()] == ["file"]
