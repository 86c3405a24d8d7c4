"""Walk the codes inside a code: those of its functions, comprehensions and classes."""

from __future__ import annotations

import types
from collections.abc import Iterator


def parts(code: types.CodeType) -> list[types.CodeType]:
    """Return the codes directly inside another."""
    return [each for each in code.co_consts if isinstance(each, types.CodeType)]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and all codes inside it, each before those inside it."""
    yield code
    for part in parts(code):
        yield from codes(part)
