"""Walk the codes inside a code, those of its functions, comprehensions and classes, and the names in them."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

# CPython sets this flag (CO_OPTIMIZED) on the code of functions. Other code, such as the body of a class, runs in
# place.
_OPTIMIZED = 1


def parts(code: types.CodeType) -> list[types.CodeType]:
    """Return the codes directly inside another."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and all codes inside it, each before those inside it."""
    yield code
    for part in parts(code):
        yield from codes(part)


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bodies of classes in a code; Python 3.12 puts that of a generic class into a code of its own."""
    for part in codes(code):
        if part is not code and (not part.co_flags & _OPTIMIZED or part.co_name.startswith("<generic")):
            yield part


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a code looks up among its globals."""
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
            yield instruction.argval
