"""What the commands of SLURM print at other sites: standing complaints, wrappers, numbers that are given again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import PENDING, RUNNING, Answer, Evidence
from clusterfn.scheduler.slurm.states import SlurmState
from tests.golden.golden import recorded
from tests.golden.samples import SLURM, SUBMISSIONS
from tests.unit.scheduler.test_slurm import submitted_after

slurm = scheduler_for(SLURM, {"user": "ada"})
# Every command prints these, as long as slurm.conf and the machine are as they are.
STANDING = [
    "Invalid user for SlurmUser slurm, ignored",
    "Ignoring obsolete FastSchedule=1 option. Please remove from your configuration.",
    'The option "CryptoType" is defunct, please remove it from slurm.conf.',
    "If using PrologFlags=Contain for pam_slurm_adopt, proctrack/cgroup is required.  If not, please ignore error.",
    'slurm_set_addr: Unable to resolve "ctl2"',
    "get_addr_info: getaddrinfo() failed: Name or service not known",
    "_parse_next_key: Parsing error at unrecognized key: GresTypesX",
    "Duplicated NodeHostName n7 in config file",
    "spank: x11.so: plugin initialization failed",
]
GONE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
PLAIN = SUBMISSIONS["plain"]
ID = PLAIN.id


@pytest.mark.parametrize("words", STANDING)
def test_what_every_command_complains_of_makes_no_answer_worthless(words: str) -> None:
    said = f"squeue: error: {words}\n"

    assert slurm.trouble(Answer(0, "", said)) == ""
    assert slurm.trouble(Answer(1, "", said + GONE)) == GONE, "what matters is said first"
    assert slurm.trouble(Answer(0, "", f"{said}squeue: error: Invalid user: ada\n")).endswith("Invalid user: ada")
    submitted = Answer(0, "12\n", said.replace("squeue", "sbatch"))
    assert slurm.submitted(submitted) == "12" and slurm.notes(submitted) == []


def test_an_unknown_complaint_makes_only_an_empty_list_worthless() -> None:
    said = "squeue: error: the moon is full\n"

    assert slurm.trouble(Answer(0, "", said)) == said.strip()
    assert slurm.trouble(Answer(0, f"12|RUNNING|None|1|N/A|train.{ID}\n", said)) == ""


@pytest.mark.parametrize("words", ["permission denied", "invalid account"])
def test_a_job_whose_number_was_printed_may_exist_though_a_wrapper_of_sbatch_failed_afterwards(words: str) -> None:
    failed = Answer(1, "1234\n", f"usage-log: {words}\n")

    assert slurm.again(slurm.submission(PLAIN), failed) is None
    with pytest.raises(SubmitError) as caught:
        slurm.submitted(failed)
    assert caught.value.retryable
    refused = "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    with pytest.raises(ClusterfnError) as refusal:
        slurm.submitted(Answer(1, "3\n", refused))
    assert not refusal.value.retryable, "a banner with a number is no job"


@pytest.mark.parametrize("state", ["FAILED", "RUNNING", "PENDING"])
def test_a_number_that_another_job_has_now_says_nothing_of_this_one(state: str) -> None:
    line = recorded("slurm-22.05.8/scontrol-kill.txt").replace("JobState=FAILED", f"JobState={state}")
    other = line.replace("kill.aaaa00000000000e", f"train.{'b' * 16}")

    verdict = slurm.explain(Evidence(other, "", "30", ID))

    assert verdict is not None and verdict.kind == layout.LOST
    assert verdict.message == "SLURM no longer knows the job: 30 is another job now"
    assert verdict.evidence[0].startswith("JobId=") and len(verdict.evidence[0]) <= 200
    renamed = other.replace("StdOut=/home/user", f"StdOut=/home/user/jobs/{ID}")  # a plugin may change names
    mine = slurm.explain(Evidence(renamed, "", "30", ID))
    assert (mine is None) == (state != "FAILED") and (mine is None or "signal 9" in mine.message)


def test_an_end_without_a_node_names_none() -> None:
    line = recorded("slurm-22.05.8/scontrol-kill.txt").replace("JobState=FAILED", "JobState=NODE_FAIL")

    verdict = slurm.explain(Evidence(line.replace(" NodeList=n1", " NodeList=(null)")))

    assert verdict is not None and "(unknown)" in verdict.message


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "the nodes that it needs are down, drained or reserved"),
        ("ReqNodeNotAvail(Unavailable:n1)", "the nodes that it needs are down, drained or reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "less `time=`"),
        ("AssocGrpCPUMinutesLimit", "used up the time"),
        ("QOSGrpGRES", "your group has reached a limit"),
        ("QOSMaxGRESPerUser", "you have reached a limit of yours"),
        ("MaxCpuPerAccount", "you have reached a limit of yours"),
    ],
)
def test_a_reason_with_a_detail_is_explained_too(reason: str, words: str) -> None:
    told = SlurmState(PENDING, "PENDING", reason).in_words

    assert told.startswith(f"{reason}: ") and words in told
    assert SlurmState(PENDING, "PENDING", reason).hopeless("hpc") is None


def test_states_of_a_federation_and_of_nodes_that_start_are_part_of_a_run() -> None:
    line = recorded("slurm-22.05.8/scontrol-kill.txt").replace("JobState=FAILED", "JobState=REVOKED")
    revoked, starts = (slurm.parse_states(f"7|{each}|None|1|N/A|a.1")["a.1"] for each in ("REVOKED", "POWER_UP_NODE"))

    assert revoked.phase == starts.phase == RUNNING and slurm.explain(Evidence(line)) is None
    assert revoked.in_words == "another cluster of the federation has started it"


@pytest.mark.parametrize("words", STANDING)
def test_a_job_that_waits_for_another_is_submitted_whatever_every_command_complains_of(
    tmp_path: Path, words: str
) -> None:
    said = f"echo 'squeue: error: {words}' >&2"

    assert "--dependency=afterany:631" in submitted_after(tmp_path, f"{said}; echo 631")
    for refused in (f"{said}; echo '{GONE}' >&2; echo 631", f"{said}; exit 1"):
        with pytest.raises(subprocess.CalledProcessError):
            submitted_after(tmp_path, refused)


def test_an_option_that_the_host_has_left_out_is_not_named_as_added() -> None:
    host = SLURM._replace(scheduler_options={"mem": None})

    with pytest.raises(SubmitError) as caught:
        scheduler_for(host, {"user": "ada"}).submitted(Answer(1, "", "sbatch: error: set --mem\n"))

    assert "adds" not in str(caught.value.hint)
