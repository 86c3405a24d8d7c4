"""SLURM's words, from outputs recorded with 22.05.8 in the lab and from broken ones."""

import os
import subprocess

import pytest

from clusterfn.bridge import layout
from clusterfn.bridge.agent.forked import changed_environment
from clusterfn.config.spec import Resources
from clusterfn.errors import ClusterfnError, SubmitError, Unsatisfiable
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import FINAL, PENDING, RUNNING, UNKNOWN, Answer, Evidence, JobState
from clusterfn.scheduler.slurm import OBEYED
from clusterfn.scheduler.slurm.states import PHASES, SlurmState
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.golden import recorded
from tests.golden.samples import SLURM, job

V = "slurm-22.05.8"
slurm = Slurm(SLURM, "ada")
DEAD = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def test_states_are_read_by_name():
    states = slurm.parse_states(recorded(f"{V}/squeue.txt"))
    assert states["time.aaaa000000000001"] == JobState(RUNNING, "RUNNING", "", "17")
    assert states["requeue.aaaa00000000000c"] == JobState(PENDING, "PENDING", "BeginTime", "28")
    assert states["oom.aaaa000000000002"] == JobState(FINAL, "FAILED", "JobLaunchFailure", "18")
    assert states["cancel.aaaa000000000003"].phase == FINAL
    assert len(states) == 15


def test_of_an_array_the_element_most_alive_counts():
    name = "array.aaaa000000000004"
    assert slurm.parse_states(recorded(f"{V}/squeue.txt"))[name].scheduler_id == "20_1"
    assert slurm.parse_states(recorded(f"{V}/squeue-later.txt"))[name].phase == FINAL


def test_a_broken_list_gives_what_can_be_read():
    states = slurm.parse_states(recorded(f"{V}/broken/squeue-banner.txt"))
    assert states == {
        "train.1111111111111111": JobState(
            PENDING, "PENDING", "(Nodes required for job are DOWN, DRAINED | or reserved)", "41"
        ),
        "train.2222222222222222": JobState(UNKNOWN, "QUANTUM_FLUX", "", "42"),
        "sweep.3333333333333333": JobState(RUNNING, "RUNNING", "", "43_2"),
        "train.4444444444444444": JobState(FINAL, "CANCELLED", "", "44"),
        "train.5555555555555555": JobState(UNKNOWN, "OUT_OF_ME", "OutOfMemory", "46"),
        "het.6666666666666666": JobState(RUNNING, "RUNNING", "", "47+0"),
    }


@pytest.mark.parametrize(
    "rc, err, trouble",
    [
        (0, "", ""),
        (0, "squeue: warning: old format\n", ""),
        (0, "squeue: error: Invalid user: 12345\n", "squeue: error: Invalid user: 12345"),
        (1, f"\n{DEAD}\n", DEAD),
        (127, "", "squeue ended with status 127"),
        (None, "", "squeue did not answer in time"),
    ],
)  # fmt: skip
def test_a_list_is_believed_only_if_squeue_has_nothing_to_complain_of(rc, err, trouble):
    assert slurm.trouble(Answer(rc, "", err)) == trouble


@pytest.mark.parametrize(
    "out",
    [
        "1234\n", "1234;alpha\n", "*** Welcome, 3 nodes ***\n1234\n", "3\n1234;a\n\n",
        "1234;alpha\nThank you for 30 jobs\n",
        "Submitted batch job 1234\n", "Submitted batch job 1234 on cluster slaking\n",
        "--> Verifying access to queue (3)...OK\n--> 12 nodes\nSubmitted batch job 1234\r\n",
    ],
)  # fmt: skip
def test_the_number_is_found_whatever_a_site_or_a_wrapper_of_sbatch_prints(out):
    assert slurm.submitted(Answer(0, out)) == "1234"


