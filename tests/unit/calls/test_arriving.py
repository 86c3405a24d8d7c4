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
from clusterfn.hosts import landing
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc.reply import Reply
from tests.unit.calls.received import PLACE, UNTRUSTED, container, limit_memory
from tests.waiting import WAIT_S

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


DATA, CONTENT, TOLD = written(Large())
HALF = 2 << 20


def load(arriving: Arriving, told: dict = TOLD) -> object:
    return outcome.value_of(told, arriving.value, PLACE)


def give(arriving: Arriving, data: bytes, step: int = 65536) -> None:
    for at in range(0, len(data), step):
        arriving.write(data[at : at + step])


def begun(data: bytes = b"") -> Arriving:
    """A value of which so much came before its outcome."""
    arriving = Arriving(PLACE)
    arriving.begin_early(again=False)
    give(arriving, data)
    return arriving


@pytest.fixture
def little_memory(monkeypatch):
    limit_memory(monkeypatch, lambda: 1000)


@pytest.fixture
def no_room(monkeypatch, little_memory):
    monkeypatch.setattr(landing, "folder_for", lambda size: None)


def test_a_value_that_was_begun_again_counts_from_there():
    arriving = begun(bytes(HALF))
    arriving.begin_early(again=True)
    arriving.begin_early(again=False)
    give(arriving, DATA)
    arriving.announce(CONTENT)

    assert load(arriving) == VALUE


NOT_PUBLISHED = {
    "zeros": (bytes(len(DATA)), CONTENT),
    "another byte": (DATA[:-5] + bytes([DATA[-5] ^ 1]) + DATA[-4:], CONTENT),
    "another size": (written([Large(), 1])[0][: len(DATA)], CONTENT),
    "zeros in between": (DATA[: 1 << 20] + bytes(1 << 20) + DATA[HALF:], CONTENT),
    "half of it, and then the job has failed": (DATA[:HALF] + b"more", written(1)[1]),
}


@pytest.mark.parametrize(("data", "content"), NOT_PUBLISHED.values(), ids=NOT_PUBLISHED)
def test_what_came_early_and_was_not_published_is_to_be_fetched(data, content):
    arriving = begun(data[:HALF])
    arriving.announce(content)
    give(arriving, data[HALF:])

    assert arriving.value is None


@pytest.mark.parametrize("early", [0, 1 << 20])
def test_more_than_was_announced_is_rejected(early):
    arriving = begun(DATA[:early]) if early else Arriving(PLACE)
    arriving.announce(CONTENT)

    with pytest.raises(ResultError, match="more bytes arrived than"):
        give(arriving, DATA[early:] + b"x")


def test_a_file_that_grows_beyond_its_first_line_before_the_outcome_is_no_error_of_a_job_that_runs():
    arriving = begun(DATA + b"x" * 100_000)
    arriving.announce(written([Large(), "another attempt to write it, which was not noticed", 1])[1])

    assert arriving.value is None


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_value_that_is_just_large_enough_to_come_early_is_not_lost(size):
    texts = (letter * (size - overhead) for letter in "abc" for overhead in range(80, 200))
    value = next(text for text in texts if len(written(text)[0]) == size)
    data, content, told = written(value)
    arriving = begun()

    give(arriving, data, 1 << 18)
    arriving.announce(content)

    if arriving.value is not None:  # else it is fetched again
        assert load(arriving, told) == value


@pytest.mark.parametrize("early", [False, True])
def test_a_value_that_memory_cannot_hold_lands_in_a_mapped_file(little_memory, early):
    arriving = begun() if early else Arriving(PLACE)
    if not early:
        arriving.announce(CONTENT)

    give(arriving, DATA)
    arriving.announce(CONTENT)

    assert load(arriving) == VALUE


@pytest.mark.parametrize("early", [0, 65536, HALF])
def test_a_value_for_which_there_is_no_room_at_all_is_rejected_once_the_job_has_ended(no_room, early):
    arriving = begun(DATA[:early]) if early else Arriving(PLACE)

    with pytest.raises(ResultError, match="0 bytes of free memory"):
        arriving.announce(CONTENT)


def test_room_that_was_missing_while_the_job_ran_may_be_there_at_its_end(no_room, monkeypatch):
    arriving = begun(DATA[:HALF])

    limit_memory(monkeypatch, lambda: 1 << 40)
    arriving.announce(CONTENT)
    give(arriving, DATA[HALF:])

    assert arriving.value is None, "it is fetched"


class FullDisk:
    def __init__(self, *_, **__):
        pass

    def write(self, piece):
        raise OSError(28, "No space left on device")

    def close(self):
        pass


@pytest.mark.parametrize("early", [False, True])
def test_a_disk_that_fills_up_is_an_error_of_the_result_and_only_at_the_end_of_the_job(
    little_memory, monkeypatch, tmp_path, early
):
    monkeypatch.setattr(landing, "folder_for", lambda size: str(tmp_path))
    monkeypatch.setattr(landing.tempfile, "TemporaryFile", FullDisk)
    arriving = begun(DATA) if early else Arriving(PLACE)
    arriving.announce(CONTENT)
    if early:
        assert arriving.value is None
        return

    with pytest.raises(ResultError, match="no room for the value: .*No space left on device"):
        give(arriving, DATA)


@pytest.mark.parametrize("size", [1 << 62, 1 << 80])
def test_a_size_that_no_machine_has_is_rejected(monkeypatch, size):
    monkeypatch.setattr(units, "free_memory", lambda swap=False: None)  # as where it is not known

    with pytest.raises(ResultError, match="no room for the value"):
        Arriving(PLACE).expect({"kind": "returned", "value": {"size": size, "crc": 1}})


def test_values_that_come_at_once_share_the_memory_that_is_free(monkeypatch, tmp_path):
    limit_memory(monkeypatch, lambda: 10 << 20)
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


def test_a_host_that_is_not_trusted_may_not_fill_the_disk(little_memory):
    with pytest.raises(ResultError, match="free memory"):
        Arriving(UNTRUSTED).announce(CONTENT)


@pytest.mark.parametrize(("kind", "state"), [("returned", "RETURNED"), ("raised", "RAISED"), ("lost", "DIED")])
@pytest.mark.parametrize("at", ["announced", "mapped"])
def test_a_job_ends_as_its_outcome_says_though_its_value_has_no_room_here(monkeypatch, kind, state, at):
    limit_memory(monkeypatch, lambda: 1000 if at == "announced" else 1 << 40)
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
