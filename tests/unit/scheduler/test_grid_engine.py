"""Grid Engine's output is read as it is printed, and what it cannot do is rejected before anything is sent."""

import re
from pathlib import Path

import pytest

from clusterfn.bridge import layout
from clusterfn.config.job_spec import Group
from clusterfn.config.spec import Resources
from clusterfn.errors import ConfigError, SubmitError
from clusterfn.scheduler.base import FINAL, PENDING, RUNNING, Answer, Evidence, SchedulerLimits
from clusterfn.scheduler.grid_engine.site import GridEngineSite
from clusterfn.scheduler.grid_engine.states import GridEngineState
from clusterfn.scheduler.grid_engine.submit import GridEngine
from clusterfn.scheduler.site import AdvanceAnswers, Section
from tests.golden.samples import BARE, job

RECORDED = Path(__file__).parents[2] / "golden" / "grid-engine-8.1.9"
HOST = BARE._replace(name="campus", scheduler="grid_engine")
GB = 2**30


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def engine(**settings) -> GridEngine:
    return GridEngine(HOST._replace(scheduler_options=settings), "ada")


def asked(scheduler: GridEngine, **changes) -> list[str]:
    """The words that qsub is given, without the script that runs it."""
    return list(scheduler.submission(job(scheduler.host, **changes)).argv[4:])


def value(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def evidence(name: str, scheduler_id: str) -> Evidence:
    return Evidence(recorded(name), "one\ntwo\n", scheduler_id)


def test_a_plain_job_has_its_name_folder_and_log_and_obeys_no_line_of_the_script():
    words = asked(engine())
    assert words[-1] == "/home/ada/.clusterfn/jobs/7f3a000011112222/job.sh"
    assert value(words, "-N") == ["train.7f3a000011112222"]
    assert value(words, "-wd") == ["/home/ada/.clusterfn/jobs/7f3a000011112222"]
    assert value(words, "-o") == ["/home/ada/.clusterfn/jobs/7f3a000011112222/scheduler.log"]
    assert (value(words, "-C"), value(words, "-S"), value(words, "-r")) == ([""], ["/bin/sh"], ["n"])
    assert value(words, "-l") == []
    assert value(asked(engine(), retries=2), "-r") == ["y"], "a new start after a lost host"


def test_a_job_is_held_until_those_have_left_the_queue_whose_values_it_takes():
    after = {"ab" * 8: {"name": "train", "items": None}, "cd" * 8: {"name": "tune", "items": [3]}}

    assert value(asked(engine(), after=after), "-hold_jid") == [f"train.{'ab' * 8},tune.{'cd' * 8}"]
    assert value(asked(engine()), "-hold_jid") == []


def test_memory_and_gpus_are_shared_out_among_the_slots_and_time_has_a_minute_more():
    words = asked(engine(), resources=Resources(cores=4, memory_bytes=3 * GB, gpus=4, time_s=90.5))
    assert value(words, "-pe") == ["smp"]
    assert words[words.index("-pe") + 2] == "4"
    assert value(words, "-l") == ["h_vmem=1024M", "gpu=1", "h_rt=151"]  # a quarter of 3 GB and of one for address space


def test_the_sites_own_names_and_ways_to_count_are_used():
    words = asked(engine(per_job=["gpu"], gpus="gpu"), resources=Resources(cores=4, gpus=1))
    assert value(words, "-l") == ["gpu=1"], "a resource for the whole job is not divided"
    assert value(asked(engine(memory=None), resources=Resources(memory_bytes=GB)), "-l") == [], "it does not count it"
    names = {"memory": "mem_free", "gpus": "ngpus", "parallel_environment": "shm", "project": "phys"}
    scheduler = engine(**names, queue={"cpu": "std.q", "gpu": "gpu.q"}, resources={"arch": "lx-amd64"})
    words = asked(scheduler, resources=Resources(cores=2, memory_bytes=GB, gpus=2))
    assert value(words, "-l") == ["arch=lx-amd64", "mem_free=1024M", "ngpus=1"]
    assert (value(words, "-pe"), value(words, "-P"), value(words, "-q")) == (["shm"], ["phys"], ["gpu.q"])
    assert value(asked(scheduler), "-q") == ["std.q"]


def test_a_group_is_as_few_arrays_as_the_site_takes():
    scheduler = engine()
    made = job(scheduler.host, group=Group(100, 5, 25, 12, None, 600.0))
    arrays = scheduler.elements(made, range(1, 26), 10)

    assert [numbers for numbers, _ in arrays] == [range(1, 11), range(11, 21), range(21, 26)]
    words = [list(request.argv) for _, request in arrays]
    assert [value(each, "-t") + value(each, "-tc") for each in words] == [["1-10", "4"], ["1-10", "4"], ["1-5", "4"]]
    assert [each[-1] for each in words] == ["0", "10", "20"]  # what job.sh adds to the number of the task
    assert value(words[0], "-o")[0].endswith("/scheduler-$JOB_ID_$TASK_ID.log")
    assert value(words[0], "-l") == ["h_rt=660"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Resources(nodes=2), "nodes=2: Grid Engine starts a job on one host"),
        (Resources(gpus=1, gpu_type="a100"), "gpu_type= cannot be requested from Grid Engine"),
        (Resources(gpus=1, gpu_memory_bytes=GB), "gpu_memory= cannot be requested from Grid Engine"),
        (Resources(cores=2, gpus=1), "gpus=1 with cores=2"),
    ],
)
def test_what_grid_engine_cannot_do_is_rejected_by_name(wanted, message):
    with pytest.raises(ConfigError, match=message):
        engine().resolve_resources(wanted)