@pytest.mark.parametrize(
    "name, hint, kind, maybe",
    [
        ("partition", "set `slurm: partition:`", Unsatisfiable, False),
        ("memory", "ask for less memory than one node has", Unsatisfiable, False),
        ("cards", "no more cores, memory or GPUs", Unsatisfiable, False),
        ("option", "remove that option", SubmitError, False),
        ("unconfigured", "add it as `scheduler_env:`", SubmitError, False),
        ("dead", "controller does not answer", SubmitError, True),
        ("slow", "controller does not answer", SubmitError, True),
    ],
)
def test_a_refusal_is_reported_in_sbatchs_own_words(name, hint, kind, maybe):
    said = recorded(f"{V}/sbatch-{name}.txt")
    answer = Answer(1, "", said)
    with pytest.raises(ClusterfnError) as caught:
        slurm.submitted(answer)
    assert type(caught.value) is kind
    assert ("SLURM on hpc can never run it" in caught.value.message) is (kind is Unsatisfiable)
    assert caught.value.evidence == tuple(said.splitlines())
    assert hint in caught.value.hint and "clusterfn.yml:2; slurm= of a call, --slurm NAME=VALUE and #SBATCH lines" in (
        caught.value.hint
    )
    assert (caught.value.host, caught.value.stage, caught.value.retryable) == ("hpc", "submit", maybe)


@pytest.mark.parametrize("answer", [Answer(None), Answer(0, "garbage"), Answer(0, "")])
def test_an_answer_without_sense_may_have_submitted(answer):
    with pytest.raises(SubmitError) as caught:
        slurm.submitted(answer)
    assert caught.value.retryable


LIMIT = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size\n"
)
FULL = "SLURM has as many jobs as it can hold"
PASSES = {
    "Rate limit exceeded, please retry momentarily": "SLURM takes no more requests of yours at this moment",
    "System submissions disabled": "the site takes no new jobs for now",
    "Unable to create job record, try again": "SLURM cannot take it at this moment",
    "Controller is in standby mode, try a different controller": "another controller is taking over",
}


