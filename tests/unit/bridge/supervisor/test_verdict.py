"""How an attempt ends, as a value that is checked where it is made, and as lines that its function's code can write."""

from __future__ import annotations

import pytest

from clusterfn.bridge.layout import EXIT_PUBLISHED, EXIT_QUEUED, EXIT_RETURNED, LOST, RETURNED, TIME
from clusterfn.bridge.supervisor.classify_exit import classify_report, parse_report_line
from clusterfn.bridge.supervisor.verdict import (
    EXIT_LEFT_TO_AFTER,
    AttemptEnded,
    Verdict,
    concluded_by_another,
    document,
    exit_code,
    requested,
)


def test_outcome_json_has_every_field_and_nothing_of_the_supervisor_alone():
    verdict = Verdict(TIME, "too long", transient={"retry": "same"}, asked=True, exception_at=("/v", 0, 9))
    outcome = document("7f3a", 2, verdict)

    assert outcome["final"] and (outcome["kind"], outcome["attempt"], outcome["message"]) == (TIME, 2, "too long")
    assert outcome["hint"] is None and outcome["evidence"] == outcome["notes"] == outcome["left"] == []
    assert not {"transient", "asked", "exception_at", "kept", "exit_status"} & set(outcome)


def test_no_outcome_is_made_of_a_verdict_that_nothing_may_be_published_for():
    with pytest.raises(ValueError, match="no such kind"):
        document("7f3a", 1, concluded_by_another())


@pytest.mark.parametrize(
    "verdict, won, code",
    [
        (Verdict(RETURNED), True, EXIT_RETURNED),
        (Verdict(TIME), True, EXIT_PUBLISHED),
        (Verdict(TIME), False, EXIT_RETURNED),
        (Verdict(TIME, exit_status=EXIT_QUEUED), True, EXIT_QUEUED),
        (Verdict(None, exit_status=EXIT_LEFT_TO_AFTER), False, EXIT_LEFT_TO_AFTER),
        (concluded_by_another(), False, EXIT_RETURNED),
    ],
)
def test_job_sh_learns_from_the_exit_code_what_comes_next(verdict: Verdict, won: bool, code: int):
    assert exit_code(verdict, won) == code


def test_what_is_raised_shows_its_message_and_a_request_of_an_older_client_may_leave_fields_out():
    ended = AttemptEnded(Verdict(TIME, "too long"))
    assert str(ended) == "too long" and ended.verdict.kind == TIME
    assert requested({"message": "gone"}).kind == LOST
    assert requested({"kind": TIME, "withdraw": True}).message == ""


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b'{"done": "nothing"}',
        b'{"done": "returned", "size": 3}',
        b'{"done": "returned", "size": 3, "crc": null}',
        b'{"done": "returned", "size": "3", "crc": 1}',
        b'{"done": "raised", "message": 1}',
        b'{"stage": null}',
        b'{"done": "returned", "usage": {"cpu_s": "1"}}',
        b'{"note": "n", "exception": {"a": {"b": {"c": {"d": {}}}}}}',
    ],
)
def test_a_line_that_no_worker_writes_says_nothing(line: bytes):
    assert parse_report_line(line) == {}


def test_a_last_word_is_a_verdict():
    found = classify_report(parse_report_line(b'{"done": "returned", "size": 3, "crc": 7, "message": null}'))

    assert (found.kind, found.message, found.stage, found.value) == ("returned", "", "result", {"size": 3, "crc": 7})


@pytest.mark.parametrize(
    ("read", "written"), [("\udcc3\udcbc.csv", "ü.csv"), ("\udcff.csv", "\udcff.csv"), ("\ud800\udcff", "\ud800\udcff")]
)
def test_a_name_that_the_locale_could_not_read_is_text_in_outcome_json(read: str, written: str):
    assert document("7f3a", 1, Verdict(TIME, read))["message"] == written
