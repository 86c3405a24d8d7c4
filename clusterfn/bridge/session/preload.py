"""Loads modules that calls use, before calls are forked: as long as a fork after that is as good as a fresh process.

The calls load a module themselves if it starts processes, or threads that a fork would cut off, opens a GPU, or cannot
be loaded. Each is tried in a process of its own first. (OpenBLAS ends its threads itself before every fork, which is
why threads are counted after one.)
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from ..supervisor import process_tree
from ..supervisor.worker_process import become_subreaper, die_with_parent
from . import random_numbers

_LIMIT_S = 120
_GPU = "/dev/nvidia"
_STARTS_PROCESSES = "it starts processes"
_MOST_SAID = 65536  # what a pipe holds


class Preloader:
    """Which modules are here, and which may not be.

    Attributes:
        refused: Modules that every call loads by itself, and why.
        unseeded: Their random number generators without a fixed seed.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.unseeded: list[Any] = []
        self._own = frozenset(sys.modules)  # what the session itself needs, as any worker does

    def load(self, names: Iterable[str]) -> list[str]:
        """Load those that are safe, and return them."""
        loaded = []
        for name in names:
            if name in sys.modules or name in self.refused or not _is_installed(_found(name)):
                continue
            tried = _try_out(name, self.unseeded)
            if tried["trouble"]:
                self.refused[name] = tried["trouble"]
                continue
            generators = _load(name)
            for place, state in random_numbers.states(generators).items():
                if tried["states"].get(place) != state:
                    self.unseeded.append(generators[place])
            loaded.append(name)
        return loaded

    def make_way(self, folders: Sequence[str]) -> None:
        """Forget, in the process of a call, the modules in whose place an import finds one in these folders."""
        # Not each loaded name is looked up in the folders: that would copy the pages of all names.
        for name in {entry.partition(".")[0] for folder in folders for entry in _entries(folder)}:
            if name in sys.modules and name not in self._own and _is_module(name, folders):
                for each in [each for each in sys.modules if each == name or each.startswith(name + ".")]:
                    del sys.modules[each]


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it is gone: the call says so
        return []


def _is_module(name: str, folders: Sequence[str]) -> bool:
    """Whether it is one there. To an import, a folder without __init__.py comes after the environment's modules."""
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec is not None and spec.origin is not None


def _found(name: str) -> str | None:
    """Return the file from which an import would load a module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None else None


def _file_of(name: str) -> object:
    """Return the file from which a module was loaded. Anything may be in the place of a module; that is not asked."""
    module = sys.modules.get(name)
    facts = vars(module) if issubclass(type(module), ModuleType) else {}
    return getattr(facts.get("__spec__"), "origin", None) or facts.get("__file__")


def _is_installed(file: object) -> bool:
    """Whether it is the environment's own: the user's modules may be others at the next call."""
    return isinstance(file, str) and file.startswith(sys.prefix + os.sep)


def _try_out(name: str, unseeded: Iterable[Any]) -> dict[str, Any]:
    """Load a module in a process of its own.

    Returns:
        The "trouble", why it must not be loaded before a fork, "" if it may; and the "states" of its generators.
    """
    reading, writing = os.pipe()
    parent, before = os.getpid(), process_tree.descendants(os.getpid())
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        die_with_parent(signal.SIGKILL, parent)  # a runner that is killed meanwhile would not be missed
        _try(name, writing, unseeded)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    process_tree.end_all_but(lambda: before)  # before the pipe is read, which they may hold open for ever
    # A line of each process that came back from the import: of two if the module forks.
    said = os.read(reading, _MOST_SAID).splitlines() if status == 0 else []
    os.close(reading)
    tried: list[dict[str, Any]] = [json.loads(line) for line in said] or [{"trouble": "loading it ended a process"}]
    return next((each for each in tried if each["trouble"]), tried[0])


def _try(name: str, writing: int, unseeded: Iterable[Any]) -> NoReturn:
    """Load it in this process, which then exits."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LIMIT_S)
    become_subreaper()  # what the module starts is found even if its parent has ended
    own, status = os.getpid(), 1
    try:
        random_numbers.reseed(unseeded)  # else what takes its seed from one of them would seem to have a fixed one
        generators = _load(name)
        trouble = lasting_trouble() if os.getpid() == own else _STARTS_PROCESSES
        said = {"trouble": trouble, "states": random_numbers.states(generators)}
        random_numbers.reseed(generators.values())  # as before each call: it must not fail there
        os.write(writing, (json.dumps(said) + "\n").encode())
        status = 0
    finally:
        os._exit(status)


def _load(name: str) -> dict[str, Any]:
    """Load a module; return the random number generators that came with it, by their places."""
    before = set(sys.modules)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        importlib.import_module(name)
    return random_numbers.generators_of([each for each in sys.modules if each not in before])


def lasting_trouble() -> str:
    """Return what of this process would not survive a fork; "" for nothing."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return "it starts threads"
    if process_tree.descendants(os.getpid()):
        return _STARTS_PROCESSES
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the listing itself
            if os.readlink("/proc/self/fd/%s" % fd).startswith(_GPU):
                return "it opens a GPU"
    return ""


def last_imported() -> str:
    """Return which module was loaded last. To look at all of them would copy the pages of their names."""
    return next(reversed(sys.modules))


def imported_since(last: str) -> list[str]:
    """Return the top-level modules that were loaded after that one, from the environment.

    That is asked where they are: under the name of a user's own module, a runner would find another.
    """
    later = itertools.takewhile(lambda name: name != last, reversed(sys.modules))
    return sorted(name for name in {name.partition(".")[0] for name in later} if _is_installed(_file_of(name)))
