"""Which of the configurations are tested: all, a seeded sample of the grid, or seeded draws. Pure.

The same seed chooses the same ones, in every process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from clusterfn.api.sweep.space import Configuration, ConfigurationList, Grid, named
from clusterfn.errors import ConfigError

GRID, RANDOM = "grid", "random"
_MOST = 100_000


def check(space: Grid | ConfigurationList, sampler: str, max_configs: int | None) -> None:
    """Refuse what cannot be sampled so.

    Raises:
        ConfigError: Something is drawn that a grid lists, or the number is missing where there is no end.
    """
    drawn = sorted(space.drawn) if isinstance(space, Grid) else []
    if drawn and sampler != RANDOM:
        raise ConfigError(f"{drawn[0]} is a function that draws values", hint='use sampler="random"')
    if max_configs is None and drawn:
        raise ConfigError("values that are drawn have no end", hint="say max_configs=")
    if max_configs is None and space.size > _MOST:
        raise ConfigError(f"the grid has {space.size} configurations", hint="say how many to test: max_configs=")


def is_chance(space: Grid | ConfigurationList, sampler: str, max_configs: int | None) -> bool:
    """Whether the seed decides anything."""
    return sampler == RANDOM or (max_configs is not None and max_configs < space.size)


def choose(space: Grid | ConfigurationList, sampler: str, max_configs: int | None, seed: int) -> list[Configuration]:
    """The configurations to be tested: exactly `max_configs` of them, or all where there are not as many.

    Args:
        space: All there are.
        sampler: "grid": in the order of the grid; "random": in the order in which they were drawn.
        max_configs: How many at most.
        seed: Of the draws.
    """
    chance = random.Random(seed)
    if isinstance(space, Grid) and space.drawn:
        return list(_draws(space, max_configs or 0, chance))
    count = min(space.size, max_configs or space.size)
    if sampler == RANDOM:
        return [named(space, index) for index in _indices(space.size, count, chance)]
    if count == space.size:
        return [named(space, index) for index in range(count)]
    return [named(space, index) for index in sorted(_indices(space.size, count, chance))]


def _indices(size: int, count: int, chance: random.Random) -> list[int]:
    """Different ones, in the order drawn."""
    if size <= sys.maxsize:
        return chance.sample(range(size), count)
    found: dict[int, None] = {}  # more than random.sample can count
    while len(found) < count:
        found[chance.randrange(size)] = None
    return list(found)


def _draws(space: Grid, count: int, chance: random.Random) -> Iterator[Configuration]:
    for number in range(count):
        found = {key: chance.choice(values) for key, values in space.values.items()}
        found.update({key: draw(chance) for key, draw in space.drawn.items()})
        yield Configuration(f"RANDOM_{number:04d}", found)
