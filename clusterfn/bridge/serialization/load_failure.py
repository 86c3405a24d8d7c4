"""Say which object of a pickle could not be made here, and which packages are of another version than there.

Both are found only after loading has failed; what a pickle says of versions is noted while it is written.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_LARGEST = 16 << 20  # of a pickle that is read again, by an unpickler written in Python
_MOST = 3
_KEY = "_clusterfn_load_failure"
_PROJECTS = {"attr": "attrs"}  # modules without a version whose project has another name


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
        packages = "".join("; %s is %s where it was sent and %s where it arrived" % each for each in self.differing)
        return (", in %s" % self.name if self.name else "") + packages


class _Noted(NamedTuple):
    """What `of` needs of a load that failed. An error that is pickled leaves it behind."""

    data: Any
    buffers: Sequence[Any]
    packages: object
    make: Callable[..., pickle.Unpickler]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def versions(kinds: Iterable[type]) -> dict[str, str]:
    """Return the versions of the installed packages that have these classes, as far as they are cheap to find."""
    homes: set[object] = set()
    for kind in kinds:
        with contextlib.suppress(AttributeError):  # it has no module
            homes.add(_module_of(kind))
    packages = sorted({home.partition(".")[0] for home in homes if isinstance(home, str)})
    found = ((name, version_of(name)) for name in packages)
    return {name: version for name, version in found if version}


_module_of: Callable[[type], object] = vars(type)["__module__"].__get__  # past what a metaclass says


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


def note(
    error: Exception, data: Any, buffers: Sequence[Any], packages: object, make: Callable[..., pickle.Unpickler]
) -> None:  # fmt: skip
    """Keep with an error what `of` needs: the pickle, the versions that it says, and what can find its objects."""
    with contextlib.suppress(Exception):  # the user's own class, whose attributes may be set by none
        object.__setattr__(error, _KEY, _Noted(data, buffers, packages, make))


def of(error: BaseException) -> LoadFailure:
    """Describe why loading raised this error."""
    told = vars(error).pop(_KEY, None) if hasattr(error, "__dict__") else None
    if told is None:
        return LoadFailure()
    data, buffers, packages, make = told
    name = _failing(bytes(data), buffers, make) if len(data) <= _LARGEST else ""
    there = _plain(packages) if isinstance(packages, dict) else {}
    here = {package: version_of(package) or _installed(package) for package in there}
    differing = [(package, there[package], here[package]) for package in there if here[package] != there[package]]
    first = name.partition(".")[0]
    return LoadFailure(name, tuple(sorted(differing, key=lambda each: each[0] != first)[:_MOST]))


def _plain(packages: Mapping[object, object]) -> dict[str, str]:
    """Return what are names and versions of packages: the other side may have written anything."""
    facts = {str(name): str(version) for name, version in packages.items()}
    return {name: version for name, version in facts.items() if _NAME.fullmatch(name) and _VERSION.fullmatch(version)}


_NAME, _VERSION = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII), re.compile(r"\d[\w.+!-]{0,99}", re.ASCII)


def _installed(package: str) -> str:
    from importlib import metadata  # here: only errors need it

    try:
        return metadata.version(_PROJECTS.get(package, package))
    except metadata.PackageNotFoundError:
        return "missing"


def _failing(data: bytes, buffers: Sequence[Any], make: Callable[..., Any]) -> str:
    """Load once more, step by step, and return the name of what fails."""
    plain: Any = pickle._Unpickler
    watching: Any = type("Watching", (plain,), {"dispatch": dict(plain.dispatch)})
    failed: list[str] = []

    def watched(plain: Callable[[Any], None]) -> Callable[[Any], None]:
        def load(self: Any) -> None:
            top = self.stack[-2:]
            try:
                plain(self)
            except BaseException:  # the user's code, which may raise anything
                failed[:] = failed or [_named(*top)]
                raise

        return load

    for code in (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD):
        watching.dispatch[code[0]] = watched(watching.dispatch[code[0]])
    reader = watching(io.BytesIO(data), buffers=buffers)
    finder = make(io.BytesIO(b""))

    def find_class(module: str, name: str) -> Any:
        try:
            return finder.find_class(module, name)
        except BaseException:  # a module of the user's, which may raise anything
            failed[:] = failed or ["%s.%s" % (module, name)]
            raise

    reader.find_class = find_class
    with contextlib.suppress(Exception):  # the same as before
        reader.load()
    return failed[0] if failed else ""


def _named(made: Any, args: Any = None) -> str:
    """Name what a step of a pickle makes: of our own functions, what the first argument says."""
    if not isinstance(made, type) and getattr(made, "__module__", "").startswith(__package__ or "?"):
        first = args[0] if isinstance(args, tuple) and args else None
        if isinstance(first, str):  # a module, and a name in it
            return ".".join([first, *(each for each in args[1:2] if isinstance(each, str))])
        made = first
    cls = made if isinstance(made, type) or callable(made) else type(made)
    return "%s.%s" % (getattr(cls, "__module__", "?"), getattr(cls, "__qualname__", "?"))
