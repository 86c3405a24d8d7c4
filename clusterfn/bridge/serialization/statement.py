"""Find and execute the source of classes, for a call between two minor versions of Python.

A class is more than its functions: what `@dataclass`, `Enum` and `NamedTuple` make of it is another thing in each
version. So its statement travels and is executed there, decorators and all; nothing else of the file is. Knows nothing
of pickles.
"""

from __future__ import annotations

import abc
import ast
import dis
import enum
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from . import classes, code_parts, hints, source
from .classes import core
from .source import FoundDefinition, Snippet, Text

_homes: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def home(cls: type) -> dict[str, Any]:
    """Return the globals of the class statement."""
    if cls in _homes:
        return _homes[cls]
    own = [
        function.__globals__ for function in functions(cls) if function.__globals__.get("__name__") == cls.__module__
    ]
    if own:
        return own[0]
    module = sys.modules.get(cls.__module__)
    return vars(module) if module else {}


def functions(cls: type) -> Iterator[types.FunctionType]:
    """Yield every function among the attributes of a class, wherever its decorators keep it."""
    for attribute in list(vars(cls).values()):
        yield from _functions_in(attribute)


def _functions_in(attribute: Any) -> Iterator[types.FunctionType]:
    seen: set[int] = set()
    waiting = [attribute]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or issubclass(type(value), (type, types.ModuleType)):
            continue
        seen.add(id(value))
        if type(value) is types.FunctionType:
            yield value
        if type(value).__module__ in _WRAPPERS or type(value) is types.FunctionType:
            names = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func")
            waiting += [part for part in (getattr(value, name, None) for name in names) if part is not None]


_WRAPPERS = ("builtins", "functools", "clusterfn.api.decorator", "%s.stand_ins" % __package__)


def of_class(cls: type) -> Snippet | None:
    """Find the statement that made a class; None if this class can come from none.

    A class of a library, of an earlier cell or of another branch may have its name. So only texts of its own module
    count, and its line, functions and bases decide between statements that fit.
    """
    codes = [function.__code__ for function in functions(cls) if function.__globals__ is home(cls)]
    module = sys.modules.get(cls.__module__)
    files = [*(code.co_filename for code in codes), getattr(module, "__file__", None), *source.files()]
    found: list[tuple[int, Snippet]] = []
    for file in dict.fromkeys(file for file in files if file):
        for text in source.texts(file):
            for definition in reversed(text.found):
                if definition.name == cls.__name__ and definition.scope + definition.name == cls.__qualname__:
                    snippet = _snippet(text, definition, cls, codes)
                    if snippet is not None:
                        signs = _signs(definition.node, cls, [code for code in codes if code.co_filename == file])
                        if all(signs):
                            return snippet
                        found.append((sum(signs), snippet))
    return max(found, key=operator.itemgetter(0))[1] if found else None


def _signs(node: Any, cls: type, own: list[types.CodeType]) -> list[bool]:
    """Return whether a statement has the line of a class, is around one of its functions, and names its bases."""
    first = source.first_line(node)
    ids = set(map(id, cls.__mro__))
    names = [kind.__name__ for kind in cls.__mro__]

    def is_base(base: ast.expr) -> bool:
        value = home(cls).get(base.id) if isinstance(base, ast.Name) else None
        name = getattr(base, "attr", getattr(base, "id", None))
        # A call, or a function such as `NamedTuple`, says nothing.
        return id(value) in ids or name in (None, *names) or not isinstance(value, (type, type(None)))

    return [
        # This attribute exists from Python 3.13 on.
        vars(cls).get("__firstlineno__", first) == first,
        not own or any(first <= code.co_firstlineno <= node.end_lineno for code in own),
        all(map(is_base, node.bases)) and (bool(node.bases) or cls.__bases__[0] is object),
    ]


def _snippet(text: Text, definition: FoundDefinition, cls: type, codes: list[types.CodeType]) -> Snippet | None:
    if _is_apart(definition, cls):
        return None
    first = source.first_line(definition.node)
    own = [code for code in codes if code.co_filename == text.file]
    futures = {name for code in own for name in source.futures_of(code)} | _annotations(cls, definition.node)
    try:
        snippet = Snippet(
            definition.name,
            text.file,
            first,
            first,
            text.cut(definition.node, first),
            tuple(sorted(futures)),
            imported=text.imported,
        )
        snippet = replace(snippet, free=_outer_names(snippet, definition.functions), scope=definition.scope)
        return snippet if _fits(snippet, definition.node, cls, own) else None
    except (SyntaxError, ValueError, LookupError):
        # The text alone means something else than in its file.
        return None


