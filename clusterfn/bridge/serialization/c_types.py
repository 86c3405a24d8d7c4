"""Classes of ctypes: as what was declared of them, from which ctypes makes their fields again; and open libraries.

A field that ctypes made can be neither pickled nor set. A library that was opened is opened again by its name.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

_HOMES = ("_ctypes", "ctypes._endian")
_DECLARED = ("_pack_", "_align_", "_layout_", "_anonymous_", "_type_", "_length_", "_flags_", "_restype_", "_argtypes_")
_ORDERS = ("__ctype_be__", "__ctype_le__")
# Flags of a function prototype, as in CPython's Modules/_ctypes/ctypes.h.
_OF_PYTHON, _ERRNO = 4, 8
_BASES = (
    "Structure", "Union", "Array", "_Pointer", "_SimpleCData", "_CFuncPtr", "BigEndianStructure", "BigEndianUnion"
)  # fmt: skip


def is_made_by_ctypes(cls: type) -> bool:
    """Return whether a class has a metaclass of ctypes."""
    metaclass: Any = type(cls)
    return "_ctypes" in sys.modules and any(each.__module__ in _HOMES for each in metaclass.__mro__)


def reduce_metaclass(cls: type) -> Any:
    """Reduce a metaclass of ctypes, which has a name in some versions only; NotImplemented for any other class."""
    if cls.__module__ in _HOMES:
        import ctypes

        for name in _BASES:
            # `BigEndianUnion` exists from Python 3.11 on.
            base = getattr(ctypes, name, None)
            if type(base) is cls:
                return type, (base,)
    return NotImplemented


def reduce(cls: Any, reduction: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reduce a class of ctypes that cannot be imported, for which cloudpickle returns `reduction`."""
    import ctypes

    if issubclass(cls, ctypes.Array) and cls is cls._type_ * cls._length_:
        return operator.mul, (cls._type_, cls._length_)
    if issubclass(cls, ctypes._Pointer) and "_type_" in vars(cls) and cls is ctypes.POINTER(cls._type_):
        return ctypes.POINTER, (cls._type_,)
    swapped, native = _ORDERS if sys.byteorder == "little" else _ORDERS[::-1]
    # A number type in the other byte order is made together with the one in this machine's order, which refers to it.
    if vars(cls).get(swapped) is cls:
        return getattr, (vars(cls)[native], swapped)
    if cls.__qualname__.endswith("FUNCTYPE.<locals>.CFunctionType"):
        return prototype, (cls._flags_, cls._restype_, *cls._argtypes_)
    make, args, (attributes, slots), *rest = reduction
    args[3].update({name: attributes.pop(name) for name in _DECLARED if name in attributes})
    # The fields are set after the class is made, because a structure may point to its own kind.
    first = {name: attributes[name] for name in ("_fields_",) if name in attributes}
    set_by_ctypes = {name for name, value in attributes.items() if name in _ORDERS or type(value).__name__ == "CField"}
    later = {name: value for name, value in attributes.items() if name not in set_by_ctypes}
    return make, args, ({**first, **later}, slots), *rest


def prototype(flags: int, result: Any, *args: Any) -> Any:
    """Make a prototype of functions."""
    import ctypes

    make: Any = ctypes.PYFUNCTYPE if flags & _OF_PYTHON else ctypes.CFUNCTYPE
    return make(result, *args) if not flags & _ERRNO else make(result, *args, use_errno=True)


def reduce_library(obj: Any) -> tuple[Any, ...]:
    """Reduce an open library to its name, and what was declared of its functions."""
    functions = {
        name: (each.restype, each.argtypes, getattr(each, "errcheck", None))
        for name, each in vars(obj).items()
        if isinstance(each, obj._FuncPtr)
    }
    return open_library, (type(obj).__name__, obj._name, bool(obj._FuncPtr._flags_ & _ERRNO), functions)


def open_library(kind: str, name: str | None, uses_errno: bool, functions: dict[str, tuple[Any, Any, Any]]) -> Any:
    """Open a library, and declare its functions again.

    Raises:
        OSError: There is none of that name.
        AttributeError: It lacks one of the functions.
    """
    import ctypes

    library = getattr(ctypes, kind)(name, use_errno=uses_errno)
    for each, (result, arguments, check) in functions.items():
        function = getattr(library, each)
        function.restype = result
        if arguments is not None:
            function.argtypes = arguments
        if check is not None:
            function.errcheck = check
    return library
