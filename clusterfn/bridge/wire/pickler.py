"""cloudpickle, with the few types that must travel in their own way.

CUDA tensors become CPU tensors; numpy arrays travel as dtype, shape and buffer, because a pickle of numpy 2 does not
load under numpy 1; classes of the caller's `__main__` come back as the caller's own. Called by `container` and
`exceptions`.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import cloudpickle
    from cloudpickle import cloudpickle as _core
else:
    from . import cloudpickle
    from .cloudpickle import cloudpickle as _core

VERSION: str = cloudpickle.__version__
notes: list[str] = []


class Pickler(_core.Pickler):  # type: ignore[misc]
    """Pickles with protocol 5.

    Args:
        file: Takes the pickle.
        buffer_callback: Called with each large buffer; false keeps it out of the pickle.
        on_object: Sees each object that is not plain data; what it returns, unless NotImplemented, is its reduction.
    """

    def __init__(
        self,
        file: BinaryIO,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        on_object: Callable[[object], Any] | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._on_object = on_object

    def reducer_override(self, obj: Any) -> Any:
        if self._on_object is not None:
            reduction = self._on_object(obj)
            if reduction is not NotImplemented:
                return reduction
        reduction = _reduce_array(obj)
        return super().reducer_override(obj) if reduction is NotImplemented else reduction


def dumps(obj: object) -> bytes:
    """`obj` as one pickle, nothing apart."""
    out = io.BytesIO()
    Pickler(out).dump(obj)
    return out.getvalue()


def loads(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """The object in a pickle made by `Pickler`."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _core.__name__ and name in _OWN_CLASSES:
            return _OWN_CLASSES[name]
        return super().find_class(module, name)


def _make_class(make: Callable[..., type], position: int) -> Callable[..., type]:
    """A maker of classes that gives back the caller's own class of that name, if it has one."""

    def make_or_find(*args: Any) -> type:
        own = _own_class(args[position].get("__module__"), args[position].get("__qualname__") or args[1])
        return make(*args) if own is None else own

    return make_or_find


def _make_enum(*args: Any) -> type:
    bases, name, qualname, members, module, tracker, extra = args
    own = _own_class(module, qualname)
    return _core._make_skeleton_enum(*args) if own is None else own


def _own_class(module: str | None, qualname: str) -> type | None:
    """A class of the same name in this process's __main__; inside a worker __main__ is empty, so there is none."""
    if module != "__main__" or "<locals>" in qualname:
        return None
    found: Any = sys.modules.get("__main__")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and found.__module__ == "__main__" else None


def _set_class_state(cls: type, state: Any) -> type:
    """Fill a class that was made from the stream; the caller's own stays as it is."""
    if cls is _own_class(cls.__module__, cls.__qualname__):
        return cls
    filled: type = _core._class_setstate(cls, state)
    return filled


_OWN_CLASSES: dict[str, Any] = {
    "_make_skeleton_class": _make_class(_core._make_skeleton_class, 3),
    "_make_skeleton_enum": _make_enum,
    "_class_setstate": _set_class_state,
}


def _reduce_array(obj: Any) -> Any:
    kind = type(obj).__module__
    if kind == "numpy" or kind.startswith("numpy."):
        return _reduce_numpy(obj)
    if "torch" in sys.modules and isinstance(obj, sys.modules["torch"].Tensor) and obj.is_cuda:
        notes.append("a CUDA tensor in the result became a CPU tensor")
        return obj.cpu().__reduce_ex__(5)
    return NotImplemented


def _reduce_numpy(obj: Any) -> Any:
    numpy = sys.modules["numpy"]
    if type(obj) is numpy.ndarray and not obj.dtype.hasobject:
        order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
        flat = obj.ravel(order).view("u1") if obj.size else obj.ravel(order)
        return array, (pickle.PickleBuffer(flat), _plain_dtype(obj.dtype), obj.shape, order)
    if isinstance(obj, numpy.generic) and not obj.dtype.hasobject:
        return scalar, (obj.tobytes(), _plain_dtype(obj.dtype))
    return NotImplemented


def _plain_dtype(dtype: Any) -> Any:
    return dtype.descr if dtype.names else dtype.str


def array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    """A numpy array over `buffer`; one over read-only bytes is copied, so that it can be written to."""
    import numpy

    flat = numpy.frombuffer(buffer, numpy.dtype(dtype))
    return (flat if flat.flags.writeable else flat.copy()).reshape(shape, order=order)


def scalar(data: bytes, dtype: Any) -> Any:
    """A numpy scalar."""
    import numpy

    return numpy.frombuffer(data, numpy.dtype(dtype))[0]
