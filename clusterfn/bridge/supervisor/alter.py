"""Change what a waiting job asks for: its time, its memory, and its place among the jobs of its user.

`supervise.py alter JOB` reads the change as JSON on stdin. A scheduler with nodes has been told before. In clusterfn's
own queue, the tickets of the job change as well. A job that has begun keeps what it has.
"""

import json
import os
import sys

from ..layout import ATTEMPTS, CLAIM, SPEC
from ..queue import launch
from ..queue.machine import demand_of
from ..queue.tickets import Queue
from . import publish
from .job import JobFolder, each_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OF_RESOURCES = ("time_s", "memory_bytes")


def alter_job(folder: str) -> int:
    """Alter a job, and print `{"altered": bool}`: false if it has begun."""
    change = json.loads(sys.stdin.read())
    job = JobFolder(folder)
    is_altered = not _has_begun(job)
    if is_altered:
        path = job.path(SPEC)
        with open(path, encoding="utf-8") as file:
            spec = _changed(dict(json.load(file)), change)
        publish.replace(path, json.dumps(spec, indent=1).encode())
        if not job.scheduler.has_nodes:
            _alter_tickets(job, spec)
        # A job that has begun meanwhile may have read what it asked for before.
        is_altered = not _has_begun(job)
    sys.stdout.write(json.dumps({"altered": is_altered}) + "\n")
    return 0


def _changed(spec: "dict[str, Any]", change: "dict[str, Any]") -> "dict[str, Any]":
    asked, group = dict(spec["resources"]), spec.get("group")
    # The time of an element is for several items.
    if group and group.get("element_s") and asked.get("time_s") and "time_s" in change:
        spec["group"] = dict(group, element_s=group["element_s"] * change["time_s"] / asked["time_s"])
    asked.update((name, change[name]) for name in _OF_RESOURCES if name in change)
    spec["resources"] = asked
    if "priority" in change:
        spec["priority"] = change["priority"]
    return spec


def _has_begun(job: JobFolder) -> bool:
    """Whether the job, or an element of a group, has been claimed."""
    names = (CLAIM, ATTEMPTS)
    return any(os.path.exists(os.path.join(each, name)) for each in each_folder(job.folder) for name in names)


def _alter_tickets(job: JobFolder, spec: "dict[str, Any]") -> None:
    waiting = Queue(job.root)
    for name in waiting.names():
        if name.partition(".")[0] == job.id:
            fields = waiting.fields(name)
            if fields is not None:
                asked, resources = dict(demand_of(spec)._asdict()), spec["resources"]
                fields.update(asked=asked, resources=resources, priority=spec.get("priority", 0))
                publish.replace(os.path.join(waiting.folder, name), json.dumps(fields).encode())
    launch.revive_spooler(job.root, spec["bridge"])