def _is_apart(definition: FoundDefinition, cls: type) -> bool:
    """Return whether a decorator made something else of a class: its statement would make that, not the class."""
    value: Any = types.SimpleNamespace(**home(cls))
    # A class that was made in a function has no name in its module.
    for name in (definition.scope + definition.name).split("."):
        value = vars(value).get(name, cls) if hasattr(value, "__dict__") else cls
    return bool(getattr(definition.node, "decorator_list", ())) and value is not cls


def _annotations(cls: type, node: Any) -> set[str]:
    """Return whether annotations were left as text, as a set of `__future__` names."""
    kept = vars(cls).get("__annotations__", {})
    names = [line.target.id for line in _annotated(node) if not isinstance(line.annotation, ast.Constant)]
    return {"annotations"} if any(type(kept.get(name)) is str for name in names) else set()


def _annotated(node: Any) -> list[Any]:
    return [line for line in node.body if isinstance(line, ast.AnnAssign) and _is_name(line.target)]


def _fits(snippet: Snippet, node: Any, cls: type, own: list[types.CodeType]) -> bool:
    """Return whether the class has what its statement says: the functions, annotated names and members."""
    _, *codes = code_parts.codes(compiled(snippet))
    kept = vars(cls).get("__annotations__", {})
    targets: list[Any] = [inner.target for inner in ast.walk(node) if isinstance(inner, ast.AnnAssign)]
    annotated = {target.id for target in targets if _is_name(target)}
    # No function of the class is another than the one of that name in the statement.
    named = [(code, [part for part in codes if part.co_name == code.co_name]) for code in own]
    return (
        all(any(source.same(code, part) for part in parts) for code, parts in named if parts)
        and all(line.target.id in kept for line in _annotated(node))
        and annotated.issuperset(kept)
        and all(_agrees(cls, name, value) for name, value in _literals(node))
    )


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _literals(node: Any) -> Iterator[tuple[str, object]]:
    for statement in node.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(statement, "value", None), ast.Constant):
            yield target.id, statement.value.value


def _agrees(cls: Any, name: str, value: object) -> bool:
    # Only members and defaults are compared: other values are pickled beside the statement.
    if issubclass(cls, enum.Enum):
        return name not in cls.__members__ or cls[name].value == value
    fields = vars(cls).get("__dataclass_fields__", {})
    if name in fields:
        return source.same(fields[name].default, value)
    return source.same(vars(cls).get("_field_defaults", {}).get(name, value), value)


def _outer_names(snippet: Snippet, functions: tuple[ast.AST, ...]) -> tuple[str, ...]:
    """Return variables of the enclosing functions that a class statement may use."""
    code = compiled(snippet)
    used = {name for part in code_parts.codes(code) for name in code_parts.global_names(part)}
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
    """Compile a class statement alone; raise SyntaxError with the file's line if it is not of this Python."""
    node: Any = source.parse(snippet)
    tree: Any = ast.parse(source.imports_of(snippet))
    if snippet.scope:
        around = "def %s(%s):\n pass\n return %s" % (_around(snippet), ", ".join(snippet.free), snippet.name)
        function: Any = ast.parse(around).body[0]
        function.body[0] = node
        node = function
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
    with hints.found_in_module(scope):
        exec(compiled(snippet), scope, own)
        values = [outer[name] for name in snippet.free]
        cls: Any = own[_around(snippet)](*values) if snippet.scope else own[snippet.name]
    _homes[cls] = scope
    return cls  # type: ignore[no-any-return]


