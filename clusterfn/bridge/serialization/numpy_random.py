"""Random generators of numpy, which numpy 1 and 2 pickle by constructors that the other one does not have."""

from __future__ import annotations

import sys
import types
from typing import Any

from . import stand_ins


def reduce(obj: Any) -> Any:
    """Reduce a generator, its bits, its seeds, or a function of the module's own generator; else NotImplemented."""
    random = sys.modules["numpy.random"]
    kind = type(obj)
    if issubclass(kind, (types.BuiltinFunctionType, types.MethodType)):
        own = obj.__self__ is getattr(random.mtrand, "_rand", obj)
        return (stand_ins.by_name, ("numpy.random", obj.__name__)) if own else NotImplemented
    if kind is random.Generator:
        return generator, (obj.bit_generator,)
    if kind is random.RandomState:
        return random_state, (obj._bit_generator, obj.get_state(legacy=False))
    if kind is random.SeedSequence:
        return seed_sequence, (obj.entropy, obj.spawn_key, obj.pool_size, obj.n_children_spawned)
    if isinstance(obj, random.BitGenerator) and getattr(random, kind.__name__, None) is kind:
        return bit_generator, (kind.__name__, obj.state, getattr(obj, "seed_seq", None))
    return NotImplemented


def bit_generator(name: str, state: dict[str, Any], seeds: Any) -> Any:
    """Make a source of random bits in this state; its seeds are what it spawns others from."""
    import numpy.random

    bits = getattr(numpy.random, name)(seeds)
    bits.state = state
    return bits


def generator(bits: Any) -> Any:
    """Make numpy's generator of these bits."""
    import numpy.random

    return numpy.random.Generator(bits)


def random_state(bits: Any, state: dict[str, Any]) -> Any:
    """Make numpy's old generator of these bits."""
    import numpy.random

    random = numpy.random.RandomState(bits)
    random.set_state(state)
    return random


def seed_sequence(entropy: Any, spawn_key: tuple[int, ...], pool_size: int, spawned: int) -> Any:
    """Make a sequence of seeds that has spawned so many others."""
    import numpy.random

    return numpy.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)