def test_what_it_can_do_is_passed_on_and_gpus_without_a_resource_for_them_are_rejected():
    wanted = Resources(cores=2, gpus=2, memory_bytes=GB, time_s=60.0)
    assert engine().resolve_resources(wanted) == wanted
    with pytest.raises(ConfigError, match="gpus=1 cannot be asked for"):
        engine(gpus=None).resolve_resources(Resources(gpus=1))


@pytest.mark.parametrize("root", ["/home/$x", "/home/a:b", "/home/a,b", "/home/100%"])
def test_a_folder_or_a_name_that_it_would_misread_is_rejected(root):
    with pytest.raises(ConfigError, match="Grid Engine expands or splits paths"):
        asked(engine(), root=root)
    with pytest.raises(ConfigError, match="begins with a digit"):
        asked(engine(), name="2nd")


def may_have_taken(answer: Answer) -> bool:
    """Whether a submission with this answer has to be looked up before it is tried again."""
    with pytest.raises(SubmitError) as refusal:
        engine().submitted(answer)
    return refusal.value.retryable


def test_the_number_is_that_of_the_job_whatever_else_is_printed():
    assert engine().submitted(Answer(0, "4\n")) == "4"
    assert engine().submitted(Answer(0, "welcome to 2026\n5.1-100:1\n")) == "5"
    assert engine().submitted(Answer(0, 'Your job 6 ("train.7f3a") has been submitted\n')) == "6"
    assert engine().submitted(Answer(0, 'Your job-array 7.1-9:1 ("train.7f3a") has been submitted\n')) == "7"


def test_a_job_whose_number_was_printed_may_exist_though_a_wrapper_of_qsub_failed_afterwards():
    assert may_have_taken(Answer(1, "4\n", "usage-log: permission denied\n"))
    assert not may_have_taken(Answer(1, "4\n", "Unable to run job: unknown queue\nExiting.\n"))


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("gpus", 'cannot run at host "ge1" because it offers only hc:gpu=4.000000', "ask for no more cores"),
        ("resource", 'unknown resource "nosuch"', "qconf -sc"),
        ("queue", 'unknown queue "x"', "grid_engine: queue:"),
        ("environment", 'parallel environment "nope" does not exist', "grid_engine: parallel_environment:"),
        ("project", 'project "x" does not exist', "grid_engine: project:"),
        ("tasks", "more than 1000 tasks", "fewer elements"),
        ("name", '"1bad" is not a valid object name', "another name="),
    ],
)
def test_a_refusal_has_the_words_of_qsub_and_one_thing_to_do(name, said, hint):
    answer = Answer(1, "", recorded(f"qsub-{name}"))
    with pytest.raises(SubmitError, match="qsub refused the job") as refusal:
        engine().submitted(answer)
    assert said in refusal.value.evidence[0]
    assert not any("Exiting" in line or "verification" in line for line in refusal.value.evidence)
    assert hint in refusal.value.hint
    assert not refusal.value.retryable


