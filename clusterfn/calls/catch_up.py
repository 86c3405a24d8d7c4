"""Has `attach` know what stands on the host before it returns: how large the files are that tell of a job or a group
is asked beside its other questions, and as much is waited for. Concludes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.hosts.connection import Completed, HostConnection, Reply

_TIMEOUT_S = 60.0
_HEAR_S = 15.0  # large values may take longer, and come afterwards
_LOOK_S = 0.01


def ask(connection: HostConnection, folder: str, depth: int, *names: str) -> Reply[Completed]:
    """Ask for the sizes of the files of these names, so deep below a folder; `sizes` reads the answer."""
    named = [word for name in names for word in ("-o", "-name", name)][1:]
    levels = ["-mindepth", str(depth), "-maxdepth", str(depth)]
    return connection.run(["find", folder, *levels, "(", *named, ")", "-exec", "wc", "-c", "{}", "+"])


def sizes(folder: str, asked: Reply[Completed]) -> dict[str, int]:
    """The size in bytes of each file that is there, by its name below the folder."""
    told = [line.split(None, 1) for line in asked.result(_TIMEOUT_S).out.decode().splitlines()]
    return {path[len(folder) + 1 :]: int(size) for size, path in told if path.startswith(folder)}


def until(true: Callable[[], bool]) -> None:
    """Wait until that is so, for as long as a host may take to say what it has."""
    end = time.monotonic() + _HEAR_S
    while not true() and time.monotonic() < end:
        time.sleep(_LOOK_S)


def has_heard(job: Job[Any], tracker: Tracker, there: Mapping[str, int]) -> bool:
    """Whether a job is known to have ended, or else as much of its present attempt as its events tell."""
    outcome, events = (f"{tracker.attempt}/{name}" for name in (layout.OUTCOME, layout.EVENTS))
    return job.done() or (outcome not in there and tracker.heard >= there.get(events, 0))
