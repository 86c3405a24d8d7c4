"""Which modules a call has loaded, and which of them are the environment's own."""

from __future__ import annotations

import itertools
import os
import sys
from types import ModuleType

# The function may replace `sys.modules`.
_modules = sys.modules
_NATIVE = (".so", ".pyd")


def last_loaded() -> str:
    """Return which module was loaded last. To look at all of them would copy the pages of their names."""
    return next(reversed(_modules))


def _names_since(last: str) -> list[str] | None:
    """Return the modules that were loaded after that one; None if a thread loads more at this moment."""
    try:
        names = list(itertools.takewhile(lambda name: name != last, reversed(_modules)))
    except RuntimeError:
        return None
    return [name for name in names if isinstance(name, str)]


def has_loaded_native_code(last: str) -> bool:
    """Whether code that is not Python's was loaded after that module, which may act when it is taken down."""
    names = _names_since(last)
    # Through `ctypes`, a call loads any library.
    return names is None or "ctypes" in names or any(str(_file_of(name)).endswith(_NATIVE) for name in names)


def forget_own(last: str) -> None:
    """Forget the modules of the user's own that were loaded after that one: what they hold can be removed then."""
    for name in _names_since(last) or ():
        file = _file_of(name)
        if isinstance(file, str) and file.endswith(".py") and not is_installed(file):
            _modules.pop(name, None)


def loaded_since(last: str) -> list[str]:
    """Return the top-level modules that were loaded after that one, from the environment.

    That is asked where they are: under the name of a user's own module, another process would find another.
    """
    tops = {name.partition(".")[0] for name in _names_since(last) or ()}
    return sorted(name for name in tops if is_installed(_file_of(name)))


def is_installed(file: object) -> bool:
    """Whether it is the environment's own: the user's modules may be others at the next call."""
    return isinstance(file, str) and file.startswith(sys.prefix + os.sep)


def _file_of(name: str) -> object:
    """Return the file from which a module was loaded. Anything may be in the place of a module; that is not asked."""
    module = _modules.get(name)
    facts = vars(module) if issubclass(type(module), ModuleType) else {}
    return getattr(facts.get("__spec__"), "origin", None) or facts.get("__file__")