@pytest.mark.parametrize(
    "said, words",
    [
        (
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n",
            f"Slurm temporarily unable to accept job: {FULL}",
        ),
        ("sbatch: error: Slurm job queue full, sleeping and retrying.\n", f"Slurm job queue full: {FULL}"),  # 17
        (
            "*** Welcome ***\nsbatch: error: Batch job submission failed: Resource temporarily unavailable\n",
            f"Batch job submission failed: Resource temporarily unavailable: {FULL}",
        ),
        (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{LIMIT}",
            "QOSMaxSubmitJobPerUserLimit: you have as many jobs as you may have there",
        ),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{LIMIT}", ""),
        (LIMIT, ""),  # of an old version, which says the same of a job that can never run
        (
            "bash: fork: retry: Resource temporarily unavailable\n",  # a wrapper of sbatch
            "fork: retry: Resource temporarily unavailable: the login node has no process for it now",
        ),
        ("sh: 1: Cannot fork\n", "1: Cannot fork: the login node has no process for it now"),
        *((f"sbatch: error: Batch job submission failed: {said}\n", f"Batch job submission failed: {said}: {words}")
          for said, words in PASSES.items()),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_slurm_does_not_take_for_now_is_known_by_its_words(said, words):
    assert slurm.refused_for_now(Answer(1, "", said)) == words
    assert slurm.refused_for_now(Answer(None, "", said)) == words  # sbatch was killed when it began to repeat itself


STARTS = "sbatch: Job 58 to start at 2026-11-20T16:53:04 using 1 processors on nodes n1 in partition gpu\n"


def test_slurm_says_when_a_job_would_start_and_refuses_it_as_if_it_were_sent():
    words = slurm.test_command(job(SLURM, resources=Resources(cores=2, time_s=3600.0)))
    assert words[:2] == ("/bin/sh", "-c") and {"--test-only", "--wrap=true", "--time=60"} < set(words)

    assert slurm.expected_wait_s(Answer(0, "2026-11-20T14:53:04\n", STARTS)) == 7200.0
    assert slurm.expected_wait_s(Answer(0, "2026-11-20T17:00:00\n", STARTS)) == 0.0
    assert slurm.expected_wait_s(Answer(1, "", "sbatch: error: AssocMaxSubmitJobLimit")) is None
    with pytest.raises(Unsatisfiable, match="can never run it"):
        slurm.expected_wait_s(Answer(1, "", "allocation failure: Requested node configuration is not available"))


def test_sbatch_is_killed_when_it_says_that_it_repeats_itself():
    request = slurm.submission(job(SLURM))

    assert request.stop_at in "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


def test_a_job_that_was_taken_before_sbatch_was_killed_is_submitted():
    answer = Answer(None, "12\n", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n")

    assert slurm.refused_for_now(answer) == "" and slurm.submitted(answer) == "12"


def test_a_suspended_job_runs_and_says_why_it_does_not():
    (suspended, runs) = slurm.parse_states("7|SUSPENDED|None|1|N/A|a\n8|RUNNING|None|1|N/A|b\n").values()

    assert suspended.phase == runs.phase == "running"
    assert suspended.suspended.startswith("suspended by SLURM") and runs.suspended == ""


def explained(name, log=""):
    return slurm.explain(Evidence(recorded(f"{V}/scontrol-{name}.txt"), log and recorded(f"{V}/{log}.txt")))


@pytest.mark.parametrize(
    "name, log, kind, says",
    [
        ("time", "log-time", layout.TIME, "at its limit of 00:01:00"),
        ("oom", "log-oom", layout.MEMORY, "more memory than it asked for"),
        ("oom", "", layout.LOST, "ended by signal 9"),
        ("cancel", "", layout.CANCELLED, "cancelled through SLURM"),
        ("chdir", "", layout.LOST, "the node n1 could not start the job"),
        ("exit", "", layout.LOST, "ended with status 10"),
        ("unknown", "", layout.LOST, "no longer knows the job"),
    ],
)
def test_how_a_job_ended(name, log, kind, says):
    verdict = explained(name, log)
    assert verdict.kind == kind and kind in layout.KINDS
    assert says in verdict.message
    assert verdict.hint and verdict.evidence and not verdict.withdraw
    assert verdict.stage in layout.STAGES


def test_a_job_that_slurm_ends_for_a_failed_prolog_says_so():
    verdict = slurm.explain(Evidence(recorded(f"{V}/scontrol-cancel.txt"), "Error running slurm prolog: 1\n"))

    assert (verdict.kind, verdict.message) == (layout.NODE, "the site's prolog failed on the node n2")


@pytest.mark.parametrize("name", ["requeue", "part", "array"])
def test_a_job_that_may_live_has_no_verdict(name):
    assert explained(name) is None


KINDS = {
    "NODE_FAIL": layout.NODE, "BOOT_FAIL": layout.NODE, "OUT_OF_MEMORY": layout.MEMORY, "DEADLINE": layout.TIME,
    "PREEMPTED": layout.TAKEN_BACK, "CANCELLED": layout.CANCELLED, "COMPLETED": layout.LOST,
}  # fmt: skip


def test_every_final_state_is_explained_and_none_other():
    line = recorded(f"{V}/scontrol-exit.txt")
    for state, phase in PHASES.items():
        verdict = slurm.explain(Evidence(line.replace("JobState=FAILED", f"JobState={state}")))
        assert (verdict is not None) == (phase == FINAL), state
        assert verdict is None or verdict.kind == KINDS.get(state, verdict.kind) not in layout.NOT_FINAL


@pytest.mark.parametrize("states", [("FAILED", "RUNNING"), ("RUNNING", "FAILED"), ("FAILED", "PENDING")])
def test_an_array_of_which_an_element_may_live_has_no_verdict(states):
    line = recorded(f"{V}/scontrol-exit.txt")

    assert (
        slurm.explain(Evidence("".join(line.replace("JobState=FAILED", f"JobState={each}") for each in states))) is None
    )


@pytest.mark.parametrize("answer", ["", "slurm_load_jobs error: Unable to contact slurm controller", "JobState=ODD x"])
def test_nothing_known_is_no_verdict(answer):
    assert slurm.explain(Evidence(answer, "exceeded memory limit")) is None


@pytest.mark.parametrize(
    ("code", "message"),
    [("0:12", "the job's script ended by signal 12"), ("0:53", "the node n1 could not start the job")],
)
def test_a_script_that_a_signal_ended_was_started(code, message):
    line = (
        recorded(f"{V}/scontrol-kill.txt")
        .replace("ExitCode=0:9", f"ExitCode={code}")
        .replace("NodeList=n2", "NodeList=n1")
    )

    verdict = slurm.explain(Evidence(line))

    assert verdict.message.startswith(message)


def test_a_node_or_an_image_without_the_python_of_the_login_node_is_distinguished_from_other_ends():
    line = "JobState=FAILED Reason=NonZeroExitCode ExitCode={}:0 NodeList=n1 TimeLimit=00:11:00"
    verdicts = [
        slurm.explain(Evidence(line.format(code), "job.sh: 54: /usr/bin/python3: not found")) for code in (127, 1)
    ]

    assert verdicts[0].hint.startswith("set `python:` of the host to a Python 3.6 or newer that the node has")
    assert verdicts[1].hint.startswith("read scheduler.log")


def test_pyxis_gets_the_image_and_its_folders_as_the_host_has_them():
    """As its documentation has it: `sbatch --container-image=IMAGE --container-mounts=FOLDER:FOLDER script`."""
    of_host = {"container-image": "/shared/pytorch.sqsh", "container-mounts": "/home:/home"}
    made = SLURM._replace(scheduler_options=of_host)
    sent = job(made.with_scheduler_options({"container-image": "docker://ubuntu"}))

    words = Slurm(made, "ada").submission(sent).argv

    assert {"--container-image=docker://ubuntu", "--container-mounts=/home:/home"} < set(words)
    assert words[-1].endswith("/job.sh") and "--container-image=/shared/pytorch.sqsh" not in words


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Time limit specification required, but not provided", 'set `time="1h"`'),
        ("Memory specification can not be satisfied", "a call without memory= asks for 4GB, set by `defaults:"),
        ("Requested node configuration is not available", "a call without memory= asks for 4GB"),
        ("Node count specification invalid", "ask for fewer `nodes=`"),
        ("Invalid license specification", "scontrol show licenses"),
        ("Invalid feature specification", "sinfo -o '%N %f'"),
        ("'b' can't be reached now, or it is an invalid entry for --cluster.", "change or remove `slurm: clusters:`"),
        ("read the wiki\nBatch job submission failed: Unspecified error", "the rules of the site refused it"),
        ("ERROR: --mem is not allowed on this system", "`slurm: {mem: null}` leaves it out"),
        ("sbatch: unrecognized option '--open-mode=append'", "`slurm: {open-mode: null}` leaves it out"),
        ("sbatch: unrecognized option '--partiton=gpu'", "that option from `slurm:`; did you mean partition?"),
        ("sbatch: unrecognized option '--zzz'", "remove that option from `slurm:` (host"),
        ("Please do not use --export, it breaks modules", "`slurm: {export: null}` leaves it out"),
        ("use --mem-per-cpu instead of --mem", "write `memory_as: mem-per-cpu` for this host"),
        ("Batch job submission failed: Required partition not available (inactive or drain)", "slurm: partition:"),
        ("Batch job submission failed: Protocol authentication error", "munge"),
        ("Batch job submission failed: Invalid user id", "does not know your account"),
        ("Batch job submission failed: More processors requested than permitted", "fewer cores="),
    ],
)
def test_a_hint_names_what_to_change_and_what_was_added(said, hint):
    host = SLURM._replace(defaults=SLURM.defaults._replace(memory_bytes=4 << 30))

    with pytest.raises(ClusterfnError) as caught:
        scheduler_for(host, {"user": "ada"}).submitted(Answer(1, "", f"sbatch: error: {said}\n"))

    assert hint in caught.value.hint


@pytest.mark.parametrize("name, reason", [("part", "PartitionTimeLimit"), ("many", "PartitionConfig")])
def test_what_can_never_start_is_withdrawn(name, reason):
    states = slurm.parse_states(recorded(f"{V}/squeue.txt"))
    state = next(state for key, state in states.items() if key.startswith(name + "."))
    verdict = state.hopeless("hpc")
    assert (verdict.kind, verdict.stage, verdict.withdraw) == (layout.UNSATISFIABLE, "queue", True)
    assert reason in verdict.evidence[0] and verdict.hint


REASONS_THAT_NEVER = [
    "BadConstraints", "AccountNotAllowed", "InvalidQOS", "InvalidAccount", "PartitionNodeLimit", "QOSMaxGRESPerJob",
    "QOSMaxMemoryPerJob", "QOSMaxCpuPerJobLimit", "AssocMaxCpuPerJobLimit", "QOSMinGRES", "DependencyNeverSatisfied",
]  # fmt: skip
REASONS_THAT_MAY = [
    "", "Priority", "Resources", "Dependency", "BeginTime", "JobHeldAdmin", "JobHeldUser", "ReqNodeNotAvail",
    "QOSMaxJobsPerUserLimit", "QOSGrpCpuLimit", "AssocGrpCpuLimit", "PartitionDown", "JobArrayTaskLimit", "Brandnew",
]  # fmt: skip


def test_a_waiting_job_is_hopeless_for_reasons_that_never_pass_alone():
    for reason in REASONS_THAT_NEVER:
        assert SlurmState(PENDING, "PENDING", reason).hopeless("hpc")
    for reason in REASONS_THAT_MAY:
        assert SlurmState(PENDING, "PENDING", reason).hopeless("hpc") is None
    assert SlurmState(FINAL, "FAILED", "BadConstraints").hopeless("hpc") is None
    assert SlurmState(PENDING, "PENDING", "Dependency").waits_for_jobs
    assert not SlurmState(PENDING, "PENDING", "Priority").waits_for_jobs


@pytest.mark.parametrize("reason", ["PartitionConfig", "PartitionNodeLimit"])
def test_a_request_for_too_many_nodes_names_their_number_and_not_their_size(reason):
    alone = slurm.parse_states(f"7|PENDING|{reason}|1|a.1")["a.1"]
    many = slurm.parse_states(f"7|PENDING|{reason}|200|a.1")["a.1"]

    assert (many.reason, many.nodes, alone.nodes) == (reason, 200, 1)
    assert "fewer `nodes=`" in many.hopeless("hpc").hint
    if reason == "PartitionConfig":
        assert "does not have 200 nodes that are large enough" in many.hopeless("hpc").message
        assert "the partition cannot give one node what it asks for" in alone.hopeless("hpc").message


@pytest.mark.parametrize(
    "line, words",
    [
        (
            "7|PENDING|Priority|1|2026-11-21T04:05:59|a.1",
            "expected start 21 Nov 04:05 host time; Priority: waiting for its turn",
        ),
        ("7|PENDING|Priority|1|N/A|a.1", "Priority: waiting for its turn"),
        ("7|PENDING||1||a.1", "SLURM has not said why it waits"),
        ("7|PENDING|PartitionConfig|1||a.1", "PartitionConfig: the partition cannot give one node what it asks for"),
        ("7|PENDING|Brandnew|1||a.1", "SLURM says Brandnew"),
        ("7|COMPLETING|None|1||a.1", "completing"),
        ("7|PENDING|None|1|2026-02-30T04:05:59|a.1", "SLURM has not said why it waits"),
        ("7|RUNNING|None|1|2026-11-21T04:05:59|a.1", "running"),
    ],
)
def test_a_job_says_why_it_waits_and_the_start_that_slurm_expects(line, words):
    assert slurm.parse_states(line)["a.1"].in_words == words


def test_the_commands():
    other = Slurm(SLURM._replace(scheduler_options={"clusters": "alpha"}), "ada")
    commands = (other.watch_command(), other.cancel_command("x"), other.evidence_command("1"), other.join_command("1"))
    assert all(command[1] == "--clusters=alpha" for command in commands)
    assert slurm.watch_command() == (
        "squeue", "--noheader", "--all", "--states=all", "--format=%i|%T|%r|%D|%S|%j", "--user=ada",
    )  # fmt: skip
    assert slurm.cancel_command("train.7f3a") == ("scancel", "--user=ada", "--name=train.7f3a")
    assert slurm.evidence_command("12_3") == ("scontrol", "--oneliner", "show", "job", "12_3")
    assert slurm.join_command("12")[:5] == ("srun", "--jobid=12", "--overlap", "--nodes=1", "--relative=0")


def test_the_logins_variables_are_not_inherited_but_where_slurm_is_stays_known(monkeypatch):
    dropped = ["SBATCH_PARTITION", "SLURM_JOB_ID", "SLURM_CO", "SLURM_EXPORT_ENV", "SQUEUE_STATES"]
    kept = ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "PATH", "MY_SLURM_ID"]
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "/usr/bin")

    inherited = changed_environment({"unset": list(OBEYED)})

    assert not set(dropped) & set(inherited)
    assert set(kept) <= set(inherited)


