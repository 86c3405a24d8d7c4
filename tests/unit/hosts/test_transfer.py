"""How far files on their way are, in words; and what is known of what was not sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clusterfn.calls import leaving
from clusterfn.errors import Unreachable
from clusterfn.hosts import loop, transfer
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.transfer import Sending, Transfer

MB = 1 << 20


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test turns."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def upload(size, moved=0, cancel=lambda: None):
    reply = Reply(cancel)
    reply.size, reply.moved = size, moved
    return reply


def test_what_is_sent_is_reported_with_its_rate_and_the_time_left(clock):
    reply = upload(114 * MB)
    sending = Sending([reply])

    assert sending.in_words() == "sending 114 MB"
    clock.s, reply.moved = clock.s + 8, 24 * MB
    assert sending.in_words() == "sending 24 MB of 114 MB, 3 MB/s, 30 s left"
    clock.s, reply.moved = clock.s + 2, 2 * MB
    assert sending.in_words() == "sending 2 MB of 114 MB", "the connection broke: it is sent again"
    reply.resolve(True)
    assert sending.in_words() == "" and not sending.unsent


def test_what_the_host_had_already_counts_as_sent(clock):
    there = upload(1000 * MB)
    there.resolve(False)

    assert Sending([there, upload(1000 * MB)]).in_words() == "sending 1000 MB of 2 GB"


def test_a_little_is_worth_a_word_once_it_takes_long(clock):
    sending = Sending([upload(3 * MB, MB)])

    assert sending.in_words() == ""
    clock.s += 2.5
    assert sending.in_words() == "sending 1 MB of 3 MB"


def test_what_comes_back_is_reported_once_it_comes(clock):
    reply = Reply(lambda: None)
    receiving = Transfer("receiving its value:", [reply])

    assert receiving.in_words() == ""
    reply.size, reply.moved = 300 * MB, 12 * MB
    assert receiving.in_words() == "receiving its value: 12 MB of 300 MB"


def test_files_of_which_not_each_is_asked_for_yet_are_known_by_their_size(clock):
    receiving = Transfer("receiving its files:", size=40 * MB)

    assert receiving.in_words() == ""
    receiving.add(upload(None, 10 * MB))
    assert receiving.in_words() == "receiving its files: 10 MB of 40 MB"


class Silent:
    """A connection that is gone."""

    def have(self, paths):
        raise Unreachable("no answer")


def test_what_had_not_left_this_machine_never_runs_though_the_host_is_silent():
    sending = Sending([upload(10 * MB, 10 * MB), upload(MB, 0)])

    assert sending.drop(Silent(), "/root/jobs/7f3a/payload.pkl", 1.0) and sending.dropped


def test_what_makes_the_job_is_taken_back_before_what_it_needs_so_that_the_host_never_completes_it():
    taken_back = []
    modules = upload(10 * MB, 0, lambda: taken_back.append("modules"))
    folder = upload(MB, 0, lambda: taken_back.append("folder"))

    Sending([modules, folder]).drop(Silent(), "/root/jobs/7f3a/payload.pkl", 1.0)

    assert taken_back == ["folder", "modules"]


def test_of_what_had_all_left_nothing_is_claimed_while_the_host_is_silent():
    sending = Sending([upload(MB, MB)])

    with pytest.raises(Unreachable):
        sending.drop(Silent(), "/root/jobs/7f3a/payload.pkl", 1.0)
    assert not sending.dropped


class Late:
    """A connection whose answers come when a test says so."""

    def __init__(self):
        self.asked = Reply(lambda: None)

    def have(self, paths):
        return self.asked


@pytest.mark.parametrize("arrived", [True, False])
def test_an_answer_that_comes_too_late_for_who_asked_still_decides_whether_it_was_dropped(arrived):
    sending, late, dropped = Sending([upload(MB, MB)]), Late(), []
    sending.on_dropped = lambda: dropped.append(True)

    with pytest.raises(Unreachable):
        sending.drop(late, "/root/jobs/7f3a/payload.pkl", 0.0)
    assert not dropped
    late.asked.resolve([arrived])
    loop.settle()

    assert sending.dropped is not arrived
    assert dropped == ([] if arrived else [True])


class Leaving:
    """A job of which something has not left this machine when the program ends."""

    id, host = "0123456789abcdef", "a-host-with-a-long-name.example.edu"
    state, is_stopping = "CANCELLED", False

    def __init__(self, sending):
        self.transfer, self.stopped = sending, False

    def done(self):
        return self.stopped

    def stop(self):
        self.stopped = True


def test_what_is_still_sent_at_the_end_says_what_ctrl_c_does_within_80_columns(monkeypatch, capsys):
    seconds = iter(range(1000))
    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    monkeypatch.setattr(leaving, "open_jobs", {Leaving(Sending([upload(1023 * MB, MB)]))})
    monkeypatch.setattr(Sending, "amounts", lambda _: "1022 of 1023 MB, 9.9 MB/s, 85 min left")

    leaving.finish_sending()

    line = capsys.readouterr().err.splitlines()[0][:79]
    assert line.startswith("clusterfn: sending (Ctrl-C cancels it): 1022 of 1023 MB, 9.9 MB/s, 85 min left")
