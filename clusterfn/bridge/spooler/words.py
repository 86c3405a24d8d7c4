"""Why a job waits, for people. Pure, but for the names of users."""

from ..supervisor.nvidia import user_name
from .room import CARDS, CORES, MEMORY, OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Sequence

    from .demand import Demand, Limits
    from .room import Room

HALF = "its group has half of the cards, and another user waits for cards"


class Around:
    """What is to be said of the machine.

    Attributes:
        cards: Those of the job's kind.
        holders: uid of whoever holds a card, by its UUID; -1 where that is not known.
        strangers: Who uses a card without a lease.
        ahead: uid and number of cards of each job that waits, came before, and has some of these cards kept for it.
        kept: How many of them are.
    """

    def __init__(
        self, cards: "Sequence[str]", holders: "Mapping[str, int]", strangers: "Mapping[str, str]",
        ahead: "Iterable[tuple[int, int]]", kept: int,
    ) -> None:  # fmt: skip
        self.cards = cards
        self.holders = {card: holders[card] for card in cards if card in holders}
        self.strangers = {card: strangers[card] for card in cards if card in strangers}
        self.ahead = list(ahead)
        self.kept = kept

    @property
    def left(self) -> int:
        """How many cards nobody has."""
        return len(set(self.cards) - set(self.holders) - set(self.strangers))


def reason(missing: "Sequence[str]", asked: "Demand", around: Around, room: "Room", limits: "Limits") -> str:
    """What it waits for: "8 of 8 GPUs held by ada (5), bob (3); waiting for 2"."""
    parts, over = [], room.over(asked)
    if CARDS in missing:
        parts.append(_cards(asked.gpus, around))
    if CORES in missing:
        users = ["%s (%d)" % (user_name(uid), cores) for uid, cores in sorted(room.core_users.items()) if cores]
        held = "cores held by %s; " % ", ".join(users) if users else ""
        parts.append("%swaiting for %d free core%s" % (held, asked.cores, "" if asked.cores == 1 else "s"))
    if MEMORY in missing:
        parts.append("waiting for %d MB of free memory" % asked.memory_mb)
    if OWN in missing:
        allowed = [
            "%s: %s" % (word, shown)
            for word, shown in zip(limits._fields, map(str, limits))
            if word in over or word == "memory_mb" and "memory" in over
        ]
        parts.append("waiting for your own jobs: limits: {%s}" % ", ".join(allowed))
    return "; ".join(parts)


def _cards(wanted: int, around: Around) -> str:
    parts = []
    if around.holders:
        shown = [user_name(uid) if uid >= 0 else "somebody" for uid in around.holders.values()]
        names = ["%s (%d)" % (name, shown.count(name)) for name in sorted(set(shown))]
        parts.append("%d of %d GPUs held by %s" % (len(shown), len(around.cards), ", ".join(names)))
    if around.strangers:
        used = list(around.strangers.values())
        parts.append("%d in use without a lease: %s" % (len(used), ", ".join(used)))
    said = "; ".join(parts)
    if around.kept and around.ahead:
        said = ", ".join(filter(None, [said, _reserved(around)]))
    return "%s; waiting for %d" % (said or "too few of %d GPUs are free" % len(around.cards), wanted)


def _reserved(around: Around) -> str:
    """Why those that are free are not for it."""
    which = "the others" if around.kept == around.left else "%d of the others" % around.kept
    if around.left == len(around.cards):
        which = "%d of %d GPUs" % (around.kept, around.left)
    jobs = ["%s's job of %d" % (user_name(uid), gpus) for uid, gpus in around.ahead]
    return "%s reserved for %s, which came before" % (which, " and ".join(jobs))


def behind(text: str, before: int) -> str:
    """The same with how many are served first."""
    if not before:
        return text
    after = "%d job%s before it" % (before, "" if before == 1 else "s")
    return "%s; %s" % (text, after) if text else after