@pytest.mark.parametrize(
    "said, words",
    [
        (
            "Unable to run job: job rejected: only 3 jobs are allowed per user (current job count: 3).\nExiting.\n",
            "only 3 jobs are allowed per user (current job count: 3)",
        ),
        (
            "Unable to run job: job rejected: only 9 jobs are allowed per cluster.\n",
            "only 9 jobs are allowed per cluster",
        ),
        ("Unable to run job: denied: Only 3 jobs are allowed per user.\n", "Only 3 jobs are allowed per user"),
        ('Unable to run job: Job was rejected because job requests unknown queue "x".\n', ""),
        ("", ""),
    ],
)
def test_what_grid_engine_does_not_take_for_now_is_known_by_its_words(said, words):
    assert engine().refused_for_now(Answer(1, "", said)) == words


@pytest.mark.parametrize(
    "state, why", [("s", "qmod"), ("S", "queue"), ("T", "busy"), ("r", ""), ("qw", ""), ("Rr", "")]
)
def test_a_suspended_job_says_why(state, why):
    seen = GridEngineState("pending" if "q" in state else "running", state)

    assert why in seen.suspended and bool(seen.suspended) is bool(why)


def test_a_master_that_does_not_answer_may_have_taken_the_job():
    said = (
        "error: commlib error: got select error (Connection refused)\n"
        'unable to send message to qmaster using port 16444 on host "sgem": got send error\n'
    )
    assert may_have_taken(Answer(1, "", said))
    assert may_have_taken(Answer(None, "", "took too long"))
    assert may_have_taken(Answer(0, "nothing"))


def test_states_and_reasons_are_found_by_name():
    states = engine().parse_states(recorded("watch"))
    assert {name: (state.phase, state.state) for name, state in states.items()} == {
        "big.0123456789abcde0": (RUNNING, "r"),
        "big.0123456789abcde1": (RUNNING, "r"),
        "big.0123456789abcde2": (PENDING, "qw"),
        "train.0123456789abcdef": (RUNNING, "r"),  # two tasks of four
        "held.0123456789abcde2": (PENDING, "hqw"),
        "err.0123456789abcde2": (PENDING, "Eqw"),
    }
    reasons = {name.partition(".")[0]: state.in_words for name, state in states.items()}
    assert reasons["big"].startswith(
        "waiting until enough slots, memory or GPUs are free ((-l gpu=4,h_rt=60) cannot run"
    )
    assert reasons["held"].startswith("it is held")
    assert states["big.0123456789abcde2"].scheduler_id == "25"
    assert [name.partition(".")[0] for name, state in states.items() if state.waits_for_jobs] == ["held"]


def test_a_job_in_the_error_state_never_starts_and_says_why():
    states = engine().parse_states(recorded("watch"))
    verdict = states["err.0123456789abcde2"].hopeless("sge")
    assert (verdict.kind, verdict.withdraw) == (layout.UNSATISFIABLE, True)
    assert "can't chdir to /nope" in verdict.evidence[1]
    assert states["big.0123456789abcde2"].hopeless("sge") is None


LETTERS = [
    ("qw", PENDING), ("hqw", PENDING), ("Rq", PENDING), ("hRwq", PENDING), ("Eqw", PENDING), ("t", RUNNING),
    ("r", RUNNING), ("Rr", RUNNING), ("s", RUNNING), ("S", RUNNING), ("T", RUNNING), ("dr", RUNNING), ("z", FINAL),
]  # fmt: skip


@pytest.mark.parametrize(("state", "phase"), LETTERS)
def test_letters_are_states(state, phase):
    text = (
        f"<?xml version='1.0'?>\n<job_info><job_info><job_list><JB_job_number>1</JB_job_number>"
        f"<JB_name>a.b</JB_name><state>{state}</state></job_list></job_info>\n</job_info>\n"
    )
    assert engine().parse_states(text)["a.b"].phase == phase


@pytest.mark.parametrize("text", ["", "nonsense", "<?xml version='1.0'?><job_info><job_list></job_info>"])
def test_what_is_no_list_is_passed_over(text):
    assert engine().parse_states(text) == {}


def test_a_look_that_failed_says_so():
    assert engine().trouble(Answer(0, "")) == ""
    assert engine().trouble(Answer(1, "", "error: commlib error\nx")) == "error: commlib error"
    assert "did not answer" in engine().trouble(Answer(None))
    assert GridEngineState(PENDING, "qw").in_words == "waiting for its turn"


