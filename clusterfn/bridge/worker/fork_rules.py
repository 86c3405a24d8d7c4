"""When a fork of this process is as good as a process whose interpreter is started, and how its memory is kept shared.

The template of an element's workers and the runners of a session fork by these rules. (OpenBLAS ends its threads itself
before every fork, which is why threads are counted after one.)

Forks would draw the same random numbers from modules that were loaded before. A process that loads such a module itself
seeds the module's generators, unless they have a fixed seed: one that has is in the same state when it is loaded again.
torch is left out, because it starts from the same seed in every process. This finds those that a module or one of its
classes holds, and none that are deeper in other objects.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import AbstractSet, Any

from ..supervisor import process_tree
from .descriptors import open_files, output_has_copies

_GPU = "/dev/nvidia"
# Devices that give to each reader the same, however many share them.
_SHARED_BY_ALL = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
STARTS_PROCESSES = "it starts processes"
_OF_NUMPY = ("Generator", "RandomState", "BitGenerator")


def lasting_trouble(kept: AbstractSet[str]) -> str:
    """Return what of this process would not survive a fork, or would lead from it to others; "" for nothing.

    Args:
        kept: What was kept open before, as `kept_open` names it: all that came since is shared by forks.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if process_tree.descendants(os.getpid()):
        return STARTS_PROCESSES
    if any(path.startswith(_GPU) for path in open_files().values()):
        return "it opens a GPU"
    if output_has_copies():
        return "it keeps another way to its output"
    return "it keeps a file, a socket or shared memory open" if kept_open() - kept else ""


def kept_open() -> set[str]:
    """Name the open files of this process and the memory that it shares with its forks.

    Forks share the place in a file, what a socket or a selector wakes, and the locks and counters of multiprocessing.
    """
    found = {"%d %s" % each for each in open_files().items() if each[1] not in _SHARED_BY_ALL}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return found | {line for line in maps if line.split(" ", 2)[1] == "rw-s"}


def inherited() -> set[str]:
    """Name the files that this process has had open since its program was started, as `kept_open` does."""
    # An exec closes what has this flag, which Python sets for all that it opens.
    return {
        "%d %s" % each for each in open_files().items() if not fcntl.fcntl(each[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    }


def settle_memory() -> None:
    """Keep the collector away from all that is loaded: its first run in each fork would copy the pages of that."""
    gc.collect()
    gc.freeze()


def generators_of(modules: Iterable[str]) -> dict[str, Any]:
    """Return the random number generators that these modules hold, each once, by the places where they are."""
    # They are not loaded for this: `random` takes part in each fork.
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    kinds = tuple(getattr(numpy, name) for name in _OF_NUMPY if hasattr(numpy, name))
    system: tuple[type, ...] = ()
    if random is not None:
        kinds, system = (random.Random, *kinds), (random.SystemRandom,)
    found: dict[int, tuple[str, Any]] = {}
    for name in modules:
        for place, value in _held_by(name):
            # A module may hold a method, as in `uniform = Random().uniform`.
            if type(value) in (MethodType, BuiltinFunctionType):
                value = value.__self__
            # This does not use `isinstance`, because a proxy would act on that.
            kind = type(value)
            if issubclass(kind, kinds) and not issubclass(kind, system):
                found.setdefault(id(value), (".".join(map(str, place)), value))
    return dict(found.values())


def _held_by(name: str) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Yield what a module and its classes hold, with the names that lead there."""
    module = sys.modules[name]
    if not issubclass(type(module), ModuleType):
        return
    for attribute, value in list(vars(module).items()):
        yield (name, attribute), value
        if issubclass(type(value), type) and vars(value).get("__module__") == name:
            for inner, held in list(vars(value).items()):
                yield (name, attribute, inner), held


def generator_states(generators: Mapping[str, Any]) -> dict[str, int]:
    """Return a number for the state of each, by its place: with a fixed seed it is the same in all processes."""
    return {place: zlib.crc32(pickle.dumps(generator)) for place, generator in generators.items()}


def reseed(generators: Iterable[Any]) -> None:
    """Let these begin as in a process that has just loaded them; `random` seeds its own after each fork by itself."""
    for generator in generators:
        if hasattr(generator, "seed"):
            generator.seed()
        else:
            # It is one of numpy's newer kind.
            bits = getattr(generator, "bit_generator", generator)
            bits.state = type(bits)().state
