"""What a function's code does that has another effect in a job: calls of decorated functions, assigned globals,
random numbers from a generator that all items of a map share, and numbers that depend on a seed of the script.

Read from byte code before anything is sent. What may happen or not, such as a call in a branch, gets a warning.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import functools
import linecache
import os
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.errors import ConfigError
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts
from clusterfn.packing.project import modules as own_modules

_SENDING = ("map", "script", "submit")
_DECORATED = "clusterfn.api.decorator"
# These attributes mean the same in a job.
_PLAIN = ("local",)
# Classes of generators of random numbers, and the packages that they are in.
_GENERATORS = {"Generator": ("numpy", "torch"), "RandomState": ("numpy",), "Random": ("random",)}
# Attributes by which a function has a generator begin with another state, or derives others from it.
_SEEDING = ("bit_generator", "jumped", "manual_seed", "seed", "set_state", "setstate", "spawn")
# Code with one of these seeds itself.
_SEEDS = frozenset(["manual_seed", "seed", "seed_everything", "set_random_seed", "set_seed"])
# Code with one of these has a generator of its own.
_OWN_GENERATORS = frozenset(["Generator", "RandomState", "default_rng"])
# At most this many functions are read.
_MOST = 300


class _Used(NamedTuple):
    """An object that a function uses from outside, or of a module the first member that is no module.

    Attributes:
        variable: The value of the variable by which the function finds it.
        attribute: What the function takes of the object; "" for the object itself.
        is_certain: Whether each call comes to it.
    """

    name: str
    variable: object
    object: Any
    attribute: str
    is_certain: bool


def notes(function: Any, host: str, constants: Mapping[str, Any] | None = None) -> list[str]:
    """Say what a call of `function` on a host does otherwise than a call in this process.

    Args:
        constants: Keyword arguments of all items of a map; None: it is one call.

    Raises:
        ConfigError: It sends jobs from its job, or uses a magic of the notebook.
    """
    plain = _plain(function)
    if plain is None:
        return []
    reached = _reached(plain)
    parts = [(each.__name__, part) for each in reached for part in code_facts.read(each.__code__)]
    names = {name for _, part in parts for name in part.names}
    # IPython makes calls of it of magics; its shell is a variable of the notebook.
    if "get_ipython" in names and "get_ipython" in plain.__globals__:
        message = f"{plain.__name__} uses a magic of the notebook (%, ! or get_ipython), which no job has"
        raise ConfigError(message, stage="submit", hint="write it in Python: subprocess.run([…]) in place of !command")
    lines = [f"{outer} sets the global {store.name} in its job only: no other call finds it, return it instead"
             for outer, part in parts for store in part.stores if store.kind == "GLOBAL"]  # fmt: skip
    used = [each for uses in reached.values() for each in uses]
    modules = (*(name for _, part in parts for name in part.imports), *(_home(each.variable) for each in used))
    lines += _lost_settings({name.partition(".")[0] for name in modules}, names)
    for folder, pattern in _patterns(plain) if not names.isdisjoint(["glob", "iglob"]) else ():
        lines.append(f"the files here that match {pattern!r} are not in the job, where a pattern without a match is no "
                     f"error: pass clusterfn.Directory({folder!r}) as an argument")  # fmt: skip
    if constants is not None:
        paths = ((use.name, *use.attributes) for _, part in parts for use in part.uses)
        seeded = {name for path in paths for name, after in zip(path, path[1:]) if after in _SEEDING}
        given = {**{each.name: each.variable for each in used}, **constants}
        lines += [
            f"each item of {plain.__name__}.map() begins with the same state of {name}, and draws the same random "
            "numbers from it: make it in the function, from a seed that is an argument"
            for name, value in given.items()
            if _is_generator(value) and name not in seeded
        ]
    for outer, use in ((each.__name__, use) for each, uses in reached.items() for use in uses):
        # The attributes of other objects may be computed by the user's code.
        options = attribute(use.object, "options") if type(use.object).__module__ == _DECORATED else None
        if options is None:
            continue
        name = attribute(use.object, "__name__", "a function")
        if use.attribute in _SENDING:
            message = f"{outer} calls {name}.{use.attribute}(), and a job cannot submit jobs"
            hint = f"call {name}(…), which runs in the same job, or send it from your own machine"
            if use.is_certain:
                raise ConfigError(message, stage="submit", hint=hint)
            lines.append(f"{message}: {hint}")
        elif use.attribute not in _PLAIN and options.host not in (None, host):
            lines.append(f"{outer} calls {name}, which then runs in the same job on {host}, not on {options.host}")
    return list(dict.fromkeys(lines))


def _patterns(function: types.FunctionType) -> Iterator[tuple[str, str]]:
    """Yield the folders, and the patterns in them, that the code of a function names and that match files here."""
    for part in code_facts.read(function.__code__):
        for text in (each for each in part.constants if isinstance(each, str)):
            folder, _, name = text.rpartition("/")
            if folder and "*" in name and "*" not in folder and not folder.startswith("/"):
                with contextlib.suppress(OSError):
                    yield from [(folder, text) for _ in fnmatch.filter(os.listdir(folder), name)[:1]]


def _plain(function: Any) -> types.FunctionType | None:
    """Return the Python function inside partials, methods and decorators."""
    for _ in range(20):
        if function is None or type(function) is types.FunctionType:
            return function
        inner = (attribute(function, name) for name in ("func", "__func__", "__wrapped__"))
        function = next((each for each in inner if each is not None), None)
    return None


def _reached(function: types.FunctionType) -> dict[types.FunctionType, list[_Used]]:
    """Return what a function uses, and what those of the user's own functions use that it reaches."""
    reached: dict[types.FunctionType, list[_Used]] = {}
    waiting = [function]
    while waiting and len(reached) < _MOST:
        outer = waiting.pop()
        if outer in reached:
            continue
        reached[outer], scope = [], _scope(outer)
        for use in (use for part in code_facts.read(outer.__code__) for use in part.uses if use.is_outside):
            variable, name = scope.get(use.name), ""
            value = variable
            for name in use.attributes:
                if not issubclass(type(value), types.ModuleType):
                    break
                value, name = vars(value).get(name), ""
            is_certain = use.is_certain and outer is function
            reached[outer].append(_Used(use.name, variable, value, name, is_certain))
            called = _plain(value) if callable(value) else None
            if called is not None and _is_own(called):
                waiting.append(called)
    return reached


