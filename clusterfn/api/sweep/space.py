"""The configurations that there are: a grid as the product of its values, or a list written out. Pure.

Each has an index, so that none has to be built to be counted or chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import ConfigError

Values = Mapping[str, Any]
_WIDTH = 4


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
        """How many configurations there are."""
        return math.prod(len(values) for values in self.values.values())

    def at(self, index: int) -> dict[str, Any]:
        """The configuration with that index."""
        found = {}
        for key, values in reversed(list(self.values.items())):
            index, place = divmod(index, len(values))
            found[key] = values[place]
        return {key: found[key] for key in self.values}

    def keywords(self) -> list[str]:
        """The keywords."""
        return [*self.values, *self.drawn]

    def possible(self, key: str) -> list[Any]:
        """The values that a key may have; none where they are drawn."""
        return list(self.values.get(key, ()))


@dataclass(frozen=True)
class ConfigurationList:
    """Configurations that were written out one by one."""

    configurations: Sequence[Values]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.configurations)

    def at(self, index: int) -> dict[str, Any]:
        """The configuration with that index."""
        return dict(self.configurations[index])

    def keywords(self) -> list[str]:
        """The keywords of any of them."""
        return list(dict.fromkeys(key for each in self.configurations for key in each))

    def possible(self, key: str) -> list[Any]:
        """The values that a key has, in the order in which they come."""
        found: list[Any] = []
        for each in self.configurations:
            if key in each and each[key] not in found:
                found.append(each[key])
        return found


def named(space: Grid | ConfigurationList, index: int) -> Configuration:
    """The configuration with that index and the name that goes with it.

    Example:
        >>> named(read({"lr": [0.1, 0.2]}), 1)
        Configuration(name='GRID_0001', values={'lr': 0.2})
    """
    width = max(_WIDTH, len(str(space.size - 1)))
    return Configuration(f"GRID_{index:0{width}d}", space.at(index))


def read(given: object) -> Grid | ConfigurationList:
    """What a user wrote as configurations.

    Raises:
        ConfigError: It is neither a dict of lists nor a list of dicts.
    """
    if isinstance(given, Mapping):
        return _grid(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return _listed(given)
    raise ConfigError(
        f"a sweep over {type(given).__name__}: configurations are a dict of lists or a list of dicts",
        hint='write {"lr": [0.1, 0.2], "model": ["small", "large"]}',
    )


def _grid(given: Mapping[Any, Any]) -> Grid:
    if not given:
        raise ConfigError("a sweep over no argument at all", hint='write {"lr": [0.1, 0.2]}')
    _check_keys(given)
    drawn = {key: values for key, values in given.items() if callable(values)}
    return Grid({key: _values(key, values) for key, values in given.items() if key not in drawn}, drawn)


def _listed(given: Sequence[Any]) -> ConfigurationList:
    if not given:
        raise ConfigError("a sweep over no configuration at all", hint="the list is empty")
    for place, each in enumerate(given):
        if not isinstance(each, Mapping):
            raise ConfigError(
                f"configuration {place} is {each!r:.60}, not a dict", hint='write [{"lr": 0.1}, {"lr": 0.2}]'
            )
        _check_keys(each)
    return ConfigurationList(given)


def _check_keys(given: Mapping[Any, Any]) -> None:
    for key in given:
        if not isinstance(key, str) or not key.isidentifier():
            raise ConfigError(f"{key!r} is not the name of an argument", hint="keys are the function's own keywords")


def _values(key: str, values: Any) -> Sequence[Any]:
    if isinstance(values, (set, frozenset)):
        raise ConfigError(f"{key}: a set has no order, so no configuration a name", hint=f"write sorted({key})")
    if isinstance(values, (str, bytes, Mapping)) or not (isinstance(values, Sequence) or hasattr(values, "tolist")):
        raise ConfigError(f"{key}={values!r:.60} is not a list of values", hint=f"write [{values!r:.60}]")
    kept = values if isinstance(values, (list, tuple, range)) else values.tolist()
    if not isinstance(kept, Sequence) or not len(kept):
        raise ConfigError(f"{key} has no values: {values!r:.60}", hint="give one at least, or leave the key out")
    return kept
