"""What the names that are held on a machine mean, and how they are written. Pure.

gpu/<uuid>                                       a GPU
run/<uid>/<job>/<gpus>/<cores>/<MB>              a job that runs, and what it takes
wait/<uid>/<ms>/<until>/<gpus>/<cores>/<MB>/<job>/<type>/<GPU MB>
                                                 a job that is first in its line, submitted <ms> after the machine's
                                                 start, and which GPUs will do; it counts until <until>, in seconds
spool/<uid>/<queue>                              a spooler
turn/<uid>/<queue>/<until>                       until when its spooler will have looked at the queue again, in seconds
door                                             the job that is being admitted just now

Every user of the machine can read them, and could hold false ones.
"""

from .machine import ANY, Demand, Kind, Running, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional

ADMISSION = "door"
GPU, RUN, WAIT, SPOOL, TURN = "gpu/", "run/", "wait/", "spool/", "turn/"

VALID_S = 60  # a job that makes no progress delays others no longer than that
_NO_END_S = str(1 << 62)
_LONGEST = 97  # an abstract socket takes 107 bytes, 10 of them before these


class Seen:
    """The names of one look.

    Args:
        names: All that are held.
        now_s: Seconds since the machine was started.

    Attributes:
        cards: UUIDs that are held.
        waits: The names of those that wait.
        running: Jobs that run.
        waiting: Jobs that are next in their line, the oldest first. Those that have just begun to run are left out, and
            those whose name is too old.
    """

    def __init__(self, names: "Iterable[str]", now_s: float) -> None:
        held = list(names)
        self.cards = {name[len(GPU) :] for name in held if name.startswith(GPU)}
        self.waits = {name for name in held if name.startswith(WAIT)}
        self.running = [job for job in map(_running, held) if job is not None]
        run = {(job.uid, job.job) for job in self.running}
        waiting = {job for until, job in filter(None, map(_waiting, held)) if until > now_s}
        self.waiting = sorted(job for job in waiting if (job.uid, job.job) not in run)

    def holders(self, cards: "Iterable[str]", but: "tuple[int, str]") -> "dict[str, int]":
        """Return the uid of the holder of each of these GPUs that is held, as the running jobs publish it; else -1.

        Args:
            but: uid and job of the one that asks.
        """
        held = [card for card in cards if card in self.cards]
        own = (job for job in sorted(self.running) if (job.uid, job.job) != but)
        uids = [job.uid for job in own for _ in range(min(job.asked.gpus, len(self.cards)))]
        known = len(uids) == len(self.cards) and (len(held) == len(uids) or len(set(uids)) == 1)
        return dict(zip(held, uids)) if known else dict.fromkeys(held, -1)


def gpu(uuid: str) -> str:
    """Name a GPU."""
    return GPU + uuid


def run(uid: int, job: str, asked: Demand) -> str:
    """Name a job that runs."""
    return "%s%d/%s/%d/%d/%d" % (RUN, uid, job, asked.gpus, asked.cores, asked.memory_mb)


def wait(waiting: Waiting, until_s: int) -> str:
    """Name a job that is the next of its line; one whose GPU type is too long, as if any GPU would do."""
    ms, uid, job, asked, kind = waiting
    parts = (WAIT, uid, ms, until_s, asked.gpus, asked.cores, asked.memory_mb, job)
    name = "%s%d/%d/%d/%d/%d/%d/%s/%s/%d" % (parts + kind[:2])
    return name if len(name) <= _LONGEST else "%s%d/%d/%d/%d/%d/%d/%s/%s/%d" % (parts + ANY[:2])


def spool(uid: int, queue: str) -> str:
    """Name a spooler."""
    return "%s%d/%s" % (SPOOL, uid, queue)


def turn(uid: int, queue: str, until_s: int) -> str:
    """Name a spooler that serves, and until when."""
    return "%s%d/%s/%d" % (TURN, uid, queue, until_s)


def overdue(held: "Iterable[str]", spool_name: str, now_s: float) -> "Optional[str]":
    """Return the name by which a spooler promised a turn that did not come; None if it serves, or promised nothing."""
    own = TURN + spool_name[len(SPOOL) :] + "/"
    turns = {name: _numbers([name[len(own) :]]) for name in held if name.startswith(own)}
    late = [name for name, until in turns.items() if until and until[0] <= now_s]
    return late[0] if late and len(late) == len(turns) else None


def _running(name: str) -> "Optional[Running]":
    parts = name.split("/")
    if parts[0] != "run" or len(parts) != 6:
        return None
    numbers = _numbers([parts[1]] + parts[3:])
    return Running(numbers[0], parts[2], Demand(*numbers[1:])) if numbers else None


def _waiting(name: str) -> "Optional[tuple[int, Waiting]]":
    parts = name.split("/")
    if len(parts) == 7:  # of an older bridge, whose names count as long as they are held, for any GPU
        parts = parts[:3] + [_NO_END_S] + parts[3:] + ["", "0"]
    if parts[0] != "wait" or len(parts) != 10:
        return None
    numbers = _numbers(parts[1:7] + parts[9:])
    if not numbers:
        return None
    uid, ms, until_s = numbers[:3]
    return until_s, Waiting(ms, uid, parts[7], Demand(*numbers[3:6]), Kind(parts[8], numbers[6], ()))


def _numbers(words: "list[str]") -> "list[int]":
    """Parse numbers; return an empty list if a word is not one: clusterfn did not make that name."""
    return [int(word) for word in words] if all(word.isdecimal() and len(word) <= 20 for word in words) else []
