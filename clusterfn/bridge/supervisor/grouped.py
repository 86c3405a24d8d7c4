"""A group as a whole: what has become of its items, its one outcome, and the end of what nobody will run any more."""

import json
import os
import sys

from ..layout import CANCELLED, ELEMENTS, LOST, RAISED, RETURNED, VERDICT
from . import journal, publish
from .attempt import Attempt, make_folder
from .chunks import Chunks
from .element import Teller
from .job import Job
from .text import native
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def kinds(home: str) -> "dict[int, str]":
    """How each item ended of which that is known."""
    found: "dict[int, str]" = {}
    folder = os.path.join(home, ELEMENTS)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for number in sorted(int(name) for name in names if name.isdecimal()):
        for line in journal.lines(home, number):
            if "index" in line:
                found.setdefault(line["index"], line["kind"])
    return found


def in_words(ended: "dict[int, str]", count: int) -> str:
    """The counts: "98 of 100 ended: 95 returned, 3 raised"."""
    known = list(ended.values())
    parts = ["%d %s" % (known.count(kind), kind) for kind in sorted(set(known), key=lambda kind: kind != RETURNED)]
    return "%d of %d ended%s" % (len(known), count, ": " + ", ".join(parts) if parts else "")


def conclude_if_complete(job: Job) -> None:
    """Publish the group's outcome if each item has its line; elements that still wait are not needed then."""
    spec = job.spec["group"]
    if not Chunks(job.home, spec).complete():
        return
    ended = kinds(job.home)
    group = Job(job.home)
    facts = {"message": in_words(ended, spec["count"]), "by": "supervisor"}
    Attempt(group, 1).publish(_kind_of_all(list(ended.values())), facts)
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if job.slurm and array:
        _take_out_of_queue(array)


def _kind_of_all(kinds: "list[str]") -> str:
    """What is said of the group, here as by `JobGroup.state`."""
    if CANCELLED in kinds:
        return CANCELLED
    return RETURNED if RETURNED in kinds or not kinds else RAISED


def _take_out_of_queue(array: str) -> None:
    import subprocess

    try:
        subprocess.run(
            ["scancel", "--state=PENDING", array], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # they will find nothing to do
        return


def bury(folder: str) -> int:
    """Give every item that nobody has, or will have, the line that a verdict is; or go on where another died over it.

    Args:
        folder: That of an element which does only this; its journal takes the lines. The verdict is what was on stdin
            when it was first asked for. Elements that begin later find nothing that is left.
    """
    for each in (os.path.dirname(folder), folder):
        make_folder(each)
    publish.publish(folder, VERDICT, sys.stdin.read().encode())
    job = Job(folder)
    if Chunks(job.home, job.spec["group"]).end_of(job.element or 0) is None:
        _give_up(job, native(json.loads((publish.read(folder, VERDICT) or b"").decode())))
    conclude_if_complete(job)
    return 0


def _give_up(job: Job, asked: "dict[str, Any]") -> None:
    attempt = Attempt.new(job)
    by = attempt.fence()
    if by is None:
        attempt.prepare()
        told = _tell_all(Teller(job, attempt, sync=False), asked)
        attempt.publish(RETURNED, {"message": "%d items were given up" % told, "by": "conclude"})
    else:
        attempt.supersede(by)


def _tell_all(teller: Teller, asked: "dict[str, Any]") -> int:
    facts = {name: asked.get(name) for name in ("evidence", "hint", "stage")}
    verdict = Verdict(asked.get("kind") or LOST, asked["message"], **facts)
    for chunk in teller.chunks.take_all(teller.job.element or 0):
        for index in teller.chunks.items(chunk):
            teller.tell(index, verdict)
        teller.chunks.finish(chunk)
    for chunk in teller.pulled():
        for index in teller.left(chunk):
            teller.tell(index, verdict)
        teller.chunks.finish(chunk)
    return teller.told
