"""Find and compile the source of functions, for a call between two minor versions of Python.

A text counts only if compiling it here gives the very byte code of the function. That distinguishes the lambdas of one
line, and sees a file that was changed since. Nothing around the function is compiled with it, or run. Knows nothing of
pickles.
"""

from __future__ import annotations
import __future__

import ast
import collections
import functools
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from . import code_parts

Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LAMBDA = "<lambda>"
# CPython sets this flag (CO_NESTED) on code inside a function. It changes nothing about how the code runs.
_NESTED = 0x10
_LOCALS = "<locals>"


class NoSource(Exception):
    """Something cannot be sent as text; the message names it, where it is, and why."""


@dataclass(frozen=True)
class Snippet:
    """The text of one function or class, and what compiling it needs to know of the code around it.

    Attributes:
        name: Its name; "<lambda>" for a lambda.
        file: Where it was found.
        line: The line of the file where `text` begins.
        first: The line that it says of itself: that of its first decorator.
        text: With the blanks before it; a function without its decorators.
        futures: What was imported from `__future__`.
        free: Variables of the functions around it that it uses.
        scope: What precedes its name in its qualified name, such as "outer.<locals>.".
        imported: Names that the file imports at its top level, or `super` if it is used there: Python compiles calls of
            their attributes differently.
    """

    name: str
    file: str
    line: int
    first: int
    text: str
    futures: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    scope: str = ""
    imported: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundDefinition:
    """A function or class in a text, with the classes and functions around it."""

    node: Definition
    scope: str
    functions: tuple[Definition, ...]

    @property
    def name(self) -> str:
        return getattr(self.node, "name", _LAMBDA)


class Text:
    """A file, or the part of one that arrived here, with every function and class in it.

    Args:
        whole: The file, or a part that arrived, as a snippet.
        tree: Its syntax tree.
    """

    def __init__(self, whole: Snippet, tree: ast.AST) -> None:
        self.file = whole.file
        self.imported = whole.imported
        self._lines = whole.text.split("\n")
        self._line = whole.line
        self.found = list(_definitions(tree, whole.scope))

    def cut(self, node: Definition, first: int) -> str:
        """Return the source of a node from the line `first` on, in its own columns."""
        lines = self._lines[first - self._line : (node.end_lineno or first) - self._line + 1]
        lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
        if isinstance(node, ast.Lambda):
            lines[0] = " " * node.col_offset + lines[0].encode()[node.col_offset :].decode()
        return "\n".join(lines)


def _definitions(tree: ast.AST, scope: str) -> Iterator[FoundDefinition]:
    functions: tuple[Definition, ...] = ()
    waiting = collections.deque([(tree, scope, functions)])
    while waiting:
        node, scope, functions = waiting.popleft()
        if isinstance(node, ast.ClassDef):
            yield FoundDefinition(node, scope, functions)
            scope = "%s%s." % (scope, node.name)
        elif isinstance(node, _FUNCTIONS):
            yield FoundDefinition(node, scope, functions)
            scope = "%s%s.<locals>." % (scope, getattr(node, "name", _LAMBDA))
            functions = (*functions, node)
        waiting.extend((child, scope, functions) for child in ast.iter_child_nodes(node))


_arrived: dict[str, dict[Snippet, Text]] = {}


def texts(file: str) -> Iterator[Text]:
    """Yield what is known of a file: the whole, if it can be read, then the parts that arrived."""
    linecache.checkcache(file)
    try:
        text = "".join(linecache.getlines(file))
    except SyntaxError:
        # Up to Python 3.9 `linecache` raises this for a file that is not text.
        text = ""
    whole = _whole(file, text) if text else None
    if whole is not None:
        yield whole
    yield from reversed(list(_arrived.get(file, {}).values()))


@functools.lru_cache(maxsize=64)
def _whole(file: str, text: str) -> Text | None:
    try:
        tree = quietly(ast.parse, text)
    except (SyntaxError, ValueError):
        # The file is not Python, or needs a newer Python. Parts of it may have arrived all the same.
        return None
    return Text(Snippet("", file, 1, 1, text, imported=tuple(sorted(set(_imports(tree))))), tree)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and node.id == "super":
            # A module that uses `super` as a name compiles `super().f()` in another way, as ordinary calls.
            yield node.id
        elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _imports(node)


