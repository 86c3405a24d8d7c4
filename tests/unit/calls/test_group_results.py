"""The results of a group as a user waits for them, and what the group says meanwhile."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterfn import ClusterfnError, ConfigError, JobGroup, MapError
from clusterfn.calls.group import state_of_group
from clusterfn.calls.map_display import CallProgress, result_in_words
from clusterfn.hosts import spoken_wait
from tests.unit.calls.groups import end, ended, group
from tests.waiting import until


def test_the_names_of_a_group_are_those_that_the_reference_explains():
    text = (Path(__file__).parents[3] / "docs/reference/api.md").read_text(encoding="utf-8")
    table = text.split("## `JobGroup`")[1].split("\n## ")[0]
    explained = {
        re.match(r"\w+", word)[0]
        for row in table.splitlines() if row.startswith("| `")
        for word in re.findall(r"`([^`]*)`", row.split(" | ")[0]) if "group" not in word and "async" not in word
    }  # fmt: skip

    assert {name for name in dir(ended(1)) if not name.startswith("_")} == explained


def test_waiting_has_an_end():
    known, made = group(2)
    end(known, 1, 1)

    assert not made.wait(0.01) and not made.done()
    with pytest.raises(concurrent.futures.TimeoutError, match="1 of 2 items have not ended"):
        made.results(timeout=0.01)
    for wait in (made.wait, made.results, made.as_completed, lambda timeout: made.result(0, timeout)):
        with pytest.raises(ConfigError, match="timeout='10min' is not a number of seconds"):
            wait("10min")


def test_none_succeeded_counts_each_cause():
    made = ended(*[ValueError(n % 2) for n in range(5)])

    with pytest.raises(MapError) as caught:
        made.results()
    assert caught.value.evidence == ("3 x ValueError: 0", "2 x ValueError: 1")
    assert caught.value.__cause__ is made.failed[0]


class Odd(Exception):
    def __str__(self) -> str:
        raise AttributeError("response")


def test_results_come_although_an_exception_cannot_be_put_into_words(capfd):
    assert ended(1, Odd()).results()[0] == 1
    assert "item 1 ✗ failed: Odd: <no message: its __str__ raised AttributeError>" in capfd.readouterr().err
    with pytest.raises(MapError, match="1 x Odd: <no message"):
        ended(Odd()).results()


@dataclass
class Playing:
    """A map of so many items, each of which takes so long; every `fails_every`th fails."""

    count: int
    item_s: float
    fails_every: int = 0
    now: float = 1000.0

    def lines(self, capfd):
        known, _ = group(self.count)
        progress = CallProgress(self.count, lambda: self.now, self.now)
        for index in range(self.count):
            self.now += self.item_s
            end(known, index, ValueError("no") if self.fails_every and index % self.fails_every == 0 else 1)
            ended = known.ended(index)
            progress.add(known.label(index), result_in_words(ended), ended.error is not None, "7f3a", known)
            progress.wait(known, "7f3a")
        return capfd.readouterr().err.splitlines()


# Least and most lines where they stay on the screen.
PLAYED = {
    "each item of a small one": (Playing(20, 0.005), 20, 20),
    "a thousand short items": (Playing(1000, 0.005), 20, 20),
    "two of them fail": (Playing(1000, 0.005, fails_every=501), 22, 22),
    "each second fails": (Playing(1000, 0.005, fails_every=2), 30, 30),
    "a thousand long ones": (Playing(1000, 60.0), 24, 32),
    "a few for a day": (Playing(21, 3600.0), 21, 30),
    "a few for a month": (Playing(30, 86400.0), 30, 60),
}


@pytest.mark.parametrize(("played", "least", "most"), PLAYED.values(), ids=PLAYED)
def test_a_map_without_a_terminal_says_some_twenty_times_how_far_it_is_and_names_ten_failures(
    capfd, played, least, most
):
    lines = played.lines(capfd)

    assert least <= len(lines) <= most
    assert sum("✗" in line for line in lines) <= 10 + 20
    assert lines[-1].startswith(f"[{played.count}/{played.count}] item {played.count - 1} ✓ 1, 0.0s")
    assert ("elapsed" in lines[-1]) == (played.count > 20)


def test_a_long_cause_ends_with_an_ellipsis(capfd):
    ended(1, ValueError("x" * 300)).results()
    line = next(each for each in capfd.readouterr().err.splitlines() if "✗" in each)
    assert line.endswith("x…") and len(line) < 200


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_group_that_waits_says_why(monkeypatch, term):
    pytest.importorskip("pty", reason="a terminal of one's own needs Unix")
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(spoken_wait, "REASON_AFTER_S", 0.0)
    known, made = group(2)
    known.set_reason("waiting for its turn")
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    shown = ""

    def look():
        nonlocal shown
        with pytest.raises(TimeoutError):
            made.results(timeout=1.2)
        with contextlib.suppress(BlockingIOError):
            shown += os.read(ours, 65536).decode()
        return "(waiting for its turn)" in shown

    with os.fdopen(theirs, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        until(look)
    os.close(ours)

    assert ("\x1b" not in shown) == (term == "dumb")
    assert "clusterfn: 7f3a pending 0" in shown or term == "xterm"


def test_what_is_known_is_reported_in_one_line():
    known, made = group(3)
    assert made.status == "PENDING (0 of 3 ended)"
    known.begin_item(1)
    end(known, 0, 1)
    known.set_reason("waiting for its turn")

    assert made.status == "RUNNING (1 of 3 ended: 1 returned; waiting for its turn)"
    assert repr(made).startswith("<JobGroup 7f3a000011112222 train on tensor01: RUNNING")


def test_a_table_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install pandas, or take results\(\)"):
        ended(1).to_dataframe()


def test_one_result_is_waited_for_by_itself():
    known, made = group(3)
    end(known, 2, 5)
    end(known, 1, KeyError("x"))

    assert made.result(2) == 5
    with pytest.raises(KeyError):
        made.result(1)
    with pytest.raises(concurrent.futures.TimeoutError, match="item 0 has not ended"):
        made.result(0, timeout=0.01)


ASKED = {
    "result": lambda made, index: made.result(index, timeout=0.01), "usage": JobGroup.usage, "logs": JobGroup.logs,
    "stack": JobGroup.stack, "files": JobGroup.files, "download": JobGroup.download,
    "checkpoint": JobGroup.checkpoint, "label": JobGroup.label,
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_an_item_that_is_not_there_is_refused_at_once(asked):
    made = ended(1, 2)

    for index in (2, -3):
        with pytest.raises(IndexError, match=f"there is no item {index}: the group has 2 items, 0 to 1"):
            asked(made, index)
    with pytest.raises(TypeError, match="'a' is not the index of an item"):
        asked(made, "a")


def test_items_can_be_counted_from_the_end_and_one_is_counted_in_the_singular():
    assert ended(1, 2, 3).result(-1) == 3 and ended(1, 2).label(-1) == "item 1"
    with pytest.raises(IndexError, match="^there is no item 1: the group has one item, 0$"):
        ended(1).result(1)


# What a program writes, and what it gets of the items 0 and 1, of which 1 ends first.
IN_ORDER, AS_THEY_END = ["a", "b"], [(1, "b"), (0, "a")]
READ = {
    "list": (list, IN_ORDER),
    "for": (lambda made: [value for value in made], IN_ORDER),
    "zip": (lambda made: [value for value, _ in zip(made, range(len(made)))], IN_ORDER),
    "as_completed": (lambda made: list(made.as_completed()), AS_THEY_END),
    "next of as_completed": (lambda made: [next(ends := made.as_completed()), next(ends)], AS_THEY_END),
}


@pytest.mark.parametrize(("read", "expected"), READ.values(), ids=READ)
def test_iterating_gives_the_values_in_the_order_of_the_items_and_as_completed_each_as_it_ends(read, expected):
    known, made = group(2)
    end(known, 1, "b")
    threading.Timer(0.05, end, (known, 0, "a")).start()

    assert read(made) == expected
    assert made.results() == IN_ORDER


@pytest.mark.parametrize("on_error", [None, "raise", "collect"])
def test_a_failed_item_raises_in_its_place_unless_the_map_says_that_it_collects(on_error):
    failed = ValueError("no")
    made = ended(0, failed, 2)
    state_of_group(made).on_error = on_error
    seen, as_they_end = [], []

    with pytest.raises(ValueError, match="no") if on_error != "collect" else contextlib.nullcontext():
        seen.extend(made)
    with pytest.raises(ValueError, match="no") if on_error == "raise" else contextlib.nullcontext():
        as_they_end.extend(made.as_completed())
    with pytest.raises(ValueError, match="no") if on_error == "raise" else contextlib.nullcontext():
        assert made.results() == [0, failed, 2]

    assert seen == ([0, failed, 2] if on_error == "collect" else [0])
    assert as_they_end == ([(0, 0)] if on_error == "raise" else [(0, 0), (1, failed), (2, 2)])


def test_what_comes_too_late_of_as_completed_ends_it():
    with pytest.raises(concurrent.futures.TimeoutError, match="2 of 2 items have not ended"):
        list(group(2)[1].as_completed(0.05))


def test_a_group_without_items_has_returned():
    assert group(0)[1].state == "RETURNED"


def test_what_is_lost_ends_an_iteration():
    known, made = group(1)
    threading.Timer(0.05, known.fail, (ClusterfnError("gone"),)).start()

    with pytest.raises(ClusterfnError, match="gone"):
        list(made)
