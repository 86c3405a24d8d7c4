"""Calls from several threads of one process: an answer to one must not wait for a question of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterfn import cluster
from tests.faults.rows import calls
from tests.lab import Lab


@pytest.mark.lab
def test_looking_for_an_environment_does_not_hold_up_the_answers_to_others(
    lab: Lab, clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = lab.clusterfn_yml(tmp_path / "clusterfn.yml", "slurm-second")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    here = lab.python("3.11")
    several = [f"python:{here.parent}/{'./' * number}{here.name}" for number in range(6)]  # each is asked for anew

    def call(environment: str) -> int:
        asked = cluster(host="slurm-second", environment=environment, memory="200MB")
        return asked(calls.returns).submit().result(270)

    with ThreadPoolExecutor(12) as pool:
        values = list(pool.map(call, [*several, *several]))

    assert values == [42] * 12
