"""How much longer something takes: never said before it can be known, and never wrong by the time in a queue."""

from __future__ import annotations

import pytest

from clusterfn.display import console
from clusterfn.display.console import Pace


def test_time_in_a_queue_counts_as_elapsed_and_not_for_the_rest():
    now = [0.0]
    pace = Pace(lambda: now[0], 0.0)
    assert pace.left(0, 50, works=False) == ""
    now[0] = 3600.0
    assert pace.left(0, 50) == "" and pace.elapsed() == "1:00:00 elapsed"
    now[0] += 12.0

    assert pace.left(4, 50) == "02:18 left" and pace.elapsed() == "1:00:12 elapsed"


def test_what_was_done_before_does_not_make_the_rest_faster():
    now = [0.0]
    pace = Pace(lambda: now[0], 0.0)
    assert pace.left(40, 50) == ""
    now[0] = 10.0

    assert pace.left(40, 50) == "" and pace.left(41, 50) == "01:30 left" and pace.left(50, 50) == ""


@pytest.mark.parametrize(
    "seconds, shown", [(-1.0, "00:00"), (0.9, "00:00"), (61.0, "01:01"), (3600.0, "1:00:00"), (360_000.0, "100:00:00")]
)
def test_a_duration_is_shown_as_a_clock_does(seconds, shown):
    assert console.as_clock(seconds) == shown
