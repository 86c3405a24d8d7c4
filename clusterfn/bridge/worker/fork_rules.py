"""When a fork of this process is as good as a process whose interpreter is started, and how its memory is kept shared.

The template of an element's workers and the runners of a session fork by these rules. (OpenBLAS ends its threads itself
before every fork, which is why threads are counted after one.)

Forks would draw the same random numbers from modules that were loaded before, so each fork seeds their generators.
torch is left out, because it starts from the same seed in every process. This finds those that a module or one of its
classes holds, and none that are deeper in other objects.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
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
    found = {"%d %s" % file for file in open_files().items() if file[1] not in _SHARED_BY_ALL}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return found | {line for line in maps if line.split(" ", 2)[1] == "rw-s"}


def inherited() -> set[str]:
    """Name the files that this process has had open since its program was started, as `kept_open` does."""
    # An exec closes what has this flag, which Python sets for all that it opens.
    return {
        "%d %s" % file for file in open_files().items() if not fcntl.fcntl(file[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    }


def settle_memory() -> None:
    """Keep the collector away from all that is loaded: its first run in each fork would copy the pages of that."""
    gc.collect()
    gc.freeze()


def generators_of(modules: Iterable[str]) -> list[Any]:
    """Return the random number generators that these modules hold, each once."""
    # They are not loaded for this: `random` takes part in each fork.
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    kinds = tuple(getattr(numpy, name) for name in _OF_NUMPY if hasattr(numpy, name))
    system: tuple[type, ...] = ()
    if random is not None:
        kinds = (random.Random, *kinds)
        system = (random.SystemRandom,)
    found: dict[int, Any] = {}
    for value in itertools.chain.from_iterable(map(_held_by, modules)):
        # A module may hold a method, as in `uniform = Random().uniform`.
        owner = value.__self__ if type(value) in (MethodType, BuiltinFunctionType) else value
        # This does not use `isinstance`, because a proxy would act on that.
        if issubclass(type(owner), kinds) and not issubclass(type(owner), system):
            found[id(owner)] = owner
    return list(found.values())


def _held_by(name: str) -> Iterator[Any]:
    """Yield what a module and its classes hold."""
    module = sys.modules[name]
    if not issubclass(type(module), ModuleType):
        return
    for value in list(vars(module).values()):
        yield value
        if issubclass(type(value), type) and vars(value).get("__module__") == name:
            yield from list(vars(value).values())


def reseed(generators: Iterable[Any]) -> None:
    """Let these begin as in a process that has just loaded them; `random` seeds its own after each fork by itself."""
    for generator in generators:
        if hasattr(generator, "seed"):
            generator.seed()
        else:
            # It is one of numpy's newer kind.
            bits = getattr(generator, "bit_generator", generator)
            bits.state = type(bits)().state
