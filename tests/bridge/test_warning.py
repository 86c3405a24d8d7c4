"""`warn_before=`: a function is warned once before its end, in the way that it wants, and may end by itself."""

from __future__ import annotations

import os
import signal

import pytest

from tests.bridge.host import Bench, Job
from tests.bridge.layout import warn_when
from tests.waiting import until

# Says that it runs, and waits until it is warned or ended.
BEGIN = """
    import os, signal, time
    folder = os.environ["CLUSTERFN_CHECKPOINT"]
    def note(word):
        with open(os.path.join(folder, "notes"), "a") as file:
            file.write(word + " ")
"""
RAISES = f"""
def f(again):
    {BEGIN}
    import clusterfn
    try:
        try:
            note("begun")
            while True:
                try:
                    time.sleep(600)
                except Exception:
                    pass
        except clusterfn.TimeAlmostUp:
            note("warned")
            if not again:
                return "saved"
            raise
    finally:
        note("over")
"""
CALLS_BACK = f"""
def f():
    {BEGIN}
    import clusterfn
    seen = []
    clusterfn.on_warning(lambda: (note("called"), seen.append(1)))
    note("begun")
    while not seen:
        time.sleep(0.01)
    return "went on"
"""
HANDLES = f"""
def f():
    {BEGIN}
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    note("begun")
    while not seen:
        time.sleep(0.01)
    return "handled"
"""
# A process that is forked must still end by SIGTERM.
FORKS = f"""
def f():
    {BEGIN}
    child = os.fork()
    if child == 0:
        time.sleep(600)
    os.kill(child, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(child, 0)[1])
"""


def notes(job: Job) -> list[str]:
    path = job.folder / "checkpoint" / "notes"
    return path.read_text().split() if path.exists() else []


def limited(bench: Bench, source: str, *args: object) -> Job:
    """A job that is warned as soon as its function has said that it runs."""
    warn_when(bench, "process_tree.read_file(self.job.path('checkpoint/notes'))")
    return bench.job(source, *args, warn_s=899.0, resources={"time_s": 900.0})


def test_the_function_gets_an_exception_that_a_training_loop_does_not_hide_and_may_still_return(bench: Bench):
    job = limited(bench, RAISES, False)

    job.run()

    assert (job.outcome()["kind"], job.value()) == ("returned", "saved")
    assert notes(job) == ["begun", "warned", "over"]
    assert "until its time limit" in next(each for each in job.events() if each["event"] == "warned")["reason"]


def test_a_function_that_lets_the_exception_pass_has_run_out_of_time(bench: Bench):
    job = limited(bench, RAISES, True)

    job.run()

    outcome = job.outcome()
    assert outcome["kind"] == "time" and outcome["checkpoint"], job.log()
    assert outcome["message"].startswith("the function ended when it was warned (")


@pytest.mark.parametrize(("source", "value"), [(CALLS_BACK, "went on"), (HANDLES, "handled")])
def test_it_may_be_called_back_instead_or_handle_the_signal_itself(bench: Bench, source: str, value: str):
    job = limited(bench, source)

    job.run()

    assert (job.outcome()["kind"], job.value()) == ("returned", value), job.log()


def test_a_process_that_the_function_forks_is_not_warned(bench: Bench):
    job = bench.job(FORKS, warn_s=1.0, resources={"time_s": 900.0})

    job.run()

    assert job.value() == signal.SIGTERM


def test_a_signal_to_the_supervisor_warns_the_function_and_leaves_it_time(bench: Bench):
    """As a scheduler announces that it takes the resources back, or a machine that it goes down."""
    job = bench.job(RAISES, False, warn_s=600.0, resources={"time_s": 900.0})
    process = job.start()
    until(lambda: notes(job) == ["begun"])

    os.kill(job.supervisor_pid(), signal.SIGTERM)
    process.wait(150)

    assert (job.outcome()["kind"], job.value()) == ("returned", "saved"), job.log()
    assert "asked to end by SIGTERM" in next(each for each in job.events() if each["event"] == "warned")["reason"]


def test_without_warn_before_a_signal_ends_the_function_at_once(bench: Bench):
    job = bench.job(RAISES, False)
    process = job.start()
    until(lambda: notes(job) == ["begun"])

    os.kill(job.supervisor_pid(), signal.SIGTERM)
    process.wait(150)

    assert notes(job) == ["begun"] and job.outcome()["kind"] == "lost"
