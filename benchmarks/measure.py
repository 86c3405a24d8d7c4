"""Samples taken in turns, and what they say: medians, and ratios within one round."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Sample = Callable[[], float]


@dataclass(frozen=True)
class Series:
    """The samples of one thing, one per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def __add__(self, other: Series) -> Series:
        return Series(tuple(a + b for a, b in zip(self.values, other.values)))

    def over(self, other: Series) -> float:
        """How many times the other: the median over rounds, so that a busy minute spoils both sides of a fraction."""
        return statistics.median(a / b for a, b in zip(self.values, other.values))


def total(parts: Sequence[Series]) -> Series:
    """The sum of several things, round by round."""
    first, *rest = parts
    for part in rest:
        first += part
    return first


def in_turns(parts: Mapping[str, Sample], rounds: int) -> dict[str, Series]:
    """`rounds` samples of each part, always one after the other; one round before that is not counted."""
    values: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(rounds + 1):
        for name, sample in parts.items():
            value = sample()
            if number:
                values[name].append(value)
    return {name: Series(tuple(taken)) for name, taken in values.items()}


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def use_free_memory() -> None:
    """Write what waits for the disk, then use 1 GB of memory once, and give it back.

    A virtual machine may return free memory to its host, and each page then costs more when it is used again. Without
    this, whatever is measured first would pay for the pages that the next one uses.
    """
    os.sync()
    bytearray(b"\1") * 2**30