def needed(snippet: Snippet, scope: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the globals that a statement uses while it is executed, and all that it and its functions use."""
    code = compiled(snippet)
    code = source.inner(code, _around(snippet)) if snippet.scope else code
    at_once = {name for part in (code, *_at_once(code)) for name in code_parts.global_names(part)}
    names = dict.fromkeys(name for part in code_parts.codes(code) for name in code_parts.global_names(part))
    own = {name: scope[name] for name in names if name in scope and name != "__builtins__"}
    own = {name: value for name, value in own.items() if name not in snippet.free}
    return {name: own[name] for name in own if name in at_once}, own


def submodules(snippet: Snippet, values: Iterable[Any]) -> list[str]:
    """Return the modules that a statement and its functions may use as attributes of these packages."""
    code = compiled(snippet)
    held = list(values)
    modules = (module for part in code_parts.codes(code) for module in core._find_imported_submodules(part, held))
    return list(dict.fromkeys(module.__name__ for module in modules))


def _at_once(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the codes that run with a statement: bodies of classes, and comprehensions in these."""
    for part in code_parts.parts(code):
        if part in list(code_parts.class_bodies(code)) or (part.co_name[0] == "<" and part.co_name != "<lambda>"):
            yield part
            yield from _at_once(part)


def outer_values(cls: type, names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return variables of enclosing functions, from the methods' closures and the bases; None if one is missing."""
    variables: dict[str, Any] = {base.__name__: base for base in cls.__bases__}
    for function in functions(cls):
        # A variable that has no value yet counts as None.
        held = [next(iter(classes.content(cell)), None) for cell in function.__closure__ or ()]
        variables.update(zip(function.__code__.co_freevars, held))
    return {name: variables[name] for name in names} if variables.keys() >= set(names) else None


def attributes(cls: Any, snippet: Snippet) -> dict[str, Any]:
    """Return attributes that the statement may not recreate: values, functions and the text that were set later."""
    code = compiled(snippet)
    _, *codes = code_parts.codes(code)
    code = source.inner(code, _around(snippet)) if snippet.scope else code
    bodies = [part for part in code_parts.class_bodies(code) if part.co_name == snippet.name]
    steps = (instruction for body in bodies for instruction in dis.get_instructions(body))
    stored_names = {instruction.argval for instruction in steps if instruction.opname == "STORE_NAME"}
    node = source.parse(snippet)
    text = inspect.cleandoc(ast.get_docstring(node) or "") if isinstance(node, ast.ClassDef) else ""
    simple = type(cls) is type or type(cls) is abc.ABCMeta
    # The statement itself makes members of an enumeration, and fields of a tuple.
    is_by_statement = issubclass(cls, (enum.Enum, tuple))
    members = getattr(cls, "__members__", ()) if issubclass(cls, enum.Enum) else ()

    def is_set(name: str, value: object) -> bool:
        if name == "__doc__":
            return type(value) is str and inspect.cleandoc(value) != text
        if name[:2] == "__":
            plain = name in stored_names and type(value) in _PLAIN and name not in _OF_STATEMENT
            return _is_of_script(value) or (plain and not is_by_statement)
        if is_by_statement:
            return name[0] != "_" and name not in stored_names and name not in members
        return name in stored_names or (simple and _is_by_hand(name, value))

    return {
        name: value
        for name, value in vars(cls).items()
        if is_set(name, value)
        # Classes and descriptors are left out, because the statement makes them again.
        if (not issubclass(type(value), type) and not hasattr(type(value), "__get__")) or _is_later(value, codes)
    }


_PLAIN = {str, bytes, int, float, bool}
_OF_STATEMENT = ("__module__", "__qualname__", "__firstlineno__", "__slots__")


def _is_by_hand(name: str, value: object) -> bool:
    """Return whether an attribute is none that `abc`, `typing` or an installed package keeps for itself."""
    if name[0] != "_":
        return True
    return not name.startswith(("_abc_", "_is_")) and not classes.is_installed(type(value).__module__)


def _is_of_script(value: object) -> bool:
    """Return whether a special method is a function of the script, or one of `functools.total_ordering`."""
    if type(value) is not types.FunctionType:
        return False
    file = value.__code__.co_filename
    home = value.__globals__.get("__name__")
    generated = file.startswith("<") and not file.startswith("<ipython")
    return home == "functools" or not (generated or classes.is_installed(home) or classes.is_of_library(file))


def _is_later(value: object, codes: list[types.CodeType]) -> bool:
    """Return whether it is a function, property or the like of which the statement defines or decorates nothing."""
    functions_inside = list(_functions_in(value))
    if not functions_inside or (type(value) is types.FunctionType and hasattr(value, "__wrapped__")):
        return False
    return not any(source.same(function.__code__, code) for function in functions_inside for code in codes)
