"""A host that is 50 or 150 ms away: everything works, and nothing is waited for more often than it must be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.round_trips import ACTIONS, DELAYS_MS, behind, counted

pytestmark = [pytest.mark.lab]


@pytest.mark.parametrize("delay_ms", [DELAYS_MS[0], pytest.param(DELAYS_MS[1], marks=pytest.mark.long)])
def test_everything_works_over_a_long_line_in_as_few_round_trips_as_promised(lab: Any, delay_ms: int) -> None:
    with behind(lab, delay_ms / 2000) as there:
        counts = list(counted(there))

    assert len(counts) == len(ACTIONS)
    assert [f"{count.action.name}: {count}" for count in counts if not count.is_kept] == []
