"""What code says, without running it: byte code of functions, and the text of modules.

All notes about a call, and what travels with it, take it from here.
"""

from __future__ import annotations

import ast
import dis
import functools
import re
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SKIPPED = ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME")
# The code around these runs them at once, so a call in them is as certain as one beside them.
_AT_ONCE = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
_FROM_SCOPE = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_READS = (*_FROM_SCOPE, *_ATTRIBUTES, "LOAD_NAME", "LOAD_SUPER_ATTR", "IMPORT_FROM")
COMPUTED = object()
_IMPORT_ERRORS = re.compile(r"\b(?:ImportError|ModuleNotFoundError|Exception)\b")
_SIMPLE = (bool, int, float, complex, str, type(None))
_OF_LITERALS = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp)


class Use(NamedTuple):
    """A variable that code loads, and the attributes that it takes at once: of `conf.model.map`, "model" and "map".

    Attributes:
        is_outside: Whether it is a variable from outside of the function.
        is_certain: Whether each run of the code comes to it.
    """

    name: str
    attributes: tuple[str, ...]
    is_outside: bool
    is_certain: bool


class Store(NamedTuple):
    """A name that code sets or deletes; local variables are left out.

    Attributes:
        kind: "ATTR", "GLOBAL", or "NAME" in the body of a module or class.
        value: The constant that it gets, or `COMPUTED`.
    """

    kind: str
    name: str
    value: object


class Facts(NamedTuple):
    """What one code does, without those inside it.

    Attributes:
        names: The names in it of all that is not local.
        reads: Those of them that it reads.
        keys: Strings by which it sets members, as in `environ["NAME"] = value`.
        imports: The modules that it imports; "" for a relative import.
    """

    names: tuple[str, ...]
    constants: tuple[object, ...]
    reads: frozenset[str]
    uses: tuple[Use, ...]
    stores: tuple[Store, ...]
    keys: frozenset[str]
    imports: frozenset[str]


@functools.lru_cache(maxsize=1024)
def read(code: types.CodeType, is_certain: bool = True) -> tuple[Facts, ...]:
    """Return the facts of a code and of all codes inside it, each before those inside it.

    Args:
        is_certain: Whether it always runs.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
    # Code that handles exceptions itself may not come to what follows.
    table = getattr(code, "co_exceptiontable", None)
    catches = bool(table) if table is not None else any(step.opname == "SETUP_FINALLY" for step in steps)
    is_certain = is_certain and not catches
    uses, stores, keys, imports = list[Use](), list[Store](), set[str](), set[str]()
    for at, step in enumerate(steps):
        before, (kind, _, to) = steps[at - 1], step.opname.partition("_")
        if step.opname in _FROM_SCOPE or step.opname.startswith(("LOAD_FAST", "LOAD_NAME")):
            end = at + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTES:
                end += 1
            attributes = tuple(each.argval for each in steps[at + 1 : end])
            # Python 3.13 loads two local variables at once.
            name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            uses.append(Use(name, attributes, step.opname in _FROM_SCOPE, is_certain))
        elif kind in ("STORE", "DELETE") and to in ("ATTR", "GLOBAL", "NAME"):
            is_constant = before.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT"))
            stores.append(Store(to, step.argval, before.argval if is_constant and kind == "STORE" else COMPUTED))
        elif step.opname == "STORE_SUBSCR" and isinstance(before.argval, str):
            keys.add(before.argval)
        elif step.opname == "IMPORT_NAME":
            # The level of the import and the names that it takes are put on the stack before it.
            imports.add("" if steps[at - 2].argval else step.argval)
        is_certain = is_certain and not step.opname.startswith(("POP_JUMP", "JUMP_IF"))
    reads = frozenset(step.argval for step in steps if step.opname in _READS)
    facts = Facts(code.co_names, code.co_consts, reads, tuple(uses), tuple(stores), frozenset(keys), frozenset(imports))
    inside = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return facts, *(part for each in inside for part in read(each, is_certain and each.co_name in _AT_ONCE))


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


class Call(NamedTuple):
    """A call that is a statement of its own: its line, its function and all of it, as text."""

    line: int
    function: str
    text: str


class ModuleText(NamedTuple):
    """What the text of a module says.

    Attributes:
        imports: The top-level names that it imports anywhere, but not those for type checkers alone.
        literals: What statements at its top level set to a number, a string, a bool, None or a tuple of these.
        guards: The names that they set in a `try: import …` or its `except`.
        strings: All strings in it, if it looks for files beside itself.
        calls: Those that run whenever it does.
    """

    imports: frozenset[str] = frozenset()
    literals: Mapping[str, object] = {}
    guards: Mapping[str, Guarded] = {}
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
    literals, guards = dict[str, object](), dict[str, Guarded]()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            value = _literal(node.value)
            literals.update((name, value) for name in _names(node) if value is not COMPUTED and name[:2] != "__")
        elif isinstance(node, ast.Try) and (handlers := list(filter(_catches_import, node.handlers))):
            modules = tuple(_imported(ast.Module(node.body, [])))
            lines = [(line, False) for line in (*node.body, *node.orelse)]
            lines += [(line, True) for handler in handlers for line in handler.body]
            for line, is_fallback in lines:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                    guard = Guarded(modules, line.value.value, is_fallback)
                    guards.update((name, guard) for name in _names(line))
    strings = set[str]()
    if ("__file__" if isinstance(text, str) else b"__file__") in text:  # type: ignore[operator]
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        strings = {each for each in constants if isinstance(each, str)}
    values = (each.value for each in _always_run(tree.body) if isinstance(each, ast.Expr))
    nodes = (each for each in values if isinstance(each, ast.Call))
    calls = tuple(Call(each.lineno, ast.unparse(each.func), ast.unparse(each)) for each in nodes)
    return ModuleText(frozenset(_imported(tree)), literals, guards, frozenset(strings), calls)


def _always_run(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run whenever the text does; many scripts have them in a function `main`."""
    for each in body:
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or each.name == "main":
            for part in ("body", "orelse", "finalbody"):
                yield from _always_run(getattr(each, part, ()))


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _literal(node: ast.expr | None) -> object:
    try:
        value = ast.literal_eval(node) if isinstance(node, _OF_LITERALS) else COMPUTED
    except (ValueError, TypeError, MemoryError, RecursionError):
        return COMPUTED
    return value if _is_simple(value) else COMPUTED


def _is_simple(value: object) -> bool:
    return type(value) in _SIMPLE or (type(value) is tuple and all(map(_is_simple, value)))


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


def _catches_import(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or _IMPORT_ERRORS.search(ast.unparse(handler.type)) is not None