def files() -> list[str]:
    """List sources without a file: cells of a notebook, lines of a prompt, and parts that arrived; newest first."""
    virtual = [file for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None]
    return [*reversed(_arrived), *reversed(virtual)]


def arrive(snippet: Snippet) -> None:
    """Keep a part of a file whose whole is elsewhere, so that what is defined in it can travel on."""
    arrived = _arrived.setdefault(snippet.file, {})
    if snippet not in arrived:
        tree = parse(snippet)
        arrived[snippet] = Text(snippet, tree)


# Two threads that change and restore the filters at the same time would leave them changed.
_filters = threading.Lock()


def quietly(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call `work` without the compiler's warnings, which were given when the file was loaded."""
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work(*args, **options)


def of_code(code: types.CodeType) -> Snippet:
    """Find the source that compiles to this code; raise NoSource if none is found, or another code runs."""
    seen = False
    for text in texts(code.co_filename):
        seen = True
        named = [definition for definition in text.found if definition.name == code.co_name]
        functions = [definition for definition in named if isinstance(definition.node, _FUNCTIONS)]
        for definition in sorted(functions, key=lambda found: abs(first_line(found.node) - code.co_firstlineno)):
            snippet = _snippet(text, definition, code)
            if snippet is not None:
                return snippet
    name = getattr(code, "co_qualname", code.co_name)
    why = _CHANGED if seen else _NONE
    raise NoSource("%s (%s, line %d): %s" % (name, code.co_filename, code.co_firstlineno, why))


_NONE = "its source is not available; it was typed at a prompt that keeps none, or made by exec() or a tool"
_CHANGED = "its source is not what runs: the file was changed since it was loaded, or a tool rewrote the function"


def _snippet(text: Text, definition: FoundDefinition, code: types.CodeType) -> Snippet | None:
    line = definition.node.lineno
    first = first_line(definition.node)
    names = set(names_of(code))
    try:
        snippet = Snippet(
            definition.name,
            text.file,
            line,
            first,
            text.cut(definition.node, line),
            futures_of(code),
            code.co_freevars,
            definition.scope,
            tuple(name for name in text.imported if name in names),
        )
        # A source counts only if it compiles to exactly this code. That tells two lambdas of one line apart, and
        # notices an edited file.
        return snippet if same(_compile(snippet), code) else None
    except (SyntaxError, ValueError, LookupError):
        # The text alone means something else than in its file.
        return None


def first_line(node: Definition) -> int:
    """Return the line of the first decorator, or of the definition itself."""
    decorators = getattr(node, "decorator_list", ())
    return decorators[0].lineno if decorators else node.lineno


def futures_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that the code's file imports from `__future__`."""
    return tuple(name for name in _FUTURES if code.co_flags & _FUTURES[name])


def future_flags(names: Sequence[str]) -> int:
    """Return the compiler flags for these names."""
    return sum(_FUTURES[name] for name in names)


_FUTURES: Mapping[str, int] = {
    name: getattr(__future__, name).compiler_flag for name in ("annotations", "barry_as_FLUFL")
}


def compiled(snippet: Snippet) -> types.CodeType:
    """Compile the function by this Python; raise SyntaxError with the file's line if that is not possible."""
    arrive(snippet)
    return _compile(snippet)


def parse(snippet: Snippet, version: tuple[int, int] | None = None) -> Definition:
    """Parse the definition alone, with the line numbers of its file.

    Args:
        snippet: Which.
        version: Reject what a Python of that version does not know, as far as this one can know.

    Raises:
        SyntaxError: As above.
    """
    try:
        tree = quietly(ast.parse, alone(snippet), feature_version=version)
    except SyntaxError as error:
        line = (error.lineno or 2) + snippet.line - 2
        lines = snippet.text.split("\n")
        shown = lines[line - snippet.line] if 0 <= line - snippet.line < len(lines) else None
        raise SyntaxError(error.msg, (snippet.file, line, error.offset, shown)) from None
    ast.increment_lineno(tree, snippet.line - 2)
    top: Any = tree.body[0]
    if isinstance(top, ast.If):
        top = top.body[0]
    only: Definition = getattr(top, "value", top)
    return only


def reject_newer(snippet: Snippet, version: tuple[int, int]) -> None:
    """Reject syntax that an older Python lacks, as far as the parser knows: raise NoSource with the line."""
    try:
        parse(snippet, version)
    except SyntaxError as error:
        # The parser names the line after a statement that an older Python lacks.
        lines = (node.lineno for node in ast.walk(parse(snippet)) if type(node).__name__ in _NEWER)  # type: ignore[attr-defined]
        facts = (snippet.name, snippet.file, next(lines, error.lineno or snippet.line), *version, error.msg)
        raise NoSource("%s (%s, line %d): Python %d.%d does not have this syntax: %s" % facts) from None


# Python has these statements since 3.10, 3.11 and 3.12.
_NEWER = ("Match", "TryStar", "TypeAlias")


def alone(snippet: Snippet) -> str:
    """Return its text as a file: the first line of it is the second one."""
    if snippet.name == _LAMBDA:
        return "(\n%s\n)" % snippet.text
    is_indented = snippet.text[:1] in (" ", "\t")
    return ("if 1:\n%s\n" if is_indented else "\n%s\n") % snippet.text


def _compile(snippet: Snippet) -> types.CodeType:
    """Compile one function within functions and classes that replace those around it, of which it has its names."""
    *names, _ = snippet.scope.split(".")
    places = [(name, follower == _LOCALS) for name, follower in zip(names, [*names[1:], ""]) if name != _LOCALS]
    around = [("around" if name == _LAMBDA else name, is_function) for name, is_function in places]
    is_in_class = not all(is_function for _, is_function in around)
    # Python has `__class__` itself where there is a class.
    free = [name for name in snippet.free if name.isidentifier() and not (is_in_class and name == "__class__")]
    if free and not any(is_function for _, is_function in around):
        around.insert(0, ("around", True))
    frame: Any = ast.parse(imports_of(snippet))
    body = frame.body
    for name, is_function in around:
        form = "def %s(%s): pass" if is_function else "class %s(%s): pass"
        body.extend(ast.parse(form % (name, ", ".join(free) if is_function else "")).body)
        body = body[-1].body
    node = parse(snippet)
    body.append(ast.copy_location(ast.Expr(node), node) if isinstance(node, ast.Lambda) else node)
    _strip(node, snippet)
    code: types.CodeType = quietly(
        compile, frame, snippet.file, "exec", future_flags(snippet.futures), dont_inherit=True
    )
    for name in (*(name for name, _ in around), snippet.name):
        code = inner(code, name)
    return code


def inner(code: types.CodeType, name: str) -> types.CodeType:
    """Return the code of that name directly inside another; raise LookupError if no file has it."""
    for part in code_parts.parts(code):
        if part.co_name == name:
            return part
    raise LookupError(name)


def imports_of(snippet: Snippet) -> str:
    """Return imports that the compiler sees and that never run."""
    return "if 0:\n pass\n" + "".join(" import %s\n" % name for name in snippet.imported if name != "*")


def _strip(node: Any, snippet: Snippet) -> None:
    """Remove decorators, defaults and annotations: they are evaluated outside the function's own code."""
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
    node.decorator_list = []
    node.returns = None
    node.type_params = []
    node.lineno = snippet.first


_COMPARED = ("co_code", "co_name", "co_names", "co_varnames", "co_freevars", "co_cellvars")
_COMPARED_COUNTS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount")


def same(one: object, other: object) -> bool:
    """Whether two constants, or codes with all that is in them, are the same, whatever their position."""
    if type(one) is not type(other):
        return False
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        alike = all(getattr(one, name) == getattr(other, name) for name in _COMPARED + _COMPARED_COUNTS)
        return alike and not (one.co_flags ^ other.co_flags) & ~_NESTED and same(_constants(one), _constants(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (float, complex)):
        # This tells 0.0 from -0.0, and finds nan equal to itself.
        return repr(one) == repr(other)
    return one == other


def _constants(code: types.CodeType) -> tuple[object, ...]:
    """Return the code's constants, without the qualified names that Python up to 3.10 puts after nested codes."""
    if sys.version_info >= (3, 11):
        return code.co_consts
    before = (None, *code.co_consts)
    return tuple(value for last, value in zip(before, code.co_consts) if not isinstance(last, types.CodeType))


def names_of(code: types.CodeType) -> Iterator[str]:
    """Yield every name in a code and in those inside it: globals, attributes, imports and variables.

    CPython compiles `np.f()` by what the module imports as `np`, also where `np` is a variable of the function.
    """
    for part in code_parts.codes(code):
        for names in (part.co_names, part.co_varnames, part.co_cellvars, part.co_freevars):
            yield from names
