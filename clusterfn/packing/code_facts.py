"""What code says, without running it: byte code of functions, and the text of modules.

All notes about a call, and what travels with it, take it from here.
"""

from __future__ import annotations

import ast
import collections
import dis
import functools
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SKIPPED = ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME")
_FROM_SCOPE = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_COMPUTED = object()
_SIMPLE = (bool, int, float, complex, str, type(None))
_OF_LITERALS = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp)
_BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Use(NamedTuple):
    """A variable that code loads, and the attributes that it takes at once: of `conf.model.map`, "model" and "map".

    Attributes:
        is_outside: Whether it is a variable from outside of the function.
    """

    name: str
    attributes: tuple[str, ...]
    is_outside: bool


class Facts(NamedTuple):
    """What one code does, without those inside it.

    Attributes:
        names: The names in it of all that is not local.
        globals: The global variables that it sets or deletes.
        attributes: The attributes that it sets or deletes.
        keys: Strings by which it sets members, as in `environ["NAME"] = value`.
        imports: The modules that it imports; "" for a relative import.
    """

    names: tuple[str, ...]
    constants: tuple[object, ...]
    uses: tuple[Use, ...]
    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    keys: frozenset[str]
    imports: frozenset[str]


@functools.lru_cache(maxsize=1024)
def read(code: types.CodeType) -> tuple[Facts, ...]:
    """Return the facts of a code and of all codes inside it, each before those inside it."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
    uses, keys, imports = list[Use](), set[str](), set[str]()
    set_here: dict[str, list[str]] = {"GLOBAL": [], "ATTR": []}
    for at, step in enumerate(steps):
        before, (kind, _, to) = steps[at - 1], step.opname.partition("_")
        if step.opname in _FROM_SCOPE or step.opname.startswith(("LOAD_FAST", "LOAD_NAME")):
            end = at + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTES:
                end += 1
            attributes = tuple(load.argval for load in steps[at + 1 : end])
            # Python 3.13 loads two local variables at once.
            name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            uses.append(Use(name, attributes, step.opname in _FROM_SCOPE))
        elif kind in ("STORE", "DELETE") and to in set_here:
            set_here[to].append(step.argval)
        elif step.opname == "STORE_SUBSCR" and isinstance(before.argval, str):
            keys.add(before.argval)
        elif step.opname == "IMPORT_NAME":
            # The level of the import and the names that it takes are put on the stack before it.
            imports.add("" if steps[at - 2].argval else step.argval)
    names_set = tuple(set_here["GLOBAL"]), tuple(set_here["ATTR"])
    facts = Facts(code.co_names, code.co_consts, tuple(uses), *names_set, frozenset(keys), frozenset(imports))
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return facts, *(part for code in inside for part in read(code))


class Call(NamedTuple):
    """A call that is a statement of its own: its line, its function and all of it, as text."""

    line: int
    function: str
    text: str


class ModuleText(NamedTuple):
    """What the text of a module says.

    Attributes:
        imports: The top-level names that it imports anywhere, but not those for type checkers alone.
        literals: The names that one statement sets, which is at its top level, to a number, a string, a bool, None or
            a tuple of these.
        attributes: The attributes that it sets.
        strings: All strings in it, if it looks for files beside itself.
        calls: Those that run whenever it does.
    """

    imports: frozenset[str] = frozenset()
    literals: Mapping[str, object] = {}
    attributes: frozenset[str] = frozenset()
    strings: frozenset[str] = frozenset()
    calls: tuple[Call, ...] = ()


@functools.lru_cache(maxsize=4096)
def of_file(path: str, mtime_ns: int) -> ModuleText:
    """Read a file; the time is that of its last change."""
    return of_text(Path(path).read_bytes())


@functools.lru_cache(maxsize=256)
def of_text(text: bytes | str) -> ModuleText:
    """Read a text; one that is no Python says nothing, as a cell of a notebook with magics.

    Example:
        >>> sorted(of_text("import numpy.linalg, os\\nfrom torch import nn\\nfrom . import x").imports)
        ['numpy', 'os', 'torch']
    """
    try:
        with warnings.catch_warnings():
            # The import has shown what Python warns of.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ModuleText()
    literals, nodes = dict[str, object](), list(ast.walk(tree))
    bound = collections.Counter(name for node in nodes for name in _bound(node))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and (value := _literal(node.value)) is not _COMPUTED:
            literals.update((name, value) for name in _names(node) if bound[name] == 1 and name[:2] != "__")
    strings = set[str]()
    if ("__file__" if isinstance(text, str) else b"__file__") in text:  # type: ignore[operator]
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        strings = {constant for constant in constants if isinstance(constant, str)}
    values = (statement.value for statement in _always_run(tree.body) if isinstance(statement, ast.Expr))
    made = (value for value in values if isinstance(value, ast.Call))
    calls = tuple(Call(call.lineno, ast.unparse(call.func), ast.unparse(call)) for call in made)
    return ModuleText(frozenset(_imported(tree)), literals, frozenset(attributes), frozenset(strings), calls)


def _always_run(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run whenever the text does; many scripts have them in a function `main`."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or statement.name == "main":
            for part in ("body", "orelse", "finalbody"):
                yield from _always_run(getattr(statement, part, ()))


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _bound(node: ast.AST) -> list[str]:
    """Return the names that one part of a text binds, or says to be those of the module."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.alias):
        return [node.asname or node.name]
    if isinstance(node, _BINDING):
        return [node.name]
    return node.names if isinstance(node, ast.Global) else []


def _literal(node: ast.expr | None) -> object:
    try:
        value = ast.literal_eval(node) if isinstance(node, _OF_LITERALS) else _COMPUTED
    except (ValueError, TypeError, MemoryError, RecursionError):
        return _COMPUTED
    return value if is_simple(value) else _COMPUTED


def is_simple(value: object) -> bool:
    """Return whether a value is a number, a string, a bool, None, or a tuple of these."""
    return type(value) in _SIMPLE or (type(value) is tuple and all(map(is_simple, value)))


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from [child.module.partition(".")[0]] if child.module and not child.level else []
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from (name for part in child.orelse for name in _imported(ast.Module([part], [])))
        elif not isinstance(child, ast.expr):
            yield from _imported(child)
