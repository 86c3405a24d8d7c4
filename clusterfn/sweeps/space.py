"""The configurations that there are, a grid or a list written out, and which of them are tested. Pure.

Each has an index, so that none has to be built to be counted or chosen. The same seed chooses the same ones in every
process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import ConfigError

# The least number of digits in a name.
_WIDTH = 4
# Without max_configs=, a sweep tests no more configurations than this.
_MOST = 100_000


@dataclass(frozen=True)
class Configuration:
    """One of them: what it is called in lines and files ("GRID_0071"), and its arguments by keyword."""

    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The product of the values of each key, in the order written: the last key changes fastest."""

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def at(self, index: int) -> dict[str, Any]:
        values_at = {}
        for key, values in reversed(list(self.values.items())):
            index, place = divmod(index, len(values))
            values_at[key] = values[place]
        return {key: values_at[key] for key in self.values}

    def keywords(self) -> list[list[str]]:
        """Return the arguments that a configuration has."""
        return [list(self.values)]


@dataclass(frozen=True)
class ConfigurationList:
    """Configurations that were written out one by one."""

    configurations: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        return len(self.configurations)

    def at(self, index: int) -> dict[str, Any]:
        return dict(self.configurations[index])

    def keywords(self) -> list[list[str]]:
        """Return the arguments that each configuration has."""
        return [list(configuration) for configuration in self.configurations]


def read(configurations: object) -> Grid | ConfigurationList:
    """Read a user's configurations; raise ConfigError if these are neither a dict of lists nor a list of dicts."""
    if isinstance(configurations, Mapping):
        if not configurations:
            raise ConfigError("the sweep has no arguments", hint='write {"lr": [0.1, 0.2]}')
        _check_keys(configurations)
        return Grid({key: _values(key, values) for key, values in configurations.items()})
    if not isinstance(configurations, Sequence) or isinstance(configurations, (str, bytes)):
        problem = f"a sweep over {type(configurations).__name__}; configurations are a dict of lists or a list of dicts"
        raise ConfigError(problem, hint='write {"lr": [0.1, 0.2], "model": ["small", "large"]}')
    if not configurations:
        raise ConfigError("the sweep has no configurations", hint="the list is empty")
    for place, configuration in enumerate(configurations):
        if not isinstance(configuration, Mapping):
            hint = 'write [{"lr": 0.1}, {"lr": 0.2}]'
            raise ConfigError(f"configuration {place} is {configuration!r:.60}, not a dict", hint=hint)
        _check_keys(configuration)
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


def choose(space: Grid | ConfigurationList, max_configs: int | None, seed: int) -> list[Configuration]:
    """Choose exactly `max_configs` of the configurations, or all if fewer, in order; may raise ConfigError."""
    if max_configs is None and space.size > _MOST:
        raise ConfigError(f"the grid has {space.size} configurations", hint="set how many to test: max_configs=")
    indices: Iterable[int] = range(space.size)
    if max_configs is not None and max_configs < space.size:
        # `random.sample` cannot count a grid of more than 2**63 configurations.
        chance = random.Random(seed)
        chosen = set[int]()
        while len(chosen) < max_configs:
            chosen.add(chance.randrange(space.size))
        indices = sorted(chosen)
    width = max(_WIDTH, len(str(space.size - 1)))
    return [Configuration(f"GRID_{index:0{width}d}", space.at(index)) for index in indices]
