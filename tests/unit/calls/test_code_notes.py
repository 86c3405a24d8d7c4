"""What the code of a function does otherwise in a job is found before anything is sent."""

from __future__ import annotations

import functools
import random
import sys
import types
from typing import Any

import numpy
import pytest

from clusterfn import ConfigError
from tests.sent import said_of_code

total = 0


class Random:
    """It draws no random numbers, although its class has the name of one that does."""


def helper() -> Any:
    return rng.random()  # type: ignore[name-defined]  # noqa: F821


def counts() -> int:
    global total
    total += 1
    return total


def counts_inside() -> Any:
    def bump() -> None:
        global total
        total = 3

    bump()


def reads() -> int:
    return total


def test_a_global_that_is_set_is_said_once_for_each_function():
    for function in (counts, counts_inside):
        assert said_of_code(function) == [
            f"{function.__name__} sets the global total in its job only: no other call finds it, return it instead"
        ]


@pytest.mark.parametrize(
    ("generator", "is_named"),
    [(random.Random(1), True), (numpy.random.default_rng(1), True), (numpy.random.RandomState(1), True),
     (random.SystemRandom(), False), (iter([1]), False), (Random(), False)],
)  # fmt: skip
def test_a_generator_of_random_numbers_that_items_share_is_named(monkeypatch, generator: Any, is_named: bool):
    monkeypatch.setattr(sys.modules[__name__], "rng", generator, raising=False)
    kept = generator

    def draws(x: int, more: Any = None) -> Any:
        return rng.random() + helper() + [kept.random() for _ in range(x)]  # type: ignore[name-defined]  # noqa: F821

    said = said_of_code(draws, {"more": generator, "other": 3})

    assert [sentence.partition("state of ")[2].partition(",")[0] for sentence in said] == is_named * [
        "rng", "kept", "more"
    ]  # fmt: skip
    assert said_of_code(draws) == [], "one call draws what it would draw here"


def seeds_it(x: int, more: Any) -> Any:
    rng.seed(x)  # type: ignore[name-defined]  # noqa: F821
    more.setstate(x)
    return rng.random() + more.random()  # type: ignore[name-defined]  # noqa: F821


def derives_from_it(x: int, more: Any) -> Any:
    return [more.spawn(2)[0].random(), rng.bit_generator.jumped(x)]  # type: ignore[name-defined]  # noqa: F821


def has_an_attribute_of_that_name(x: Any) -> Any:
    return x.rng.random()


@pytest.mark.parametrize("function", [seeds_it, derives_from_it, has_an_attribute_of_that_name])
def test_of_a_generator_that_each_item_seeds_and_of_an_attribute_nothing_is_said(monkeypatch, function: Any):
    monkeypatch.setattr(sys.modules[__name__], "rng", random.Random(1), raising=False)
    constants = {"more": random.Random(2)} if function is not has_an_attribute_of_that_name else {}

    assert said_of_code(function, constants) == []


@pytest.mark.parametrize("function", [reads, abs, str.upper, int, functools.partial(pow, 2), print])
def test_of_other_functions_nothing_is_said(function: Any):
    assert said_of_code(function) == []


SEEDED = """\
import random
import numpy as np
import numpy
import torch_like as torch
from helpers import seed_everything

{call}

def by_random(): return random.random()
def by_numpy(): return np.random.rand()
def inside():
    import numpy.random
    return numpy.random.rand()
def below(): return by_numpy()
def by_torch(): return torch.rand(2)
def plain(): return np.mean([1])
def own_generator(): return np.random.default_rng(1).random()
def seeds_itself():
    np.random.seed(1)
    torch.manual_seed(1)
    return np.random.rand()
"""


@pytest.mark.parametrize(
    ("call", "are_named"),
    [
        ("random.seed(0)", {"by_random"}),
        ("np.random.seed(0)", {"by_numpy", "inside", "below"}),
        ("def main():\n    np.random.seed(0)", {"by_numpy", "inside", "below"}),
        ("def other():\n    np.random.seed(0)", set()),
        ("torch.manual_seed(0)", {"by_torch"}),
        ("torch.set_default_device(torch.gpu)", {"by_torch", "seeds_itself"}),
        ("seed_everything(3)", {"by_random", "by_numpy", "inside", "below", "by_torch"}),
        ("rng = np.random.default_rng(0)", set()),
    ],
)
def test_a_seed_or_default_that_only_the_script_sets_is_named(monkeypatch, tmp_path, call: str, are_named: set[str]):
    path = tmp_path / "train.py"
    path.write_text(SEEDED.format(call=call))
    script = types.ModuleType("__main__")
    script.__file__ = str(path)
    for name, words in {"torch_like": {"rand": len}, "helpers": {"seed_everything": len}}.items():
        module = types.ModuleType(name.removesuffix("_like"))
        vars(module).update(words, manual_seed=len, set_default_device=len, gpu=())
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(path.read_text().replace(call, ""), path, "exec"), vars(script))

    functions = {name: each for name, each in vars(script).items() if type(each) is types.FunctionType}
    said = {name: said_of_code(each) for name, each in functions.items() if name not in ("main", "other")}

    assert {name for name, lines in said.items() if lines} == are_named
    where = f"{call.rpartition('    ')[2]} in line {7 + call.count(chr(10))} of your script"
    expected = [f"{where} has no effect in a job: call it in the function, too"]
    assert all(lines in ([], expected) for lines in said.values())


@pytest.mark.parametrize("body", ["get_ipython().system('ls')", "get_ipython().run_line_magic('time', 'f()')"])
def test_a_magic_of_a_notebook_is_rejected_by_that_name(body):
    scope = {"get_ipython": object(), "__name__": "__main__"}
    exec(f"def analyse():\n    {body}", scope)

    with pytest.raises(ConfigError, match="analyse uses a magic of the notebook") as caught:
        said_of_code(scope["analyse"])
    assert "subprocess.run" in (caught.value.hint or "")
