"""When a stream that carries nothing is dead, by a clock of the test."""

from __future__ import annotations

from clusterfn.hosts.keepalive import ANSWER_S, ASK, BUFFERED, DEAD, DEAD_S, QUIET_S, SLOWEST, WELL, Keepalive


def test_a_host_has_more_time_to_answer_while_bytes_of_ours_are_on_their_way() -> None:
    idle, sending = Keepalive(0.0), Keepalive(0.0)
    sending.send(2 * BUFFERED)
    asked = QUIET_S + 1
    assert [each.look(asked, busy=True) for each in (idle, sending)] == [ASK, ASK]

    late = asked + ANSWER_S + DEAD_S

    assert [each.look(late, busy=True) for each in (idle, sending)] == [DEAD, WELL]
    assert sending.look(late + BUFFERED / SLOWEST, busy=True) == DEAD
