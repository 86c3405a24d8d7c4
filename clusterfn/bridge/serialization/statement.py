"""Find and execute the source of classes, for a call between two minor versions of Python.

A class is more than its functions: what `@dataclass`, `Enum` and `NamedTuple` make of it is another thing in each
version. So its statement travels and is executed there, decorators and all; nothing else of the file is. Knows nothing
of pickles.
"""

from __future__ import annotations

import abc
import ast
import contextlib
import dis
import enum
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from . import pickler, source
from .source import FoundDefinition, Snippet, Text

_homes: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def home(cls: type) -> dict[str, Any]:
    """Return the globals of the class statement."""
    if cls in _homes:
        return _homes[cls]
    own = [
        function.__globals__ for function in functions(cls) if function.__globals__.get("__name__") == cls.__module__
    ]
    module = sys.modules.get(cls.__module__)
    return own[0] if own else vars(module) if module else {}


def functions(cls: type) -> Iterator[types.FunctionType]:
    """Yield every function among the attributes of a class, wherever its decorators keep it."""
    for attribute in list(vars(cls).values()):
        seen: set[int] = set()
        waiting = [attribute]
        while waiting:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, (type, types.ModuleType)):
                continue
            seen.add(id(value))
            if isinstance(value, types.FunctionType):
                yield value
            if type(value).__module__ in _WRAPPERS or isinstance(value, types.FunctionType):
                names = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func")
                waiting += [part for part in (getattr(value, name, None) for name in names) if part is not None]


_WRAPPERS = ("builtins", "functools", "clusterfn.api.decorator", "%s.stand_ins" % __package__)


def of_class(cls: type) -> Snippet | None:
    """Find the statement that made a class; None if this class can come from none."""
    codes = [function.__code__ for function in functions(cls)]
    module = sys.modules.get(cls.__module__)
    files = [*(code.co_filename for code in codes), getattr(module, "__file__", None), *source.files()]
    for file in dict.fromkeys(file for file in files if file):
        for text in source.texts(file):
            for found in reversed(text.found):
                if found.name == cls.__name__ and found.scope + found.name == cls.__qualname__:
                    snippet = _snippet(text, found, cls, codes)
                    if snippet is not None:
                        return snippet
    return None


def _snippet(text: Text, found: FoundDefinition, cls: type, codes: list[types.CodeType]) -> Snippet | None:
    first = source.first_line(found.node)
    own = [code for code in codes if code.co_filename == text.file]
    futures = {name for code in own for name in source.futures_of(code)} | _annotations(cls, found.node)
    try:
        snippet = Snippet(
            found.name, text.file, first, first, text.cut(found.node, first), tuple(sorted(futures)),
            imported=text.imported,
        )  # fmt: skip
        snippet = replace(snippet, free=_outer_names(snippet, found.functions), scope=found.scope)
        return snippet if _fits(snippet, found.node, cls, own) else None
    except (SyntaxError, ValueError, LookupError):  # its text alone means something else
        return None


def _annotations(cls: type, node: Any) -> set[str]:
    """Return whether annotations were left as text, as a set of `__future__` names."""
    kept = vars(cls).get("__annotations__", {})
    names = [each.target.id for each in _annotated(node) if not isinstance(each.annotation, ast.Constant)]
    return {"annotations"} if any(type(kept.get(name)) is str for name in names) else set()


def _annotated(node: Any) -> list[Any]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign) and _is_name(each.target)]


def _fits(snippet: Snippet, node: Any, cls: type, own: list[types.CodeType]) -> bool:
    """Return whether the class has what its statement says: the functions, annotated names and members."""
    said = list(_all_parts(compiled(snippet)))
    kept = vars(cls).get("__annotations__", {})
    targets: list[Any] = [each.target for each in ast.walk(node) if isinstance(each, ast.AnnAssign)]
    annotated = {target.id for target in targets if _is_name(target)}
    return (
        not any(_contradicts(code, said) for code in own)
        and all(each.target.id in kept for each in _annotated(node))
        and annotated.issuperset(kept)
        and all(_agrees(cls, name, value) for name, value in _literals(node))
    )


def _contradicts(code: types.CodeType, said: list[types.CodeType]) -> bool:
    """Return whether a function of the class is another than the one of that name in the statement."""
    named = [part for part in said if part.co_name == code.co_name]
    return bool(named) and not any(source.same(code, part) for part in named)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _literals(node: Any) -> Iterator[tuple[str, object]]:
    for each in node.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(each, "value", None), ast.Constant):
            yield target.id, each.value.value


def _agrees(cls: Any, name: str, value: object) -> bool:
    # Of a member or a default; other values travel by themselves.
    if issubclass(cls, enum.Enum):
        return name not in cls.__members__ or cls[name].value == value
    fields = vars(cls).get("__dataclass_fields__", {})
    if name in fields:
        return source.same(fields[name].default, value)
    return source.same(vars(cls).get("_field_defaults", {}).get(name, value), value)