AFTER = {"ab" * 8: {"name": "train", "items": None}, "cd" * 8: {"name": "tune", "items": [3]}}


@pytest.mark.parametrize(
    "listed, own, dependency",
    [
        ("631\\n", None, "afterany:631"),
        ("640\\n631\\n640\\n", None, "afterany:631:640"),  # elements of one array, and a second submission
        ("", None, None),  # all are over
        ("640|train\\n641|train.7f3a000011112223\\n642|trainer\\n643|train.x\\n", "singleton", "afterany:640:641"),
        (f"640|tune.{'cd' * 8}\\n641|tune\\n", "singleton,afterok:7", "afterok:7,afterany:640"),
        ("631\\n", "afterok:7", "afterok:7,afterany:631"),
        ("CLUSTER: alpha\\n631\\n", None, "afterany:631"),
    ],
)
def test_a_job_waits_for_those_that_squeue_lists_by_the_names_of_its_inputs(tmp_path, listed, own, dependency):
    words = submitted_after(tmp_path, f"printf '{listed}'", own)

    given = [word.partition("=")[2] for word in words if word.startswith("--dependency=")]
    assert given == ([dependency] if dependency else [])
    assert words[0] == "--parsable" and words[-1].endswith("/job.sh")
    names = "--format=%F|%j" if "singleton" in (own or "") else f"--name=train.{'ab' * 8},tune.{'cd' * 8}"
    assert names in (tmp_path / "asked").read_text().split()


