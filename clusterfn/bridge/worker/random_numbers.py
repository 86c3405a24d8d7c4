"""Random numbers of modules that are loaded before calls are forked: all calls would draw the same ones.

A process that loads such a module itself seeds the module's generators, unless they have a fixed seed. Found are those
that a module or one of its classes holds, not what is deeper in their objects.
"""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import Any

_OF_NUMPY = ("Generator", "RandomState", "BitGenerator")


def generators_of(modules: Iterable[str]) -> dict[str, Any]:
    """Return the random number generators that these modules hold, each once, by the places where they are."""
    # They are not loaded for this: `random` takes part in each fork.
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    kinds = tuple(getattr(numpy, name) for name in _OF_NUMPY if hasattr(numpy, name))
    system: tuple[type, ...] = ()
    if random is not None:
        kinds, system = (random.Random, *kinds), (random.SystemRandom,)
    found: dict[int, tuple[str, Any]] = {}
    for name in modules:
        for place, value in _held_by(name):
            # A module may hold a method, as in `uniform = Random().uniform`.
            if type(value) in (MethodType, BuiltinFunctionType):
                value = value.__self__
            # This does not use `isinstance`, because a proxy would act on that.
            kind = type(value)
            if issubclass(kind, kinds) and not issubclass(kind, system):
                found.setdefault(id(value), (".".join(map(str, place)), value))
    return dict(found.values())


def _held_by(name: str) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Yield what a module and its classes hold, with the names that lead there."""
    module = sys.modules[name]
    if not issubclass(type(module), ModuleType):
        return
    for attribute, value in list(vars(module).items()):
        yield (name, attribute), value
        if issubclass(type(value), type) and vars(value).get("__module__") == name:
            for inner, held in list(vars(value).items()):
                yield (name, attribute, inner), held


def states(generators: Mapping[str, Any]) -> dict[str, int]:
    """Return a number for the state of each, by its place: with a fixed seed it is the same in all processes."""
    return {place: zlib.crc32(pickle.dumps(generator)) for place, generator in generators.items()}


def reseed(generators: Iterable[Any]) -> None:
    """Let these begin as in a process that has just loaded them; `random` seeds its own after each fork by itself."""
    for generator in generators:
        if hasattr(generator, "seed"):
            generator.seed()
        else:
            # It is one of numpy's newer kind.
            bits = getattr(generator, "bit_generator", generator)
            bits.state = type(bits)().state
