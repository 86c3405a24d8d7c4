"""Shows a map: its progress while it runs, how it ended, and a table of its items.

The progress is one bar on a terminal and in a notebook, and elsewhere a line at each twentieth of the calls.
`CallProgress` shows it for a group and for a sweep. `show_until_done` waits for a group with it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import numbers
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.attributes import is_a
from clusterfn.bridge.job_states import PENDING, RUNNING, SHORT
from clusterfn.bridge.supervisor.text import format_size, shortened
from clusterfn.calls import failed_items, job_display, leaving, outcome_errors
from clusterfn.calls.job import deadline_of
from clusterfn.display import console
from clusterfn.display.notebook import headline
from clusterfn.display.usage_words import describe_request
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState, ItemOutcome

_TICK_S = 1.0
_CAUSE = 160  # characters of the line of a failure
_LISTED = 5  # causes in the lines that end a map
# Where lines stay, so many of them say how far a map is, and so many failures have a line of their own everywhere.
_LINES, _NAMED = 20, 10
# A table has these columns, whatever items have ended.
_COLUMNS = ("item", "state", "error", "wall_s", "cpu_s", "peak_memory_bytes", "gpus")
# A line is redrawn for calls that end no more often than this.
_REDRAW_S = 0.1


def summary(group: GroupState) -> list[str]:
    """Return what a notebook shows of a group: how far it is, what it asks for and has used, and why items failed."""
    ends = group.ends()
    peak = max((ended.usage.get("peak_memory_bytes") or 0 for ended in ends), default=0)
    until = time.monotonic() if group.ended_at is None else group.ended_at
    title, counted = f"{group.name} on {group.host}" if group.host else group.name, f"{len(ends)}/{len(group)}"
    elapsed_s = until - group.submitted_at if group.sent_here and group.id else None
    used = [f"peak memory of an item {format_size(peak)}"] if peak else []
    counts = collections.Counter(state.lower() for state in group.states)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    facts = [states, *describe_request(group.asked), *used, *failed_items.causes(group.failed, most=5)]
    head = headline(title, group.id, group.state, counted, elapsed_s, "" if group.done() else group.reason)
    return [head, *(f"  {line}" for line in facts)]


def show_until_done(group: GroupState, timeout: float | None) -> None:
    """Wait for all items, and show each that ends.

    Raises:
        TimeoutError: They have not ended in that many seconds.
        KeyboardInterrupt: After Ctrl-C; the group keeps running unless it is pressed twice.
        Exception: With `on_error="raise"`, that of the first item that failed.
    """
    until = deadline_of(timeout)
    try:
        with CallProgress(len(group), began=group.submitted_at) as counter:
            _show_all(group, counter, until)
    except KeyboardInterrupt:
        leaving.interrupted(group, group.on_interrupt, "results()")
        raise


def _show_all(group: GroupState, counter: CallProgress, until: float | None) -> None:
    begun, before, note = time.monotonic(), group.shown, group.id[:SHORT]
    errors: dict[int, BaseException] = {}
    for position in range(len(group)):
        index, ended = next_ended(group, position, lambda: counter.wait(group, note), until)
        if ended.error is not None:
            errors[index] = ended.error
        if position >= before:
            group.shown = position + 1
            counter.add(group.label(index), result_in_words(ended), ended.error is not None, note, group)
        else:
            counter.skip(ended.error is not None)
        failed_items.result_of(ended, raises=group.on_error == "raise")
    if before < len(group):
        counter.show("")
        say_how_it_ended(len(group), errors, time.monotonic() - begun if group.sent_here else None)


def next_ended(
    group: GroupState, position: int, show: Callable[[], object], until: float | None = None
) -> tuple[int, ItemOutcome]:
    """Return the index and the end of the item that ends at this place of all; show the wait every second.

    Raises:
        TimeoutError: None has by `until`, a moment of the monotonic clock.
    """
    while True:
        turn = time.monotonic() + _TICK_S
        try:
            return group.ended_after(position, turn if until is None else min(turn, until))
        except concurrent.futures.TimeoutError:
            if until is not None and time.monotonic() >= until:
                raise
        show()


class CallProgress(console.Status):
    """How far the calls of a map or a sweep are: a bar on a terminal, elsewhere some twenty lines.

    Args:
        total: How many calls there are.
        clock: Seconds that never go back.
        began: Since when the elapsed time is counted; None for now.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic, began: float | None = None) -> None:
        super().__init__(clock, began)
        self.total = total
        self._is_redrawn = console.can_redraw()
        # Where lines stay, each call that has ended has had its own: how far the map is comes only now and then.
        self._told.add("")
        self._ended = self._failed = 0
        self._drawn_at = float("-inf")

    def skip(self, failed: bool = False) -> None:
        """Count a call without a line."""
        self._ended += 1
        self._failed += failed

    def add(self, label: str, result: str, failed: bool, note: str, group: GroupState | None = None) -> None:
        """Show that a call has ended.

        Args:
            label: What a person calls it.
            result: Its result in a few words.
            failed: Whether it has none.
            note: What ends the line that is redrawn.
            group: Knows how many calls run now.
        """
        self.skip(failed)
        is_step = self._ended * _LINES // self.total > (self._ended - 1) * _LINES // self.total
        if (failed and self._failed <= _NAMED) or (not self._is_redrawn and is_step):
            far = "" if self._is_redrawn or self.total <= _LINES else f" ({self._words(note, group)})"
            self.say(f"[{self._ended}/{self.total}] {label} {result}{far}")
        if self.clock() - self._drawn_at >= _REDRAW_S or self._ended == self.total:
            self._drawn_at = self.clock()
            self._show_how_far(note, group)

    def wait(self, group: GroupState, note: str) -> None:
        """Show that nothing has ended for a second: how much runs, or the reason for which the group waits."""
        waits = group.state == PENDING and not self._ended
        reason = group.reason if not waits or self.clock() >= self.began + spoken_wait.REASON_AFTER_S else ""
        if waits or (reason and group.is_silent and not self._is_redrawn):
            progress = group.transfer.progress if group.transfer else None
            self.show(job_display.status_of(group, reason, self.clock()), progress)
        else:
            self._show_how_far(note, group, reason)

    def _show_how_far(self, note: str, group: GroupState | None, trouble: str = "") -> None:
        words = f"{self._ended}/{self.total}, {self._words(note, group, trouble)}"
        self.show(words, (self._ended, self.total), words="")

    def _words(self, note: str, group: GroupState | None, trouble: str = "") -> str:
        """Say how many run and have failed, then the times, or instead what keeps all of them waiting.

        Such as "8 running, 1 failed, 00:12 elapsed, 00:20 left".
        """
        # This looks at each item, so it is read only once.
        count = group.states.count(RUNNING) if group is not None else 0
        running = f"{count} running" if count else ""
        failed = f"{self._failed} failed" if self._failed else ""
        times = self.times(self._ended, self.total, works=count > 0)
        return ", ".join(filter(None, [running, failed, trouble or times, note]))