def asked(scheduler_options, memory_gb=None, of_host=None, **host):
    """The options of the resources with which a job of two cores is submitted."""
    made = SLURM._replace(scheduler_options=of_host or {}, **host)
    resources = Resources(cores=2, gpus=2, memory_bytes=memory_gb and memory_gb << 30)
    sent = job(made.with_scheduler_options(scheduler_options), resources=resources)
    words = Slurm(made, "ada").submission(sent).argv
    return [word[2:] for word in words if word.startswith(("--mem", "--cpus", "--gpus", "--gres", "--ntasks"))]


PER_CPU = {"mem": None, "mem-per-cpu": "500M"}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (asked({}, 1), ["cpus-per-task=2", "mem=1024M", "gres=gpu:2"]),
        (asked({}, 1, memory_as="mem-per-cpu"), ["cpus-per-task=2", "mem-per-cpu=512M", "gres=gpu:2"]),
        (asked({}, 1, PER_CPU), ["cpus-per-task=2", "mem-per-cpu=512M", "gres=gpu:2"]),
        (asked({}, None, PER_CPU), ["cpus-per-task=2", "gres=gpu:2", "mem-per-cpu=500M"]),
        # Those of a script.
        (asked({"cpus-per-task": None, "ntasks": "2", "gpus-per-task": "1", **PER_CPU}, None, {"gres": "gpu:a100,x:1"}),
         ["gres=x:1", "ntasks=2", "gpus-per-task=1", "mem-per-cpu=500M"]),
        (asked({"gres": "gpu:a100:1,gpu:v100:1"}, of_host={"gres": "gpu:a100"}),
         ["cpus-per-task=2", "gres=gpu:a100:1,gpu:v100:1"]),
        (asked({"gpus": "2"}, gpu_option="gpus-per-node"), ["cpus-per-task=2", "gpus=2"]),
    ],
)  # fmt: skip
def test_memory_and_gpus_are_asked_for_in_the_form_of_the_site_or_the_script(words, options):
    assert words == options