def _all_parts(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in source.parts(code):
        yield part
        yield from _all_parts(part)


def _outer_names(snippet: Snippet, functions: tuple[ast.AST, ...]) -> tuple[str, ...]:
    """Return variables of the enclosing functions that a class statement may use."""
    code = compiled(snippet)
    used = {name for part in (code, *_all_parts(code)) for name in pickler.global_names(part)}
    bound = {name for function in functions for child in ast.iter_child_nodes(function) for name in _bound(child)}
    return tuple(sorted((bound & used) - {snippet.name}))


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds as variables of its function."""
    name = getattr(node, "name", None)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(name, str):
        yield name
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def compiled(snippet: Snippet) -> types.CodeType:
    """Compile a class statement, and nothing else.

    Raises:
        SyntaxError: It is not of this Python; the line is that of the file.
    """
    node: Any = source.parse(snippet)
    tree: Any = ast.parse(source.imports_of(snippet))
    if snippet.scope:
        around = "def %s(%s):\n pass\n return %s" % (_around(snippet), ", ".join(snippet.free), snippet.name)
        function: Any = ast.parse(around).body[0]
        function.body[0], node = node, function
    tree.body.append(node)
    code: types.CodeType = source.quietly(
        compile, tree, snippet.file, "exec", source.future_flags(snippet.futures), dont_inherit=True
    )
    return code


def _around(snippet: Snippet) -> str:
    """Return the name of the function around a class, which its methods' qualified names contain."""
    return snippet.scope.split(".")[-3] if snippet.scope.endswith(".<locals>.") else "around"


def execute(snippet: Snippet, scope: dict[str, Any], outer: Mapping[str, Any]) -> type:
    """Execute a class statement in these globals, with these variables of enclosing functions."""
    source.arrive(snippet)
    own: dict[str, Any] = {}
    with _found_in_module(scope):
        exec(compiled(snippet), scope, own)
        cls: Any = own[_around(snippet)](**outer) if snippet.scope else own[snippet.name]
    _homes[cls] = scope
    return cls  # type: ignore[no-any-return]


@contextlib.contextmanager
def _found_in_module(scope: Mapping[str, Any]) -> Iterator[None]:
    """Let decorators find in the module of a class what its annotations name, such as "ClassVar[int]"."""
    module = vars(sys.modules.get(str(scope.get("__name__")), types.ModuleType("none")))
    with _in_module:  # two threads may load statements of one module, in which a name may mean two things
        added = {name: value for name, value in scope.items() if name not in module}
        module.update(added)
        try:
            yield
        finally:
            for name, value in added.items():
                if module.get(name) is value:  # else the module's own code has given the name a meaning meanwhile
                    del module[name]


_in_module = threading.RLock()  # a statement may load another


def needed(snippet: Snippet, scope: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the globals that a statement uses while it is executed, and all that it and its functions use."""
    code = compiled(snippet)
    code = source.inner(code, _around(snippet)) if snippet.scope else code
    at_once = {name for part in (code, *_at_once(code)) for name in pickler.global_names(part)}
    names = dict.fromkeys(name for part in (code, *_all_parts(code)) for name in pickler.global_names(part))
    own = {name: scope[name] for name in names if name in scope and name != "__builtins__"}
    own = {name: value for name, value in own.items() if name not in snippet.free}
    return {name: own[name] for name in own if name in at_once}, own


def _at_once(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the codes that run with a statement: bodies of classes, and comprehensions in these."""
    for part in source.parts(code):
        if part in list(pickler.class_bodies(code)) or (part.co_name[0] == "<" and part.co_name != "<lambda>"):
            yield part
            yield from _at_once(part)


def outer_values(cls: type, names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return variables of enclosing functions, from the methods' closures and the bases; None if one is missing."""
    known = {base.__name__: base for base in cls.__bases__}
    for function in functions(cls):
        known.update(zip(function.__code__.co_freevars, map(_content, function.__closure__ or ())))
    return {name: known[name] for name in names} if known.keys() >= set(names) else None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def is_generated(cls: type) -> bool:
    """Return whether a decorator or metaclass made the class, so that only its statement can rebuild it."""
    return issubclass(cls, (enum.Enum, tuple)) or "__dataclass_fields__" in vars(cls)


def attributes(cls: type, snippet: Snippet) -> dict[str, Any]:
    """Return attributes that the statement may not recreate: values and functions that were set later."""
    if issubclass(cls, (enum.Enum, tuple)):
        return {}
    code = compiled(snippet)
    codes = list(_all_parts(code))
    code = source.inner(code, _around(snippet)) if snippet.scope else code
    bodies = [part for part in pickler.class_bodies(code) if part.co_name == snippet.name]
    stored = (each for body in bodies for each in dis.get_instructions(body) if each.opname == "STORE_NAME")
    said = {each.argval for each in stored}
    simple = type(cls) in (type, abc.ABCMeta)
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("__") and (name in said or (simple and not name.startswith("_")))
        # Neither classes nor descriptors: the statement makes these again.
        if (not isinstance(value, type) and not hasattr(type(value), "__get__")) or _is_later(value, codes)
    }


def _is_later(value: object, said: list[types.CodeType]) -> bool:
    """Return whether it is a function that the statement does not define or decorate."""
    if not isinstance(value, types.FunctionType) or hasattr(value, "__wrapped__"):
        return False
    return not any(source.same(value.__code__, code) for code in said)
