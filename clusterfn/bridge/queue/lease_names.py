"""What the names that are held on a machine mean, and how they are written. Pure.

gpu/<uuid>                                       a GPU
run/<uid>/<job>/<gpus>/<cores>/<MB>              a job that runs, and what it takes
wait/<uid>/<ms>/<until>/<gpus>/<cores>/<MB>/<job>~<more>/<type>/<GPU MB>
                                                 a job that is first in its line since <ms> after the machine's
                                                 start, and which GPUs will do; it counts until <until>, in seconds,
                                                 which is `VALID_S` away at most; <more>: how many further jobs like it
                                                 could start
spool/<uid>/<queue>                              a spooler
door                                             the job that is being admitted just now

Every user of the machine can read them, and could hold false ones. So a name with a uid counts only if that user, or
root, has bound it. Whose name another user has bound holds it with a random ending of <job> or <queue>: `~~<random>`.
"""

from ..supervisor.text import DIGITS
from .machine import ANY, Demand, Kind, Running, Waiting, weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

    Owned = TypeVar("Owned")

ADMISSION = "door"
GPU, RUN, WAIT, SPOOL = "gpu/", "run/", "wait/", "spool/"

# A waiting job that makes no progress delays other users no longer than this.
VALID_S = 60
# An abstract socket's name takes 107 bytes. The prefix of lease.py takes 10 of them, and an ending takes 10.
_LONGEST = 87
# A user could name other users by digits of other scripts, so only `DIGITS` count.
_LONGEST_NUMBER = 20
_CLAIMING = frozenset(["run", "wait", "spool"])
# Of one user: a spooler names the first job of each line, and those that are about to start.
_MOST_WAITING = 256
_TIME_SHARED = "t"
_WAIT = "%s%d/%d/%d/%d/%d/%d/%s~%d/%s/%d"


class HeldNames:
    """The names of one look.

    Args:
        names: All that are held; as a mapping, with the uid of the process that bound each, None if not known.
        now_s: Seconds since the machine was started.
        but: uid and job of the one that looks, whose own name is left out of what runs.

    Attributes:
        gpus: UUIDs that are held.
        binders: uid of the process that holds each, as far as it is known.
        jobs: The job that runs, by the name that it holds.
        waits: uid of the user of each that waits, by its name.
        running: Jobs that run.
        waiting: Jobs that are next in their line, the oldest first. Those that have just begun to run are left out, and
            those whose name has a time that is over or too far away.
        since: When each job that has a name of those that wait became the next one, in ms, by uid and job.
        false: uid of the user who has bound a name with another user's uid, by that name.
    """

    def __init__(self, names: "Iterable[str]", now_s: float, but: "Optional[tuple[int, str]]" = None) -> None:
        held: "Mapping[str, Optional[int]]" = names if isinstance(names, dict) else dict.fromkeys(names)
        self.binders = {name[len(GPU) :]: uid for name, uid in held.items() if name.startswith(GPU)}
        self.gpus = set(self.binders)
        self.false = {name: uid for name, uid in held.items() if uid and claimed_by(name) not in (None, uid)}
        valid = [name for name in held if name not in self.false]
        self.jobs = {name: job for name, job in zip(valid, map(_running, valid)) if job is not None}
        self.waits: "dict[str, int]" = {}
        waiting: "dict[tuple[int, str], tuple[int, Waiting]]" = {}
        for name in valid:
            entry = _waiting(name)
            if entry is None:
                continue
            until_s, job = entry
            self.waits[name] = job.uid
            # Of several names of one job the newest counts, because a spooler binds the next before it releases the
            # last.
            if now_s < until_s <= now_s + VALID_S and waiting.get((job.uid, job.job), (0,))[0] < until_s:
                waiting[job.uid, job.job] = entry
        self.since = {key: entry.ms for key, (_, entry) in waiting.items()}
        self.running = [job for job in self.jobs.values() if (job.uid, job.job) != but]
        run = {(job.uid, job.job) for job in self.running}
        entries = sorted(entry for key, (_, entry) in waiting.items() if key not in run)
        self.waiting = first_of_each([(entry, entry.uid) for entry in entries], _MOST_WAITING)

    def held_by(self, uid: int) -> int:
        """Return what the running jobs of a user hold, as one number."""
        return sum(weight(job.asked) for job in self.running if job.uid == uid)

    def in_order(self) -> "list[tuple[tuple[int, int, int], Waiting]]":
        """Return the jobs that wait in the order in which they come, each with its place.

        First comes the job whose user holds less, then the one that has been next for longer. So a large job is starved
        by no small ones. A user's next job counts for the one behind it, so users get their turns one after another.
        """
        held: "dict[int, int]" = {}
        placed = []
        for job in self.waiting:
            has = held[job.uid] if job.uid in held else self.held_by(job.uid)
            placed.append(((has, job.ms, job.uid), job))
            held[job.uid] = has + weight(job.asked)
        return sorted(placed)

    def holders(self, gpus: "Iterable[str]") -> "dict[str, int]":
        """Return the uid of the process that bound the name of each of these GPUs that is held; -1 if not known.

        Where the kernel does not say it, the running jobs publish it.
        """
        held = [gpu for gpu in gpus if gpu in self.gpus]
        bound = {gpu: self.binders[gpu] for gpu in held}
        if None not in bound.values():
            return {gpu: uid for gpu, uid in bound.items() if uid is not None}
        uids = [job.uid for job in sorted(self.running) for _ in range(min(job.asked.gpus, len(self.gpus)))]
        is_known = len(uids) == len(self.gpus) and (len(held) == len(uids) or len(set(uids)) == 1)
        return dict(zip(held, uids)) if is_known else dict.fromkeys(held, -1)


