"""Shows calls that run together: a line for each that ends, or on a terminal one line that counts.

`Counter` is that display, for a group and for a sweep; `until_done` waits for a group with it.
"""

from __future__ import annotations

import concurrent.futures
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clusterfn.bridge.supervisor.text import shortened
from clusterfn.calls import group_overview, job_display, outcome
from clusterfn.calls.group_state import Ended, GroupState
from clusterfn.calls.job import PENDING, SHORT

T = TypeVar("T")
_TICK_S = 1.0
_REASON_EVERY_S = 10.0  # where a changed reason is a new line: each waiting element has one of its own
_CAUSE = 160  # characters of the line of a failure
_NAMED = 20  # failures that have a line of their own on a terminal; the summary counts all of them


def until_done(group: GroupState, timeout: float | None) -> None:
    """Wait for all items, showing them.

    Raises:
        TimeoutError: They have not ended in that many seconds.
        KeyboardInterrupt: After Ctrl-C; the group keeps running unless it is pressed twice.
        Exception: With `on_error="raise"`, that of the first item that failed.
    """
    counter, until = Counter(len(group)), None if timeout is None else time.monotonic() + timeout
    try:
        _show_all(group, counter, until)
    except KeyboardInterrupt:
        counter.close()
        job_display.interrupted(group, group.on_interrupt, "results()")
        raise
    finally:
        counter.close()


def _show_all(group: GroupState, counter: Counter, until: float | None) -> None:
    begun, before = time.monotonic(), group.shown
    errors: dict[int, BaseException] = {}

    def ticking(call: Callable[[float], T]) -> T:
        return _ticking(call, until, lambda: counter.wait(group, group.id[:SHORT]))

    for given in range(len(group)):
        fresh = given >= before
        if fresh and group.one_by_one and not counter.redrawn:
            index = ticking(lambda turn, given=given: group.begun_after(given, turn))  # type: ignore[misc]
            if index is not None:
                job_display.say(f"[{given + 1}/{len(group)}] Evaluating {group.label(index)}…\n")
        index, ended = ticking(lambda turn, given=given: group.ended_after(given, turn))  # type: ignore[misc]
        if ended.error is not None:
            errors[index] = ended.error
        if fresh:
            group.shown = given + 1
            counter.add(group.label(index), _mark(ended), ended.error is not None, group.id[:SHORT])
        else:
            counter.skip(ended.error is not None)
        if ended.error is not None and group.raises:
            raise ended.error
    if before < len(group):
        counter.close()
        took = f", completed in {time.monotonic() - begun:.1f} seconds" if group.sent_here else ""
        job_display.say(f"clusterfn: {len(group) - len(errors)}/{len(group)} returned{took}\n")
        if len(errors) < len(group):  # `results` raises the causes of a group that has no value at all
            for cause in group_overview.causes(errors, most=5):
                job_display.say(f"  {cause}\n")


def _ticking(call: Callable[[float], T], until: float | None, on_tick: Callable[[], None]) -> T:
    """What `call` gives, which waits until a moment of the monotonic clock; `on_tick` runs every second until then."""
    while True:
        turn = time.monotonic() + _TICK_S
        try:
            return call(turn if until is None else min(turn, until))
        except concurrent.futures.TimeoutError:
            if until is not None and time.monotonic() >= until:
                raise
        on_tick()


class Counter:
    """How many of a number of calls have ended.

    Args:
        total: How many there are.

    Attributes:
        redrawn: Whether it is one line of a terminal.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.redrawn = job_display.is_terminal(sys.stderr)
        self._ended = self._failed = 0
        self._line = self._reason = ""
        self._reason_at = 0.0

    def skip(self, failed: bool = False) -> None:
        """Count a call without a line."""
        self._ended += 1
        self._failed += failed

    def add(self, label: str, mark: str, failed: bool, tail: str) -> None:
        """Show that a call has ended.

        Args:
            label: What a person calls it.
            mark: Its result in a few words.
            failed: Whether it has none.
            tail: What ends the line of a terminal.
        """
        self.skip(failed)
        text = f"[{self._ended}/{self.total}] {label} {mark}"
        if not self.redrawn:
            job_display.say(f"{text}\n")
            return
        if failed and self._failed <= _NAMED:
            job_display.redraw(text)
            job_display.say("\n")
            self._line = ""
        self._redraw(tail)

    def wait(self, group: GroupState, tail: str) -> None:
        """Show why nothing has ended for a second: the reason for which a group waits, or that its host is silent."""
        reason = group.reason
        if self.redrawn:
            minutes, seconds = divmod(int(time.monotonic() - group.submitted_at), 60)
            self._redraw(f"{tail} {minutes:02d}:{seconds:02d}{f' ({reason})' if reason else ''}")
        elif reason != self._reason and time.monotonic() >= self._reason_at + _REASON_EVERY_S:
            self._reason, self._reason_at = reason, time.monotonic()
            if reason and group.state == PENDING:
                job_display.say(f"clusterfn: {group.id[:SHORT]} pending ({reason})\n")

    def _redraw(self, tail: str) -> None:
        line = f"[{self._ended}/{self.total}] {self._ended - self._failed} ✓ {self._failed} ✗ {tail}"
        line = job_display.fitting(line.rstrip())
        if line != self._line:
            self._line = line
            job_display.redraw(line)

    def close(self) -> None:
        """Leave the line that is redrawn."""
        if self._line:
            self._line = ""
            job_display.say("\n")


def _mark(ended: Ended) -> str:
    if ended.error is None:
        return f"✓ {_score(ended.value)}{ended.usage.get('wall_s', 0.0):.1f}s"
    return shortened(f"✗ failed: {outcome.in_a_line(ended.error)}", _CAUSE)


def _score(value: Any) -> str:
    """What a value says of itself, before how long it took: a number, or that which it calls its score."""
    if isinstance(value, Mapping) and _is_number(value.get("score")):
        return f"Score {value['score']:.4g}, Time "
    return f"{value:.4g}, " if _is_number(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
