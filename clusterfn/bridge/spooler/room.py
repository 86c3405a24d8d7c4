"""What is left of a machine for one user, while jobs are let in and reserved for one after another. Pure.

Cards are counted by name, everything else by amount.
"""

from . import keeping
from .demand import Demand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Sequence

    from .demand import Limits
    from .names import Running

CARDS, CORES, MEMORY, OWN = "cards", "cores", "memory", "own"


class Machine:
    """What there is.

    Attributes:
        free_cards: Those that nobody holds or uses, in PCI order.
    """

    def __init__(self, cores: int, memory_mb: int, available_mb: int, free_cards: "Iterable[str]" = ()) -> None:
        self.cores = cores
        self.memory_mb = memory_mb
        self.available_mb = available_mb
        self.free_cards = list(free_cards)


class Room:
    """What a user's next job may take.

    Args:
        machine: What there is.
        running: All jobs that run, whoever's they are.
        uid: The user.
        limits: What all of the user's jobs may take together. More cores than there are lift the machine's own cap on
            them: cores are shared in time.

    Attributes:
        core_users: uid -> cores that this user's jobs hold.
    """

    def __init__(self, machine: Machine, running: "Sequence[Running]", uid: int, limits: "Limits") -> None:
        own = [job.asked for job in running if job.uid == uid]
        used = sum(job.asked.memory_mb for job in running)
        self.free_cards = list(machine.free_cards)
        self._waiting: "list[tuple[int, Optional[Sequence[str]]]]" = []
        self.core_users: "dict[int, int]" = {}
        for job in running:
            self.core_users[job.uid] = self.core_users.get(job.uid, 0) + job.asked.cores
        self.cores: "int" = machine.cores - sum(job.asked.cores for job in running)
        self._there = machine.cores
        self.memory_mb = min(machine.memory_mb - used, machine.available_mb)
        self.limits = limits
        self.own = [sum(each) for each in zip(*own)] + [len(own)] if own else [0, 0, 0, 0]

    def lacks(self, asked: Demand, cards: "Optional[Sequence[str]]" = None) -> "list[str]":
        """What is missing for a job that asks for this; nothing if it may start.

        Args:
            cards: Those that are of its kind; None: every one is.
        """
        missing = []
        if asked.gpus and len(self.left(cards)) < asked.gpus:
            missing.append(CARDS)
        if self.cores < asked.cores and not self._shares_cores():
            missing.append(CORES)
        if asked.memory_mb and self.memory_mb < asked.memory_mb:
            missing.append(MEMORY)
        if self.over(asked):
            missing.append(OWN)
        return missing

    def _shares_cores(self) -> bool:
        return self.limits.cores is not None and self.limits.cores > self._there

    def suitable(self, cards: "Optional[Sequence[str]]") -> "list[str]":
        """The free cards among these."""
        return [card for card in self.free_cards if cards is None or card in cards]

    def left(self, cards: "Optional[Sequence[str]]") -> "list[str]":
        """Those of them that are kept for nobody."""
        kept = keeping.kept(self.free_cards, self._waiting, cards)
        return [card for card in self.suitable(cards) if card not in kept]

    def over(self, asked: Demand) -> "list[str]":
        """Which limits of the user it would pass, by their names in clusterfn.yml."""
        wanted = list(asked) + [1]
        words = ("gpus", "cores", "memory", "jobs")
        return [
            word
            for word, limit, used, more in zip(words, self.limits, self.own, wanted)
            if limit is not None and more and used + more > limit
        ]

    def take(self, asked: Demand, cards: "Optional[Sequence[str]]" = None) -> None:
        """It starts."""
        for card in self.left(cards)[: asked.gpus]:
            self.free_cards.remove(card)
        self._less(asked)
        self.count(asked)

    def reserve(self, asked: Demand, cards: "Optional[Sequence[str]]" = None) -> None:
        """It waits, and what it needs is kept for it, of these cards."""
        self._waiting.append((asked.gpus, cards))
        self._less(asked)

    def _less(self, asked: Demand) -> None:
        self.cores -= asked.cores
        self.memory_mb -= asked.memory_mb

    def count(self, asked: Demand) -> None:
        """It counts towards what the user may have."""
        self.own = [used + more for used, more in zip(self.own, list(asked) + [1])]
