"""What a function's code does that has another effect in a job: calls of decorated functions, assigned globals,
random numbers from a generator that all items of a map share, and numbers that depend on a seed of the script.

Read from byte code before anything is sent. What may happen or not, such as a call in a branch, gets a warning.
"""

from __future__ import annotations

import contextlib
import dis
import fnmatch
import functools
import os
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.errors import ConfigError
from clusterfn.hosts import serialization
from clusterfn.packing import unsent_settings
from clusterfn.packing.project import modules as own_modules

_SENDING = ("map", "script", "submit")
# These attributes mean the same in a job.
_PLAIN = ("local",)
_SKIPPED = ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME")
# The code around these runs them at once, so a call in them is as certain as one beside them.
_AT_ONCE = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
# Classes of generators of random numbers, and the packages that they are in.
_GENERATORS = {"Generator": ("numpy", "torch"), "RandomState": ("numpy",), "Random": ("random",)}
# Attributes by which a function has a generator begin with another state, or derives others from it.
_SEEDING = ("bit_generator", "jumped", "manual_seed", "seed", "set_state", "setstate", "spawn")
_FROM_SCOPE = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
# At most this many functions are read.
_MOST = 300


class _Use(NamedTuple):
    """A decorated function that another function calls, or an attribute of it.

    Attributes:
        certain: Whether each call of the outer function comes to it.
    """

    outer: str
    inner: Any
    attribute: str
    certain: bool


class _Found(NamedTuple):
    """What a function and its own others do: use decorated functions, set globals, and draw random numbers.

    Attributes:
        assigned: The functions with the globals that they set.
        generators: The variables that are generators of random numbers.
        seeded: The variables that they seed.
        packages: The packages that they use.
        names: The names in their code.
    """

    uses: list[_Use]
    assigned: list[tuple[str, str]]
    generators: list[str]
    seeded: set[str]
    packages: set[str]
    names: set[str]


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
    found = _read(plain)
    # IPython makes calls of it of magics; its shell is a variable of the notebook.
    if "get_ipython" in found.names and "get_ipython" in plain.__globals__:
        message = f"{plain.__name__} uses a magic of the notebook (%, ! or get_ipython), which no job has"
        raise ConfigError(message, stage="submit", hint="write it in Python: subprocess.run([…]) in place of !command")
    lines = [f"{outer} sets the global {name} in its job only: no other call finds it, return it instead"
             for outer, name in found.assigned]  # fmt: skip
    lines += unsent_settings.find(found.packages, found.names)
    for folder, pattern in _patterns(plain) if not found.names.isdisjoint(["glob", "iglob"]) else ():
        lines.append(f"the files here that match {pattern!r} are not in the job, where a pattern without a match is no "
                     f"error: pass clusterfn.Directory({folder!r}) as an argument")  # fmt: skip
    if constants is not None:
        shared = [*found.generators, *(name for name, value in constants.items() if _is_generator(value))]
        lines += [
            f"each item of {plain.__name__}.map() begins with the same state of {name}, and draws the same random "
            "numbers from it: make it in the function, from a seed that is an argument"
            for name in shared
            if name not in found.seeded
        ]
    for use in found.uses:
        name, options = attribute(use.inner, "__name__", "a function"), use.inner.options
        if use.attribute in _SENDING:
            message = f"{use.outer} calls {name}.{use.attribute}(), and a job cannot submit jobs"
            hint = f"call {name}(…), which runs in the same job, or send it from your own machine"
            if use.certain:
                raise ConfigError(message, stage="submit", hint=hint)
            lines.append(f"{message}: {hint}")
        elif options.host not in (None, host):
            lines.append(f"{use.outer} calls {name}, which then runs in the same job on {host}, not on {options.host}")
    return list(dict.fromkeys(lines))


def _patterns(function: types.FunctionType) -> Iterator[tuple[str, str]]:
    """Yield the folders, and the patterns in them, that the code of a function names and that match files here."""
    for code in serialization.part("code_parts").codes(function.__code__):
        for text in (each for each in code.co_consts if isinstance(each, str)):
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


def _read(function: types.FunctionType) -> _Found:
    uses, assigned, generators, seeded, packages, names = _Found([], [], [], set(), set(), set())
    waiting, seen = [function], {function}
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        code, scope, is_first = each.__code__, _scope(each), each is function
        for part in serialization.part("code_parts").codes(code):
            loaded = [step.argval for step in _steps(part) if step.opname in _FROM_SCOPE]
            homes = [_home(scope.get(name)) for name in loaded]
            homes += (step.argval for step in _steps(part) if step.opname == "IMPORT_NAME")
            packages.update(home.partition(".")[0] for home in homes)
            names.update(part.co_names)
            generators += [name for name in loaded if _is_generator(scope.get(name))]
            pairs = zip(_steps(part), _steps(part)[1:])
            seeded.update(step.argval for step, after in pairs if after.argval in _SEEDING)
        for used, name, certain in _loads(code, scope, is_first):
            is_decorated = type(used).__module__ == "clusterfn.api.decorator" and attribute(used, "options") is not None
            if is_decorated and name not in _PLAIN:
                uses.append(_Use(each.__name__, used, name, certain))
            called = _plain(used) if callable(used) else None
            if called is not None and called not in seen and _is_own(called):
                seen.add(called)
                waiting.append(called)
        assigned += [(each.__name__, name) for name in dict.fromkeys(_assigned(code))]
    return _Found(uses, assigned, list(dict.fromkeys(generators)), seeded, packages, names)


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


def _loads(code: types.CodeType, scope: dict[str, Any], certain: bool) -> Iterator[tuple[Any, str, bool]]:
    """Yield each object that code takes from its scope, the attribute of it that it wants, and whether it always does.

    The attributes of modules are looked up.
    """
    certain = certain and not _catches(code)
    held: Any = None
    for step in _steps(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and held is not None:
            if issubclass(type(held), types.ModuleType):
                held = vars(held).get(step.argval)
                continue
            yield held, step.argval, certain
            held = None
            continue
        if held is not None:
            yield held, "", certain
            held = None
        if step.opname in _FROM_SCOPE:
            held = scope.get(step.argval)
        certain = certain and not step.opname.startswith(("POP_JUMP", "JUMP_IF"))
    for part in serialization.part("code_parts").parts(code):
        yield from _loads(part, scope, certain and part.co_name in _AT_ONCE)


@functools.lru_cache(maxsize=1024)
def _steps(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(step for step in dis.get_instructions(code) if step.opname not in _SKIPPED)


def _catches(code: types.CodeType) -> bool:
    """Whether it may handle an exception itself."""
    table = getattr(code, "co_exceptiontable", None)
    return bool(table) if table is not None else any(step.opname == "SETUP_FINALLY" for step in _steps(code))


def _assigned(code: types.CodeType) -> Iterator[str]:
    for each in serialization.part("code_parts").codes(code):
        yield from (step.argval for step in _steps(each) if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
