"""A value that comes: as much as was announced, and as this machine has room for."""

from __future__ import annotations

import io
import json
import os
from unittest.mock import Mock

import pytest

from clusterfn.calls.arriving import Arriving
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config.spec import ResultPolicy
from clusterfn.errors import ResultError
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc.reply import Reply
from tests.unit.calls.received import PLACE, container, limit_memory
from tests.waiting import WAIT_S

VALUE = bytearray(os.urandom(3 << 20))


def written(value: object) -> tuple[bytes, bytes]:
    """The file of a value, and its outcome.json."""
    file = io.BytesIO()
    told = {"kind": "returned", "value": container.dump(value, file)}
    return file.getvalue(), json.dumps(told).encode()


class Large:
    """Pickles next to the stream, as arrays do."""

    def __reduce_ex__(self, protocol):
        import pickle

        return bytearray, (pickle.PickleBuffer(VALUE),)


DATA, CONTENT = written(Large())


def give(arriving: Arriving, data: bytes, step: int = 65536) -> None:
    for at in range(0, len(data), step):
        arriving.write(data[at : at + step])


@pytest.fixture
def little_memory(monkeypatch):
    limit_memory(monkeypatch, lambda: 1000)


def test_more_than_was_announced_is_rejected():
    arriving = Arriving(PLACE)
    arriving.announce(CONTENT)

    with pytest.raises(ResultError, match="more bytes arrived than"):
        give(arriving, DATA + b"x")


def test_a_value_that_memory_cannot_hold_is_rejected_before_it_comes(little_memory):
    with pytest.raises(ResultError, match="1000 bytes of free memory"):
        Arriving(PLACE).announce(CONTENT)


def test_memory_that_is_gone_after_all_is_an_error_of_the_result():
    arriving = Arriving(PLACE)
    arriving.announce(CONTENT)
    arriving.value = Mock(__len__=lambda _: 0, __iadd__=Mock(side_effect=MemoryError))

    with pytest.raises(ResultError, match="no room for the value"):
        arriving.write(b"x")


def test_values_that_come_at_once_share_the_memory_that_is_free(monkeypatch):
    limit_memory(monkeypatch, lambda: 10 << 20)
    told = {"kind": "returned", "value": {"size": 4 << 20, "crc": 1}}
    both = [Arriving(PLACE), Arriving(PLACE)]
    for each in both:
        each.expect(told)

    third = Arriving(PLACE)
    with pytest.raises(ResultError, match="free memory"):
        third.expect(told)

    both[0].drop()
    third.expect(told)


@pytest.mark.parametrize(("kind", "state"), [("returned", "RETURNED"), ("raised", "RAISED"), ("lost", "DIED")])
def test_a_job_ends_as_its_outcome_says_though_its_value_has_no_room_here(little_memory, kind, state):
    session = Mock(root="/root", settings=Mock(result_policy=ResultPolicy), follow_window=FollowWindow())
    tracker = Tracker(session, "7f3a000011112222", "train")
    job = tracker.job()
    reply = session.connection.follow.return_value = Reply(lambda: None)
    tracker.follow()
    content = json.dumps({"kind": kind, "value": {"size": 2 << 20, "crc": 1}}).encode()

    with pytest.raises(ResultError) as refused:
        tracker.source.arriving.announce(content)
    reply.reject(refused.value)  # as the connection does with what a receiver raises

    assert isinstance(job.exception(WAIT_S), ResultError)
    assert job.status.startswith(f"{state} (")