def first_of_each(
    owned: "Iterable[Tuple[Owned, Optional[int]]]", most: int, unlimited: "Sequence[Optional[int]]" = ()
) -> "List[Owned]":
    """Return what users have, and no more than so many of one user who is not among the unlimited ones."""
    kept: "List[Owned]" = []
    counts: "Dict[Optional[int], int]" = {}
    for item, uid in owned:
        counts[uid] = counts.get(uid, 0) + 1
        if uid in unlimited or counts[uid] <= most:
            kept.append(item)
    return kept


def claimed_by(name: str) -> "Optional[int]":
    """Return the uid that a name says; None if it says none, as that of a GPU."""
    parts = name.split("/", 2)
    claims = len(parts) == 3 and parts[0] in _CLAIMING and parts[1] and DIGITS.issuperset(parts[1])
    return int(parts[1]) if claims else None


def plain(name: str) -> str:
    """Return a name without its ending."""
    return "/".join(part.partition("~")[0] for part in name.split("/")) if "~" in name else name


def with_ending(name: str, ending: str) -> str:
    """Return another name that means the same."""
    parts = name.split("/")
    place = 7 if parts[0] == "wait" else 2
    parts[place] += ("~" if "~" in parts[place] else "~~") + ending
    return "/".join(parts)


def gpu(uuid: str) -> str:
    """Name a GPU."""
    return GPU + uuid


def run(uid: int, job: str, demand: Demand, shared: bool = False) -> str:
    """Name a job that runs; `shared`: it shares the cores in time, so no other user waits for them."""
    label = job + "~" + _TIME_SHARED if shared else job
    return "%s%d/%s/%d/%d/%d" % (RUN, uid, label, demand.gpus, demand.cores, demand.memory_mb)


def wait(waiting: Waiting, until_s: int) -> str:
    """Name a job that is the next of its line; one whose GPU type is too long, as if any GPU would do."""
    ms, uid, job, demand, kind, more = waiting
    parts = (WAIT, uid, ms, until_s, demand.gpus, demand.cores, demand.memory_mb, job, more)
    name = _WAIT % (parts + kind[:2])
    return name if len(name) <= _LONGEST else _WAIT % (parts + ANY[:2])


def spool(uid: int, queue: str) -> str:
    """Name a spooler."""
    return "%s%d/%s" % (SPOOL, uid, queue)


def _running(name: str) -> "Optional[Running]":
    parts = name.split("/")
    if parts[0] != "run" or len(parts) != 6:
        return None
    numbers = _numbers([parts[1]] + parts[3:])
    job, details = _job_of(parts[2])
    return Running(numbers[0], job, Demand(*numbers[1:]), details == _TIME_SHARED) if numbers else None


def _waiting(name: str) -> "Optional[tuple[int, Waiting]]":
    parts = name.split("/")
    if parts[0] != "wait" or len(parts) != 10:
        return None
    job, details = _job_of(parts[7])
    numbers = _numbers(parts[1:7] + [parts[9], details])
    if not numbers:
        return None
    uid, ms, until_s = numbers[:3]
    return until_s, Waiting(ms, uid, job, Demand(*numbers[3:6]), Kind(parts[8], numbers[6], ()), numbers[7])


def _job_of(field: str) -> "tuple[str, str]":
    """Split the part that names a job into its id and the rest."""
    job, details = (field.split("~") + [""])[:2]
    return job, details


def _numbers(words: "list[str]") -> "list[int]":
    """Parse numbers; return an empty list if a word is not one: clusterfn did not make that name."""
    return [int(word) for word in words] if all(map(_is_number, words)) else []


def _is_number(word: str) -> bool:
    return 0 < len(word) <= _LONGEST_NUMBER and DIGITS.issuperset(word)
