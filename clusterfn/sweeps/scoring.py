"""What a result is worth, in which order results come, and which of them are suspiciously alike. Pure."""

from __future__ import annotations

import collections
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from clusterfn.bridge.attributes import attribute, is_a
from clusterfn.errors import ConfigError

By = Union[str, Callable[[Any], Any], None]
_DEFAULT, _SEQUENCE = "score", "scores"


@dataclass(frozen=True)
class Scoring:
    """How results are compared.

    Attributes:
        by: A key of the result, or a function of it; None takes the number itself, or the value of its "score".
        minimize: Whether the lowest is the best.
    """

    by: By = None
    minimize: bool = False

    def of(self, value: Any) -> float:
        """Return the score of a result.

        Raises:
            ValueError: It has none, or one that is not a number.
            Exception: Whatever the user's function raises.
        """
        if callable(self.by):
            found = self.by(value)
        elif is_a(value, Mapping):
            found = value.get(_DEFAULT if self.by is None else self.by)
        else:
            found = value if self.by is None else attribute(value, self.by)
        score = _number(found)
        if score is None:
            raise ValueError(f"the result has no score: {_described(self.by, value)}")
        if math.isnan(score):
            raise ValueError("the score is nan")
        return score

    def lacks(self, value: Any) -> bool:
        """Whether a dict does not have the key that the user named."""
        return isinstance(self.by, str) and is_a(value, Mapping) and self.by not in value


def possible_keys(values: Iterable[Any]) -> list[str]:
    """Return the keys that `score=` could mean: those of a number, in dicts without "score".

    Example:
        >>> possible_keys([{"loss": 0.1, "model": "a"}, {"f1": 0.9}, 3])
        ['f1', 'loss']
    """
    dicts = [value for value in values if is_a(value, Mapping) and _DEFAULT not in value]
    return sorted({str(key) for value in dicts for key, each in value.items() if _number(each) is not None})


def check(by: object) -> None:
    """Reject what is no way to find a score.

    Raises:
        ConfigError: It is neither a key nor a function.
    """
    if by is not None and not isinstance(by, str) and not callable(by):
        raise ConfigError(f"score={by!r:.60} is neither a key nor a function", hint='use "loss", or a function')


def _number(value: Any) -> float | None:
    size = None if is_a(value, numbers.Real) else attribute(value, "size")
    if type(size) is int and size == 1 and attribute(value, "item") is not None:
        # The value is an array of a single number.
        value = value.item()
    # bool is a number for Python, but True and False are no scores.
    return float(value) if is_a(value, numbers.Real) and type(value) is not bool else None


def _described(by: By, value: Any) -> str:
    if callable(by):
        return f"score= returned no number for {value!r:.60}"
    key = _DEFAULT if by is None else by
    if is_a(value, Mapping):
        return f"{key!r} is {value[key]!r:.60}" if key in value else f"no {key!r} among {sorted(map(str, value))}"[:160]
    return f"it is {value!r:.60}" if by is None else f"{type(value).__name__} has no number {key!r}"


def sequence(value: Any) -> tuple[float, ...]:
    """Return the scores that a result consists of, such as one for each query: its "scores", or the result itself."""
    parts: Any = value.get(_SEQUENCE) if is_a(value, Mapping) else value
    parts = parts.tolist() if attribute(parts, "tolist") is not None else parts
    if not is_a(parts, Sequence) or issubclass(type(parts), (str, bytes)):
        return ()
    scores = [_number(each) for each in parts]
    return tuple(each for each in scores if each is not None) if None not in scores and len(scores) > 1 else ()


def ghosts(sequences: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Return the names of different configurations whose sequences of scores are the same.

    Args:
        sequences: Name -> scores; fewer than two are no evidence.

    Example:
        >>> ghosts({"GRID_0000": [0.1, 0.5], "GRID_0001": [0.1, 0.5], "GRID_0002": [0.5, 0.1]})
        [['GRID_0000', 'GRID_0001']]
    """
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for name, scores in sequences.items():
        if len(scores) > 1:
            # Only identical scores are suspicious, because two honest configurations may have scores that are close.
            alike[repr([float(each) for each in scores])].append(name)
    return [names for names in alike.values() if len(names) > 1]


def ranked(scores: Iterable[tuple[str, float]], minimize: bool) -> list[str]:
    """Return the names, the best first; of equals the one that was named first."""
    return [name for name, _ in sorted(scores, key=lambda each: each[1] if minimize else -each[1])]
