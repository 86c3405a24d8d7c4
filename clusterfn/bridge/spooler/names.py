"""What the names that are held on a machine mean, and how they are written. Pure.

gpu/<uuid>                                       a card
run/<uid>/<job>/<gpus>/<cores>/<MB>              a job that runs, and what it takes
wait/<uid>/<ms>/<gpus>/<cores>/<MB>/<job>        a job that is first in its line since <ms> after the machine's start
spool/<uid>/<queue>                              a spooler
door                                             whoever is being let in just now

Every user of the machine can read them, and could lie by them. Called by `admission`, `plan` and `spool`, and by
whoever shows who holds what.
"""

from collections import namedtuple

from .demand import Demand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional

DOOR = "door"
GPU, RUN, WAIT, SPOOL = "gpu/", "run/", "wait/", "spool/"

Running = namedtuple("Running", ("uid", "job", "asked"))
Waiting = namedtuple("Waiting", ("ms", "uid", "job", "asked"))


class Seen:
    """The names of one look.

    Attributes:
        cards: UUIDs that are held.
        running: Jobs that run.
        waiting: Those that wait and whose turn it is next, the oldest first; not those that have just begun to run.
    """

    def __init__(self, names: "Iterable[str]") -> None:
        held = list(names)
        self.cards = {name[len(GPU) :] for name in held if name.startswith(GPU)}
        self.running = [job for job in map(_running, held) if job is not None]
        run = {(job.uid, job.job) for job in self.running}
        waiting = [job for job in map(_waiting, held) if job is not None]
        self.waiting = sorted(job for job in waiting if (job.uid, job.job) not in run)

    def holders(self, cards: "Iterable[str]", but: "tuple[int, str]") -> "dict[str, int]":
        """uid of whoever holds each of these cards that is held, as the jobs that run let it be known; else -1.

        Args:
            but: uid and job of who asks.
        """
        held = [card for card in cards if card in self.cards]
        own = (job for job in sorted(self.running) if (job.uid, job.job) != but)
        uids = [job.uid for job in own for _ in range(min(job.asked.gpus, len(self.cards)))]
        known = len(uids) == len(self.cards) and (len(held) == len(uids) or len(set(uids)) == 1)
        return dict(zip(held, uids)) if known else dict.fromkeys(held, -1)


def gpu(uuid: str) -> str:
    """Of a card."""
    return GPU + uuid


def run(uid: int, job: str, asked: Demand) -> str:
    """Of a job that runs."""
    return "%s%d/%s/%d/%d/%d" % (RUN, uid, job, asked.gpus, asked.cores, asked.memory_mb)


def wait(uid: int, ms: int, job: str, asked: Demand) -> str:
    """Of a job that is the next of its line."""
    return "%s%d/%d/%d/%d/%d/%s" % (WAIT, uid, ms, asked.gpus, asked.cores, asked.memory_mb, job)


def spool(uid: int, queue: str) -> str:
    """Of a spooler."""
    return "%s%d/%s" % (SPOOL, uid, queue)


def _running(name: str) -> "Optional[Running]":
    parts = name.split("/")
    if parts[0] != "run" or len(parts) != 6:
        return None
    numbers = _numbers([parts[1]] + parts[3:])
    return Running(numbers[0], parts[2], Demand(*numbers[1:])) if numbers else None


def _waiting(name: str) -> "Optional[Waiting]":
    parts = name.split("/")
    if parts[0] != "wait" or len(parts) != 7:
        return None
    numbers = _numbers(parts[1:6])
    return Waiting(numbers[1], numbers[0], parts[6], Demand(*numbers[2:])) if numbers else None


def _numbers(words: "list[str]") -> "list[int]":
    """Of what is no number somebody else has made the name."""
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []
