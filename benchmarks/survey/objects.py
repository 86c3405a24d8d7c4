"""The public classes of a package, and an instance of each that simple arguments make."""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.metadata
import inspect
import re
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STANDARD_LIBRARY = "python"
_MODULES_S = 150  # for importing the modules of one package
_MOST_MODULES = 400
# Tests, windows, servers, and what asks or changes the machine when it is imported.
_SKIPPED = frozenset([
    "test", "tests", "testing", "conftest", "__main__", "setup", "tkinter", "turtle", "turtledemo", "idlelib",
    "antigravity", "this", "lib2to3", "ensurepip", "pydoc_data", "venv", "examples", "benchmarks", "gui", "qt", "gtk",
    "site", "sitecustomize", "usercustomize", "vendor",
])  # fmt: skip
_NOT_MADE = re.compile(r"Server|Process|Thread|Popen|Daemon|Runner$|Application$|Debugger|Console|Interactive|Fork")


class TookTooLong(BaseException):
    """Foreign code did not return in time; no `except Exception` of it catches this."""


class within:
    """Raise TookTooLong in a block after so many seconds.

    It is no generator: contextlib sets an attribute of what passes, which an exception may refuse.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    def _stop(*_: object) -> None:
        raise TookTooLong


@contextlib.contextmanager
def _kept_from_the_machine() -> Iterator[None]:
    """Let no constructor start a program, connect or listen."""

    def refuse(*_: object, **__: object) -> Any:
        raise OSError("a survey starts nothing")

    kept: list[tuple[Any, str]] = [(subprocess.Popen, "__init__"), (socket.socket, "connect"), (socket.socket, "bind")]
    before = [getattr(owner, name) for owner, name in kept]
    for owner, name in kept:
        setattr(owner, name, refuse)
    try:
        yield
    finally:
        for (owner, name), function in zip(kept, before):
            setattr(owner, name, function)


def files_of(package: str) -> list[tuple[str, Path]]:
    """List the modules of a package as name and file, its private ones included."""
    if package == STANDARD_LIBRARY:
        root = Path(importlib.__file__).parents[1]
        found = [(path.relative_to(root), path) for path in sorted(root.rglob("*.py"))]
        found += [(Path(f"{name}.so"), Path()) for name in sys.builtin_module_names]
        found += [(Path(path.name), path) for path in sorted(root.glob("lib-dynload/*.so"))]
        found = [(relative, path) for relative, path in found if relative.parts[0] not in ("site-packages", "config-")]
    else:
        files = importlib.metadata.distribution(package).files or []
        found = [(Path(str(file)), Path(str(file.locate()))) for file in files]
    named = [(_module(relative), path) for relative, path in found if relative.suffix in (".py", ".so")]
    wanted = {name: path for name, path in named if name and all(part.isidentifier() for part in name.split("."))}
    return sorted(wanted.items(), key=lambda each: (each[0].count("."), each[0]))


def _module(file: Path) -> str:
    parts = [*file.parts[:-1], file.name.partition(".")[0]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_skipped(module: str) -> bool:
    """Whether a module is a test, a window, a server or the like."""
    return bool(_SKIPPED.intersection(module.split(".")))


def classes_of(package: str) -> Iterator[tuple[str, type]]:
    """Yield each public class of a package once, with the name that a user would write."""
    modules = [name for name, _ in files_of(package)]
    owned, seen = set(modules), set()
    public = [name for name in modules if not is_skipped(name) and not any(p[0] == "_" for p in name.split("."))]
    until = time.monotonic() + _MODULES_S
    for name in public[:_MOST_MODULES]:
        if time.monotonic() > until:
            return
        module = _imported(name)
        if package == STANDARD_LIBRARY and name == "builtins":
            owned.add("builtins")
        names = [each for each in sorted(vars(module)) if each[0] != "_"] if module else []
        for each in names:
            cls = vars(module).get(each)
            if isinstance(cls, type) and id(cls) not in seen and cls.__module__ in owned:
                seen.add(id(cls))
                yield f"{name}.{each}", cls


def _imported(name: str) -> types.ModuleType | None:
    try:
        with within(60), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except BaseException:  # foreign code, which may need what is not there
        return None


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_SIMPLE: list[Any] = [1, "a", [1, 2, 3], {"a": 1}, 1.5, b"a", True, None]
_BY_TYPE: dict[str, Any] = {
    "str": "a", "int": 1, "float": 1.5, "bool": True, "bytes": b"a", "list": [1, 2], "dict": {"a": 1},
    "tuple": (1, 2), "set": {1, 2}, "Path": Path("a"), "Sequence": [1, 2], "Iterable": [1, 2], "Mapping": {"a": 1},
    "Callable": len, "type": int, "datetime": None,
}  # fmt: skip


def ways_to_make(cls: type) -> Iterator[Arguments]:
    """Yield simple arguments for a class: by its annotations, and else the same value for each that it wants."""
    if issubclass(cls, BaseException):
        yield ("it broke",), {}
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (ValueError, TypeError, NameError, AttributeError):
        yield from [((), {}), *(((value,), {}) for value in _SIMPLE), (("a", 1), {}), ((1, 2), {}), (("a", "b"), {})]
        return
    wanted = [each for each in parameters if each.default is each.empty]
    by_place = [each for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in wanted if each.kind is each.KEYWORD_ONLY]
    guessed = {each.name: _guess(each.annotation) for each in wanted}
    yield tuple(guessed[each.name] for each in by_place), {name: guessed[name] for name in by_name}
    if by_place or by_name:
        for value in _SIMPLE:
            yield (value,) * len(by_place), dict.fromkeys(by_name, value)
    if not by_place:
        yield from (((value,), dict.fromkeys(by_name, value)) for value in _SIMPLE[:3])


def _guess(annotation: Any) -> Any:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    word = next(iter(re.findall(r"[A-Za-z]+", re.sub(r"typing\.|Optional\[|Union\[", "", text))), "")
    return _BY_TYPE.get(word, "a")


def made(cls: type) -> tuple[Any, Arguments] | None:
    """Return an instance of a class and what made it; None if no simple arguments do."""
    if inspect.isabstract(cls) or issubclass(cls, type) or _NOT_MADE.search(cls.__name__):
        return None
    if issubclass(cls, enum.Enum):
        first = next(iter(cls), None)
        return None if first is None else (first, ((first.value,), {}))
    for args, kwargs in ways_to_make(cls):
        instance = _attempt(lambda a=args, k=kwargs: cls(*a, **k))  # type: ignore[misc]
        if _attempt(lambda one=instance: isinstance(one, cls)):  # type: ignore[misc]
            return instance, (args, kwargs)
    return None


def _attempt(make: Callable[[], Any]) -> Any:
    try:
        with within(5), warnings.catch_warnings(), _kept_from_the_machine():
            warnings.simplefilter("ignore")
            return make()
    except BaseException:  # foreign code
        return None