def say_how_it_ended(total: int, errors: Mapping[int, BaseException], took_s: float | None) -> None:
    """Say how many items of a map returned, in how many seconds if that is known, and why most others failed."""
    took = "" if took_s is None else f", completed in {took_s:.1f} seconds"
    level = logging.WARNING if errors else logging.INFO
    console.say(f"clusterfn: {total - len(errors)}/{total} returned{took}\n", level)
    # For a group without any value, `results` raises the causes.
    if len(errors) < total:
        for cause in failed_items.causes(errors, most=_LISTED):
            console.say(f"  {cause}\n", level)


def result_in_words(ended: ItemOutcome) -> str:
    """Return how an item ended in a few words, such as "✓ 3.2, 0.1s"."""
    if ended.error is not None:
        return shortened(f"✗ failed: {outcome_errors.in_a_line(ended.error)}", _CAUSE)
    value, took = ended.value, f"{ended.usage.get('wall_s', 0.0):.1f}s"
    value = value.get("score") if is_a(value, Mapping) else value
    return f"✓ {float(value):.4g}, {took}" if _is_number(value) else f"✓ {took}"


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold, of numpy too."""
    if not is_a(value, numbers.Real) or type(value) is bool:
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


# as a table of pandas, which is optional


def to_dataframe(group: GroupState) -> Any:
    """Return a pandas DataFrame with a row for each item, in their order."""
    pandas = import_pandas("results()")
    taken = {*_COLUMNS, *(name for ended in group.ends() for name in ended.usage)}
    rows = [_row(group, index, taken) for index in range(len(group))]
    return pandas.DataFrame(rows, index=pandas.RangeIndex(len(group)))


def import_pandas(otherwise: str) -> Any:
    """Import pandas, which is optional.

    Args:
        otherwise: What gives the same without it, for the message.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as missing:
        if missing.name != "pandas":
            raise
        message = f"to_dataframe() needs pandas, which is not installed here: pip install pandas, or take {otherwise}"
        raise ModuleNotFoundError(message, name="pandas") from None
    return pandas


def _row(group: GroupState, index: int, taken: Collection[str]) -> dict[str, Any]:
    """Return the columns of an item; arguments give way to columns that have their name."""
    ended = group.ended(index)
    row: dict[str, Any] = {"item": group.label(index), "state": group.states[index], "error": None}
    arguments = dict(group.arguments[index]) if group.arguments else {}
    row.update({f"argument_{name}" if name in taken else name: value for name, value in arguments.items()})
    if ended is None:
        return row
    row.update(ended.usage)
    if ended.error is not None:
        row["error"] = outcome_errors.in_a_line(ended.error)
        return row
    found = ended.value if isinstance(ended.value, dict) else {"result": ended.value}
    return {**row, **{f"result_{key}" if key in row else key: value for key, value in found.items()}}
