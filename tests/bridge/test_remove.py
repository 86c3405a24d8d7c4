"""Jobs that a person names are measured and removed; those that wait, run or are needed are not."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.bridge.host import Bench, clean_environ, obey_modes

ONE = "def f():\n    return 1\n"


def asked(bench: Bench, *words: str) -> dict[str, Any]:
    argv = [bench.host, "-I", "-S", str(bench.bridge / "supervise.py"), words[0], str(bench.root), *words[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, env=clean_environ(), timeout=150, preexec_fn=obey_modes)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_what_has_ended_goes_and_the_rest_is_kept_with_a_reason(bench: Bench):
    ended, waiting = bench.ended(), bench.job(ONE)

    told = asked(bench, "remove", "", ended.id, waiting.id, "0" * 16)

    assert [each["id"] for each in told["removed"]] == [ended.id] and told["removed"][0]["bytes"] > 0
    assert {each["id"]: each["why"] for each in told["kept"]} == {
        waiting.id: "it is PENDING", "0" * 16: "it is not there any more"
    }  # fmt: skip
    assert not ended.folder.exists() and waiting.folder.exists()
    assert not [path for path in (bench.root / "jobs").iterdir() if path.name.startswith(".")]


def test_a_job_from_which_a_waiting_one_resumes_is_kept(bench: Bench):
    ended, waiting = bench.ended(), bench.job(ONE)
    spec = waiting.folder / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "resume": ended.id}))

    (kept,) = asked(bench, "remove", "", ended.id)["kept"]

    assert kept["why"] == f"job {waiting.id} resumes from its checkpoint" and ended.folder.exists()


def test_dry_removes_nothing(bench: Bench):
    ended = bench.ended()

    assert [each["id"] for each in asked(bench, "remove", "dry", ended.id)["removed"]] == [ended.id]
    assert ended.folder.exists()


@pytest.mark.parametrize("name", ["..", "../jobs", "%s/attempts"])
def test_only_a_job_is_removed(bench: Bench, name):
    ended = bench.ended()

    assert asked(bench, "remove", "", name.replace("%s", ended.id))["removed"] == []
    assert ended.folder.exists()
