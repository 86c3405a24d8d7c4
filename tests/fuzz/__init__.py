"""Fuzzing: whatever reads what another program wrote gets damaged samples, and may raise named errors only.

`fuzzed` makes a test of a function that takes inputs. `make test` runs each with a few inputs, always the same ones;
`make test-long` (pytest --long) divides 150,000 new ones among the tests that it runs. `damaged` gives bytes and
`twisted` gives JSON values. The report of a failed test shows the input: keep it as a test of its own.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

FEW = 60
MANY = 150_000  # in total
_targets: list[float] = []


def fuzzed(weight: float = 1.0, **strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a test of a function; its parameters without a strategy are fixtures, shared by all inputs.

    Args:
        weight: Its share of these, compared with other tests; less than 1 for a slow one.
        strategies: Where the inputs come from, by the function's parameters.
    """

    def make(check: Callable[..., None]) -> Callable[..., None]:
        def test(many: bool, **fixtures: Any) -> None:
            def once(**inputs: Any) -> None:
                try:
                    check(**inputs, **fixtures)
                except BaseException:
                    note(f"inputs: {ascii(inputs)[:4000]}")
                    raise

            count = max(1, round(MANY * weight / sum(_targets))) if many else max(1, round(FEW * min(1.0, weight)))
            settings(
                max_examples=count, derandomize=not many, database=None, deadline=None, report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
            )(given(**strategies)(once))()  # fmt: skip

        _targets.append(weight)
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        fixtures = [each for name, each in inspect.signature(check).parameters.items() if name not in strategies]
        own = inspect.Parameter("many", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([own, *fixtures])  # type: ignore[attr-defined]
        long = [pytest.mark.long, pytest.mark.timeout(3600)]
        # The report of a long input would be this warning, and not what failed.
        long_input = pytest.mark.filterwarnings("ignore:Generating overly large repr")
        return pytest.mark.parametrize(
            "many", [pytest.param(False, id="few"), pytest.param(True, id="many", marks=long)]
        )(long_input(test))

    return make


def damaged(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of these samples with bytes replaced, inserted, removed or repeated, cut short, or joined to another."""
    return _made_by(lambda dice, edits: _damage(dice, edits, samples))


def twisted(samples: Sequence[Any], odd: Sequence[Any] | None = None) -> st.SearchStrategy[Any]:
    """One of these JSON values with some of its places replaced, removed, renamed or exchanged for one another.

    Args:
        odd: What replaces them; without it `ODD`, which has paths of this machine.
    """
    return _made_by(lambda dice, edits: _twist(dice, edits, samples, ODD if odd is None else odd))


def _made_by(make: Callable[[random.Random, int], Any]) -> st.SearchStrategy[Any]:
    """Inputs by nine bytes each: drawn step by step, so many would take hours. Fewer edits count as smaller."""
    return st.binary(min_size=9, max_size=9).map(lambda seed: make(random.Random(seed), seed[0] % 5))


def _damage(dice: random.Random, edits: int, samples: Sequence[bytes]) -> bytes:
    data = bytearray(dice.choice(samples))
    for _ in range(edits):
        start = dice.randint(0, len(data))
        end = min(len(data), start + dice.randint(0, 16))
        how = dice.choice(["replace", "insert", "remove", "repeat", "cut", "join"])
        if how == "replace":
            data[start:end] = dice.getrandbits(8 * 16).to_bytes(16, "big")[: dice.randint(0, 16)]
        elif how == "insert":
            data[start:start] = dice.choice(_ODD_BYTES)
        elif how == "remove":
            del data[start:end]
        elif how == "repeat":
            data[start:start] = data[start:end] * dice.randint(1, 8)
        elif how == "cut":
            del data[start:]
        else:
            data[start:] = dice.choice(samples)
    return bytes(data)


def _twist(dice: random.Random, edits: int, samples: Sequence[Any], replacements: Sequence[Any]) -> Any:
    value = copy.deepcopy(dice.choice(samples))
    for _ in range(edits):
        places = _places(value)
        odd = copy.deepcopy(dice.choice(replacements))
        if not places or dice.random() < 0.03:
            value = odd
            continue
        holder, key = dice.choice(places)
        how = dice.choice(["replace", "replace", "remove", "rename", "exchange"])
        if how == "replace":
            holder[key] = odd
        elif how == "exchange":
            other, place = dice.choice(places)
            holder[key] = copy.deepcopy(other[place])
        elif isinstance(holder, dict) and how == "rename":
            holder[dice.choice([key.upper(), "", "id", "kind", "size"])] = holder.pop(key)
        else:
            del holder[key]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as its list or dict and the key there."""
    if not isinstance(value, (dict, list)):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


# Values that are valid JSON and rarely what is expected.
ODD: Sequence[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "0", "-1",
    "²", "9" * 5000, "a" * 300, "\x00", "\x1b[2J", "\ud800", "../..", "/etc/passwd", "$HOME", "None", "\n", [], {},
    [[]], [None], [0], ["a"], {"a": 1}, {"": None}, {"size": -1}, {"size": 2**62}, {"kind": "io", "message": "m"},
]  # fmt: skip
_ODD_BYTES = [
    b"\x00", b"\n", b"\r", b"\xff", b'"', b"{", b"}", b"[", b"]", b":", b",", b"-", b"\xc2\xb2", b"\x1b[2J",
    b"9" * 5000, b"\x00\x00\x00\x10", b"\xff" * 8, b"[" * 2000, b"e999", b"\xed\xa0\x80",
]  # fmt: skip
