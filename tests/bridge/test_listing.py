"""The list of all jobs: one damaged folder never hides the others."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.bridge.host import Bench, Job
from tests.bridge.layout import layout_bridge

ONE = "def f():\n    return 1\n"


def test_names_in_other_letters_are_listed_as_they_are_whatever_the_locale(bench: Bench):
    """An old interpreter under LANG=C keeps them in another form itself."""
    job = bench.job(ONE, name="größe_日本")

    assert bench.listed()[job.id]["name"] == "größe_日本"


def test_a_job_that_its_scheduler_refuses_says_why_until_its_program_falls_silent(bench: Bench):
    job = bench.job(ONE, scheduler="slurm")
    note = job.folder / "refused"
    note.write_text("not in the queue of SLURM yet; you have as many jobs as you may have there")
    assert bench.listed()[job.id]["message"] == note.read_text()

    os.utime(note, (time.time() - 1200.0,) * 2)

    silent = bench.listed()[job.id]["message"]
    assert silent.startswith("never submitted: the program that was to do so has been silent for 20 min")


def test_a_torn_line_of_its_events_hides_no_job_that_runs(bench: Bench):
    job = bench.job("def f():\n    import time\n    time.sleep(600)\n")
    job.start()
    job.wait_for("running")
    with (job.attempt / "events.jsonl").open("a") as events:
        events.write('{"event": "no{"event": "note"}\n[]\n')

    assert bench.listed()[job.id]["state"] == "RUNNING"
    (job.folder / "cancel").touch()


@pytest.mark.parametrize("root", [None, "/elsewhere"])
def test_a_folder_into_which_others_may_write_is_refused_whatever_its_spec_says(bench: Bench, root: str | None):
    job = bench.job(ONE)
    spec = json.loads((job.folder / "spec.json").read_text())
    (job.folder / "spec.json").write_text(json.dumps({**spec, **({"root": root} if root else {})}))
    job.folder.chmod(0o777)

    done = job.call("run")

    assert done.returncode != 0 and "another user could plant a result" in done.stderr


def overwrite(name: str, content: str):
    return lambda job: (job.folder / name).write_text(content)


@pytest.mark.parametrize(
    "damage",
    [
        overwrite("attempts/1/outcome.json", ""), overwrite("attempts/1/outcome.json", "garb\0age"),
        overwrite("attempts/1/outcome.json", "[]"), overwrite("attempts/1/outcome.json", "null"),
        overwrite("spec.json", "{}"), overwrite("spec.json", ""), lambda job: (job.folder / "spec.json").unlink(),
        lambda job: job.attempt.chmod(0), lambda job: (job.folder / "attempts").chmod(0),
        lambda job: job.folder.chmod(0),
    ],
)  # fmt: skip
def test_a_damaged_job_is_unknown_and_hides_no_other(bench: Bench, damage):
    good, bad = bench.ended(), bench.ended()
    damage(bad)

    found = bench.listed()

    assert found[good.id]["state"] == "RETURNED"
    assert found[bad.id]["state"] == "UNKNOWN"
    assert found[bad.id]["message"].startswith("its folder is damaged: ")


def test_what_is_no_job_is_not_listed(bench: Bench):
    job = Job(bench, bench.job(ONE).folder)
    for name in (job.id + ".part-12-3", ".expired-" + job.id, "notes"):
        (bench.root / "jobs" / name).mkdir()

    assert bench.listed()[job.id]["state"] == "PENDING"
    assert len(bench.listed()) == 1


def test_many_jobs_are_listed_a_page_at_a_time_and_none_twice(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = ("supervisor/listing.py", "_PAGE_BYTES = 2 * 1024 * 1024", "_PAGE_BYTES = 300")
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "short", short))
    ids = sorted(bench.job(ONE).id for _ in range(5))
    pages, after = [], ""
    while after is not None:
        page = bench.listed(after)
        after = page.pop("after", {}).get("after")
        pages.append(list(page))

    assert [job_id for page in pages for job_id in page] == ids
    assert [len(page) for page in pages] == [2, 2, 1]


def test_a_job_says_for_how_long_it_ran_and_what_it_asked_for(bench: Bench):
    waiting, ended = bench.job(ONE), bench.ended()

    found = bench.listed()

    assert (found[waiting.id]["ran_s"], found[waiting.id]["gpus"]) == (None, 0)
    assert 0 < found[ended.id]["ran_s"] < 60  # type: ignore[operator]
