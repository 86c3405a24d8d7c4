"""What agents that were killed left of their uploads: removed where something new is put, once it is a day old.

A folder is looked through once by each agent, and when it has nothing better to do: it may hold thousands of blobs.
"""

import os
import re
import time

from .files import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Agent

DAY_S = 24 * 3600.0
LATER_S = 1.0
_OWN = int.from_bytes(os.urandom(6), "big")  # not the pid: in a container a later agent has the same
ASIDE = re.compile(r".+\.part-\d+-\d+\Z", re.DOTALL)


def aside(path: str, number: int) -> str:
    """Where the bytes for `path` lie until they are whole: beside it, by this process and a number of its own."""
    return "%s.part-%d-%d" % (path, _OWN, number)


def sweep_later(agent: "Agent", folder: str) -> None:
    """Have the folder looked through, unless this agent has done so."""
    if folder not in agent.swept:
        agent.swept.add(folder)
        agent.at(LATER_S, lambda: sweep(folder))


def sweep(folder: str) -> None:
    """Remove what was left there; what cannot be looked at or removed stays."""
    try:
        found = [os.path.join(folder, name) for name in os.listdir(folder) if ASIDE.match(name)]
        old = [path for path in found if time.time() - newest(path) > DAY_S]
    except OSError:
        return
    for path in old:
        if os.path.isdir(path) and not os.path.islink(path):
            remove_tree(path)
        else:
            remove(path)


def newest(path: str) -> float:
    """When it last grew: a folder does so by what is in it."""
    inside = [os.path.join(place, name) for place, folders, files in os.walk(path) for name in folders + files]
    return max(os.lstat(each).st_mtime for each in [path] + inside)


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
