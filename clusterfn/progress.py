"""Shows a group in the thread that waits for it: a line for each item that ends, or one line on a terminal.

Prints, as `live` does, and says as it does what Ctrl-C means. Called by `group`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from clusterfn import live, outcome
from clusterfn.groupstate import Ended, GroupState
from clusterfn.job import SHORT


def until_done(group: GroupState, timeout: float | None) -> None:
    """Wait for all items, showing them.

    Raises:
        TimeoutError: They have not ended in that many seconds.
        KeyboardInterrupt: After Ctrl-C; the group goes on unless it is pressed twice.
        Exception: With `on_error="raise"`, that of the first item that failed.
    """
    shown, until = _Shown(group), None if timeout is None else time.monotonic() + timeout
    try:
        shown.until_done(until)
    except KeyboardInterrupt:
        shown.close()
        live.interrupted(group, group.on_interrupt, "results()")
        raise
    finally:
        shown.close()


class _Shown:
    """What stands on the screen of one waiting call."""

    def __init__(self, group: GroupState) -> None:
        self.group = group
        self.failed = 0
        self.compact = live.is_terminal(sys.stderr)

    def until_done(self, until: float | None) -> None:
        begun, before = time.monotonic(), self.group.shown
        for given in range(len(self.group)):
            fresh = given >= before
            if fresh and self.group.one_by_one and not self.compact:
                self._announce(given, until)
            index, ended = self.group.ended_after(given, until)
            self.failed += ended.error is not None
            if fresh:
                self._show(given + 1, index, ended)
            if ended.error is not None and self.group.raises:
                raise ended.error
        if before < len(self.group):
            self._sum_up(time.monotonic() - begun if self.group.sent_here else None)

    def _announce(self, given: int, until: float | None) -> None:
        index = self.group.begun_after(given, until)
        if index is not None:
            live.say(f"[{given + 1}/{len(self.group)}] Evaluating {self.group.label(index)}…\n")

    def _show(self, count: int, index: int, ended: Ended) -> None:
        self.group.shown = count
        counter = f"[{count}/{len(self.group)}]"
        if self.compact:
            live.redraw(f"{counter} {count - self.failed} ✓ {self.failed} ✗ {self.group.id[:SHORT]}")
        else:
            live.say(f"{counter} {self.group.label(index)} {_mark(ended)}\n")

    def _sum_up(self, seconds: float | None) -> None:
        """How many; and how long it took, where all of it was seen."""
        self.close()
        succeeded = len(self.group) - self.failed
        took = "" if seconds is None else f", completed in {seconds:.1f} seconds"
        live.say(f"clusterfn: {succeeded}/{len(self.group)} returned{took}\n")

    def close(self) -> None:
        """Leave the line that is redrawn."""
        if self.compact:
            self.compact = False
            live.say("\n")


def _mark(ended: Ended) -> str:
    if ended.error is None:
        return f"✓ {_score(ended.value)}{ended.usage.get('wall_s', 0.0):.1f}s"
    return f"✗ Evaluation failed: {outcome.in_a_line(ended.error)}"[:160]


def _score(value: Any) -> str:
    """What a value says of itself, before how long it took: a number, or that which it calls its score."""
    if isinstance(value, Mapping) and _is_number(value.get("score")):
        return f"Score {value['score']:.4g}, Time "
    return f"{value:.4g}, " if _is_number(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
