"""Read from a module's source what importing it sets, and what other code changes: constants, functions, attributes.

Knows syntax trees only: nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Union

FUNCTION = object()
# A table of data is not compared at each call.
_MOST_PARTS = 50
_DEPTH = 4
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MUTATORS = frozenset(
    ["add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
     "sort", "update", "appendleft"]
)  # fmt: skip
# With these, code can set any name. The last one makes globals of the members of an enumeration.
DYNAMIC = frozenset(
    ["__dict__", "__setattr__", "delattr", "exec", "globals", "locals", "modules", "setattr", "vars", "_convert_"]
)


def settings(tree: ast.Module) -> Mapping[str, object]:
    """Return what the top level sets by a literal, by `def`, or by a literal in a class, such as "Model.SIZE".

    Example:
        >>> settings(ast.parse("LR = 0.1\\nPATH = open()\\nclass Model:\\n    SIZE = 64"))
        {'LR': 0.1, 'Model.SIZE': 64}
    """
    return dict(_settings(tree.body, ""))


def _settings(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, object]]:
    for each in body:
        # A decorator may return anything.
        if isinstance(each, ast.ClassDef) and not (prefix or each.decorator_list or each.keywords):
            yield from _settings(each.body, f"{each.name}.")
        elif isinstance(each, _FUNCTIONS) and not (prefix or each.decorator_list):
            yield each.name, FUNCTION
        elif isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value and _is_small(each.value, _DEPTH):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names = [name.id for name in targets if isinstance(name, ast.Name) and not name.id.startswith("__")]
            if names and len(names) == len(targets):
                try:
                    value = ast.literal_eval(each.value)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    # It is computed.
                    continue
                yield from ((f"{prefix}{name}", value) for name in names)


def _is_small(node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Dict):
        # `{**other}` has no key.
        parts = [*(each for each in node.keys if each), *node.values]
    else:
        parts = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
    return len(parts) <= 2 * _MOST_PARTS and depth > 0 and all(_is_small(each, depth - 1) for each in parts)


def sets_once(tree: ast.Module, key: str) -> bool:
    """Whether a module that sets `key`, as `settings` names it, certainly sets it nowhere else."""
    outer, _, attribute = key.rpartition(".")
    name = outer or attribute
    bound = 0
    for node in _at_top_level(tree):
        bound += name in _bound_by(node)
    classes = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == outer)
    in_class = [
        each for cls in classes for node in cls.body for each in _at_top_level(node) if attribute in _bound_by(each)
    ]
    if bound != 1 or len(in_class) != bool(outer):
        return False
    for node in ast.walk(tree):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return False
    # It may be the module itself that the attribute is set on.
    return not (sets_attribute(tree, attribute) or is_dynamic(tree) or imports_all(tree))


def is_dynamic(tree: ast.AST) -> bool:
    """Whether code may set names that it does not name."""
    names = (getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree))
    return any(name in DYNAMIC for name in names)


def imports_all(tree: ast.AST) -> bool:
    """Whether code takes all names of another module."""
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))


def _at_top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it that run with it, which those in functions and classes do not."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if node is tree or not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node) if not isinstance(node, _FUNCTIONS) else ())


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, (ast.Store, ast.Del)) else []
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    # Those are functions, classes, handlers of exceptions, and patterns of `match`.
    return [name for name in (getattr(node, each, None) for each in ("name", "rest")) if isinstance(name, str)]


def _is_changed(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))


def may_set_attribute(trees: Iterable[ast.Module], attribute: str) -> bool:
    """Whether importing modules may set an attribute of that name on anything; so may a method, which anyone may call.

    A function at the top level counts if code that runs at an import calls it, directly or by others.
    """
    bodies: list[tuple[str, ast.AST]] = []
    for tree in trees:
        for each in tree.body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                bodies.append((each.name, each))
                # The decorators of a function are called at the import.
                bodies += [("", decorator) for decorator in each.decorator_list]
            elif not (isinstance(each, ast.If) and "__name__" in _names_in(each.test)):
                bodies.append(("", each))
    setting = {name for name, body in bodies if sets_attribute(body, attribute)}
    calls = [(name, _names_in(body)) for name, body in bodies]
    while more := {name for name, used in calls if not used.isdisjoint(setting)} - setting:
        setting |= more
    return "" in setting


def sets_attribute(tree: ast.AST, attribute: str) -> bool:
    """Whether any code in it sets an attribute of that name."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute and _is_changed(node) for node in ast.walk(tree)
    )


def _names_in(body: ast.AST) -> frozenset[str]:
    names = (getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(body))
    return frozenset(name for name in names if name)


def changed_names(tree: ast.AST, without: frozenset[int]) -> frozenset[str]:
    """Return the names in a script that it assigns attributes of, or changes in place.

    Args:
        without: The first lines of functions that do not count.

    Example:
        >>> sorted(changed_names(ast.parse("conf.LR = 1\\nconf.NAMES.append(2)\\nx = 3"), frozenset()))
        ['LR', 'NAMES', 'conf']
    """
    names: set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _FUNCTIONS):
            lines = {node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))}
            if not lines.isdisjoint(without):
                continue
        if isinstance(node, ast.Attribute) and _is_changed(node):
            names.add(node.attr)
        elif isinstance(node, ast.Subscript) and _is_changed(node):
            names.update(_chain(node))
        elif isinstance(node, ast.AugAssign):
            names.update(_chain(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            names.update(_chain(node.func.value))
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(names)


def _chain(node: ast.AST) -> Iterator[str]:
    """Yield the names of `conf.NAMES["x"]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
