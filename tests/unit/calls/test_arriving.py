"""A value that comes, partly before its outcome: what is kept of it, and when it must be fetched instead."""

from __future__ import annotations

import io
import json
import os
from unittest.mock import Mock

import pytest

from clusterfn.calls import outcome
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.job import Job, entry_of
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import units
from clusterfn.config.spec import ResultPolicy
from clusterfn.errors import ResultError
from clusterfn.hosts import landing, serialization
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc.reply import Reply
from tests.waiting import WAIT_S

container = serialization.part("container")
PLACE = outcome.JobLocation("tensor01", "7f3a", "/root/jobs/7f3a", ResultPolicy())
VALUE = bytearray(os.urandom(3 << 20))


def written(value: object) -> tuple[bytes, bytes, dict]:
    """The file of a value, its outcome.json, and the same read."""
    file = io.BytesIO()
    told = {"kind": "returned", "value": container.dump(value, file)}
    return file.getvalue(), json.dumps(told).encode(), told


class Large:
    """Pickles next to the stream, as arrays do."""

    def __reduce_ex__(self, protocol):
        import pickle

        return bytearray, (pickle.PickleBuffer(VALUE),)


def load(arriving: Arriving, told: dict) -> object:
    return outcome.value_of(told, arriving.value, PLACE)


def give(arriving: Arriving, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        arriving.write(data[at : at + step])


def test_a_value_that_was_begun_again_counts_from_there():
    data, content, told = written(Large())
    arriving = Arriving(PLACE)

    arriving.begin_early(again=False)
    give(arriving, b"\0" * (2 << 20), 65536)
    arriving.begin_early(again=True)
    arriving.begin_early(again=False)
    give(arriving, data, 65536)
    arriving.announce(content)

    assert load(arriving, told) == VALUE


def spoil_no_header(data):
    return b"\0" * len(data)


def spoil_a_byte(data):
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def spoil_another_size(data):
    return written([Large(), 1])[0]


def spoil_zeros_in_between(data):
    return data[: 1 << 20] + bytes(1 << 20) + data[2 << 20 :]


@pytest.mark.parametrize("spoil", [spoil_no_header, spoil_a_byte, spoil_another_size, spoil_zeros_in_between])
def test_what_came_early_and_was_not_published_is_to_be_fetched(spoil):
    data, content, _ = written(Large())
    arriving = Arriving(PLACE)

    arriving.begin_early(again=False)
    give(arriving, spoil(data)[: 2 << 20], 65536)
    arriving.announce(content)
    give(arriving, spoil(data)[2 << 20 : len(data)], 65536)

    assert arriving.value is None


def test_what_came_early_of_a_job_that_failed_is_to_be_fetched():
    data, _, _ = written(Large())
    _, content, _ = written(1)
    arriving = Arriving(PLACE)

    arriving.begin_early(again=False)
    give(arriving, data[: 2 << 20], 65536)
    arriving.announce(content)
    arriving.write(b"more")

    assert arriving.value is None


@pytest.mark.parametrize("early", [0, 1 << 20])
def test_more_than_was_announced_is_rejected(early):
    data, content, _ = written(Large())
    arriving = Arriving(PLACE)
    if early:
        arriving.begin_early(again=False)
        give(arriving, data[:early], 65536)
    arriving.announce(content)

    with pytest.raises(ResultError, match="more bytes arrived than"):
        give(arriving, data[early:] + b"x", 65536)


def test_a_file_that_grows_beyond_its_first_line_before_the_outcome_is_no_error_of_a_job_that_runs():
    first, _, _ = written(Large())
    _, content, told = written([Large(), "another attempt to write it, which was not noticed", 1])
    arriving = Arriving(PLACE)

    arriving.begin_early(again=False)
    give(arriving, first + b"x" * 100_000, 65536)
    arriving.announce(content)

    assert arriving.value is None


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_value_that_is_just_large_enough_to_come_early_is_not_lost(size):
    texts = (letter * (size - overhead) for letter in "abc" for overhead in range(80, 200))
    value = next(text for text in texts if len(written(text)[0]) == size)
    data, content, told = written(value)
    arriving = Arriving(PLACE)

    arriving.begin_early(again=False)
    give(arriving, data, 1 << 18)
    arriving.announce(content)

    if arriving.value is not None:  # else it is fetched again
        assert load(arriving, told) == value


@pytest.mark.parametrize("early", [False, True])
def test_a_value_that_memory_cannot_hold_lands_in_a_mapped_file(monkeypatch, early):
    data, content, told = written(Large())
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000)
    arriving = Arriving(PLACE)
    if early:
        arriving.begin_early(again=False)
    else:
        arriving.announce(content)

    give(arriving, data, 65536)
    arriving.announce(content)

    assert load(arriving, told) == VALUE