def _home(value: object) -> str:
    """Return the name of a module, or of the module that has an object."""
    return str(attribute(value, "__name__" if type(value) is types.ModuleType else "__module__"))


def _is_generator(value: object) -> bool:
    kind = type(value)
    return str(attribute(kind, "__module__")).partition(".")[0] in _GENERATORS.get(kind.__name__, ())


def _is_own(function: types.FunctionType) -> bool:
    module = attribute(function, "__module__")
    return module == "__main__" or (isinstance(module, str) and own_modules.is_own(module))


def _scope(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function finds by name outside of it."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            # The variable has no value yet.
            continue
    return scope


class _Call(NamedTuple):
    line: int
    function: str
    text: str


def _lost_settings(packages: Collection[str], names: Collection[str]) -> Iterator[str]:
    """Yield the calls by which the script sets what no job gets, such as `np.random.seed(0)`, as sentences.

    Only those count that the code of the call may use; `settings.NAMED` has them.

    Args:
        packages: What the code that is sent uses.
        names: The names in that code.
    """
    script = sys.modules["__main__"]
    text = "".join(linecache.getlines(attribute(script, "__file__") or ""))
    named, used = serialization.part("settings").NAMED, set(packages)
    # Most code that uses NumPy draws no random numbers.
    if "random" not in names or not _OWN_GENERATORS.isdisjoint(names):
        used.discard("numpy")
    is_likely = any(name.partition("(")[0].rpartition(".")[2] in text for name in named)
    for line, function, shown in _calls(text) if is_likely else ():
        first, _, rest = function.partition(".")
        last = function.rpartition(".")[2]
        module = vars(script).get(first)
        full = f"{module.__name__}.{rest}" if rest and type(module) is types.ModuleType else function
        argument = shown[len(function) :].partition(",")[0].rstrip(")")
        sets = next((named[key] for key in (full, last, full + argument) if key in named), None)
        is_set_there = not (_SEEDS if last in _SEEDS else {last}).isdisjoint(names)
        if sets is not None and (not sets or not sets.isdisjoint(used)) and not is_set_there:
            yield f"{shown} in line {line} of your script has no effect in a job: call it in the function, too"


@functools.lru_cache(maxsize=8)
def _calls(text: str) -> tuple[_Call, ...]:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return ()
    statements = (each.value for each in _statements(body) if isinstance(each, ast.Expr))
    calls = [each for each in statements if isinstance(each, ast.Call)]
    return tuple(_Call(each.lineno, ast.unparse(each.func), ast.unparse(each)) for each in calls)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run whenever the script does; many scripts have them in a function `main`."""
    for each in body:
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or each.name == "main":
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(each, part, ()))
