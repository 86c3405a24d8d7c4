"""What a sweep shows: how far it is, and what it found as facts and as a report."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clusterfn.bridge.supervisor import text
from clusterfn.calls import map_display, outcome_errors
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.map_display import CallProgress
from clusterfn.display import console, labels

R = TypeVar("R")
# Begins each line about configurations that failed.
FAILED = "✗"
_LABEL = 60
# A report lists so many causes, and names so many configurations for each.
_CAUSES = 5
_NAMES = 8


@dataclass(frozen=True)
class Trial(Generic[R]):
    """One configuration that was tested.

    Attributes:
        name: Such as "GRID_0071".
        config: The arguments that the function got.
        score: None if it failed.
        value: What the function returned; None if it failed.
        error: Why it failed; None if it did not.
        seconds: How long it ran.
        job: The group that ran it.
        item: Its index in that group: `clusterfn.attach(trial.job).logs(trial.item)`.
        host: Where it ran.
    """

    name: str
    config: Mapping[str, Any]
    score: float | None = None
    value: R | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    job: str = ""
    item: int = 0
    host: str = ""


@dataclass(frozen=True)
class SweepResult(Generic[R]):
    """All configurations that were tested. `len` is their number, iterating gives a `Trial` for each.

    Attributes:
        results: A `Trial` for each, in the order of the grid, or in which they were drawn.
        minimize: Whether the lowest score is the best.
        seed: What chose the configurations; None where nothing was left to chance.
        shown: How many the report lists.
    """

    results: Sequence[Trial[R]]
    minimize: bool
    seed: int | None
    shown: int = 5

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Trial[R]]:
        return iter(self.results)

    def __getitem__(self, name: str) -> Trial[R]:
        """The trial of that name."""
        return {trial.name: trial for trial in self.results}[name]

    @functools.cached_property
    def ranking(self) -> list[Trial[R]]:
        """Those that have a score, the best first; of equals the one that comes first."""
        scored = [(trial.score, trial) for trial in self.results if trial.score is not None]
        sign = 1 if self.minimize else -1
        return [trial for _, trial in sorted(scored, key=lambda pair: sign * pair[0])]

    def top(self, n: int | None = None) -> list[Trial[R]]:
        """The best n; without a number as many as the report lists."""
        return self.ranking[: self.shown if n is None else n]

    @functools.cached_property
    def _labels(self) -> Mapping[str, str]:
        """Name -> its arguments in a short line."""
        return named({trial.name: trial.config for trial in self.results})

    @property
    def best(self) -> Trial[R]:
        """The one with the best score."""
        return self.ranking[0]

    @property
    def failed(self) -> dict[str, BaseException]:
        """Name -> why it has no score."""
        return {trial.name: trial.error for trial in self.results if trial.error is not None}

    def to_dataframe(self) -> Any:
        """A pandas DataFrame, a row for each configuration by its name: its arguments, score, seconds, error, job.

        An argument with named fields, such as a dict or a dataclass, also has a column for each of them: `cfg.lr`.

        Raises:
            ModuleNotFoundError: pandas is not installed here.
        """
        pandas = map_display.import_pandas("results")
        index = pandas.Index([trial.name for trial in self.results], name="name")
        return pandas.DataFrame([_row(trial) for trial in self.results], index=index)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(text.printable(str(self)))

    def __str__(self) -> str:
        return "\n".join(report(self))


def _row(trial: Trial[Any]) -> dict[str, Any]:
    error = None if trial.error is None else cause(trial.error)
    facts = {"score": trial.score, "seconds": trial.seconds, "error": error, "job": trial.job}
    config = {**trial.config, **_leaves(trial.config)}
    # An argument may have the name of one of the sweep's own columns.
    return {**{f"config_{key}" if key in facts else key: value for key, value in config.items()}, **facts}


def _leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part for name, value in config.items() for key, part in labels.leaves(name, value).items()}


def report(result: SweepResult[Any]) -> list[str]:
    """Return what printing a result shows: how many were completed, the best, and what failed."""
    done, total = len(result.ranking), len(result.results)
    lines = [f"{done}/{total} configurations completed ({100 * done // total} %)"]
    lines += [f"{rank}. {_ranked(trial, result)}" for rank, trial in enumerate(result.top(), 1)]
    lines += [f"… and {done - result.shown} more"] if done > result.shown else []
    return lines + _failures(result.failed)


def last_line(result: SweepResult[Any]) -> str:
    """Return the line with which a sweep ends: how many were completed, how many failed, and the best."""
    failed = f", {len(result.failed)} failed" if result.failed else ""
    best = f"; best: {_ranked(result.best, result)}"
    return f"{len(result.ranking)}/{len(result.results)} configurations completed{failed}{best}"


def _ranked(trial: Trial[Any], result: SweepResult[Any]) -> str:
    return f"{trial.name} {number(trial.score)} {result._labels[trial.name]}".rstrip()


def _failures(failed: Mapping[str, BaseException]) -> list[str]:
    """Name each distinct cause once, the most frequent first, and at most five of them."""
    names: dict[str, list[str]] = {}
    for name, error in failed.items():
        names.setdefault(cause(error), []).append(name)
    lines = []
    for why, configurations in sorted(names.items(), key=lambda item: -len(item[1]))[:_CAUSES]:
        more = ", …" if len(configurations) > _NAMES else ""
        several = f"{len(configurations)} x {why} ({', '.join(configurations[:_NAMES])}{more})"
        lines.append(f"{FAILED} {several if len(configurations) > 1 else f'{configurations[0]} {why}'}")
    if len(names) > len(lines):
        lines.append(f"{FAILED} and {text.counted(len(names) - len(lines), 'other cause')}")
    return lines


def named(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return configurations, by name, as a person reads them: by what differs if all of it is too long."""
    return dict(zip(configs, labels.labels([list(config.items()) for config in configs.values()], _LABEL)))


def number(score: float | None) -> str:
    """Return a score as it is shown.

    Example:
        >>> number(0.61), number(0.00012)
        ('0.610', '0.00012')
    """
    if score is None:
        return ""
    return f"{score:.3f}" if score == 0 or 1e-2 <= abs(score) < 1e6 else f"{score:.3g}"


def cause(error: BaseException) -> str:
    """Return an error in one line."""
    return outcome_errors.in_a_line(error)[:160]


def show_line(text: str) -> None:
    """Print a line of a sweep; what failed is shown in quiet mode too."""
    console.say(f"{text}\n", logging.WARNING if text.startswith(FAILED) else logging.INFO)


def counted(count: int) -> str:
    """Such as "3 configurations"."""
    return text.counted(count, "configuration")


class SweepProgress:
    """How far a sweep is, on the screen.

    Args:
        total: How many configurations will be tested.
        minimize: Whether the lowest score is the best.
        clock: Seconds that never go back.
    """

    def __init__(self, total: int, minimize: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = CallProgress(total, clock)
        self._minimize = minimize
        self._best: Trial[Any] | None = None

    def show(self, trial: Trial[Any], label: str, group: GroupState | None = None) -> None:
        """Show that a configuration has ended, with its arguments, and how many others of its group run."""
        self._compare(trial)
        sign = f"✓ {number(trial.score)}, {trial.seconds:.1f}s" if trial.error is None else f"✗ {cause(trial.error)}"
        self._counter.add(f"{trial.name} {label}", sign, trial.error is not None, self._tail(), group)

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
        """Take the line away that is redrawn."""
        self._counter.show("")
