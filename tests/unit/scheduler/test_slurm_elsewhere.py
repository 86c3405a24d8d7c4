"""What SLURM says at other sites: standing complaints, wrappers, refused options, cards, and what a login node is."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest

from clusterfn.bridge import layout
from clusterfn.config.job_spec import Group
from clusterfn.config.spec import Resources
from clusterfn.errors import ClusterfnError, ConfigError, SubmitError
from clusterfn.hosts import scheduler_commands
from clusterfn.hosts.scheduler_commands import read_signs
from clusterfn.scheduler import SCHEDULERS, kind_of_site, scheduler_for
from clusterfn.scheduler.base import PENDING, RUNNING, Answer, Evidence, JobState, NodeGpus, SchedulerLimits, Waiting
from clusterfn.scheduler.slurm.site import (
    Account,
    gpu_nodes,
    gpu_types,
    read_accounts,
    read_limits,
    read_partitions,
    waiting_for_gpus,
)
from clusterfn.scheduler.slurm.states import SlurmState
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.golden import recorded
from tests.golden.samples import SLURM, SUBMISSIONS, job
from tests.golden.samples import SLURM as HOST
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
def test_what_every_command_complains_of_makes_no_answer_worthless(words: str):
    said = f"squeue: error: {words}\n"

    assert slurm.trouble(Answer(0, "", said)) == ""
    assert slurm.trouble(Answer(1, "", said + GONE)) == GONE, "what matters is said first"
    assert slurm.trouble(Answer(0, "", f"{said}squeue: error: Invalid user: ada\n")).endswith("Invalid user: ada")
    submitted = Answer(0, "12\n", said.replace("squeue", "sbatch"))
    assert slurm.submitted(submitted) == "12" and slurm.notes(submitted) == []


def test_an_unknown_complaint_makes_only_an_empty_list_worthless():
    said = "squeue: error: the moon is full\n"

    assert slurm.trouble(Answer(0, "", said)) == said.strip()
    assert slurm.trouble(Answer(0, f"12|RUNNING|None|1|N/A|train.{ID}\n", said)) == ""


@pytest.mark.parametrize("words", ["permission denied", "invalid account"])
def test_a_job_whose_number_was_printed_may_exist_though_a_wrapper_of_sbatch_failed_afterwards(words: str):
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
def test_a_number_that_another_job_has_now_says_nothing_of_this_one(state: str):
    line = recorded("slurm-22.05.8/scontrol-kill.txt").replace("JobState=FAILED", f"JobState={state}")
    other = line.replace("kill.aaaa00000000000e", f"train.{'b' * 16}")

    verdict = slurm.explain(Evidence(other, "", "30", ID))

    assert verdict is not None and verdict.kind == layout.LOST
    assert verdict.message == "SLURM no longer knows the job: 30 is another job now"
    assert verdict.evidence[0].startswith("JobId=") and len(verdict.evidence[0]) <= 200
    renamed = other.replace("StdOut=/home/user", f"StdOut=/home/user/jobs/{ID}")  # a plugin may change names
    mine = slurm.explain(Evidence(renamed, "", "30", ID))
    assert (mine is None) == (state != "FAILED") and (mine is None or "signal 9" in mine.message)


def test_an_end_without_a_node_names_none():
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
def test_a_reason_with_a_detail_is_explained_too(reason: str, words: str):
    told = SlurmState(PENDING, "PENDING", reason).in_words

    assert told.startswith(f"{reason}: ") and words in told
    assert SlurmState(PENDING, "PENDING", reason).hopeless("hpc") is None


def test_states_of_a_federation_and_of_nodes_that_start_are_part_of_a_run():
    line = recorded("slurm-22.05.8/scontrol-kill.txt").replace("JobState=FAILED", "JobState=REVOKED")
    revoked, starts = (slurm.parse_states(f"7|{each}|None|1|N/A|a.1")["a.1"] for each in ("REVOKED", "POWER_UP_NODE"))

    assert revoked.phase == starts.phase == RUNNING and slurm.explain(Evidence(line)) is None
    assert revoked.in_words == "another cluster of the federation has started it"


@pytest.mark.parametrize("words", STANDING)
def test_a_job_that_waits_for_another_is_submitted_whatever_every_command_complains_of(tmp_path, words: str):
    said = f"echo 'squeue: error: {words}' >&2"

    assert "--dependency=afterany:631" in submitted_after(tmp_path, f"{said}; echo 631")
    for refused in (f"{said}; echo '{GONE}' >&2; echo 631", f"{said}; exit 1"):
        with pytest.raises(subprocess.CalledProcessError):
            submitted_after(tmp_path, refused)


def test_an_option_that_the_host_has_left_out_is_not_named_as_added():
    host = SLURM._replace(scheduler_options={"mem": None})

    with pytest.raises(SubmitError) as caught:
        scheduler_for(host, {"user": "ada"}).submitted(Answer(1, "", "sbatch: error: set --mem\n"))

    assert "adds" not in str(caught.value.hint)


MEMORY = Answer(1, "", "sbatch: error: Memory specification can not be satisfied\n")
TIME = Answer(1, "", "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or …)\n")


def slurm_of(clusters: str | None = None):
    host = HOST if clusters is None else HOST._replace(scheduler_options={"clusters": clusters})
    return scheduler_for(host, {"user": "ada"})


def request(**resources):
    asked = Resources(**{"cores": 1, "memory_bytes": 2**32, "time_s": 3600.0, **resources})
    return slurm_of().submission(job(host=HOST, resources=asked))


def test_the_minute_that_is_added_is_taken_back_once():
    first = request()
    again = slurm_of().again(first, TIME)

    assert "--time=61" in first.argv and again is not None
    assert "--time=60:00" in again.argv and len(again.argv) == len(first.argv)
    assert slurm_of().again(again, TIME) is None


@pytest.mark.parametrize(
    "answer",
    [Answer(0, "7\n", MEMORY.err), Answer(None, "", MEMORY.err), Answer(1, "", "sbatch: error: no such account")],
)
def test_nothing_else_is_tried_again(answer: Answer):
    assert slurm_of().again(request(), answer) is None
    assert slurm_of().again(request(memory_bytes=None), MEMORY) is None


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (JobState(PENDING, "PENDING", "PartitionTimeLimit", "12"), ("scontrol", "update", "JobId=12", "TimeLimit=60")),
        (
            JobState(PENDING, "PENDING", "PartitionConfig", "12_[1-9]"),
            ("scontrol", "update", "JobId=12", "TimeLimit=60"),
        ),
        (JobState(PENDING, "PENDING", "Priority", "12"), ()),
        (JobState(RUNNING, "RUNNING", "PartitionTimeLimit", "12"), ()),
    ],
)
def test_a_job_that_is_held_for_its_time_gives_its_added_minute_back(state: JobState, command):
    assert slurm_of().loosen_command(state, 3600.0) == command
    assert slurm_of().loosen_command(state, None) == ()


def test_what_the_plugins_of_a_site_say_is_a_note_unless_sbatch_failed():
    said = "sbatch: lua: your project ends soon\nsome banner\nsbatch: \n"

    assert slurm_of().notes(Answer(0, "7\n", said)) == ["SLURM says: your project ends soon"]
    assert slurm_of().notes(Answer(1, "", said)) == []


def test_a_map_on_a_site_without_arrays_is_refused():
    with pytest.raises(ConfigError, match="has no job arrays"):
        slurm_of().elements(job(host=HOST, group=Group(12, 4, 3, 3)), range(1, 4), 0)


# SLURM 22.05.8, shortened in the middle
N1 = (
    "NodeName=n1 Arch=x86_64 CPUTot=8 Gres=gpu:4 GresDrain=N/A GresUsed=gpu:1 NodeAddr=127.0.0.1 State=MIXED"
    " Partitions=short,gpu CfgTRES=cpu=8,mem=8000M AllocTRES=cpu=1"
)
WIDTHS = (32, 32, 48, 48, 22, 40, 80)


def row(per_node: str, per_job: str) -> str:
    cells = ("254_[1-5%2]", "cfbash", per_node, per_job, "2026-11-20T14:57:17", "Resources", "train.7f3a")
    return "".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS))


def test_the_gpus_of_a_node_are_counted_by_type():
    odd = (
        "NodeName=n2 Gres=lscratch:9,gpu:a100:4(S:0-1),gpu:2080ti:16 GresUsed=gpu:a100:2(IDX:0,3),gpu:2080ti:0(IDX:N/A)"
    )

    assert gpu_nodes(f"{N1}\n{odd} State=IDLE+DRAIN\nNodeName=n3 Gres=(null) GresUsed= State=IDLE\n") == [
        NodeGpus("n1", "mixed", "", 4, 1),
        NodeGpus("n2", "idle+drain", "a100", 4, 2),
        NodeGpus("n2", "idle+drain", "2080ti", 16, 0),
    ]
    assert gpu_nodes("NodeName=n1 Gres=gpu:4 State=IDLE") == [NodeGpus("n1", "idle", "", 4, None)], "who knows"
    assert gpu_nodes(f"NodeName=n1 Gres=gpu:{'9' * 5000} State=IDLE") == [], "that is no count"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:4\ngpu:a6000:4\n", ["", "a6000"]),
        ("(null)\nlscratch:9,gpu:a100:4(S:0-1),gpu:2080ti:16\n gpu:a100_1g:7(S:0,1)", ["2080ti", "a100", "a100_1g"]),
        ("CLUSTER: big\n(null)\nlscratch:gpu:4\n", []),
    ],
)
def test_the_types_of_all_nodes_are_read_from_sinfo(text, expected):
    assert gpu_types(text) == expected


@pytest.mark.parametrize(
    ("text", "wants"), [(row("gres:gpu:a100:4", "N/A"), "gpu:a100:4"), (row("N/A", "gres/gpu:8"), "gpu:8")]
)
def test_who_waits_for_gpus_is_read_from_squeue(text, wants):
    (found,) = waiting_for_gpus(text + "\n")

    assert (found.id, found.wants, found.reason, found.name) == ("254_[1-5%2]", wants, "Resources", "train.7f3a")


def test_who_waits_for_cores_alone_is_left_out():
    assert waiting_for_gpus(row("gres:lscratch:4", "N/A")) == []
    assert waiting_for_gpus(row("gres:gpu:a100:4", "N/A")) == [
        Waiting("254_[1-5%2]", "cfbash", "gpu:a100:4", "2026-11-20T14:57:17", "Resources", "train.7f3a")
    ]


def test_the_questions_go_to_the_right_cluster():
    slurm = Slurm(SLURM._replace(scheduler_options={"clusters": "big"}), "ada")

    assert (nodes := slurm.gpus().nodes) is not None and nodes.argv[:2] == ("scontrol", "--clusters=big")
    assert (types := slurm.gpus().types) is not None and types.argv[:2] == ("sinfo", "--clusters=big")
    queue = slurm.gpus().queue
    assert queue is not None and queue.argv[:2] == ("squeue", "--clusters=big") and "--states=PENDING" in queue.argv


def lines(block: str) -> list[str]:
    return textwrap.dedent(block).strip("\n").splitlines()


SINFO = """
    main*|up|7-00:00:00|90|(null)
    gpu|up|2-00:00:00|4|gpu:a100:4(S:0-1)
    gpu|up|2-00:00:00|8|gpu:h100:8
    old|inact|infinite|1|(null)
    sinfo: warning: something of the site
