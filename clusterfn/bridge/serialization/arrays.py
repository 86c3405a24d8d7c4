"""Arrays, scalars, classes and random generators of numpy, so that numpy 1 and 2 read what the other sends.

An array is sent as dtype, shape and buffer, because a pickle of numpy 2 does not load under numpy 1.
"""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

from . import stand_ins

numpy: Any = stand_ins.Library("numpy")
random: Any = stand_ins.Library("numpy.random")


def reduce(obj: Any, _: object) -> Any:
    """Reduce an object of numpy, or of a class of the script below its arrays; NotImplemented for any other."""
    if hasattr(numpy, "generic") and issubclass(type(obj), (numpy.ndarray, numpy.generic)):
        return _reduce_array(obj)
    home = type(obj).__module__ or ""
    if "numpy.random" in sys.modules and (home.startswith("numpy.random") or issubclass(type(obj), BOUND)):
        return _reduce_random(obj)
    if home == "numpy" and type(obj) is numpy.finfo:
        return numpy.finfo, (obj.dtype,)
    if home in ("numpy", "numpy.dtypes") and isinstance(obj, numpy.dtype) and obj.isalignedstruct:
        return (numpy.dtype, (obj.subdtype,)) if obj.subdtype else _reduce_aligned(obj)
    return NotImplemented


# A function of numpy's own generator is a bound method.
BOUND = (types.BuiltinFunctionType, types.MethodType)


def reduce_class(cls: type) -> Any:
    """Reduce a class that numpy 2 alone has under its name; NotImplemented for any other."""
    if cls.__module__ == "numpy.rec" or (cls.__module__, cls.__name__) == ("numpy", "bool"):
        # Every numpy has the classes of records at the top, and this class as `bool_`.
        return class_of_numpy, ("bool_" if cls.__name__ == "bool" else cls.__name__,)
    return NotImplemented


def _reduce_array(obj: Any) -> Any:
    shared = _reduce_view(obj) if type(obj) is numpy.ndarray else NotImplemented
    if shared is not NotImplemented:
        return shared
    dtype = _portable(obj.dtype)
    if type(obj) is numpy.ndarray and dtype is not None:
        order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
        flat = pickle.PickleBuffer(obj.ravel(order).view("u1")) if obj.size else b""
        return array, (flat, dtype, obj.shape, order)
    if isinstance(obj, numpy.generic) and dtype is not None:
        return scalar, (obj.tobytes(), dtype)
    # An empty text has a dtype of size 0, which `_portable` does not describe.
    if isinstance(obj, (numpy.str_, numpy.bytes_)):
        return type(obj), ()
    # Arrays of objects and numpy's subclasses go as numpy reduces them, but for a name that numpy 1 lacks.
    if not isinstance(obj, numpy.ndarray) or type(obj).__reduce_ex__ is not numpy.ndarray.__reduce_ex__:
        return NotImplemented
    reduction = obj.__reduce__()
    return (unfilled_array, *reduction[1:]) if reduction[0].__name__ == "_reconstruct" else reduction


def _reduce_view(obj: Any) -> Any:
    """Reduce an array whose elements share memory, such as that of `broadcast_to`, to this memory and its strides."""
    size = obj.itemsize
    if obj.flags.forc or not size:
        return NotImplemented
    core = obj[tuple(slice(None if step else 1) for step in obj.strides)]
    reach = [(count - 1) * step // size for count, step in zip(core.shape, core.strides)]
    span = 1 + sum(map(abs, reach))
    start = -sum(steps for steps in reach if steps < 0)
    if span < core.size and not any(step % size for step in core.strides):
        lowest = core[tuple(slice(-1, None) if step < 0 else slice(1) for step in core.strides)]
        memory = numpy.lib.stride_tricks.as_strided(lowest, (span,), (size,))
        steps = tuple(step // size for step in obj.strides)
    elif core.size < obj.size:
        memory = numpy.ascontiguousarray(core)
        start = 0
        steps = tuple(own // size if step else 0 for own, step in zip(memory.strides, obj.strides))
    else:
        return NotImplemented
    return view, (memory.reshape(-1), obj.shape, steps, start, obj.flags.writeable)


def _reduce_aligned(dtype: Any) -> Any:
    """Reduce a dtype to its fields: numpy 1 and 2 misread the flags that the other one pickles."""
    fields = [dtype.fields[name] for name in dtype.names]
    layout = {
        "names": list(dtype.names),
        "formats": [field[0] for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
    }
    return aligned, (layout, dict(dtype.metadata or {}))


def _portable(dtype: Any) -> Any:
    """Return what makes this dtype again under any numpy; None if only numpy's own pickle does."""
    if dtype.hasobject or not dtype.itemsize:
        return None
    if dtype.names or dtype.subdtype:
        return dtype
    return dtype.str if dtype.isbuiltin != 2 and numpy.dtype(dtype.str) == dtype else None


def array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    """Rebuild a numpy array over `buffer`, or over a copy of read-only bytes: the array must be writable."""
    flat = numpy.frombuffer(buffer, numpy.dtype(dtype))
    return (flat if flat.flags.writeable else flat.copy()).reshape(shape, order=order)


def view(memory: Any, shape: tuple[int, ...], steps: tuple[int, ...], start: int, is_writable: bool) -> Any:
    """Rebuild an array whose elements share memory; the steps along its axes count elements."""
    strides = [step * memory.itemsize for step in steps]
    return numpy.lib.stride_tricks.as_strided(memory[start:], shape, strides, writeable=is_writable)


def aligned(fields: Any, metadata: Any) -> Any:
    """Rebuild an aligned structure of numpy."""
    return numpy.dtype(fields, align=True, **({"metadata": metadata} if metadata else {}))


def unfilled_array(cls: Any, shape: tuple[int, ...], kind: Any) -> Any:
    """Make a numpy array whose content comes as its state."""
    return numpy.ndarray.__new__(cls, shape, kind)


def class_of_numpy(name: str) -> Any:
    """Return the class that numpy has under this name."""
    return getattr(numpy, name)


def scalar(data: bytes, dtype: Any) -> Any:
    """Rebuild a numpy scalar."""
    return numpy.frombuffer(data, numpy.dtype(dtype))[0]


def _reduce_random(obj: Any) -> Any:
    """Reduce an object of numpy.random, which numpy 1 and 2 pickle by constructors that the other one does not have.

    These are a generator, its bits, its seeds, or a function of the module's own generator; else NotImplemented.
    """
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
    bits = getattr(random, name)(seeds)
    bits.state = state
    return bits


def generator(bits: Any) -> Any:
    """Make numpy's generator of these bits."""
    return random.Generator(bits)


def random_state(bits: Any, state: dict[str, Any]) -> Any:
    """Make numpy's old generator of these bits."""
    made = random.RandomState(bits)
    made.set_state(state)
    return made


def seed_sequence(entropy: Any, spawn_key: tuple[int, ...], pool_size: int, spawned: int) -> Any:
    """Make a sequence of seeds that has spawned so many others."""
    return random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)
