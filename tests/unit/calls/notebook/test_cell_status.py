"""What clusterfn says below a cell: one output of lines, and nothing on stderr."""

from __future__ import annotations

import contextlib
import io
import time

import pytest

from clusterfn.calls import job_display, settling
from clusterfn.calls.job import run_of
from clusterfn.display import console
from tests.fakes.taken import taken
from tests.waiting import replace_here


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
        value = job_display.result(job, "train on tensor01")

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
        job_display.result(job, "train on tensor01")

    text = notebook.plain[0]
    assert "press the stop button again within 3 s" in text and "Ctrl-C" not in text
