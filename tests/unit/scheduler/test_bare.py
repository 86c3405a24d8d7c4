"""A host without a scheduler: a process is there, is another one, or is gone."""

import os
import subprocess
from pathlib import Path

import pytest

from clusterfn.bridge import layout
from clusterfn.config.spec import Interpreter
from clusterfn.errors import SubmitError
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import PENDING, Answer, Evidence, JobState
from tests.golden.samples import job

BOOT = "11111111-2222-3333-4444-555555555555"
STAT = "77 (a b) c) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1"
ID = f"{BOOT}:77:4242"
bare = Bare(BOOT)


def explain(answer, scheduler_id=ID, log=""):
    return bare.explain(Evidence(answer, log, scheduler_id))


def test_the_script_is_started_in_the_jobs_folder():
    request = bare.submission(job(root="/r o'ot"))
    folder = "/r o'ot/jobs/7f3a000011112222"
    assert request.argv == ("/bin/sh", f"{folder}/job.sh")
    assert (request.do, request.cwd, request.log) == ("spawn", folder, f"{folder}/scheduler.log")
    assert {"CLUSTERFN_JOB", "SBATCH_", "SLURM_", "!SLURM_CONF", "SGE_TASK_"} <= set(request.unset)


def test_a_call_is_forked_in_an_image_unless_its_mount_ends_with_the_first_process_in_it():
    images = ("", "bwrap:/folder", "apptainer:/folder", "apptainer:/x.sif", "apptainer:docker://x")
    requests = [bare.submission(job(interpreter=Interpreter("/p", (3, 11), image=image))) for image in images]

    assert [request.template is not None for request in requests] == [True, True, True, False, False]


def test_its_number_is_that_of_the_claim_and_one_exit_status_means_that_it_waits():
    assert bare.submitted(Answer(pid=77, starttime=4242)) == ID
    assert bare.queued_status == 20 << 8


def test_a_script_that_could_not_be_started():
    with pytest.raises(SubmitError, match="could not be started") as caught:
        bare.submitted(Answer(err="sh: no such file"))
    assert caught.value.evidence == ("sh: no such file",)


@pytest.mark.parametrize(
    "stat",
    ["", STAT.replace("4242", "4243"), STAT.replace(" S ", " Z "), "cat: /proc/77/stat: No such file or directory"],
    ids=["gone", "another", "zombie", "said"],
)
def test_a_process_that_is_gone(stat):
    verdict = explain(f"{BOOT}\n{stat}\n", log="a\nlast words\n")
    assert (verdict.kind, verdict.evidence[-1]) == (layout.LOST, "last words")


def test_a_host_that_was_restarted():
    assert explain(f"99{BOOT[2:]}\n{STAT}\n").kind == layout.NODE


def test_a_living_process_and_one_of_which_nothing_is_known_have_no_verdict():
    without_proc = "cat: /proc/sys/kernel/random/boot_id: No such file or directory\n"
    lives = f"{BOOT}\n{STAT}\n"
    known = [(lives, ID), ("", ID), ("cat: no /proc here", ""), (lives.rstrip(), ""), (without_proc, ID)]
    assert [explain(*each) for each in known] == [None] * 5


def test_this_very_process_lives_and_an_ended_one_is_gone():
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    mine = f"{boot}:{os.getpid()}:{start}"
    asked = subprocess.run(bare.evidence_command(mine), capture_output=True, text=True)
    assert explain(asked.stdout, mine) is None
    with subprocess.Popen(["true"]) as process:
        process.wait()
    ended = f"{boot}:{process.pid}:{start}"
    asked = subprocess.run(bare.evidence_command(ended), capture_output=True, text=True)
    assert explain(asked.stdout, ended).kind == layout.LOST


@pytest.mark.parametrize("pid", ["9" * 5000, "0", "007", "１２", "../1", ""])
def test_what_is_no_process_is_not_asked_for(pid):
    assert bare.evidence_command(f"boot:{pid}:77") == ("cat", "/proc/sys/kernel/random/boot_id")


def test_there_is_nobody_to_ask():
    assert (bare.watch_command(), bare.cancel_command("x"), bare.parse_states("1|RUNNING|None|x")) == ((), (), {})
    assert JobState(PENDING, "PENDING", "x").hopeless("bare") is None
    assert JobState(PENDING, "PENDING", "8 of 8 GPUs held").in_words == "8 of 8 GPUs held"


def test_who_waits_learns_by_name_and_a_group_by_its_first():
    text = (
        "train.7f3a000011112222|PENDING|8 of 8 GPUs held by ada (8); waiting for 1\n"
        "a.b.7f3a000011113333.2|PENDING|1 job before it\na.b.7f3a000011113333.3|PENDING|2 jobs before it\nnoise\n"
    )

    states = bare.parse_states(text)

    assert {name: state.reason for name, state in states.items()} == {
        "train.7f3a000011112222": "8 of 8 GPUs held by ada (8); waiting for 1",
        "a.b.7f3a000011113333": "1 job before it",
    }
