"""No instant is made of a number: the monotonic clock of a machine that has just booted begins near 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLOCK = re.compile(r"_?(?:monotonic|perf_counter|clock)")


def is_number(node: ast.expr) -> bool:
    """Whether it is a finite number of the source, such as 7200, -60.0 or _EVERY_S * 2."""
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        return all(is_number(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def reads_clock(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) and CLOCK.fullmatch(name_of(part.func)) for part in ast.walk(node))


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of variables and attributes with what they get; a name that ends in _s is of a duration."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts))
                named = [(name_of(place), value) for place, value in pairs]
                yield from ((name, value) for name, value in named if name and not name.endswith("_s"))


def made_of_numbers(source: str) -> list[int]:
    """Return the lines in which an instant is a number, or a number of seconds before the present."""
    if not CLOCK.search(source):
        return []
    tree = ast.parse(source)
    # That a clock which begins near 0 has reached 0 is true, so a time limit may begin as that.
    numbers = {name for name, value in assigned(tree) if is_number(value) and not name.isupper()}
    below = {name for name, value in assigned(tree) if is_number(value) and isinstance(value, ast.UnaryOp)}
    found = []
    for node in ast.walk(tree):
        is_past = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and reads_clock(node.left)
        if is_past or isinstance(node, ast.Compare) and reads_clock(node):
            subtracted = node.right if isinstance(node, ast.BinOp) else node
            names = set(map(name_of, ast.walk(subtracted))) & (numbers if is_past else below)
            if names or is_past and is_number(node.right):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import time\nbefore = time.monotonic() - 7200.0",
        "begun = clock() - _EVERY_S + _FIRST_S",
        "self._looked = 0.0\nlate = time.monotonic() - self._looked > HELD_S",
        "class A:\n    _held_until = 0.0\n    def f(self): return monotonic() - max(job.sent_at, self._held_until) > 9",
        "self._asked_at = -_FRESH_S\nsoon = time.monotonic() < self._asked_at + after_s",
        "last, name = -60, ''\nis_due = self._clock() >= last + 60",
    ],
)
def test_the_next_test_finds(source: str) -> None:
    assert made_of_numbers(source) == [source.count("\n") + 1]


def test_no_instant_is_made_of_a_number() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("clusterfn", "tests", "templates", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for line in made_of_numbers(path.read_text(encoding="utf-8"))
    }
    assert found == set(), "float('-inf') is an instant before all others; in a test, set the clock"
