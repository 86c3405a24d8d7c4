"""The configurations that there are, a grid or a list written out, and which of them are tested. Pure.

Each has an index, so that none has to be built to be counted or chosen. The same seed chooses the same ones in every
process.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import ConfigError

GRID, RANDOM = "grid", "random"
# The least number of digits in a name.
_WIDTH = 4
# Without max_configs=, a sweep tests no more configurations than this.
_MOST = 100_000


@dataclass(frozen=True)
class Configuration:
    """One of them.

    Attributes:
        name: What it is called in every line and file, such as "GRID_0071".
        values: The arguments by keyword.
    """

    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The product of the values of each key, in the order written: the last key changes fastest.

    Attributes:
        values: Key -> its values.
        drawn: Key -> what draws a value from a `random.Random`.
    """

    values: Mapping[str, Sequence[Any]]
    drawn: Mapping[str, Callable[[Any], Any]]

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def at(self, index: int) -> dict[str, Any]:
        values_at = {}
        for key, values in reversed(list(self.values.items())):
            index, place = divmod(index, len(values))
            values_at[key] = values[place]
        return {key: values_at[key] for key in self.values}

    def keywords(self) -> list[str]:
        return [*self.values, *self.drawn]

    def possible(self, key: str) -> list[Any]:
        """Return the values that a key may have; none if they are drawn."""
        return list(self.values.get(key, ()))


@dataclass(frozen=True)
class ConfigurationList:
    """Configurations that were written out one by one."""

    configurations: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        return len(self.configurations)

    def at(self, index: int) -> dict[str, Any]:
        return dict(self.configurations[index])

    def keywords(self) -> list[str]:
        """Return the keywords of any of them."""
        return list(dict.fromkeys(key for each in self.configurations for key in each))

    def possible(self, key: str) -> list[Any]:
        """Return the values that a key has, in the order in which they come; some may come more than once."""
        return [each[key] for each in self.configurations if key in each]


def read(configurations: object) -> Grid | ConfigurationList:
    """Read what a user wrote as configurations.

    Raises:
        ConfigError: It is neither a dict of lists nor a list of dicts.
    """
    if isinstance(configurations, Mapping):
        if not configurations:
            raise ConfigError("the sweep has no arguments", hint='write {"lr": [0.1, 0.2]}')
        _check_keys(configurations)
        drawn = {key: values for key, values in configurations.items() if callable(values)}
        return Grid({key: _values(key, values) for key, values in configurations.items() if key not in drawn}, drawn)
    if not isinstance(configurations, Sequence) or isinstance(configurations, (str, bytes)):
        problem = f"a sweep over {type(configurations).__name__}; configurations are a dict of lists or a list of dicts"
        raise ConfigError(problem, hint='write {"lr": [0.1, 0.2], "model": ["small", "large"]}')
    if not configurations:
        raise ConfigError("the sweep has no configurations", hint="the list is empty")
    for place, each in enumerate(configurations):
        if not isinstance(each, Mapping):
            hint = 'write [{"lr": 0.1}, {"lr": 0.2}]'
            raise ConfigError(f"configuration {place} is {each!r:.60}, not a dict", hint=hint)
        _check_keys(each)
    return ConfigurationList(configurations)


def _check_keys(configuration: Mapping[Any, Any]) -> None:
    for key in configuration:
        if not isinstance(key, str) or not key.isidentifier():
            raise ConfigError(f"{key!r} is not the name of an argument", hint="use the function's own keywords")


def _values(key: str, values: Any) -> Sequence[Any]:
    if isinstance(values, (set, frozenset)):
        raise ConfigError(f"{key}: a set has no order, so configurations cannot be named", hint=f"write sorted({key})")
    if isinstance(values, (str, bytes, Mapping)) or not (isinstance(values, Sequence) or hasattr(values, "tolist")):
        raise ConfigError(f"{key}={values!r:.60} is not a list of values", hint=f"write [{values!r:.60}]")
    # An array becomes plain values, which a host without NumPy can load.
    kept = values if isinstance(values, (list, tuple, range)) else values.tolist()
    if not isinstance(kept, Sequence) or not len(kept):
        raise ConfigError(f"{key} has no values: {values!r:.60}", hint="give at least one, or leave the key out")
    return kept


def check(space: Grid | ConfigurationList, sampler: str, max_configs: int | None) -> None:
    """Reject what cannot be sampled so.

    Raises:
        ConfigError: Something is drawn that a grid lists, or the number is missing where there is no end.
    """
    drawn = sorted(space.drawn) if isinstance(space, Grid) else []
    if drawn and sampler != RANDOM:
        raise ConfigError(f"{drawn[0]} is a function that draws values", hint='use sampler="random"')
    if max_configs is None and drawn:
        raise ConfigError("a function can draw any number of values", hint="set max_configs=")
    if max_configs is None and space.size > _MOST:
        raise ConfigError(f"the grid has {space.size} configurations", hint="set how many to test: max_configs=")


def choose(space: Grid | ConfigurationList, sampler: str, max_configs: int | None, seed: int) -> list[Configuration]:
    """Choose the configurations to be tested: exactly `max_configs`, or all if there are fewer.

    Args:
        space: All there are.
        sampler: "grid": in the order of the grid; "random": in the order in which they were drawn.
        max_configs: How many at most.
        seed: Of the draws.
    """
    chance = random.Random(seed)
    if isinstance(space, Grid) and space.drawn:
        drawn = []
        for number in range(max_configs or 0):
            arguments = {key: chance.choice(values) for key, values in space.values.items()}
            arguments.update({key: draw(chance) for key, draw in space.drawn.items()})
            drawn.append(Configuration(f"RANDOM_{number:04d}", arguments))
        return drawn
    count = min(space.size, max_configs or space.size)
    if sampler == GRID and count == space.size:
        indices = list(range(count))
    elif space.size <= sys.maxsize:
        indices = chance.sample(range(space.size), count)
    else:
        # The grid has more configurations than random.sample can count.
        distinct: dict[int, None] = {}
        while len(distinct) < count:
            distinct[chance.randrange(space.size)] = None
        indices = list(distinct)
    width = max(_WIDTH, len(str(space.size - 1)))
    ordered = indices if sampler == RANDOM else sorted(indices)
    return [Configuration(f"GRID_{index:0{width}d}", space.at(index)) for index in ordered]
