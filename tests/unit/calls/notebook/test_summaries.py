"""What clusterfn says below a cell, and what a cell shows of a job, a group, a session and a list of jobs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import re
import time

import pytest
from IPython.core.formatters import DisplayFormatter

from clusterfn import Job, JobGroup, Session
from clusterfn.calls import settling
from clusterfn.calls.following import AgentSource
from clusterfn.calls.group import state_of_group
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.job import run_of, shown_to_end
from clusterfn.calls.remote_state import JobInfo
from clusterfn.config.spec import Resources
from clusterfn.display import console
from clusterfn.errors import JobError
from tests.fakes.taken import run, taken
from tests.waiting import WAIT_S, replace_here, until

EVIL = "ev\x1b[31mil"
USED = {
    "wall_s": 75.0, "peak_memory_bytes": 3 << 30,
    "gpus": [{"name": "RTX A6000", "peak_memory_bytes": 40 << 30, "mean_use_percent": 87.5}],
}  # fmt: skip


class Output(AgentSource):
    """Gives what a job prints: a representation must ask no host."""

    on_output = None

    def __init__(self):
        """Nothing is followed."""

    def watch_output(self, on_output):
        self.on_output = on_output


def shown(obj):
    """What IPython takes for it, without anything that a terminal obeys."""
    bundle, _ = DisplayFormatter().format(obj)
    assert bundle.keys() == {"text/plain"} and "\x1b" not in bundle["text/plain"]
    return bundle["text/plain"]


def a_job(backend=None):
    job = Job(run(), backend or Output())
    run_of(job).asked = Resources(cores=4, memory_bytes=16 << 30, gpus=1, gpu_type="a6000")
    return job


def ends(job, kind="raised", **told):
    run_of(job).settle({"kind": kind, "usage": USED, **told}, None)
    concurrent.futures.wait([job], WAIT_S)


def test_a_job_that_has_ended_shows_state_duration_memory_and_gpus():
    job = a_job()
    ends(job, message=EVIL, exception={"type": "ValueError", "message": EVIL})

    assert shown(job).splitlines() == [
        "7f3a000011112222 train on tensor01: RAISED 01:15 (evil)",
        "  asked for 4 cores, 16GB of memory, 1 GPU (a6000)",
        "  used: peak 3 GB, GPU 88 %",
    ]


def test_a_running_job_is_updated_in_place_with_the_end_of_its_output(notebook):
    backend = Output()
    job = a_job(backend)
    run_of(job).set_state("RUNNING", "node3")
    with notebook:
        assert DisplayFormatter().format(job) == ({}, {})
        (before,) = notebook.plain
        assert re.match(r"7f3a000011112222 train on tensor01: RUNNING \d\d:\d\d \(node3\)", before)
        backend.on_output("stdout", "".join(f"epoch {number}\n" for number in range(40)).encode() + EVIL.encode())
        until(lambda: "epoch 39" in notebook.plain[0])
        assert "epoch 28" not in notebook.plain[0] and "evil" in notebook.plain[0]
        backend.on_output("stderr", b"\n10%\r100%")
        ends(job)
        until(lambda: "RAISED" in notebook.plain[0] and "100%" in notebook.plain[0])

    assert len(notebook.outputs) == 1 and "10%" not in notebook.plain[0].replace("100%", "")
    assert "100%" in shown(job)


def test_a_representation_outside_a_notebook_is_not_updated(notebook):
    notebook.shell.kernel = None
    job = a_job()

    assert re.search(r"PENDING \d\d:\d\d", shown(job)) and not notebook.outputs


def a_group(ended):
    state = GroupState("5b08000011112222", "score", "tensor01", "/r/5b08", 50)
    end_items(state, range(ended))
    return JobGroup(state)


def end_items(state, indices):
    for index in indices:
        error = JobError(EVIL) if index % 10 == 7 else None
        usage = {"peak_memory_bytes": 1 << 30}
        state.end_item(index, ItemOutcome("RAISED" if error else "RETURNED", None, error, usage))


def test_a_group_shows_how_far_it_is_and_the_causes_of_its_failures(notebook):
    plain = shown(a_group(50))

    assert plain.splitlines()[0].startswith("5b08000011112222 score on tensor01: RAISED 50/50 0")
    assert "5 x JobError: evil" in plain
    assert "45 returned, 5 raised" in plain and "peak memory of an item 1 GB" in plain
    group = a_group(20)
    with notebook:
        assert DisplayFormatter().format(group) == ({}, {})
        assert " 20/50 " in notebook.plain[0] and "30 pending" in notebook.plain[0]
        end_items(state_of_group(group), range(20, 50))
        until(lambda: " 50/50 " in notebook.plain[0])
    assert len(notebook.outputs) == 1


def test_a_list_of_jobs_has_a_line_for_each():
    infos = [JobInfo(f"{n:016x}", "train", "tensor01", "RAISED", EVIL, 1.7e9) for n in range(3)]

    assert shown(infos).splitlines()[-1] == " <JobInfo 0000000000000002 train on tensor01: RAISED, evil>]"


def test_a_session_that_has_not_begun_says_what_starts_it():
    assert shown(Session("tensor01")).splitlines() == ["session: not begun", "  its first call starts it"]


def test_sentences_of_a_cell_share_one_output_and_none_is_red(notebook):
    with notebook:
        console.redraw("5/9", (5, 9))
        assert notebook.plain == [f" 55%|{'#' * 50}{' ' * 40}| 5/9"]
        console.redraw("")
        console.tell("7f3a train on tensor01")
        console.tell("<b>bold</b>")
        notebook.shell.execution_count = 2
        for number in range(25):
            console.tell(f"sentence {number}")

    first, second = notebook.plain
    assert first == "clusterfn: 7f3a train on tensor01\nclusterfn: <b>bold</b>"
    assert second.splitlines()[:2] == ["… 5 earlier lines", "clusterfn: sentence 5"]
    assert second.count("sentence") == 20 and notebook.stderr.getvalue() == ""


def test_what_a_cell_captures_from_stderr_stays_text(notebook):
    with notebook, contextlib.redirect_stderr(io.StringIO()) as captured:
        console.tell("sent")

    assert captured.getvalue() == "clusterfn: sent\n" and not notebook.outputs


@pytest.mark.parametrize("code", ["\x1b[31m", "\x07", "\r"])
def test_control_characters_of_a_host_do_not_reach_the_notebook(notebook, code):
    with notebook:
        console.say(f"clusterfn: told {code}by a host\n")
        console.redraw(f"pending ({code})")

    assert code not in notebook.plain[0]


def test_a_note_on_a_job_is_no_output_of_its_function(notebook, capsys, monkeypatch):
    job = taken("7f3a" * 4)
    entry = run_of(job)
    listen = entry.listen

    def end_when_shown(listener):
        """A display hears all at once, in order."""
        unlisten = listen(listener)
        entry.set_state("RUNNING")
        entry.note_quiet("printed nothing for 10 min")
        entry.tell("stdout", b"of the function\n")
        settling.finish(entry, "RETURNED", "", lambda future: future.set_result(5))
        return unlisten

    monkeypatch.setattr(entry, "listen", end_when_shown)
    entry.submitted_at += 3600.0  # so that its clock stays at 00:00, however slow the machine is
    with notebook:
        value = shown_to_end(job, "train on tensor01")

    assert value == 5 and capsys.readouterr().out == "of the function\n"
    assert notebook.stderr.getvalue() == ""
    sent, note = notebook.plain[0].splitlines()
    assert sent == "clusterfn: 7f3a7f3a7f3a7f3a train on tensor01"
    assert note.startswith("clusterfn: 7f3a has printed nothing for 10 min: clusterfn stack 7f3a")


def test_an_interrupted_call_says_what_to_do_in_words_of_a_notebook(notebook, monkeypatch):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    job = taken("7f3a" * 4)
    entry = run_of(job)
    entry.submitted_at += 3600.0

    class Moving:
        looked_at, moved, progress = False, 0, None

        def in_words(self):
            if not self.looked_at:
                self.looked_at = True
                entry.set_state("RUNNING")
                raise KeyboardInterrupt
            return ""

    entry.transfer = Moving()
    with notebook, pytest.raises(KeyboardInterrupt):
        shown_to_end(job, "train on tensor01")

    text = notebook.plain[0]
    assert "press the stop button again within 3 s" in text and "Ctrl-C" not in text