@pytest.mark.parametrize(
    ("name", "number", "kind", "message"),
    [
        ("end-time", "29", layout.TIME, "at its limit of 1 s"),
        ("end-memory", "30", layout.MEMORY, "more memory than its h_vmem=300M"),
        ("end-exit", "31", layout.LOST, "with status 3"),
        ("end-kill", "32", layout.LOST, "by signal 11"),
        ("end-qdel", "33", layout.CANCELLED, "as `qdel` does"),
        ("end-task", "34_2", layout.LOST, "with status 2"),
        ("end-chdir", "35", layout.LOST, "could not start the job"),
        ("end-unknown", "999999", layout.LOST, "no longer knows the job"),
    ],
)
def test_how_a_job_ended_is_said_by_its_accounting(name, number, kind, message):
    verdict = engine().explain(evidence(name, number))
    assert verdict.kind == kind
    assert message in verdict.message
    assert verdict.evidence[-1] == "two"


def test_a_record_of_another_job_with_the_same_number_says_nothing_of_this_one():
    own, other = (recorded("end-time").replace("STDIN", f"train.{sign * 16}") for sign in "ab")

    verdict = engine().explain(Evidence(other, "", "29", "a" * 16))

    assert verdict is not None and "no longer knows the job" in verdict.message
    both = engine().explain(Evidence(own + other.rpartition("</job_info>")[2], "", "29", "a" * 16))
    assert both is not None and both.kind == layout.TIME
    unfinished = re.sub("^(failed|exit_status) .*$", "", own, flags=re.MULTILINE)
    assert engine().explain(Evidence(unfinished, "", "29", "a" * 16)) is None, "its record comes later"


RUNS = recorded("evidence-running")
AGAIN = recorded("end-exit").replace("failed       0 ", "failed       25 : rescheduling")
SILENT = "error: commlib error: got select error (Connection refused)\n"


@pytest.mark.parametrize(
    ("said", "number"),
    [(RUNS, "23"), (RUNS, "26_3"), (RUNS, "26_5"), (SILENT, "4"), (AGAIN, "31")],
    ids=["runs", "waits", "its record comes later", "the master does not answer", "is started again"],
)
def test_a_job_that_may_live_has_no_verdict(said, number):
    assert engine().explain(Evidence(said, "", number)) is None


def test_a_job_whose_host_does_not_report_is_lost():
    said = recorded("evidence-running").replace("<arch>lx-amd64</arch>", "<arch>lx-amd64</arch><state>au</state>")
    verdict = engine().explain(Evidence(said, "", "23"))
    assert verdict.kind == layout.NODE


def test_limits_are_those_of_the_configuration_and_zero_is_none():
    assert engine().limits(0).read(["max_u_jobs                   0\nmax_aj_tasks                 1000\n"]) == (
        SchedulerLimits(array=1000)
    )
    assert engine().limits(0).read([""]) == SchedulerLimits()


def surveyed(queues: list[str], environments: list[str], resources: str) -> GridEngineSite:
    parts = {"environments": environments, "resources": resources.splitlines()}
    return GridEngineSite.read({"grid_engine": Section("grid_engine", 0, queues, parts)})


def chosen(site: GridEngineSite) -> dict[str, object]:
    return site.choose_options(AdvanceAnswers(), lambda *_: pytest.fail("nothing is asked"))


def test_the_usual_names_need_no_line_in_the_configuration():
    site = surveyed(["all.q"], ["make $round_robin", "smp $pe_slots"], recorded("qconf-sc"))
    assert (site.queues, site.environments) == (("all.q",), ("smp",))
    assert chosen(site) == {}


def test_other_names_are_written_down():
    text = recorded("qconf-sc")
    text = re.sub(r"^gpu .*$", "ngpus ngpus INT <= YES JOB 0 0", text, flags=re.MULTILINE)
    text = re.sub(r"^h_vmem .*$", "h_vmem h_vmem MEMORY <= NO NO 0 0", text, flags=re.MULTILINE)
    assert chosen(surveyed(["a.q"], ["shm $pe_slots"], text)) == {
        "parallel_environment": "shm", "memory": None, "gpus": "ngpus", "per_job": ["ngpus"],
    }  # fmt: skip
