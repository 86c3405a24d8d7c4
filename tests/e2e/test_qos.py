"""Limits of a real QOS and of a real association: what waits says which limit, and what can never run ends with it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import clusterfn
from tests.e2e.conftest import MINOR
from tests.lab import Lab
from tests.lab.own_slurm import OwnSlurm
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long]


@pytest.fixture(scope="module")
def _site(lab: Lab) -> Iterator[OwnSlurm]:
    node = {"s1": "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:4"}
    cards = "".join(f"Name=gpu File=/opt/clusterfn-lab/dev/nvidia{number}\n" for number in range(4))
    with lab.own_slurm(nodes=node, files={"gres.conf": cards}, accounting=True) as own:
        yield own


def _manage(site: OwnSlurm, *words: str) -> None:
    done = site.run("sacctmgr", "--immediate", *words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def limit(
    _site: OwnSlurm, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], None]]:
    """Sets a limit of the user's QOS, or "user", of the association, until the test ends."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(_site.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR))))
    undo = []

    def change(whose: str, line: str) -> None:
        what = ["modify", "qos", "normal"] if whose == "qos" else ["modify", "user", "cfbash"]
        undo.append([*what, "set", re.sub("=[^=]*$", "=-1", line)])
        _manage(_site, *what, "set", line)

    yield change
    for words in undo:
        _manage(_site, *words)
    _site.run("scancel", "--user=cfbash")


def listed() -> str:
    argv = [sys.executable, "-m", "clusterfn", "jobs"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_a_call_waits_in_the_program_while_the_qos_takes_no_more_jobs_and_says_which_limit(limit):
    limit("qos", "MaxSubmitJobsPerUser=1")
    first = clusterfn.cluster(time.sleep).submit(600)
    until(lambda: first.state == "RUNNING")
    second = clusterfn.cluster(abs).submit(-2)

    words = "not in the queue of SLURM yet; QOSMaxSubmitJobPerUserLimit: you have as many jobs as you may have there"
    until(lambda: words in second.reason)
    assert "QOSMaxSubmitJobPerUserLimit" in listed()
    first.stop()
    assert second.result(120) == 2


@pytest.mark.parametrize(
    ("line", "options", "reason", "words"),
    [
        ("MaxJobsPerUser=1", {}, "QOSMaxJobsPerUserLimit", "you have reached your limit of running jobs"),
        ("GrpTRES=gres/gpu=1", {"gpus": 1}, "QOSGrpGRES", ""),
    ],
)
def test_a_job_in_the_queue_names_the_limit_for_which_it_waits_and_then_runs(limit, line, options, reason, words):
    limit("qos", line)
    first = clusterfn.cluster(**options)(time.sleep).submit(600)
    until(lambda: first.state == "RUNNING")
    second = clusterfn.cluster(**options, allow_cpu=True)(abs).submit(-2)

    until(lambda: reason in second.reason)
    assert words in second.reason and second.state == "PENDING"
    first.stop()
    assert second.result(120) == 2


@pytest.mark.parametrize(
    ("line", "options", "reason"),
    [
        ("MaxTRESPerJob=cpu=2", {"cores": 4}, "QOSMaxCpuPerJobLimit"),
        ("MaxWall=2", {"time": "30min"}, "QOSMaxWallDurationPerJobLimit"),
    ],
)
def test_a_job_that_the_qos_never_lets_run_ends_with_the_name_of_the_limit(limit, line, options, reason):
    limit("qos", line)

    with pytest.raises(clusterfn.Unsatisfiable, match=reason):
        clusterfn.cluster(**options)(abs).submit(-1).result(60)


def test_a_map_goes_in_arrays_as_large_as_the_association_lets_it(limit):
    limit("user", "MaxSubmitJobs=3")

    values = list(clusterfn.cluster(abs).map(range(-10, 0)))

    assert values == list(range(10, 0, -1))
