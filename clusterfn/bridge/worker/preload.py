"""Loads modules that calls use, before calls are forked: as long as a fork after that is as good as a fresh process.

The calls load a module themselves if it starts processes, or threads that a fork would cut off, opens a GPU, or cannot
be loaded. So they do if it keeps something open that forks share, seeds random numbers, or handles signals.
Each is tried in a process of its own first.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..supervisor import process_tree
from ..supervisor.publish import names_in
from ..supervisor.worker_process import become_subreaper, die_with_parent
from . import descriptors, fork_rules
from .finish import is_installed

_NUMPY = "numpy.random"
_LIMIT_S = 120
# A pipe holds so many bytes.
_MOST_SAID = 65536


class Preloader:
    """Which modules are here, and which may not be.

    Attributes:
        refused: Modules that every call loads by itself, and why.
        unseeded: Their random number generators without a fixed seed.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.unseeded: list[Any] = []
        # By their places, those with a fixed seed too, and the one of the module `random` itself.
        self._generators: dict[str, Any] = {"random": random.seed.__self__}  # type: ignore[attr-defined]
        # The session itself needs these modules, as any worker does.
        self._own = frozenset(sys.modules)

    def load(self, names: Iterable[str]) -> list[str]:
        """Load those that are safe, and return them."""
        loaded = []
        for name in names:
            if name in sys.modules or name in self.refused or not is_installed(_found(name)):
                continue
            tried = self._examine(name)
            if tried["trouble"]:
                self.refused[name] = tried["trouble"]
                continue
            self._keep(name, tried)
            loaded.append(name)
        if loaded:
            fork_rules.settle_memory()
        return loaded

    def _examine(self, name: str) -> dict[str, Any]:
        """Try a module out, as `_try_out`; again where one trial does not show whether it seeds random numbers."""
        tried = self._try_out(name)
        if tried.get("brings_numpy") and not tried["trouble"]:
            # Only numpy that was there before shows it.
            self._keep(_NUMPY, self._try_out(_NUMPY))
            tried = self._try_out(name)
        if tried.get("drawn") and not tried["trouble"]:
            again: dict[str, int] = self._try_out(name).get("drawn") or {}
            # Each trial begins with other states, so one that is the same after it was seeded.
            if again.items() & tried["drawn"].items():
                tried["trouble"] = "it seeds random numbers"
        return tried

    def _keep(self, name: str, tried: Mapping[str, Any]) -> None:
        """Load a module here that was tried, unless it must not be loaded."""
        if tried["trouble"]:
            return
        with descriptors.drop_output():
            generators = _load(name)
        for place, state in fork_rules.generator_states(generators).items():
            if tried["states"].get(place) != state:
                self.unseeded.append(generators[place])
        self._generators.update(generators)

    def make_way(self, folders: Sequence[str]) -> None:
        """Forget, in the process of a call, the modules in whose place an import finds one in these folders."""
        # Not each loaded name is looked up in the folders: that would copy the pages of all names.
        for name in {entry.partition(".")[0] for folder in folders for entry in names_in(folder)}:
            if name in sys.modules and name not in self._own and _is_module(name, folders):
                for each in [each for each in sys.modules if each == name or each.startswith(name + ".")]:
                    del sys.modules[each]

    def _try_out(self, name: str) -> dict[str, Any]:
        """Load a module in a process of its own.

        Returns:
            The "trouble", why it must not be loaded before a fork, "" if it may; the "states" of its generators; those
            of earlier ones that it has "drawn" from or seeded; and whether it "brings_numpy".
        """
        reading, writing = os.pipe()
        descriptors.flush_output()
        parent, before = os.getpid(), process_tree.descendants(os.getpid())
        pid = os.fork()
        if pid == 0:
            # Without this call, the process would outlive a parent that is killed meanwhile.
            die_with_parent(signal.SIGKILL, parent)
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            descriptors.take_output(nowhere, os.dup(nowhere))
            self._try(name, writing)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        # This comes before the pipe is read, which those processes may hold open for ever.
        process_tree.end_all_but(lambda: before)
        # A line of each process that came back from the import: of two if the module forks.
        said = os.read(reading, _MOST_SAID).splitlines() if status == 0 else []
        os.close(reading)
        tried: list[dict[str, Any]] = [json.loads(line) for line in said] or [{"trouble": "loading it ended a process"}]
        return next((each for each in tried if each["trouble"]), tried[0])

    def _try(self, name: str, writing: int) -> NoReturn:
        """Load it in this process, which then exits."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        # What the module starts is found even if its parent has ended.
        become_subreaper()
        own, status = os.getpid(), 1
        try:
            # Without this call, what takes its seed from one would seem to have a fixed one.
            fork_rules.reseed(self.unseeded)
            kept, before, handlers = fork_rules.kept_open(), fork_rules.generator_states(self._generators), _handlers()
            has_numpy = _NUMPY in sys.modules
            generators = _load(name)
            descriptors.flush_output()
            trouble = fork_rules.lasting_trouble(kept) if os.getpid() == own else fork_rules.STARTS_PROCESSES
            if _handlers() != handlers:
                trouble = trouble or "it handles signals"
            after = fork_rules.generator_states(self._generators)
            said = {
                "trouble": trouble, "states": fork_rules.generator_states(generators),
                "drawn": {place: state for place, state in after.items() if state != before[place]},
                "brings_numpy": _NUMPY in sys.modules and not has_numpy,
            }  # fmt: skip
            # This also happens before each call, where it must not fail.
            fork_rules.reseed(generators.values())
            os.write(writing, (json.dumps(said) + "\n").encode())
            status = 0
        finally:
            os._exit(status)


def _load(name: str) -> dict[str, Any]:
    """Load a module; return the random number generators that came with it, by their places."""
    before = set(sys.modules)
    importlib.import_module(name)
    return fork_rules.generators_of([each for each in sys.modules if each not in before])


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
