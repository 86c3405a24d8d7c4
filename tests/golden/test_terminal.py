"""What a terminal, a pipe and a dumb terminal show of a map, a sweep and a build: each time that a line is redrawn.

The clock is a fake one, so a text is the same on each machine. "~" begins a line that replaces the one above it.
"""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from clusterfn import OutOfMemory
from clusterfn.calls.environment_upload import BuildDisplay
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.map_display import CallProgress, result_in_words, say_how_it_ended
from clusterfn.display import console
from clusterfn.sweeps.report import SweepProgress, Trial, named
from tests.golden.golden import matches


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def play_map(clock: Clock) -> None:
    """A map of 8 items is uploaded, waits in a queue, runs, loses its connection, and three of its items fail."""
    group = GroupState("7f3a000011112222", "train", "hpc", "/root/jobs/7f3a", 8)
    group.submitted_at = clock.now
    console.tell("7f3a train on hpc (host='hpc'): 8 items, 4 at a time")
    progress, errors = CallProgress(8, clock, clock.now), {}

    def wait(seconds: float) -> None:
        clock.now += seconds
        progress.wait(group, "7f3a")

    def end(index: int, error: Exception | None = None) -> None:
        clock.now += 1.5
        ended = ItemOutcome("RAISED" if error else "RETURNED", None if error else index / 8, error, {"wall_s": 12.3})
        group.end_item(index, ended)
        if error:
            errors[index] = error
        progress.add(group.label(index), result_in_words(ended), error is not None, "7f3a", group)

    said = "sending 38 MB of 114 MB, 3 MB/s, 25 s left"
    group.show_transfer(SimpleNamespace(in_words=lambda: said, progress=(38, 114)))
    wait(12.0)
    group.show_transfer(SimpleNamespace(in_words=lambda: "", progress=None))
    group.set_reason("expected start 21 Nov 14:35 host time; Priority: waiting for its turn")
    wait(1.0)
    wait(3600.0)
    for index in range(4):
        group.begin_item(index)
    group.set_reason("")
    wait(1.0)
    end(0)
    end(1, ValueError("lr=0.3 diverges"))
    group.set_reason("no connection to hpc since 14:35:10: the host no longer answered; trying to connect")
    wait(61.0)
    group.set_reason("")
    for index in range(4, 8):
        group.begin_item(index)
    end(2, OutOfMemory("the job used 812 MB of memory and asked for 512 MB", host="hpc"))
    for index in (3, 4, 5):
        end(index)
    end(6, ValueError("lr=0.3 diverges"))
    end(7)
    progress.show("")
    say_how_it_ended(8, errors, clock.now - 1000.0)


def play_sweep(clock: Clock) -> None:
    progress = SweepProgress(3, minimize=False, clock=clock)
    for name, lr, score in (("GRID_0001", 0.0001, 0.99), ("GRID_0002", 0.001, None), ("GRID_0004", 0.01, 0.75)):
        clock.now += 44.0
        error = None if score else KeyError("loss")
        trial: Trial[float] = Trial(name, {"lr": lr, "model": "small"}, score, score, error, 43.8)
        progress.show(trial, named({name: trial.config})[name])
    progress.close()


def play_build(clock: Clock) -> None:
    with BuildDisplay(clock) as display:
        for stage, of, size in (("fetch", 16, 2560 << 20), ("unpack", 16, 0), ("compile", 0, 0), ("verify", 0, 0)):
            for done in range(0, of + 1, 4):
                clock.now += 2.5
                moved = done * size // of if size else done << 22
                display.show_build({"stage": stage, "done": done, "of": of, "bytes": moved, "size": size})
    console.tell("environment.yml is built on hpc")


def film(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, term: str = "xterm") -> str:
    """Return what all of it writes."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", stream)
    for play in (play_map, play_sweep, play_build):
        play(Clock())
    frames = stream.getvalue().replace("\r\x1b[K", "\r").replace("\r", "\n~").split("\n")
    return "".join(f"{frame.rstrip()}\n" for frame in frames if frame.strip("~ "))


def test_a_terminal_shows_bars_and_failures_above_them(monkeypatch):
    shown = film(monkeypatch, Terminal())

    assert max(len(frame) for frame in shown.splitlines() if "%|" in frame) == 80  # with "~": one stays free
    assert not [word for word in ("nan", "none", "inf", "?") if word in shown.lower()]
    assert matches(shown, "terminal/80.txt")


@pytest.mark.parametrize("stream, term", [(io.StringIO, "xterm"), (Terminal, "dumb")])
def test_a_pipe_and_a_dumb_terminal_get_lines_that_stay(monkeypatch, stream, term):
    shown = film(monkeypatch, stream(), term)

    assert "~" not in shown and "\x1b" not in shown
    assert matches(shown, "terminal/pipe.txt")