def test_a_job_with_requeue_may_be_requeued_whatever_the_site_says():
    host = SLURM._replace(scheduler_options={"no-requeue": True})
    words = Slurm(host, "ada").submission(job(host, requeue={"timeout": 1})).argv
    assert "--requeue" in words and "--no-requeue" not in words
    assert "--no-requeue" in Slurm(host, "ada").submission(job(host)).argv


def test_a_job_is_not_submitted_while_squeue_does_not_say_what_it_must_wait_for(tmp_path):
    for line in ("exit 1", "echo 631; echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2"):
        with pytest.raises(subprocess.CalledProcessError):
            submitted_after(tmp_path, line)
        assert not (tmp_path / "got").exists()


def submit(folder, request, squeue: str, sbatch: str = "") -> str:
    """What the request prints, where these lines of shell are squeue and sbatch."""
    for name, line in (("squeue", squeue), ("sbatch", sbatch)):
        said = "asked" if name == "squeue" else "got"
        (folder / name).write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{folder}/{said}'\n{line}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(request.argv, env={"PATH": path}, check=True, timeout=150, stdout=subprocess.PIPE, text=True)
    return str(done.stdout)


def submitted_after(folder, squeue: str, own: str | None = None) -> list[str]:
    """The words that sbatch gets, where squeue is this line of shell."""
    host = SLURM._replace(scheduler_options={"dependency": own} if own else {})
    submit(folder, Slurm(host, "1000").submission(job(host, after=AFTER)), squeue)
    return (folder / "got").read_text().splitlines()
