"""Find what this process has set in the user's own modules since their import, and in `os.environ`.

A job imports the files of the modules again. Of modules, only numbers, strings and new names count, and only if the
call may read them and nothing that is sent may set them.
clusterfn warns only if it is certain. docs/decisions/0069-changed-modules.md says why it does not send the changes.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import os
import re
import sys
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.config.forms import is_set_by_clusterfn
from clusterfn.packing import code_facts, edited_modules

if TYPE_CHECKING:
    from clusterfn.hosts.bridge_bundle import FileBundle

_NUMBERS = (bool, int, float, complex)
_SIMPLE = frozenset([*_NUMBERS, str, type(None)])
_MISSING = object()
# A value with a backslash is left out, because to parse it may print a warning of Python.
_ASSIGNMENT = re.compile(
    r"""^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[ \t]*((?=[-+.\d'"(TFNRUru])[^\\\n]{1,200}(?:\n[ \t)][^\\\n]*){0,50})$""",
    re.MULTILINE,
)
# With these, code can set names that it does not name. The last one makes globals of the members of an enumeration.
_SETTERS = (
    "__globals__", "__setattr__", "_convert_", "delattr", "exec", "f_globals", "f_locals", "globals", "locals",
    "setattr", "vars",
)  # fmt: skip
# Values of such names are not shown.
_PRIVATE = re.compile(r"pass|secret|token|key|pin(?![a-z])|code", re.IGNORECASE)
# More changes were made by a program.
_MOST = 20
_DYNAMIC_NAMES = frozenset([*_SETTERS, "__dict__", "patch"])
# What an object does to itself is left out.
_DYNAMIC_TEXT = re.compile(
    rf"\b(?:{'|'.join(_SETTERS)})\b(?!\(self\b)|(?<!self\.)\b__dict__\b|\bpatch(?:\.\w+)?\(".encode()
)
_VARIABLE_SETTERS = frozenset(["putenv", "setdefault", "update"])
_TAKES_ALL = re.compile(rb"\bimport\s*\(?\s*\*")


class _Source(NamedTuple):
    """What was read from the source of a module.

    Attributes:
        literals: What lines at the top level set to a number, a string, a bool, None or a tuple of these.
        words: All words in it.
    """

    literals: Mapping[str, object]
    words: frozenset[str]


class _Change(NamedTuple):
    """A name of a module whose value is not the one that importing the module gives it.

    Attributes:
        there: The value by the source; `_MISSING` if the source does not have the name.
    """

    module: str
    name: str
    path: Path
    here: object
    there: object

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"

    def describe(self) -> str:
        """Say what the job finds, and what to do. A string may be a password, so only numbers are shown."""
        source = f"which imports {self.module} from its file: set it inside the function"
        if self.there is _MISSING:
            return f"{self.key} does not exist in the job, {source}"
        if not _PRIVATE.search(self.name) and all(type(value) in _NUMBERS for value in (self.here, self.there)):
            return f"{self.key} is {self.here!r} on this machine, and {self.there!r} in the job, {source}"
        return f"{self.key} was changed on this machine, but not in the job, {source}"


def find(modules: Collection[str], sources: FileBundle, functions: Collection[types.FunctionType]) -> dict[str, str]:
    """Return what a call would find changed on this machine but not in its job, such as "conf.LR", with a sentence.

    Args:
        modules: The user's own modules that are sent.
        sources: Their files.
        functions: Those that are sent by value.
    """
    try:
        changes = [change for name in modules for change in _changes(name)]
        if len(changes) > _MOST:
            return {}
        return {change.key: change.describe() for change in changes if _is_missed(change, sources, functions)}
    except Exception:  # noqa: BLE001 - the user's modules and values, whose code may raise anything
        return {}


def _changes(name: str) -> Iterator[_Change]:
    module = sys.modules.get(name)
    # A module of a class of its own may compute what it has.
    if type(module) is not types.ModuleType or name in edited_modules.differing:
        return
    path = Path(attribute(module, "__file__") or "")
    if path.suffix != ".py":
        return
    scope, source = vars(module), _read(path, path.stat().st_mtime_ns)
    for key, there in source.literals.items():
        here = scope.get(key, _MISSING)
        if here is not there and here is not _MISSING and not _is_same(here, there):
            yield _Change(name, key, path, here, there)
    # A module with this function may have any name.
    for key in scope.keys() - source.words if "__getattr__" not in scope else ():
        is_usual = key.isascii() and key.isidentifier() and not key.startswith("__")
        # An import sets a module in its package. Libraries set names too, as `sympy.var` does.
        if is_usual and f"{name}.{key}" not in sys.modules and _is_set_by_script(key):
            yield _Change(name, key, path, scope[key], _MISSING)


def _is_set_by_script(name: str) -> bool:
    lines = linecache.getlines(attribute(sys.modules["__main__"], "__file__") or "")
    return any(re.search(rf"\.{name}\s*(?::[^=]*)?=(?!=)", line) for line in lines)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, mtime_ns: int) -> _Source:
    """Read a file; the time is that of its last change."""
    text = importlib.util.decode_source(path.read_bytes())
    literals = {}
    for name, value in _ASSIGNMENT.findall(text):
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            # The value is computed, or the line is part of a string.
            continue
        if _is_simple(literal) and not name.startswith("__"):
            literals[name] = literal
    return _Source(literals, frozenset(re.findall(r"\w+", text)))


def _is_simple(value: object) -> bool:
    return type(value) in _SIMPLE or (type(value) is tuple and all(map(_is_simple, value)))


def _is_same(here: Any, there: Any) -> bool:
    """Whether a value is that of the source. It calls no code of the user's."""
    if type(there) in _NUMBERS and (type(here) in _NUMBERS or type(here).__module__ == "numpy"):
        return bool(here == there)
    if type(there) is tuple:
        return type(here) is tuple and len(here) == len(there) and all(map(_is_same, here, there))
    # A float of NumPy is a float, too.
    kind: Any = type(there)
    return issubclass(type(here), kind) and kind.__eq__(here, there) is True


def _is_missed(change: _Change, sources: FileBundle, functions: Collection[types.FunctionType]) -> bool:
    """Whether the call may read what was changed, and nothing that is sent may set it."""
    parts = [part for function in functions for part in code_facts.read(function.__code__)]
    stores = {store.name for part in parts for store in part.stores if store.kind != "NAME"}
    if change.name in stores or any(_DYNAMIC_NAMES.intersection(part.names) for part in parts):
        return False
    there = None if change.there is _MISSING else repr(change.there)
    is_read = _is_read(change.path.read_bytes(), change.module, change.name, there, _texts(sources))
    return is_read is not None and (is_read or any(_reads(function, change) for function in functions))


def _reads(function: types.FunctionType, change: _Change) -> bool:
    names = {name for part in code_facts.read(function.__code__) for name in part.names}
    scope = function.__globals__
    # A variable of the script with the same name has its own value.
    is_own = change.name in scope and not any(scope.get(each) is sys.modules[change.module] for each in names)
    return change.name in names and not is_own


@functools.lru_cache(maxsize=1024)
def _is_read(own: bytes, module: str, name: str, there: str | None, texts: tuple[bytes, ...]) -> bool | None:
    """Whether sources that are sent read a name of a module; None if they may set it.

    Args:
        own: The source of the module.
        there: The value in it, as text; None: it has no such name.
    """
    others = [data for data in texts if data != own]
    naming = [own, *(data for data in others if name.encode() in data)]
    if _TAKES_ALL.search(own) or any(map(_DYNAMIC_TEXT.search, [own, *others])):
        return None
    try:
        with warnings.catch_warnings():
            # The import has shown what Python warns of.
            warnings.simplefilter("ignore")
            read = [code_facts.read(compile(data, "", "exec", dont_inherit=True)) for data in naming]
    except (SyntaxError, ValueError):
        return None
    values = [repr(store.value) for part in read[0] for store in part.stores if store.name == name]
    stores = [store[:2] for parts in read[1:] for part in parts for store in part.stores]
    if ("ATTR", name) in stores or there not in (None, *(values if len(values) == 1 else ())):
        return None
    last = module.rpartition(".")[2].encode()
    knowing = (parts for data, parts in zip(naming, read) if data is own or last in data)
    return any(name in part.reads for parts in knowing for part in parts)


# what it has set in `os.environ`


def variables(functions: Collection[types.FunctionType], sources: FileBundle | None) -> tuple[str, ...]:
    """Return the names of variables that this program has set and the call may use, but does not set itself.

    A job has the variables of its host, of `env=` and of `secrets=`. A library sets variables too, so only those count
    that the user's own code names.

    Args:
        functions: Those that are sent by value.
        sources: The user's own modules that are sent.
    """
    before = _at_start()
    names = tuple(sorted(name for name, value in os.environ.items() if before.get(name) != value))
    # A program that has given itself a title has overwritten what the system shows.
    if not names or before.keys().isdisjoint(os.environ):
        return ()
    script = attribute(sys.modules["__main__"], "__file__") or ""
    return _missed(names, tuple(each.__code__ for each in functions), _texts(sources) if sources else (), script)


def _texts(sources: FileBundle) -> tuple[bytes, ...]:
    return tuple(data for file, data in sources.files.items() if file.endswith(".py"))


# Searching all sources at each call of a session would take a quarter of its time.
@functools.lru_cache(maxsize=256)
def _missed(
    names: tuple[str, ...], functions: tuple[types.CodeType, ...], texts: tuple[bytes, ...], script: str
) -> tuple[str, ...]:  # fmt: skip
    parts = [part for each in functions for part in code_facts.read(each)]
    program = "".join(linecache.getlines(script)).encode()
    used = (name for name in names if _is_variable_missed(name, parts, texts, program))
    return tuple(name for name in used if not is_set_by_clusterfn(name))


@functools.lru_cache(maxsize=1)
def _at_start() -> dict[str, str]:
    """Return the variables with which this process began; {} if the system does not show them."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if b"=" in entry)


def _is_variable_missed(
    name: str, parts: Collection[code_facts.Facts], texts: Collection[bytes], program: bytes
) -> bool:
    """Whether the call may use the variable, and nothing that is sent may set it."""
    word = os.fsencode(name)
    near = [text for text in texts if word in text]
    using = [part for part in parts if name in part.constants]
    if not near and not using and word not in program:
        return False
    quoted = rb"""(['"])%b\1""" % re.escape(word)
    sets = re.compile(rb"(?:environ\s*\[|putenv\(|setdefault\()\s*%b\s*(?:,|\]\s*=(?!=))" % quoted)
    may_set = any(name in part.keys or not _VARIABLE_SETTERS.isdisjoint(part.names) for part in using)
    if may_set or any(map(sets.search, near)):
        return False
    return bool(using) or any(re.search(quoted, text) for text in near) or sets.search(program) is not None
