"""Functions on a host with Grid Engine: values, errors, output, limits, ends, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import Cancelled, ConfigError, OutOfMemory, SubmitError, cluster, jobs
from tests.e2e.conftest import MINOR
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.lab


@pytest.fixture
def root(lab: Any, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose only host is the lab's Grid Engine, with a root of its own; that root."""
    assert lab.grid_engine
    path = tmp_path / "clusterfn.yml"
    path.write_text(
        f"hosts:\n  campus:\n    address: gridengine-bash\n    ssh_config: {lab.ssh_config}\n"
        f"    root: ~/{lab_root.name}\n"
        f'    environment: "python:{lab.python(MINOR)}"\n    scheduler: grid_engine\n    poll_floor: "1s"\n'
        f"    defaults: {{memory: 500MB, time: 5min}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    return lab_root


def double(x: int) -> int:
    return 2 * x


def place(text: str) -> dict[str, str]:
    import os
    import sys

    print("out", text, flush=True)
    print("err", text, file=sys.stderr, flush=True)
    return {**os.environ, "node": os.uname()[1]}


def waste(megabytes: int) -> int:
    import time

    held = b"x" * (megabytes * 2**20)
    time.sleep(30)
    return len(held)


def sleep(seconds: float) -> str:
    import time

    print("began", flush=True)
    time.sleep(seconds)
    return "slept"


for each in (double, place, waste, sleep):
    each.__module__ = "__main__"


def there(function: Any, **options: Any) -> Any:
    return cluster(host="campus", **options)(function)


def number_of(lab: Any, root: Path, job: Any) -> str:
    """Grid Engine's number of a job that has started."""
    claim = root / "jobs" / job.id / "claim"
    return str(until(lambda: claim.exists() and claim.read_text().strip()))


def test_a_call_returns_its_value_and_shows_its_output(root: Path, capfd: Any) -> None:
    found = there(place)("here")

    assert found["node"] in ("ge1", "ge2")
    assert found["JOB_NAME"].startswith("place.")
    printed = capfd.readouterr()
    assert "out here" in printed.out
    assert "err here" in printed.err


def test_cores_are_slots(root: Path) -> None:
    assert there(place, cores=3)("slots")["NSLOTS"] == "3"


def test_items_are_tasks_of_an_array(root: Path) -> None:
    group = there(double).map(range(7), chunksize=2)

    assert list(group) == [0, 2, 4, 6, 8, 10, 12]
    (folder,) = (root / "jobs").iterdir()
    claims = {(each / "claim").read_text().strip() for each in (folder / "elements").iterdir()}
    assert {claim.partition("_")[2] for claim in claims} == {"1", "2", "3", "4"}
    assert len({claim.partition("_")[0] for claim in claims}) == 1


def test_a_function_that_takes_too_much_memory_is_ended(root: Path) -> None:
    with pytest.raises(OutOfMemory):
        there(waste, memory="200MB")(600)


def test_a_running_job_is_stopped_and_says_so(root: Path, lab: Any) -> None:
    job = there(sleep).submit(60)
    until(lambda: "began" in job.logs())
    job.stop()

    with pytest.raises(Cancelled):
        job.result(150)
    number = number_of(lab, root, job)
    assert lab.grid_engine.wait_ended(number)["failed"] == "0"  # it ended by itself, and qdel killed nothing


@pytest.mark.long
def test_a_job_that_qmod_suspends_has_all_of_its_time(root: Path, lab: Any) -> None:
    job = cluster(time="20s")(sleep).submit(8)
    until(lambda: job.state == "RUNNING")
    number = number_of(lab, root, job)
    lab.grid_engine.run("qmod", "-sj", number)
    until(lambda: job.state == "SUSPENDED")
    why = job.reason
    lab.grid_engine.run("qmod", "-usj", number)

    assert why == "suspended by `qmod -sj`; this time does not count"
    assert job.result(150) == "slept"
    assert job.usage["wall_s"] < 20


@pytest.mark.long
def test_a_job_that_qdel_killed_is_reported_by_the_accounting(root: Path, lab: Any) -> None:
    job = there(sleep).submit(60)
    until(lambda: "began" in job.logs())
    lab.grid_engine.run("qdel", number_of(lab, root, job))

    with pytest.raises(Cancelled, match="as `qdel` does"):
        job.result(150)


def test_what_can_never_run_is_refused_in_the_words_of_qsub(root: Path) -> None:
    with pytest.raises(SubmitError) as refusal:
        there(place, gpus=99)("never")

    assert 'cannot run at host "ge1" because it offers only hc:gpu=4' in "\n".join(refusal.value.evidence)
    until(lambda: not list((root / "jobs").iterdir()))


@pytest.fixture
def few_gpus(root: Path, lab: Any) -> Iterator[None]:
    """Jobs that leave one of four GPUs on each host: what asks for two waits."""
    blockers = []
    for host in ("ge1", "ge2"):
        command = f"qsub -terse -N blocker -S /bin/sh -o /dev/null -j y -l gpu=3,h={host}"
        blockers.append(lab.ssh("gridengine-bash", command, stdin=b"sleep 600\n").stdout.decode().strip())
    try:
        until(lambda: all(lab.grid_engine.job_state(each) == "r" for each in blockers))
        yield
    finally:
        lab.grid_engine.run("qdel", *blockers)


@pytest.mark.usefixtures("few_gpus")
def test_a_job_that_waits_says_why_and_can_be_withdrawn(root: Path, lab: Any, capsys: Any) -> None:
    job = there(sleep, gpus=2, memory="300MB", time="2min").submit(1)
    until(lambda: "offers only hc:gpu=1" in job.reason)
    group = there(sleep, gpus=2).map([1])
    until(lambda: "offers only hc:gpu=1" in group.reason)
    messages = {each.id: each.message for each in jobs("campus")}
    words = "waiting until enough slots, memory or GPUs are free"
    assert job.reason.startswith(words) and group.reason.startswith(words)
    assert messages[job.id].startswith(words) and messages[group.id].startswith(f"0 of 1 ended; {words}")

    assert group.cancel()
    assert job.cancel()
    waiting = lab.ssh("gridengine-bash", "qstat -s p -r").stdout.decode()
    assert job.id not in waiting


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2}, "nodes=2: Grid Engine starts a job on one host"),
        ({"gpus": 1, "gpu_type": "a100"}, "gpu_type= cannot be requested from Grid Engine"),
        ({"gpus": 1, "gpu_memory": "24GB"}, "gpu_memory= cannot be requested from Grid Engine"),
        ({"gpus": 1, "cores": 2}, "gpus=1 with cores=2: Grid Engine gives each slot the same"),
    ],
)
def test_what_grid_engine_cannot_do_is_rejected_before_anything_is_sent(
    root: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        there(place, **options)("never")
    assert not (root / "jobs").exists()


def test_check_finds_grid_engine_and_what_is_misspelt(root: Path, tmp_path: Path, capsys: Any) -> None:
    main(["check", "--no-job", "campus"])
    assert "Grid Engine with 1 queues: all.q" in capsys.readouterr().out
    path = tmp_path / "clusterfn.yml"
    path.write_text(f"{path.read_text()}    grid_engine: {{queue: al.q}}\n")

    assert main(["check", "--no-job", "campus"]) != 0
    assert "there is no queue al.q; did you mean all.q?" in capsys.readouterr().out
