"""Tests use what callers use: no name of clusterfn that begins with an underscore."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LIBRARY = TESTS.parent / "clusterfn"
NEWER = TESTS / "fixtures/calls/aliases.py"  # of Python 3.12
PATHS = [path for path in TESTS.rglob("*.py") if path not in (Path(__file__), NEWER)]
FILES = sorted(path.relative_to(TESTS).as_posix() for path in PATHS)

# A name needs a reason here: a handle that users have shows them nothing of what these tests must reach.
ALLOWED = {
    # An Executor hands out values, not the groups that make them.
    "e2e/test_call_seams.py": {"_groups"},
    "e2e/test_executor.py": {"_groups"},
    # Nobody has a handle on all connections of a process.
    "processes.py": {"_opened"},
    # A clock of round trips, put around what a link, a reply and a connection do with each of them.
    "e2e/waits.py": {"_requests", "_answer", "_try_to_connect", "_wait", "_open"},
}
# Names of the standard library, of NumPy, PyTorch and IPython, and of the bridge as a module on the host.
OTHERS = {
    "_exit", "_replace", "_fields", "_asdict", "_actions", "_SubParsersAction", "_metadata", "_C", "_repr_mimebundle_",
    "_clusterfn", "_clusterfn_wire",
}  # fmt: skip
NAMERS = {"setattr", "getattr", "delattr", "hasattr", "object"}  # the last is that of mock.patch
PRIVATE = re.compile(r"\b_[A-Za-z]\w*")
DOTTED = re.compile(r"\bclusterfn(?:\.\w+)*\.(_[A-Za-z]\w*)")


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


@functools.lru_cache(maxsize=1)
def private_names() -> frozenset[str]:
    """Names with an underscore that stand in clusterfn, which defines nearly all of them."""
    sources = (path.read_text(encoding="utf-8") for path in LIBRARY.rglob("*.py"))
    return frozenset(name for source in sources for name in PRIVATE.findall(source)) - OTHERS


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a private name of clusterfn, but for an object's use of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "clusterfn":
            yield from ((node.lineno, each.name) for each in node.names if is_private(each.name))
        elif isinstance(node, ast.Attribute) and node.attr in private_names():
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = node.args[1] if called in NAMERS and len(node.args) > 1 else None
            if isinstance(named, ast.Constant) and named.value in private_names():
                yield node.lineno, named.value
        elif isinstance(node, ast.Tuple):  # a table of what is replaced
            for each in node.elts:
                if isinstance(each, ast.Constant) and each.value in private_names():
                    yield each.lineno, each.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, name) for name in DOTTED.findall(node.value))


def test_no_test_uses_a_private_name_of_the_library():
    texts = {name: (TESTS / name).read_text(encoding="utf-8") for name in FILES}
    some = {name: text for name, text in texts.items() if not private_names().isdisjoint(PRIVATE.findall(text))}
    found = [(name, line, used) for name, text in some.items() for line, used in uses(ast.parse(text))]

    assert [each for each in found if each[2] not in ALLOWED.get(each[0], ())] == []


def test_what_is_allowed_is_used():
    for name, allowed in ALLOWED.items():
        assert allowed == {used for _, used in uses(ast.parse((TESTS / name).read_text(encoding="utf-8")))}, name


@pytest.mark.parametrize(
    "source",
    ["from clusterfn.calls.job import _finish", "job._listeners", "monkeypatch.setattr(job, '_source', None)",
     "mock.patch.object(job, '_source')", "[(job, '_source')]",
     "monkeypatch.setattr('clusterfn.calls.history._anything', 1)"],
)  # fmt: skip
def test_a_private_name_is_found_however_it_is_written(source):
    assert len(list(uses(ast.parse(source)))) == 1
