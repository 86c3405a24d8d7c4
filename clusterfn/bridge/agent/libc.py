"""Call the C library by the C half of `ctypes` alone. The bridge uses this file too.

Loading `ctypes` itself takes 4 ms, and each job starts three processes that need one call each.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


def libc_function(name: str) -> "Callable[..., int]":
    """Return a function of the C library, for arguments that are bytes or whole numbers of at most 31 bits.

    Raises:
        ImportError, OSError, AttributeError: This Python or its C library does not have it.
    """
    import _ctypes

    # None means this process itself, as a null pointer does for dlopen(3).
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    address = _ctypes.dlsym(process, name)
    call = _ctypes.call_function
    return lambda *arguments: int(call(address, arguments))
