"""One look at the cards of this machine: who holds which, who uses one without a lease, and who waits.

Reads alone: it knocks at nobody's door, so that it can be asked as often as one likes. Whose a card is follows from
the journal for one's own jobs, for others from the names of their jobs and the processes that are seen on it. Started
through the agent (`supervise.py gpus ROOT LEASE`); prints one JSON object.
"""

import json
import os
import sys
import time

from ..layout import JOBS, SPEC, UNSATISFIABLE
from ..supervisor import nvidia
from ..supervisor.eligible import asked
from ..supervisor.verdict import Verdict
from . import holds, machine, names, status
from . import marks as marking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

    from ..supervisor.nvidia import Load, OnCard

_OF_THE_JOURNAL = 1 << 20  # its end; a card that was taken before that is still shown as held
_SOMEBODY = "somebody"
_KEPT = "waiting for %s; what becomes free of them is kept for it"


def gpus(root: str, lease: str) -> int:
    """Print the look."""
    sys.stdout.write(json.dumps(look(root, marking.of(lease))) + "\n")
    return 0


def look(root: str, marks: "marking.Marks") -> "dict[str, Any]":
    """`cards`, `waiting`, and in `trouble` what nvidia-smi said instead of cards."""
    trouble, held = "", set()  # type: str, set[str]
    try:
        held = marks.names()
        loads, seen_on = nvidia.loads(), nvidia.processes()
    except Verdict as verdict:
        loads, seen_on = [], {}
        trouble = "" if verdict.kind == UNSATISFIABLE else str(verdict.facts["message"])
    seen = names.Seen(held, machine.now_s())
    holders = Holders(root, seen, os.getuid()).of(seen_on)
    cards = [_card(load, holders.get(load.uuid), seen_on.get(load.uuid, [])) for load in loads]
    return {"cards": cards, "waiting": _waiting(root, seen), "trouble": trouble}


def _card(load: "Load", holder: "Optional[dict[str, Any]]", seen_on: "list[OnCard]") -> "dict[str, Any]":
    told = dict(load._asdict(), holder=holder, without_lease=[])
    if holder is None:
        quiet = seen_on or load.used_mib is None or load.used_mib <= nvidia.QUIET_MIB
        unseen = [] if quiet else ["%d MiB in use by nobody visible" % load.used_mib]
        told["without_lease"] = [nvidia.in_words(each) for each in seen_on] + unseen
    return told


class Holders:
    """Whose the held cards are.

    Args:
        root: Of this user's jobs.
        seen: The names of one look.
        uid: This user.
    """

    def __init__(self, root: str, seen: names.Seen, uid: int) -> None:
        self._root = root
        self._seen = seen
        self._uid = uid
        self._left = [[job.uid, job.asked.gpus] for job in seen.running if job.asked.gpus]

    def of(self, seen_on: "dict[str, list[OnCard]]") -> "dict[str, dict[str, Any]]":
        """`user`, `job`, `name`, `since` (seconds since 1970) of each card that is held; None for what is not known."""
        found = self._own()
        for uuid in sorted(self._seen.cards - set(found)):
            users = {each.user for each in seen_on.get(uuid, [])}
            uid = next((uid for uid, left in self._left if left > 0 and nvidia.user_name(uid) in users), None)
            if uid is not None:
                found[uuid] = self._somebody(uid)
        rest = self._seen.cards - set(found)
        candidates = sorted({uid for uid, left in self._left if left > 0})
        for uuid in rest:
            found[uuid] = self._somebody(*candidates)
        return found

    def _own(self) -> "dict[str, dict[str, Any]]":
        """Those of this user's running jobs, by the journal."""
        running = {job.job for job in self._seen.running if job.uid == self._uid}
        found = {}
        for uuid, (job, since) in _taken(self._root).items():
            if uuid in self._seen.cards and job in running:
                found[uuid] = dict(self._somebody(self._uid), job=job, name=_name_of(self._root, job), since=since)
        return found

    def _somebody(self, *uids: int) -> "dict[str, Any]":
        """One of these users; with one alone the card is counted."""
        if len(uids) == 1:
            self._count(uids[0])
        user = " or ".join(nvidia.user_name(uid) for uid in uids) or _SOMEBODY
        return {"user": user, "own": uids == (self._uid,), "job": None, "name": None, "since": None}

    def _count(self, uid: int) -> None:
        for job in self._left:
            if job[0] == uid and job[1] > 0:
                job[1] -= 1
                return


def _taken(root: str) -> "dict[str, tuple[str, float]]":
    """Who took each card last and has not given it back, and when, by the journal."""
    found: "dict[str, tuple[str, float]]" = {}
    for line in _end_of(os.path.join(machine.folder(root), holds.FILE)):
        if line.get("event") == holds.TAKEN:
            found.update((uuid, (line["job"], line["t"])) for uuid in line["cards"])
        elif line.get("event") == holds.RELEASED:
            for uuid in line["cards"]:
                found.pop(uuid, None)
    return found


def _end_of(path: str) -> "Iterable[dict[str, Any]]":
    """The last lines of the journal; what is no line of it is left out."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OF_THE_JOURNAL))
            lines = file.read().split(b"\n")
    except OSError:  # nobody has taken a card here yet
        return
    for line in lines:
        try:
            told = json.loads(line.decode())
        except ValueError:  # cut off at the beginning, or being written
            continue
        yield told


def _name_of(root: str, job: str) -> "Optional[str]":
    """What its function is called; of an element of a group with its number."""
    whole, _, element = job.partition(".")
    try:
        with open(os.path.join(root, JOBS, whole, SPEC), encoding="utf-8") as file:
            name = json.load(file)["name"]
    except (OSError, ValueError, KeyError):  # its folder is gone
        return None
    return "%s, element %s" % (name, element) if element else str(name)


def _waiting(root: str, seen: names.Seen) -> "list[dict[str, Any]]":
    """Who waits for cards, the oldest first: all own jobs, and of others those that are next in their line."""
    now_s, now_ms, uid = time.time(), machine.now_ns() // 10**6, os.getuid()
    own = status.lines(root)
    tickets = {line["job"] for line in own}
    found = [
        (line["since"], {"own": True, "user": nvidia.user_name(uid), "job": line["job"], "name": line["name"],
                         "reason": line["reason"], "asked": line["asked"]})
        for line in own
        if line["asked"]["gpus"]
    ]  # fmt: skip
    for other in seen.waiting:
        if other.asked.gpus and (other.uid != uid or other.job not in tickets):
            wanted = asked(other.asked.gpus, other.kind.type, other.kind.memory_mb << 20)
            told = {"own": other.uid == uid, "user": nvidia.user_name(other.uid), "job": other.job, "name": None,
                    "reason": _KEPT % wanted, "asked": dict(other.asked._asdict())}  # fmt: skip
            found.append((now_s - (now_ms - other.ms) / 1000.0, told))
    return [dict(told, since=since) for since, told in sorted(found, key=lambda each: each[0])]