"""


def test_a_partition_of_several_kinds_of_nodes_is_one():
    found = {each.name: each for each in read_partitions(lines(SINFO))}

    assert list(found) == ["main", "gpu", "old"]
    assert (found["gpu"].nodes, found["gpu"].gres) == (12, "gpu:a100:4(S:0-1), gpu:h100:8")
    assert (found["main"].default, found["main"].time_limit, found["old"].state) == (True, "7-00:00:00", "inact")


def test_a_partition_has_the_memory_of_its_largest_node_where_slurm_knows_it():
    rows = ["main*|up|1:00:00|2|(null)|1", "main*|up|1:00:00|2|(null)|1", "big|up|1:00:00|2|(null)|1"]
    rows += ["big|up|1:00:00|2|(null)|8000+", "old|up|1:00:00|2|(null)"]
    found = {each.name: (each.memory_mb, each.has_no_memory) for each in read_partitions(rows)}

    assert found == {"main": (1, True), "big": (8000, False), "old": (None, False)}


def test_an_array_has_no_more_tasks_than_the_scheduler_takes_in_one():
    told = "MaxArraySize = 100001\nSchedulerParameters     = defer,max_array_tasks=1000,bf_interval=30\n"

    assert read_limits([told, "", ""], None).array == 1000
    assert read_limits([told.replace("100001", "101"), "", ""], None).array == 100
    assert read_limits([told.replace("max_array_tasks", "other"), "", ""], None).array == 100000
    assert [read_limits([f"MaxArraySize = {size}", "", ""], None).array for size in (0, 1, 2, 1001)] == [0, 0, 1, 1000]
    too_long = [f"MaxArraySize = {'9' * 5000}", "", f"{'9' * 5000}|40"]
    assert read_limits(too_long, None) == SchedulerLimits(jobs=40)


SACCTMGR = """
    physics||normal,long
    physics||normal,long
    bio|gpu|
