"""`supervise.py withdraw`: many jobs in one process. What it does not withdraw, it leaves as it was."""

from __future__ import annotations

import json
import subprocess

from tests.bridge.host import Bench, Job, clean_environ, obey_modes

ONE = "def f():\n    return 1\n"
VERDICT = {"kind": "cancelled", "message": "withdrawn", "stage": "queue", "withdraw": True}


def withdrawn(bench: Bench, *ids: str, host: str = "test") -> list[dict[str, str]]:
    argv = [bench.host, "-I", "-S", str(bench.bridge / "supervise.py"), "withdraw", str(bench.root), host]
    asked = json.dumps({"verdict": VERDICT, "jobs": ids})
    done = subprocess.run(
        argv, input=asked, capture_output=True, text=True, env=clean_environ(), timeout=150, preexec_fn=obey_modes
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files_of(job: Job) -> list[str]:
    return sorted(path.relative_to(job.folder).as_posix() for path in job.folder.rglob("*"))


def test_jobs_that_have_not_started_never_do(bench: Bench) -> None:
    first, second = bench.job(ONE), bench.job(ONE)

    told = withdrawn(bench, first.id, second.id)

    assert told == [{"id": first.id, "name": "f"}, {"id": second.id, "name": "f"}]
    assert [job.outcome()["kind"] for job in (first, second)] == ["cancelled"] * 2
    first.start().wait(150)
    assert not (first.attempt / "stdout").exists() and first.outcome()["message"] == "withdrawn"


def test_what_is_left_to_a_request_of_its_own_stays_as_it_is_and_hides_no_other(bench: Bench) -> None:
    ended, waiting = bench.ended(), bench.job(ONE)
    begun, group = bench.job(ONE), bench.job(ONE, group={"count": 2, "chunk": 1, "elements": 1})
    (begun.folder / "claim").write_text("1234")
    elsewhere, older = bench.job(ONE, host="other"), bench.job(ONE, bridge=str(bench.root / "bridge" / "0123"))
    damaged, closed = bench.job(ONE), bench.job(ONE)
    (damaged.folder / "spec.json").write_text("{")
    (closed.folder / "attempts").write_text("no folder")
    kept = [ended, begun, group, elsewhere, older, damaged, closed]
    before = [files_of(job) for job in kept]
    ids = [job.id for job in kept]

    told = withdrawn(bench, *ids[:3], "0" * 16, "..", *ids[3:], waiting.id)

    assert [each["id"] for each in told] == [waiting.id]
    assert [[name for name in files_of(job) if name != "claim"] for job in kept] == [
        [name for name in files if name != "claim"] for files in before
    ]


def test_a_request_that_comes_twice_is_answered_twice_the_same(bench: Bench) -> None:
    """Who has not heard the first answer could not remove the job from its scheduler's queue."""
    job = bench.job(ONE)
    first = withdrawn(bench, job.id)

    assert withdrawn(bench, job.id) == first != []


def test_a_bridge_that_was_sent_again_is_of_the_same_version(bench: Bench) -> None:
    job = bench.job(ONE, bridge=f"{bench.bridge}-0a1b2c3d")

    assert [each["id"] for each in withdrawn(bench, job.id)] == [job.id]
