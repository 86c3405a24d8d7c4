"""SLURM starts jobs again, asked from inside or outside, or by preemption: only the last attempt is an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import clusterfn
from clusterfn import Cancelled, CommandFailed, NodeFailed, Preempted, cluster
from tests.e2e.conftest import MINOR
from tests.lab import Lab
from tests.lab.own_slurm import OwnSlurm
from tests.waiting import until

pytestmark = pytest.mark.lab
SETTINGS = {
    "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "RequeueExit": "99",
    "SelectTypeParameters": "CR_Core", "KillWait": 20,
}  # fmt: skip
NODES = {"s1": "CPUs=32", **{f"s{number}": "CPUs=1" for number in range(2, 9)}}
PARTITIONS = [
    "PartitionName=main Default=YES Nodes=s1 PriorityTier=5",
    "PartitionName=pair Nodes=s5,s6",
    "PartitionName=lost Nodes=s7,s8",
    "PartitionName=low Nodes=s2,s3,s4 PriorityTier=1",
    "PartitionName=high Nodes=s2,s3,s4 PriorityTier=9",
]


@pytest.fixture(scope="module")
def own(lab: Lab) -> Iterator[OwnSlurm]:
    with lab.own_slurm(SETTINGS, nodes=NODES, partitions=PARTITIONS) as own:
        yield own


@pytest.fixture
def site(own: OwnSlurm, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnSlurm:
    """Its folder is the project of commands."""
    config = own.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR), "slurm: {mem: null}")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return own


def number_of(own: OwnSlurm, job: Any) -> str:
    return own.run("squeue", "--noheader", "--format=%i", f"--name={job.name}.{job.id}").stdout.strip()


def requeue(own: OwnSlurm, job: Any) -> None:
    until(lambda: "up" in job.logs())
    own.run("scontrol", "requeue", number_of(own, job))


def scancel_after_requeue(own: OwnSlurm, job: Any) -> None:
    requeue(own, job)
    until(lambda: "requeued" in job.status)
    own.run("scancel", number_of(own, job))


def stop_after_requeue(own: OwnSlurm, job: Any) -> None:
    requeue(own, job)
    until(lambda: "requeued" in job.status)
    job.stop()


def node_of(own: OwnSlurm, job: Any) -> str:
    until(lambda: "up" in job.logs())
    return own.run("squeue", "--noheader", "--format=%N", f"--name={job.name}.{job.id}").stdout.strip()


def lose_node(own: OwnSlurm, job: Any) -> None:
    """SLURM gives its node up, while its processes live there."""
    own.run("scontrol", "update", f"nodename={node_of(own, job)}", "state=down", "reason=lost")


def preempt(own: OwnSlurm, job: Any) -> None:
    node = node_of(own, job)
    own.run("sbatch", "-p", "high", "-w", node, "-c1", "-o", "/dev/null", "--wrap", "sleep 3")


def nothing(own: OwnSlurm, job: Any) -> None: ...


ASKS = "scontrol requeue $SLURM_JOB_ID; "
WARNED = ("--time=5", "--signal=B:USR1@290")  # ten seconds after its start
FOR_EVER = "echo up; while :; do sleep 0.1; done"


class Form(NamedTuple):
    """A job, and what becomes of it.

    Attributes:
        first: What the script does in its first attempt; in the second it prints "again".
        act: What happens to it from outside.
        lines: Of #SBATCH.
        ends: "again" for a second attempt that has returned, or the error.
    """

    first: str
    act: Callable[[OwnSlurm, Any], None] = nothing
    lines: Sequence[str] = ()
    ends: Any = "again"


FORMS: Mapping[str, Form] = {
    "inside, 0": Form(f"{ASKS} exit 0"),
    "inside, 143": Form(f"{ASKS} exit 143"),
    "inside, killed": Form(f"{ASKS} kill -9 $$"),
    "inside, 0, on two nodes": Form(f"{ASKS} exit 0", lines=["-p pair -N2"]),
    "inside, 0, after the warning": Form(f"trap '{ASKS} exit 0' USR1; {FOR_EVER}", lines=WARNED),
    "inside, 143, after the warning": Form(f"trap '{ASKS} exit 143' USR1; {FOR_EVER}", lines=WARNED),
    "outside, by default": Form(FOR_EVER, requeue),
    "outside, 0": Form(f"trap 'exit 0' TERM; {FOR_EVER}", requeue),
    "outside, 143": Form(f"trap 'exit 143' TERM; {FOR_EVER}", requeue, WARNED),
    "outside, killed": Form(f"trap : TERM; {FOR_EVER}", requeue),
    "outside, killed after the warning": Form(f"trap : TERM USR1; {FOR_EVER}", requeue, WARNED),
    "preempted, 0": Form(f"trap 'exit 0' TERM; {FOR_EVER}", preempt, ["-p low -w s2"]),
    "preempted, cannot be requeued": Form(FOR_EVER, preempt, ["-p low -w s3", "--no-requeue"], Preempted),
    "its node is lost": Form(FOR_EVER, lose_node, ["-p lost -w s7"]),
    "its node is lost, cannot be requeued": Form(FOR_EVER, lose_node, ["-p lost -w s8", "--no-requeue"], NodeFailed),
    "a status of the site": Form("exit 99"),
    "another status": Form("exit 98", ends=CommandFailed),
    "its own SIGTERM": Form("kill -TERM $$", ends=CommandFailed),
    "then cancelled": Form(FOR_EVER, scancel_after_requeue, ends=Cancelled),
    "then stopped": Form(FOR_EVER, stop_after_requeue, ends=Cancelled),
    "not allowed": Form(f"{ASKS} exit 5", lines=["--no-requeue"], ends=CommandFailed),
}  # fmt: skip


def script(name: str, form: Form) -> str:
    """Write a file for sbatch; return its name."""
    path = Path(f"{''.join(filter(str.isalnum, name))}.sbatch")
    lines = "".join(f"#SBATCH {line}\n" for line in ("-c1", *form.lines))
    path.write_text(f"#!/bin/bash\n{lines}[ -z $SLURM_RESTART_COUNT ] || {{ echo again; exit 0; }}\n{form.first}\n")
    return str(path)


def end_of(job: Any) -> object:
    """Return the last word of a script that has returned, or the class of its error."""
    error = job.exception(200)
    return type(error) if error is not None else (job.logs().split() or [""])[-1]


def test_a_script_that_has_itself_requeued_and_exits_with_0_ends_with_its_last_attempt(site: OwnSlurm) -> None:
    job = clusterfn.command([script("short", FORMS["inside, 0"])]).submit()

    assert end_of(job) == "again"
    assert "attempt 1 was requeued: SLURM" in job.notes[0]


def test_files_of_a_project_stay_for_a_job_that_a_script_has_submitted(site: OwnSlurm) -> None:
    Path("next.sh").write_text("#!/bin/sh\ncat words.txt > read.txt\n")
    Path("words.txt").write_text("words\n")
    Path("first.sh").write_text("#!/bin/sh\n#SBATCH -c1\nsbatch --begin=now+1 -o /dev/null next.sh\n")
    Path("alone.sh").write_text("#!/bin/sh\n#SBATCH -c1\n[ 1 ] || sbatch next.sh\n")

    first, alone = (clusterfn.command([name]).submit() for name in ("./first.sh", "./alone.sh"))

    assert (first.result(100), alone.result(100)) == (None, None)
    work = site.root / "jobs" / first.id / "attempts" / "1" / "work"
    assert f"the project's files stay in {work} for job " in first.logs("stderr")
    until(lambda: (work / "read.txt").exists() and (work / "read.txt").read_text() == "words\n")
    assert not alone.files


def asking(x):
    """Has itself requeued in its first attempt, and returns; says in which attempt it was."""
    import os
    import subprocess

    attempt = os.environ["CLUSTERFN_JOB"].rpartition("/")[2]
    if attempt == "1" and x == 1:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
    return x, attempt


def saving():
    """Waits until it is warned, and says so."""
    import time

    import clusterfn

    told = []
    clusterfn.on_warning(lambda: told.append("warned"))
    print("up", flush=True)
    while not told:
        time.sleep(0.05)
    return told


for travels_by_value in (asking, saving):
    travels_by_value.__module__ = "__main__"


@pytest.mark.long
def test_each_form_of_a_restart_ends_with_its_last_attempt(site: OwnSlurm) -> None:
    jobs = {name: clusterfn.command([script(name, form)]).submit() for name, form in FORMS.items()}
    function = cluster(requeue=["preempted"])(asking).submit(1)
    not_allowed = cluster()(asking).submit(1)
    warned = cluster(time="9min", warn_before="1min", slurm={"partition": "low", "nodelist": "s4"})(saving).submit()
    group = cluster(retries=1)(asking).map([0, 1, 2])
    array = clusterfn.command([script("array", FORMS["inside, 0"]._replace(lines=["--array=4-6"]))]).map([4, 5, 6])
    for name, form in FORMS.items():
        form.act(site, jobs[name])
    preempt(site, warned)

    site.run("scontrol", "update", "nodename=s7", "state=resume")

    ends = {name: end_of(job) for name, job in jobs.items()}

    assert ends == {name: form.ends for name, form in FORMS.items()}, site.logs()
    assert (function.result(200), not_allowed.result(200), warned.result(200)) == ((1, "2"), (1, "1"), ["warned"])
    assert group.results(200)[1] == (1, "1"), "the value of an item is kept, whatever becomes of its element"
    array.results(200)
    assert [array.logs(index) for index in range(3)] == ["again\n"] * 3
