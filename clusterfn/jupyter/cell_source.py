"""What the text of a cell reads and sets, found before anything of it is sent."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from clusterfn.errors import ConfigError, did_you_mean

_GIVEN = frozenset([*vars(builtins), "display", "__name__", "__file__", "__builtins__"])


@dataclass(frozen=True)
class CellNames:
    """The global names of a cell.

    Attributes:
        reads: Those that it reads and does not set anywhere.
        sets: Those that it sets somewhere.
        is_certain: Whether it sets no others: it has no `from x import *`, `exec` or `globals`.
    """

    reads: frozenset[str]
    sets: frozenset[str]
    is_certain: bool


def names_in(source: str, file: str) -> CellNames:
    """Find the global names of a cell.

    Raises:
        SyntaxError: It is no Python.
    """
    tree = ast.parse(source, file)
    stars = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    reads, sets = set(), set()
    for table in _tables(symtable.symtable(source, file, "exec")):
        for symbol in table.get_symbols():
            is_global = table.get_type() == "module" or symbol.is_global()
            if is_global and symbol.is_referenced():
                reads.add(symbol.get_name())
            if is_global and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                sets.add(symbol.get_name())
    certain = not stars and reads.isdisjoint(["exec", "globals", "vars", "locals"])
    return CellNames(frozenset(reads - sets - _GIVEN), frozenset(sets), certain)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def check_names(
    found: CellNames, inputs: Collection[str], outputs: Collection[str], variables: Mapping[str, Any]
) -> None:
    """Reject a cell that reads what only the notebook has, or never sets what it should return.

    Raises:
        ConfigError: The message names the variables, and says how to pass them.
    """
    if not found.is_certain:
        return
    unsent = sorted(name for name in found.reads if name in variables and name not in inputs)
    if unsent:
        modules = [name for name in unsent if isinstance(variables[name], ModuleType)]
        others = [name for name in unsent if name not in modules]
        imports = [_import_of(name, variables[name]) for name in modules]
        hints = [f"send variables: {' '.join(f'-i {name}' for name in others)}"] if others else []
        hints += [f"import modules in the cell: {'; '.join(imports)}"] if imports else []
        verb = "exist" if len(unsent) > 1 else "exists"
        raise ConfigError(
            f"%%cluster: the cell uses {', '.join(unsent)}, which {verb} only in the notebook", hint="; ".join(hints)
        )
    for name in outputs:
        if name not in found.sets and name not in inputs:
            near = did_you_mean(name, found.sets)
            raise ConfigError(f"%%cluster -o {name}: the cell never sets {name!r}{near}", hint=f"assign it: {name} = …")


def _import_of(name: str, module: ModuleType) -> str:
    return f"import {module.__name__}" + (f" as {name}" if name != module.__name__ else "")
