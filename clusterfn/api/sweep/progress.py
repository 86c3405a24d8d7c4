"""What a sweep says while it runs: a line for each configuration that ends, or one line on a terminal.

Prints by `live`, as `progress` does for a group.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from clusterfn.api.sweep.report import Trial, cause, label, number
from clusterfn.api.sweep.space import Configuration
from clusterfn.calls import job_display
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.map_display import ProgressCounter


def line(text: str) -> None:
    """One line."""
    job_display.say(f"{text}\n")


def capping(size: int, count: int) -> None:
    """That not all are tested."""
    line(f"Capping configurations from {size} to {count} as requested")


def distribution(key: str, possible: Sequence[Any], chosen: Sequence[Configuration]) -> str:
    """How many configurations have each value of a key.

    Example:
        >>> distribution("m", ["a", "b"], [Configuration("GRID_0000", {"m": "a"})])
        'a 1, b 0'
    """
    counts = collections.Counter(str(each.values.get(key)) for each in chosen)
    words = dict.fromkeys([*map(str, possible), *counts])
    return ", ".join(f"{word} {counts[word]}" for word in words)


def counted(count: int) -> str:
    """Such as "3 configurations"."""
    return f"{count} configuration{'' if count == 1 else 's'}"


class SweepProgress:
    """How far a sweep is, on the screen.

    Args:
        total: How many configurations will be tested.
        minimize: Whether the lowest score is the best.
    """

    def __init__(self, total: int, minimize: bool) -> None:
        self._counter = ProgressCounter(total)
        self._minimize = minimize
        self._best: Trial[Any] | None = None

    def known(self, trial: Trial[Any]) -> None:
        """Count a configuration that did not have to be run, without a line."""
        self._counter.skip()
        self._compare(trial)

    def show(self, trial: Trial[Any]) -> None:
        """Show that a configuration has ended."""
        self._compare(trial)
        self._counter.add(f"{trial.name} {label(trial.config)}", _mark(trial), trial.error is not None, self._tail())

    def wait(self, group: GroupState) -> None:
        """Show why nothing of the group that runs has ended for a while."""
        self._counter.wait(group, self._tail())

    def _tail(self) -> str:
        return f"best {self._best.name} {number(self._best.score)}" if self._best else ""

    def _compare(self, trial: Trial[Any]) -> None:
        if trial.score is None:
            return
        best = self._best.score if self._best else None
        if best is None or (trial.score < best if self._minimize else trial.score > best):
            self._best = trial

    def close(self) -> None:
        """Leave the line that is redrawn."""
        self._counter.close()


def _mark(trial: Trial[Any]) -> str:
    if trial.error is None:
        return f"✓ {number(trial.score)}, {trial.seconds:.1f}s"
    return f"✗ {cause(trial.error)}"