"""


def test_associations_are_accounts():
    assert read_accounts(["sacctmgr: error: You are not running a supported accounting_storage plugin"]) == ()
    assert read_accounts(lines(SACCTMGR)) == (Account("physics", "", ("normal", "long")), Account("bio", "gpu", ()))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"files": ["/etc/slurm/slurm.conf"]}, "it has /etc/slurm/slurm.conf, which is of SLURM"),
        ({"variables": {"SGE_ROOT": "/opt/sge"}}, "SGE_ROOT is set in a login shell, which is of Grid Engine"),
        ({"variables": {"APPTAINER_CONTAINER": "/a.sif"}}, "logins run in the container /a.sif"),
        ({"programs": ["condor_submit"]}, "it has condor_submit, which is of HTCondor"),
        ({"hostname": "login03.hpc.example.edu"}, "it is called login03.hpc.example.edu"),
        (
            {"motd": "Welcome!\nDo not compute on the login nodes.\n"},
            "its greeting says: Do not compute on the login nodes.",
        ),
        ({"aliases": {"sbatch": "sbatch is aliased to `ssh -x ann@sub.x.edu sbatch'"}}, "set up ann@sub.x.edu instead"),
    ],
)
def test_each_of_these_is_enough_to_ask(told, sentence):
    (said,) = read_signs(told).sentences
    assert sentence in said


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"hostname": "tensor01", "motd": "Welcome to Debian. Please log in and behave."},
        {"hostname": "loginov-pc", "files": [], "programs": [], "variables": {}, "aliases": {}},
        {"hostname": "blockhead"},
    ],
)
def test_a_plain_server_has_no_signs(told):
    assert read_signs(told).sentences == ()


def test_schedulers_that_clusterfn_does_not_know_are_named():
    told = {"programs": ["bsub"], "files": ["/etc/pbs.conf", "/opt/slurm"]}

    assert read_signs(told).unsupported == ("PBS", "LSF")


def test_an_answer_that_makes_no_sense_finds_nothing():
    for printed in (
        b"", b"[]", b"{}", b'{"found": {"slurm": {}}}', b'{"found": 3}', b'{"found": {}, "signs": {"files": 3}}',
        b'{"found": {"slurm": {"how": "x", "path": ["/a\\n  evil: 1"], "env": {}}}}',
    ):  # fmt: skip
        assert scheduler_commands.read(printed) == scheduler_commands.LoginShellAnswer()


def test_both_schedulers_say_how_their_commands_are_found():
    for word in SCHEDULERS:
        kind = kind_of_site(word)
        assert kind is not None and kind.commands.programs and kind.commands.probe[0] in kind.commands.programs
        assert os.path.isabs(kind.commands.usual[-1])
