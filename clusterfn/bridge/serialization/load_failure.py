"""Say which object of a pickle could not be made here, and which packages are of another version than there.

Both are found only after loading has failed; what a pickle says of versions is noted while it is written. The traceback
names the function that a pickle called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

_MOST = 3
_KEY = "_clusterfn_load_failure"
# These modules have no version, and their projects have other names.
_PROJECTS = {"attr": "attrs"}


class LoadFailure(NamedTuple):
    """Why a pickle could not be loaded.

    Attributes:
        name: The class or function that failed, as `module.name`; "" if it is not known.
        differing: The packages of the pickle that have other versions here: name, version there, version here.
    """

    name: str = ""
    differing: tuple[tuple[str, str, str], ...] = ()

    def where(self) -> str:
        """Return the end of a sentence that says what failed, and by which versions."""
        words = "; %s is %s where it was sent and %s where it arrived"
        packages = "".join(words % package for package in self.differing)
        return (", in %s" % self.name if self.name else "") + packages


class _Noted(NamedTuple):
    """What a pickle says of versions that failed to load. An error that is pickled leaves it behind."""

    packages: object

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def versions(kinds: Iterable[type]) -> dict[str, str]:
    """Return the versions of the installed packages that have these classes, as far as they are cheap to find."""
    homes: set[object] = set()
    for kind in kinds:
        # A class may have no module.
        with contextlib.suppress(AttributeError):
            homes.add(_module_of(kind))
    packages = sorted({home.partition(".")[0] for home in homes if isinstance(home, str)})
    named = ((name, version_of(name)) for name in packages)
    return {name: version for name, version in named if version}


# The getter of `type` itself is used, because a metaclass may answer otherwise.
_module_of: Callable[[type], object] = vars(type)["__module__"].__get__


def version_of(name: str) -> str:
    """Return the version of a package that is imported; "" for one of the standard library or of the user's own."""
    module = getattr(sys.modules.get(name), "__dict__", {})
    file = module.get("__file__") or ""
    folder = os.path.dirname(os.path.dirname(file)) if isinstance(file, str) else ""
    if os.path.basename(folder) not in ("site-packages", "dist-packages"):
        return ""
    version: object = module.get("__version__")
    return version if isinstance(version, str) else _by_metadata(folder).get((_PROJECTS.get(name) or name).lower(), "")


@functools.lru_cache(maxsize=4)
def _by_metadata(folder: str) -> Mapping[str, str]:
    try:
        entries = os.listdir(folder)
    except OSError:
        return {}
    named = (entry[: -len(".dist-info")].rpartition("-") for entry in entries if entry.endswith(".dist-info"))
    return {name.lower(): version for name, _, version in named}


def note(error: Exception, packages: object) -> None:
    """Keep with an error the versions that its pickle says."""
    # The exception's class is the user's, and may not let anyone set attributes.
    with contextlib.suppress(Exception):
        object.__setattr__(error, _KEY, _Noted(packages))


def of(error: BaseException) -> LoadFailure:
    """Describe why loading raised this error."""
    noted = vars(error).pop(_KEY, None) if hasattr(error, "__dict__") else None
    if noted is None:
        return LoadFailure()
    name = _in_traceback(error)
    original = _plain(noted.packages) if isinstance(noted.packages, dict) else {}
    here = {package: version_of(package) or _installed(package) for package in original}
    differing = [
        (package, original[package], here[package]) for package in original if here[package] != original[package]
    ]
    first = name.partition(".")[0]
    return LoadFailure(name, tuple(sorted(differing, key=lambda versions: versions[0] != first)[:_MOST]))


def _plain(packages: Mapping[object, object]) -> dict[str, str]:
    """Return what are names and versions of packages: the other side may have written anything."""
    facts = {str(name): str(version) for name, version in packages.items()}
    return {name: version for name, version in facts.items() if _NAME.fullmatch(name) and _VERSION.fullmatch(version)}


_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_VERSION = re.compile(r"\d[\w.+!-]{0,99}", re.ASCII)


def _installed(package: str) -> str:
    # Only errors need this module, and its import is slow.
    from importlib import metadata

    try:
        return metadata.version(_PROJECTS.get(package, package))
    except metadata.PackageNotFoundError:
        return "missing"


def _in_traceback(error: BaseException) -> str:
    """Name the function or class that a pickle called, if that is written in Python; else ""."""
    frames = []
    place = error.__traceback__
    while place is not None:
        frames.append(place.tb_frame)
        place = place.tb_next
    reads = [frame.f_code.co_name == "_load" and frame.f_globals.get("__name__") == _UNPICKLER for frame in frames]
    called = frames[len(reads) - reads[::-1].index(True) :] if True in reads else []
    return _called(called[0]) if called else ""


_UNPICKLER = "%s.unpickler" % __package__


def _called(frame: types.FrameType) -> str:
    """Name what a frame is of; of our own functions, what their first argument says that they make."""
    code = frame.f_code
    home = str(frame.f_globals.get("__name__"))
    arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    first = arguments[0] if arguments else None
    if code.co_name == "find_class":
        return "%s.%s" % tuple(arguments[1:3])
    if home.startswith("%s." % __package__):
        # The first argument is a tuple of a module and a name in it.
        names = first if isinstance(first, tuple) else arguments
        if names and isinstance(names[0], str):
            return ".".join(part for part in names[:2] if isinstance(part, str))
        return full_name(first) if isinstance(first, type) or type(first).__module__ != "builtins" else ""
    for base in (first if isinstance(first, type) else type(first)).__mro__:
        method = vars(base).get(code.co_name)
        if getattr(getattr(method, "__func__", method), "__code__", None) is code:
            return full_name(first)
    return "%s.%s" % (home, getattr(code, "co_qualname", code.co_name))


def full_name(obj: Any) -> str:
    """Name a function, a class or the class of an object, with its module."""
    cls = obj if isinstance(obj, type) or callable(obj) else type(obj)
    module, name = str(getattr(cls, "__module__", "?")), str(getattr(cls, "__qualname__", "?"))
    # Cython writes the module into the name of a function, too.
    return name if name.startswith(module + ".") else "%s.%s" % (module, name)
