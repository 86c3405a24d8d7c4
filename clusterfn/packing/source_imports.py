"""Read from a source what it imports, and which of its names depend on whether an import succeeds."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from clusterfn.packing.own_modules import find_spec


def imported(source: bytes | str) -> frozenset[str]:
    """Return the top-level names that a source imports anywhere, but not those for type checkers alone.

    Example:
        >>> sorted(imported("import numpy.linalg, os\\nfrom torch import nn\\nfrom . import x"))
        ['numpy', 'os', 'torch']
    """
    try:
        return frozenset(_imported(ast.parse(source)))
    except (SyntaxError, ValueError):
        return frozenset()


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from [child.module.partition(".")[0]] if child.module and not child.level else []
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from (name for part in child.orelse for name in _imported(ast.Module([part], [])))
        else:
            yield from _imported(child)


class Guarded(NamedTuple):
    """A name of a module that `try: import …` sets.

    Attributes:
        modules: What is imported there, any of which may be missing.
        value: The constant that it is set to.
        is_fallback: Whether it is set where the import fails, rather than where it succeeds.
    """

    modules: tuple[str, ...]
    value: object
    is_fallback: bool

    def missing(self, value: object) -> str:
        """Return the module whose absence on this machine gave the name its value; "" if that is not its cause."""
        if (value is self.value) is not self.is_fallback:
            return ""
        return next((name for name in self.modules if name not in sys.modules and find_spec(name) is None), "")


@functools.lru_cache(maxsize=256)
def guarded(source: str) -> Mapping[str, Guarded]:
    """Return the names that a source's top level sets to a constant in a `try: import …` or its `except`."""
    guards: dict[str, Guarded] = {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # A cell of a notebook may have magics, which are not Python.
        return guards
    for node in tree.body:
        if isinstance(node, ast.Try) and any(map(_catches_import, node.handlers)):
            modules = tuple(_imported(ast.Module(node.body, [])))
            for name, value in _constants([*node.body, *node.orelse]):
                guards[name] = Guarded(modules, value, False)
            for handler in filter(_catches_import, node.handlers):
                guards.update((name, Guarded(modules, value, True)) for name, value in _constants(handler.body))
    return guards


def _catches_import(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {each.id for each in types if isinstance(each, ast.Name)}
    return handler.type is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, object]]:
    for each in body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield from ((name.id, each.value.value) for name in each.targets if isinstance(name, ast.Name))
