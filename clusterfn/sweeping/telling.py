"""What a sweep says while it runs: a line for each configuration that ends, or one line on a terminal.

Prints by `live`, as `progress` does for a group. Called by `story` and `running`.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from clusterfn import items, live
from clusterfn.sweeping.result import Trial, cause, number
from clusterfn.sweeping.space import Configuration

_LABEL = 60


def line(text: str) -> None:
    """One line."""
    live.say(f"{text}\n")


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


def label(values: Mapping[str, Any]) -> str:
    """A configuration as a person reads it."""
    text = ", ".join(f"{key}={items.label((value,))}" for key, value in values.items())
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def counted(count: int) -> str:
    """Such as "3 configurations"."""
    return f"{count} configuration{'' if count == 1 else 's'}"


class Progress:
    """What stands on the screen.

    Args:
        total: How many configurations will be tested.
        better: Gives the better of two scores.
    """

    def __init__(self, total: int, minimize: bool) -> None:
        self.total = total
        self._minimize = minimize
        self._ended = self._failed = 0
        self._best: Trial[Any] | None = None
        self._within_a_line = False

    def known(self, trial: Trial[Any]) -> None:
        """One that did not have to be run: it counts without a line."""
        self._ended += 1
        self._compare(trial)

    def show(self, trial: Trial[Any]) -> None:
        """One that has ended."""
        self.known(trial)
        self._failed += trial.error is not None
        counter = f"[{self._ended}/{self.total}]"
        if live.is_terminal(sys.stderr):
            self._within_a_line = True
            best = f" best {self._best.name} {number(self._best.score)}" if self._best else ""
            live.redraw(f"{counter} {self._ended - self._failed} ✓ {self._failed} ✗{best}")
        else:
            line(f"{counter} {trial.name} {label(trial.config)} {_mark(trial)}")

    def _compare(self, trial: Trial[Any]) -> None:
        if trial.score is None:
            return
        best = self._best.score if self._best else None
        if best is None or (trial.score < best if self._minimize else trial.score > best):
            self._best = trial

    def close(self) -> None:
        """Leave the line that is redrawn."""
        if self._within_a_line:
            self._within_a_line = False
            live.say("\n")


def _mark(trial: Trial[Any]) -> str:
    if trial.error is None:
        return f"✓ {number(trial.score)}, {trial.seconds:.1f}s"
    return f"✗ {cause(trial.error)}"
