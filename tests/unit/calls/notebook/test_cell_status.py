"""What clusterfn says below a cell: one grey output, nothing on stderr, and every text escaped."""

from __future__ import annotations

import contextlib
import io
import time
from types import SimpleNamespace

import pytest

from clusterfn.calls import job_display
from clusterfn.calls.job import Job, entry_of
from clusterfn.display import console
from tests.waiting import replace_here


def test_sentences_of_a_cell_share_one_output_and_none_is_red(notebook):
    with notebook:
        console.tell("7f3a train on tensor01")
        console.tell("<b>bold</b> & more")
        notebook.shell.execution_count = 2
        console.tell("of the next cell")

    first, second = notebook.plain
    assert first == "clusterfn: 7f3a train on tensor01\nclusterfn: <b>bold</b> & more"
    assert second == "clusterfn: of the next cell"
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in notebook.html[0] and "<b>" not in notebook.html[0]
    assert notebook.stderr.getvalue() == ""


def test_a_line_that_is_taken_away_leaves_the_sentences(notebook):
    with notebook:
        console.tell("sent")
        console.redraw("waiting 3 s")
        console.redraw("")

    assert notebook.plain == ["clusterfn: sent"]


def test_of_many_sentences_the_last_five_are_unfolded(notebook):
    with notebook:
        for number in range(12):
            console.tell(f"sentence {number}")

    folded, _, shown = notebook.html[0].partition("</details>")
    assert "7 earlier lines" in folded and folded.count("sentence") == 7
    assert shown.count("sentence") == 5
    assert len(notebook.plain[0].splitlines()) == 12


def test_what_a_cell_captures_from_stderr_stays_text(notebook):
    with notebook, contextlib.redirect_stderr(io.StringIO()) as captured:
        console.tell("sent")

    assert captured.getvalue() == "clusterfn: sent\n" and not notebook.outputs


@pytest.mark.parametrize("code", ["\x1b[31m", "\x07", "\r"])
def test_control_characters_of_a_host_do_not_reach_the_notebook(notebook, code):
    with notebook:
        console.say(f"clusterfn: told {code}by a host\n")
        console.redraw(f"pending ({code})")

    assert code not in notebook.plain[0] + notebook.html[0]


def test_a_note_on_a_job_is_no_output_of_its_function(notebook, capsys, monkeypatch):
    job = Job("7f3a" * 4, "train", "tensor01", "/r", None)
    entry = entry_of(job)
    listen = entry.listen

    def end_when_shown(listener):
        """A display hears all at once, in order."""
        unlisten = listen(listener)
        entry.set_state("RUNNING")
        entry.note_quiet("printed nothing for 10 min")
        entry.tell("stdout", b"of the function\n")
        entry.finish("RETURNED", "", lambda future: future.set_result(5))
        return unlisten

    monkeypatch.setattr(entry, "listen", end_when_shown)
    entry.submitted_at += 3600.0  # so that its clock stays at 00:00, however slow the machine is
    with notebook:
        value = job_display.result(job, "train on tensor01")

    assert value == 5 and capsys.readouterr().out == "of the function\n"
    assert notebook.stderr.getvalue() == ""
    note, status = notebook.plain[0].splitlines()
    assert note.startswith("clusterfn: 7f3a has printed nothing for 10 min: clusterfn stack 7f3a")
    assert status.startswith("clusterfn: 7f3a7f3a7f3a7f3a train on tensor01: returned 00:00")


@pytest.mark.parametrize(("failed", "is_red"), [(0, False), (2, True)])
def test_the_bar_is_red_once_items_have_failed(notebook, failed, is_red):
    with notebook:
        console.redraw("5/9", (5, 9, failed))

    assert ("accent-color" in notebook.html[0]) is is_red and '<progress value="5" max="9"' in notebook.html[0]


def test_an_interrupted_call_says_how_its_line_ends_in_words_of_a_notebook(notebook, monkeypatch):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    tracker = SimpleNamespace(waits_here=False)
    job = Job("7f3a" * 4, "train", "tensor01", "/r", tracker)
    entry = entry_of(job)
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
    assert "train on tensor01: interrupted while running 00:00" in text
