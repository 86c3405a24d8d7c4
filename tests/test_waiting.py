"""How tests wait: for an event, with a limit that only a hang reaches, and for nothing that other programs decide."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_clocks import name_of

TESTS = Path(__file__).parent
LEAST_S = 60
# Each method that waits, with the place of its limit among its arguments.
WAITING = dict.fromkeys(("result", "exception", "wait", "join", "communicate", "acquire"), 0)
WAITING |= dict.fromkeys(("until", "until_none", "wait_for"), 1)
LIMITS = ("timeout", "timeout_s", "limit_s", "within_s")
PROGRAMS = ("pgrep", "pkill", "killall")
CLOCK = re.compile(r"\b(monotonic|perf_counter|time)\(\) - ")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# The limit is the promise of a row.
MEASURED = "faults/test_truth.py"


def number(node: ast.AST | None) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) else float("inf")


def limit_of(call: ast.Call) -> float:
    named = [keyword.value for keyword in call.keywords if keyword.arg in LIMITS]
    place = WAITING[name_of(call.func)]
    values = named or call.args[place : place + 1]
    of_group = len(call.args) > 1 or ast.unparse(call.func).startswith(("group", "made"))
    return number(values[0]) if named or values and not (of_group and name_of(call.func) == "result") else float("inf")


def is_expected(node: ast.AST) -> bool:
    """Whether the end of a limit in it is what a test is about, or one look of a loop."""
    if isinstance(node, ast.With):
        names = [name_of(item.context_expr.func) for item in node.items if isinstance(item.context_expr, ast.Call)]
        return "raises" in names or "suppress" in names
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, (ast.While, ast.For, ast.Try))


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each wait in a test that is for no event, with what is wrong."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = node.args[0].elts if node.args and isinstance(node.args[0], ast.List) else []
            if any(isinstance(word, ast.Constant) and word.value in PROGRAMS for word in words):
                yield node.lineno, "find processes by `named` or `tagged` of tests/processes.py"
        if isinstance(node, ast.Call) and name_of(node.func) in ("sleep", *WAITING):
            above: list[ast.AST] = [node]
            while above[-1] in parents and not isinstance(above[-1], FUNCTIONS):
                above.append(parents[above[-1]])
            if not getattr(above[-1], "name", "").startswith("test_"):
                continue
            if name_of(node.func) == "sleep" and number(node.args[0]):
                yield node.lineno, "wait for an event by `until`; where nothing may happen meanwhile, by `stays`"
            elif name_of(node.func) != "sleep" and 0 < limit_of(node) < LEAST_S and not any(map(is_expected, above)):
                yield node.lineno, "a busy machine may need longer"
        is_below = isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.Lt, ast.LtE))
        if is_below and number(node.comparators[-1]) < LEAST_S:
            span = ast.unparse([node.left, *node.comparators][-2])
            if CLOCK.search(span) and not span.startswith("abs("):
                yield node.lineno, "a check of speed is a benchmark"


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    time.sleep(0.3)",
        "def test_it():\n    while not done(): time.sleep(0.3)",
        "def test_it():\n    job.result(5)",
        "def test_it():\n    process.wait(timeout=9.5)",
        "def test_it():\n    until(look, limit_s=3)",
        "def test_it():\n    assert time.monotonic() - began < 5",
        "def test_it():\n    assert 2 < time.time() - began <= 30",
        "def test_it():\n    subprocess.run(['pgrep', '-u', 'me'])",
    ],
)
def test_the_next_test_finds(source: str) -> None:
    assert [line for line, _ in faults(ast.parse(source))] == [2]


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    def job(): time.sleep(9)",
        "def test_it():\n    with pytest.raises(TimeoutError): job.result(0.1)",
        "def test_it():\n    assert not over.wait(0.1)",
        "def test_it():\n    assert group.result(3) == time.monotonic() - began >= 0.04",
    ],
)
def test_the_next_test_accepts(source: str) -> None:
    assert not list(faults(ast.parse(source)))


def test_tests_wait_for_events_with_limits_that_only_a_hang_reaches() -> None:
    files = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("test_*.py"))}
    found = [
        f"{name}:{line}: {what}"
        for name, path in files.items()
        if name not in (MEASURED, Path(__file__).name)
        for line, what in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
