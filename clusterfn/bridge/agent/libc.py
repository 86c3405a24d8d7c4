"""Call the C library by the C half of `ctypes` alone. The bridge uses this file too.

Loading `ctypes` itself takes 4 ms, and each job starts three processes that need one call each.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def libc_function(name: str, older: str = "") -> "Callable[..., int]":
    """Return a function of the C library, for arguments that are bytes, whole numbers of at most 31 bits, or pointers.

    Args:
        name: Its name.
        older: The library that has it where the C library has not.

    Raises:
        ImportError, OSError, AttributeError: This Python or its C library does not have it.
    """
    import _ctypes

    # None means this process itself, as a null pointer does for dlopen(3).
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    try:
        address = _ctypes.dlsym(process, name)
    except OSError:
        if not older:
            raise
        address = _ctypes.dlsym(_ctypes.dlopen(older, 0), name)
    call = _ctypes.call_function
    return lambda *arguments: int(call(address, arguments))


def pointer_type() -> "Callable[[int], Any]":
    """Return the type of pointers, and of sizes of memory.

    Raises:
        ImportError: This Python does not have it.
    """
    import _ctypes

    return type("Pointer", (_ctypes._SimpleCData,), {"_type_": "P"})
