"""Lines of the worker's report, which the function's own code can write too."""

from __future__ import annotations

import pytest

from clusterfn.bridge.supervisor.classify_exit import classify_report, parse_report_line


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
