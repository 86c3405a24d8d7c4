"""Loads modules that calls use, before calls are forked: as long as a fork after that is as good as a fresh process.

The calls load a module themselves if it starts processes, or threads that a fork would cut off, opens a GPU, or cannot
be loaded. So they do if it keeps something open that forks share, seeds or draws random numbers, or handles signals.
Each is tried in a process of its own first.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pickle
import random
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ..agent.libc import become_subreaper, die_with_parent
from ..supervisor import process_tree
from ..supervisor.publish import names_in
from . import descriptors, fork_rules
from .finish import is_installed

_NUMPY = "numpy"
_LIMIT_S = 120
# A pipe holds so many bytes.
_MOST_SAID = 65536


class Preloader:
    """Which modules are here, and which may not be.

    Attributes:
        refused: Modules that every call loads by itself, and why.
        generators: The random number generators of those that are here.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.generators: list[Any] = []
        # The session itself needs these modules, as any worker does.
        self._own = frozenset(sys.modules)

    def load(self, names: Iterable[str]) -> list[str]:
        """Load those that are safe, and return them."""
        loaded = []
        # Only where numpy is loaded before does it show that another module seeds it.
        for name in sorted(names, key=lambda name: name != _NUMPY):
            if name in sys.modules or name in self.refused or not is_installed(_found(name)):
                continue
            trouble = self._try_out(name)
            if trouble:
                self.refused[name] = trouble
                continue
            with descriptors.drop_output():
                self.generators += _load(name)
            loaded.append(name)
        if loaded:
            fork_rules.settle_memory()
        return loaded

    def make_way(self, folders: Sequence[str]) -> None:
        """Forget, in the process of a call, the modules in whose place an import finds one in these folders."""
        # Not each loaded name is looked up in the folders: that would copy the pages of all names.
        for name in {entry.partition(".")[0] for folder in folders for entry in names_in(folder)}:
            if name in sys.modules and name not in self._own and _is_module(name, folders):
                for loaded in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
                    del sys.modules[loaded]

    def _try_out(self, name: str) -> str:
        """Load a module in a process of its own; return why it must not be loaded before a fork, "" if it may."""
        reading, writing = os.pipe()
        descriptors.flush_output()
        parent = os.getpid()
        before = process_tree.descendants(os.getpid())
        pid = os.fork()
        if pid == 0:
            # Without this call, the process would outlive a parent that is killed meanwhile.
            die_with_parent(signal.SIGKILL, parent)
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            descriptors.redirect_output(nowhere, os.dup(nowhere))
            self._try(name, writing)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        # This comes before the pipe is read, which those processes may hold open for ever.
        process_tree.end_all_but(lambda: before)
        # A line of each process that came back from the import: of two if the module forks.
        said = os.read(reading, _MOST_SAID).decode().split("\n")[:-1] if status == 0 else []
        os.close(reading)
        return max(said, default="loading it ended a process")

    def _try(self, name: str, writing: int) -> NoReturn:
        """Load it in this process, which then exits."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        # What the module starts is found even if its parent has ended.
        become_subreaper()
        own = os.getpid()
        status = 1
        try:
            kept, states, handlers = fork_rules.kept_open(), _random_states(), _handlers()
            generators = _load(name)
            descriptors.flush_output()
            trouble = fork_rules.lasting_trouble(kept) if os.getpid() == own else fork_rules.STARTS_PROCESSES
            if _handlers() != handlers:
                trouble = trouble or "it handles signals"
            # One that brings numpy may have seeded that.
            if name != _NUMPY and _random_states() != states:
                trouble = trouble or "it seeds or draws random numbers"
            # This also happens before each call, where it must not fail.
            fork_rules.reseed(generators)
            os.write(writing, (trouble + "\n").encode())
            status = 0
        finally:
            os._exit(status)


def _load(name: str) -> list[Any]:
    """Load a module; return the random number generators that came with it."""
    before = set(sys.modules)
    importlib.import_module(name)
    if name == _NUMPY:
        # It loads this when that is used.
        importlib.import_module("numpy.random")
    return fork_rules.generators_of([module for module in sys.modules if module not in before])


def _random_states() -> list[object]:
    """Return the states of the generators that all modules share, numpy's only if it is loaded."""
    numpy = sys.modules.get("numpy.random")
    return [random.getstate()] + ([pickle.dumps(numpy.get_state())] if numpy is not None else [])


def _handlers() -> list[object]:
    """Return what signals do in this process, and forget the descriptor that they write to."""
    return [signal.set_wakeup_fd(-1), *map(signal.getsignal, sorted(signal.valid_signals()))]


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
