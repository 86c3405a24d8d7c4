"""The same for many jobs, some at a time."""

from __future__ import annotations

import threading

import pytest

from clusterfn.display import at_once as module
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from tests.waiting import until


def test_several_are_done_at_the_same_time_and_reported_in_their_order() -> None:
    all_there = threading.Barrier(module.MOST)  # none gets through before so many have come

    def work(number: int) -> int:
        all_there.wait(150)
        return -number

    numbers = list(range(3 * module.MOST))
    assert [answer.result() for answer in at_once(numbers, work, "counting")] == [-each for each in numbers]


def test_a_failure_hides_no_other() -> None:
    answers = list(at_once([1, 0, 2], lambda number: 2 // number, "dividing"))

    assert (answers[0].result(), answers[2].result()) == (2, 1)
    assert isinstance(answers[1].exception(), ZeroDivisionError)


def test_one_is_done_in_the_callers_thread_and_nothing_for_none() -> None:
    assert [each.result() for each in at_once([1], lambda _: threading.get_ident(), "")] == [threading.get_ident()]
    assert list(at_once([], str, "")) == []


def test_it_says_how_many_are_done_while_the_next_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_EVERY_S", 0.01)
    lines: list[str] = []
    told = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    monkeypatch.setattr(console, "tell", tell)

    answers = list(at_once([False, True], lambda waits: told.wait(150) if waits else True, "cancelling jobs"))

    assert [each.result() for each in answers] == [True, True]
    assert lines[0] in ("cancelling jobs: 0 of 2 done", "cancelling jobs: 1 of 2 done")


def test_what_has_not_begun_never_does_once_the_caller_has_gone() -> None:
    begun: list[int] = []
    may_end = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number:
            may_end.wait(150)

    answers = at_once(range(100), work, "counting")
    next(answers)
    del answers  # as at Ctrl-C
    may_end.set()

    until(lambda: all(each.name != "clusterfn-at-once" for each in threading.enumerate()))
    assert len(begun) <= module.MOST + 1
