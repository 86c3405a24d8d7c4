"""Notes on what a function's code does that has another effect in a job: globals that it sets, random numbers from a
generator that all items of a map share, and numbers that depend on a seed of the script.

Read from byte code before anything is sent.
"""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from clusterfn.bridge.attributes import attribute
from clusterfn.config.notes import CallNote, found
from clusterfn.errors import ConfigError
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts
from clusterfn.packing.project import modules as own_modules

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


def find(function: Any, constants: Mapping[str, Any] | None = None) -> list[CallNote]:
    """Return the notes on what a call of `function` does otherwise in a job than in this process.

    Args:
        constants: Keyword arguments of all items of a map; None: it is one call.

    Raises:
        ConfigError: It uses a magic of the notebook.
    """
    plain = _plain(function)
    if plain is None:
        return []
    reached = _reached(plain)
    parts = [(function, part) for function in reached for part in code_facts.read(function.__code__)]
    names = {name for _, part in parts for name in part.names}
    # IPython makes calls of it of magics; its shell is a variable of the notebook.
    if "get_ipython" in names and "get_ipython" in plain.__globals__:
        message = f"{plain.__name__} uses a magic of the notebook (%, ! or get_ipython), which no job has"
        raise ConfigError(message, stage="submit", hint="write it in Python: subprocess.run([…]) in place of !command")
    lines = [found("global", function=outer.__name__, name=name) for outer, part in parts for name in part.globals]
    used = {name: value for variables in reached.values() for name, value in variables.items()}
    modules = (*(name for _, part in parts for name in part.imports), *map(_home, used.values()))
    lines += _lost_settings({name.partition(".")[0] for name in modules}, names)
    if constants is not None:
        paths = ((use.name, *use.attributes) for _, part in parts for use in part.uses)
        seeded = {name for path in paths for name, after in zip(path, path[1:]) if after in _SEEDING}
        generators = (name for name, value in {**used, **constants}.items() if _is_generator(value))
        unseeded = (name for name in generators if name not in seeded)
        lines += [found("shared-generator", function=plain.__name__, name=name) for name in unseeded]
    return list(dict.fromkeys(lines))


def _plain(function: Any) -> types.FunctionType | None:
    """Return the Python function inside partials, methods and decorators."""
    for _ in range(20):
        if function is None or type(function) is types.FunctionType:
            return function
        inner = (attribute(function, name) for name in ("func", "__func__", "__wrapped__"))
        function = next((found for found in inner if found is not None), None)
    return None


def _reached(function: types.FunctionType) -> dict[types.FunctionType, dict[str, object]]:
    """Return the variables that a function uses, and those of the user's own functions that it reaches."""
    reached: dict[types.FunctionType, dict[str, object]] = {}
    waiting = [function]
    while waiting and len(reached) < _MOST:
        outer = waiting.pop()
        if outer in reached:
            continue
        reached[outer], scope = {}, _scope(outer)
        for use in (use for part in code_facts.read(outer.__code__) for use in part.uses if use.is_outside):
            reached[outer][use.name] = value = scope.get(use.name)
            for name in use.attributes:
                if issubclass(type(value), types.ModuleType):
                    value = vars(value).get(name)
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


def _lost_settings(packages: Collection[str], names: Collection[str]) -> Iterator[CallNote]:
    """Yield the calls by which the script sets what no job gets, such as `np.random.seed(0)`.

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
    for line, function, shown in code_facts.of_text(text).calls:
        first, _, rest = function.partition(".")
        last = function.rpartition(".")[2]
        module = vars(script).get(first)
        full = f"{module.__name__}.{rest}" if rest and type(module) is types.ModuleType else function
        argument = shown[len(function) :].partition(",")[0].rstrip(")")
        sets = next((named[key] for key in (full, last, full + argument) if key in named), None)
        is_set_there = not (_SEEDS if last in _SEEDS else {last}).isdisjoint(names)
        if sets is not None and (not sets or not sets.isdisjoint(used)) and not is_set_there:
            yield found("script-setting", call=shown, line=line)