@pytest.mark.parametrize("early", [0, 65536, 2 << 20])
def test_a_value_for_which_there_is_no_room_at_all_is_rejected_once_the_job_has_ended(monkeypatch, early):
    data, content, _ = written(Large())
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000)
    monkeypatch.setattr(landing, "folder_for", lambda size: None)
    arriving = Arriving(PLACE)
    if early:
        arriving.begin_early(again=False)
        give(arriving, data[:early], 65536)

    with pytest.raises(ResultError, match="0 bytes of free memory"):
        arriving.announce(content)


def test_room_that_was_missing_while_the_job_ran_may_be_there_at_its_end(monkeypatch):
    data, content, _ = written(Large())
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000)
    monkeypatch.setattr(landing, "folder_for", lambda size: None)
    arriving = Arriving(PLACE)
    arriving.begin_early(again=False)
    give(arriving, data[: 2 << 20], 65536)

    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1 << 40)
    arriving.announce(content)
    give(arriving, data[2 << 20 :], 65536)

    assert arriving.value is None, "it is fetched"


class FullDisk:
    def __init__(self, *_, **__):
        pass

    def write(self, piece):
        raise OSError(28, "No space left on device")

    def close(self):
        pass


@pytest.mark.parametrize("early", [False, True])
def test_a_disk_that_fills_up_is_an_error_of_the_result_and_only_at_the_end_of_the_job(monkeypatch, tmp_path, early):
    data, content, _ = written(Large())
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000)
    monkeypatch.setattr(landing, "folder_for", lambda size: str(tmp_path))
    monkeypatch.setattr(landing.tempfile, "TemporaryFile", FullDisk)
    arriving = Arriving(PLACE)
    if early:
        arriving.begin_early(again=False)
        give(arriving, data, 65536)
        arriving.announce(content)
        assert arriving.value is None
        return
    arriving.announce(content)

    with pytest.raises(ResultError, match="no room for the value: .*No space left on device"):
        give(arriving, data, 65536)


@pytest.mark.parametrize("size", [1 << 62, 1 << 80])
def test_a_size_that_no_machine_has_is_rejected(monkeypatch, size):
    monkeypatch.setattr(units, "free_memory", lambda swap=False: None)  # as where it is not known

    with pytest.raises(ResultError, match="no room for the value"):
        Arriving(PLACE).expect({"kind": "returned", "value": {"size": size, "crc": 1}})


def test_values_that_come_at_once_share_the_memory_that_is_free(monkeypatch, tmp_path):
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 10 << 20)
    monkeypatch.setattr(landing, "folder_for", lambda size: None)
    told = {"kind": "returned", "value": {"size": 4 << 20, "crc": 1}}
    both = [Arriving(PLACE), Arriving(PLACE)]
    for each in both:
        each.expect(told)

    third = Arriving(PLACE)
    with pytest.raises(ResultError, match="free memory"):
        third.expect(told)

    both[0].drop()
    third.expect(told)


def test_a_host_that_is_not_trusted_may_not_fill_the_disk(monkeypatch):
    _, content, _ = written(Large())
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000)
    place = PLACE._replace(results=PLACE.results._replace(data_only=True))

    with pytest.raises(ResultError, match="free memory"):
        Arriving(place).announce(content)


@pytest.mark.parametrize(("kind", "state"), [("returned", "RETURNED"), ("raised", "RAISED"), ("lost", "DIED")])
@pytest.mark.parametrize("at", ["announced", "mapped"])
def test_a_job_ends_as_its_outcome_says_though_its_value_has_no_room_here(monkeypatch, kind, state, at):
    monkeypatch.setattr(units, "free_memory", lambda swap=False: 1000 if at == "announced" else 1 << 40)
    monkeypatch.setattr(landing, "folder_for", lambda size: None)
    monkeypatch.setattr(landing.Landing, "value", Mock(side_effect=OSError("no address space")))
    session = Mock(root="/root", host=Mock(result_policy=ResultPolicy), follow_window=FollowWindow())
    tracker = Tracker(session, "7f3a000011112222", "train")
    job = Job("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", tracker)
    reply = session.connection.follow.return_value = Reply(lambda: None)
    tracker.entry = entry_of(job)
    tracker.follow()
    content = json.dumps({"kind": kind, "value": {"size": 2 << 20, "crc": 1}}).encode()

    try:
        tracker.arriving_outcome.announce(content)
        reply.resolve(content)
    except ResultError as refused:  # as the connection does with what a receiver raises
        reply.reject(refused)

    error = job.exception(WAIT_S)
    assert isinstance(error, ResultError) and ("no address space" in error.message) == (at == "mapped")
    assert job.status.startswith(f"{state} (")
