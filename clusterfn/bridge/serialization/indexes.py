"""Pickle FAISS indexes as faiss itself writes them; those that it cannot write, as flat ones.

An index on a GPU is written as its copy in main memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from . import stand_ins

faiss: Any = stand_ins.Library("faiss")
numpy: Any = stand_ins.Library("numpy")
Note = Callable[[str], None]


def reduce(obj: Any, note: Note) -> Any:
    """Reduce an object whose class is faiss's; return NotImplemented if it is not an index.

    Args:
        obj: The object.
        note: Takes a sentence that says what will be different where it is loaded.

    Raises:
        pickle.PicklingError: faiss can neither write the index nor give its vectors back.
    """
    if isinstance(obj, faiss.Index):
        return index, (pickle.PickleBuffer(_written(obj, note, faiss.serialize_index, "index_gpu_to_cpu")),)
    if isinstance(obj, faiss.IndexBinary):
        written = _written(obj, note, faiss.serialize_index_binary, "index_binary_gpu_to_cpu")
        return binary_index, (pickle.PickleBuffer(written),)
    return NotImplemented


def _written(obj: Any, note: Note, serialize: Callable[[Any], Any], to_cpu: str) -> Any:
    try:
        return serialize(obj)
    except RuntimeError as refused:
        reason = refused
    try:
        copy = getattr(faiss, to_cpu)(obj)
        note("a faiss %s was on a GPU: it was sent as a copy in CPU memory" % type(obj).__name__)
        return serialize(copy)
    except (AttributeError, RuntimeError):
        # This faiss has no GPU support, or the index is not on a GPU.
        return serialize(_as_flat(obj, reason, note))


def _as_flat(obj: Any, refused: RuntimeError, note: Note) -> Any:
    name = type(obj).__name__
    try:
        if isinstance(obj, faiss.Index):
            flat = _rebuilt(obj)
        else:
            flat = faiss.IndexBinaryFlat(obj.d)
            flat.add(_binary_vectors(obj))
    except RuntimeError as lost:
        raise pickle.PicklingError(
            "faiss can neither write a %s (%s) nor give its vectors back (%s)" % (name, _last(refused), _last(lost))
        ) from lost
    note("faiss cannot write a %s: it was sent as a flat index of its %d vectors" % (name, flat.ntotal))
    return flat


def _last(error: RuntimeError) -> str:
    """Return the end of faiss's message, which begins with the signature of a C++ function."""
    return str(error).rpartition(": ")[2]


def _rebuilt(obj: Any) -> Any:
    ids = faiss.vector_to_array(obj.id_map) if hasattr(obj, "id_map") else None
    vectors = _vectors(obj if ids is None else faiss.downcast_index(obj.index))
    flat = faiss.IndexFlatL2(obj.d) if obj.metric_type == faiss.METRIC_L2 else faiss.IndexFlat(obj.d, obj.metric_type)
    flat.metric_arg = obj.metric_arg
    if ids is None:
        flat.add(vectors)
        return flat
    with_ids = faiss.IndexIDMap(flat)
    with_ids.add_with_ids(vectors, ids)
    return with_ids


def _binary_vectors(obj: Any) -> Any:
    """Return the vectors: of shards one shard after another, of other indexes one by one."""
    if isinstance(obj, faiss.IndexBinaryShards) and obj.successive_ids:
        parts = (faiss.downcast_IndexBinary(obj.at(number)) for number in range(obj.count()))
        return numpy.concatenate([_binary_vectors(part) for part in parts])
    return numpy.array([obj.reconstruct(number) for number in range(obj.ntotal)], "uint8").reshape(-1, obj.d // 8)


def _vectors(obj: Any) -> Any:
    """Return the vectors one by one: reconstruct_n uses threads, and ends the process where it is not implemented."""
    if isinstance(obj, faiss.IndexShards) and obj.successive_ids:
        return numpy.concatenate([_vectors(faiss.downcast_index(obj.at(number))) for number in range(obj.count())])
    vectors = numpy.empty((obj.ntotal, obj.d), "float32")
    for number in range(obj.ntotal):
        obj.reconstruct(number, vectors[number])
    return vectors


def index(buffer: Any) -> Any:
    """Rebuild an index."""
    return faiss.deserialize_index(numpy.frombuffer(buffer, "u1"))


def binary_index(buffer: Any) -> Any:
    """Rebuild a binary index."""
    return faiss.deserialize_index_binary(numpy.frombuffer(buffer, "u1"))
