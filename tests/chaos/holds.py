"""Whether a machine gave its cards out as promised, judged from outside: pure, from what was written and seen.

Written: the journal of holds (docs/reference/job-directory.md). Seen: samples of the abstract names that were bound,
and since when strangers' processes were on cards. Every check gives sentences, none if all is well. It imports nothing
of clusterfn, so that a mistake there is not made here as well.
"""

from __future__ import annotations

import bisect
import collections
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

GPU, WAIT, SPOOL = "clusterfn/gpu/", "clusterfn/wait/", "clusterfn/spool/"
OURS = "clusterfn/"

# How long a job that has room may go on waiting after a younger one was let in, for itself and for each of its user's
# that comes before it: at least so many seconds, and so many times what most need from taking cards to being let in.
# That is one question to nvidia-smi; a shell, a Python and another question come before. At a load of 7 to 15 on two
# cores the longest of 200 jobs took 0.4 s, at 20 some took 1.6 s; who serves the youngest first takes several turns.
TURN_S, TURN_TIMES = 1.0, 5
# Nobody is woken when a stranger leaves a card: the queue looks again after 5 s.
UNNOTICED_S = 6.0


@dataclass(frozen=True)
class Asked:
    """What a job needs; `memory` in MB."""

    gpus: int = 0
    cores: int = 1
    memory: int = 0

    def within(self, other: Asked) -> bool:
        """Whether it fits wherever the other fits."""
        return self.gpus <= other.gpus and self.cores <= other.cores and self.memory <= other.memory


@dataclass
class Turn:
    """One job's way through the queue.

    Attributes:
        order: When it was submitted, in ns since the machine started.
        waits: When its ticket was written; None if it has none. Times are wall seconds.
        taken: When it was let in; None if it never was.
        released: When it gave everything back; None if it was killed before it could say so.
        exchanged: Whether it was in before, with other cards.
    """

    user: str
    job: str
    order: int = 0
    asked: Asked = Asked()
    cards: tuple[str, ...] = ()
    waits: float | None = None
    taken: float | None = None
    released: float | None = None
    exchanged: bool = False

    def __str__(self) -> str:
        return f"{self.job} of {self.user}"


@dataclass
class Seen:
    """What a watcher saw.

    Attributes:
        times: Of its looks, in order.
        names: What was bound at each look.
        strangers: (card, from, until) of processes that are nobody's job.
        deaths: When a process of clusterfn's was killed.
        boot: The wall's time when the machine was started, from which jobs are stamped.
    """

    times: list[float] = field(default_factory=list)
    names: list[frozenset[str]] = field(default_factory=list)
    strangers: list[tuple[str, float, float]] = field(default_factory=list)
    deaths: list[float] = field(default_factory=list)
    boot: float = 0.0

    def add(self, when: float, names: Iterable[str]) -> None:
        """One more look."""
        self.times.append(when)
        self.names.append(frozenset(names))

    def before(self, when: float) -> int:
        """The number of the last look before that moment; -1 if there is none."""
        return bisect.bisect_left(self.times, when) - 1

    def slowness(self, since: float, until: float) -> float:
        """How many times longer than most a look took in that time; at least 1.

        Its machine may give the watcher, and all others, a fifth of its processors for a minute.
        """
        if len(self.times) < 2:
            return 1.0
        usual = statistics.median(later - each for each, later in zip(self.times, self.times[1:]))
        looks = max(1, self.before(until) - self.before(since))
        return max(1.0, (until - since) / looks / usual)

    def gone(self, name: str, since: float) -> float:
        """The first moment after `since` at which the name was seen to be free."""
        later = range(self.before(since) + 1, len(self.times))
        return next((self.times[look] for look in later if name not in self.names[look]), float("inf"))

    def unbound(self, name: str, until: float) -> float:
        """The last moment before `until` at which the name was seen to be free."""
        earlier = range(self.before(until), -1, -1)
        return next((self.times[look] for look in earlier if name not in self.names[look]), float("-inf"))


def end(turn: Turn, card: str, seen: Seen) -> float:
    """When a job let a card go: as it says, or as was seen if it could not say."""
    if turn.released is not None:
        return turn.released
    return seen.gone(GPU + card, turn.taken or 0.0)


def doubly_held(turns: Iterable[Turn], seen: Seen) -> list[str]:
    """Cards that a job took before another had let them go."""
    by_card: dict[str, list[tuple[float, Turn]]] = collections.defaultdict(list)
    for turn in turns:
        for card in turn.cards if turn.taken is not None else ():
            by_card[card].append((turn.taken or 0.0, turn))
    found = []
    for card, takings in by_card.items():
        takings.sort(key=lambda taking: taking[0])
        for (_, first), (when, second) in zip(takings, takings[1:]):
            # Whoever was killed let go at an unknown moment, at the latest when the next could bind the name.
            if first.released is not None and first.released > when:
                found.append(f"{second} took {card} at {when:.3f}, and {first} held it until {first.released:.3f}")
    return found


def ill_given(turns: Iterable[Turn]) -> list[str]:
    """Jobs that were given another number of cards than they asked for, or one twice."""
    return [
        f"{turn} asked for {turn.asked.gpus} cards and got {list(turn.cards)}"
        for turn in turns
        if turn.taken is not None and len(set(turn.cards)) != turn.asked.gpus
    ]


def unwitnessed(turns: Iterable[Turn], seen: Seen) -> list[str]:
    """Cards that the journal says are held at a moment at which nobody had bound their names."""
    found = []
    for turn in turns:
        if turn.taken is None or turn.released is None:
            continue
        for look in range(seen.before(turn.taken) + 1, seen.before(turn.released) + 1):
            missing = [card for card in turn.cards if GPU + card not in seen.names[look]]
            found += [f"{turn} held {card} at {seen.times[look]:.3f} by its word alone" for card in missing]
    return found


def never_released(turns: Iterable[Turn], killed: Iterable[str]) -> list[str]:
    """Jobs that nobody killed and that never gave back what they took."""
    spared = set(killed)
    return [
        f"{turn} took {list(turn.cards)} and never gave them back"
        for turn in turns
        if turn.taken is not None and turn.released is None and turn.job not in spared
    ]


def beside_strangers(turns: Iterable[Turn], seen: Seen) -> list[str]:
    """Jobs that took a card on which a stranger's process had been from before they bound its name until then."""
    found = []
    for turn in turns:
        for card, since, until in seen.strangers:
            if card not in turn.cards or turn.taken is None or until <= turn.taken:
                continue
            if since < seen.unbound(GPU + card, turn.taken):
                found.append(f"{turn} took {card} at {turn.taken:.3f}, where a stranger was since {since:.3f}")
    return found


def overtaken(
    turns: Sequence[Turn], seen: Seen, cards: int, uids: Mapping[str, int], turn_s: float = TURN_S
) -> list[str]:
    """Jobs that were let in before older ones of their user which ask for no more, and so had room at that moment.

    Found is who left them none, and who left them some while they went on waiting. An older job counts if its ticket
    was written before the younger looked; one without a ticket once its name could be read: on a busy machine a process
    that has its stamp may come to the door late. Between users the one comes next who has used least: test_fair.py.
    Who never starts, as its supervisor was killed when its turn came, starts after nobody.
    """
    found, turn_s = [], max(turn_s, _turn_s(turns, seen))
    for turn in turns:
        if turn.taken is None or turn.exchanged:
            continue
        older = [other for other in turns if _waits_at(other, turn, seen, uids)]
        left = cards - len(_held_beside(turn, turns, seen, turn_s))
        if sum(other.asked.gpus for other in older) > left:
            names = ", ".join(str(other) for other in older)
            found.append(f"{turn} was let in at {turn.taken:.3f} before {names}: {left} cards were left")
            continue
        late = [other for other in older if (other.taken or 0.0) > _due(other, turn, turns, seen, turn_s)]
        for other in late:
            by = _due(other, turn, turns, seen, turn_s)
            if _is_served(other, turn, by, seen, uids) and _has_room(other, turn, by, turns, seen, cards):
                waited = f"and waited until {other.taken:.3f}"
                found.append(f"{other} had room when {turn} was let in at {turn.taken:.3f}, {waited}")
    return found


def _waits_at(other: Turn, turn: Turn, seen: Seen, uids: Mapping[str, int]) -> bool:
    """Whether `other` had the right to come before `turn`."""
    when = turn.taken or 0.0
    if other.exchanged or other.taken is None or other.order >= turn.order or not other.asked.within(turn.asked):
        return False
    if other.user != turn.user:
        return False
    since = seen.boot + other.order / 10**9 if other.waits is None else other.waits
    if not since < when < other.taken:
        return False
    if other.waits is not None:
        return other.waits < _began(turn, seen)
    return _is_named(other, turn, seen, uids)


def _is_named(other: Turn, turn: Turn, seen: Seen, uids: Mapping[str, int]) -> bool:
    """Whether its name had been bound all the time from before `turn` began to look until it was let in."""
    own = f"{WAIT}{uids[other.user]}/{other.order // 10**6}/"
    return _is_bound(own, _began(turn, seen), turn.taken or 0.0, seen)


def _began(turn: Turn, seen: Seen) -> float:
    """When a job looked, at the earliest: the last look at which one of its cards was free.

    It has its cards some time before it says so, as it asks nvidia-smi meanwhile. An older job that had cards as well,
    and gives them back because a stranger uses them, may get its ticket in that time.
    """
    when = turn.taken or 0.0
    return min((seen.unbound(GPU + card, when) for card in turn.cards), default=when)


def _held_beside(turn: Turn, turns: Iterable[Turn], seen: Seen, turn_s: float) -> set[str]:
    """The cards that were held, its own among them, or had a stranger, at the first look that shows one of its own.

    Others may come after that, before it says that it was let in. It has looked for strangers some time before that:
    one that came within a turn it may not have met.
    """
    began = _began(turn, seen)
    look = bisect.bisect_right(seen.times, began)
    if began == float("-inf") or look == len(seen.times):
        return _held_at(turns, turn.taken or 0.0, seen)
    bound = {name[len(GPU) :] for name in seen.names[look] if name.startswith(GPU)}
    strangers = {card for card, since, until in seen.strangers if since <= began - turn_s and began < until}
    return {*bound, *strangers, *turn.cards}


def _is_bound(beginning: str, since: float, until: float, seen: Seen) -> bool:
    """Whether at every look of that time, and at the one before, a name was bound that begins so."""
    looks = seen.names[max(seen.before(since) - 1, 0) : seen.before(until) + 1]
    return bool(looks) and all(any(name.startswith(beginning) for name in names) for names in looks)


def _turn_s(turns: Iterable[Turn], seen: Seen) -> float:
    """How long the turn of one job may take, as fast as the machine was."""
    own = [(turn.taken, turn.cards) for turn in turns if turn.taken is not None and turn.cards and not turn.exchanged]
    took = [taken - max(seen.unbound(GPU + card, taken) for card in cards) for taken, cards in own]
    return max(TURN_S, TURN_TIMES * statistics.median(took or [0.0]))


def _due(other: Turn, turn: Turn, turns: Iterable[Turn], seen: Seen, turn_s: float) -> float:
    """When `other` must have come if it has room: after `turn` its user's older ones come, each in a turn, and it.

    Who is killed on its turn is never let in, and has had its turn as well.
    """
    since, came = turn.taken or 0.0, other.taken or 0.0
    own = [each.taken for each in turns if each.user == other.user and each.order < other.order]
    between = [when for when in [*own, *seen.deaths] if when is not None and since - turn_s < when < came]
    return since + turn_s * seen.slowness(since, came) * (1 + len(between))


def _is_served(other: Turn, turn: Turn, until: float, seen: Seen, uids: Mapping[str, int]) -> bool:
    """Whether its user had a spooler all the time from the coming of `turn`."""
    return _is_bound(f"{SPOOL}{uids[other.user]}/", turn.taken or 0.0, until, seen)


def _has_room(other: Turn, turn: Turn, until: float, turns: Sequence[Turn], seen: Seen, cards: int) -> bool:
    """Whether there was room for `other` all the time from the coming of `turn`."""
    since = turn.taken or 0.0
    comings = [each.taken for each in turns if each.taken is not None]
    comings += [when for _, when, _ in seen.strangers]
    moments = [since, *(when for when in comings if since < when < until)]
    return all(cards - len(_held_at(turns, when, seen, UNNOTICED_S)) >= other.asked.gpus for when in moments)


def _held_at(turns: Iterable[Turn], when: float, seen: Seen, unnoticed_s: float = 0.0) -> set[str]:
    """The cards that were held right after that moment, or had a stranger, perhaps one who had left so lately."""
    held = {
        card
        for turn in turns
        for card in turn.cards
        if turn.taken is not None and turn.taken <= when < end(turn, card, seen)
    }
    return held | {card for card, since, until in seen.strangers if since <= when < until + unnoticed_s}


def leaked(names: Iterable[str]) -> list[str]:
    """Names of ours that are still bound when all is over."""
    return [f"{name} is still bound" for name in sorted(names) if name.startswith(OURS)]


def ill_ended(finals: Mapping[str, Sequence[str]], allowed: Mapping[str, frozenset[str]]) -> list[str]:
    """Jobs that did not end just once, and as they may."""
    found = []
    for job, kinds in allowed.items():
        ended = list(finals.get(job, ()))
        if len(ended) != 1 or ended[0] not in kinds:
            found.append(f"{job} ended as {ended}, and may only once as one of {sorted(kinds)}")
    return found


def turns(user: str, lines: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """A user's journal as turns: one for each time that a job waited, or was let in, or was given other cards."""
    found: list[Turn] = []
    latest: dict[str, Turn] = {}
    for line in lines:
        job, turn = line["job"], latest.get(line["job"])
        if turn is None or turn.taken is not None and line["event"] in ("ticket", "taken"):
            found.append(turn := Turn(user, job))
        elif line["event"] == "exchanged":
            kept = tuple(card for card in turn.cards if card not in line["released"])
            turn.released = line["t"]
            turn = replace(turn, cards=(*kept, *line["cards"]), taken=line["t"], released=None, exchanged=True)
            found.append(turn)
        latest[job] = turn
        _note(turn, line)
    return found


def _note(turn: Turn, line: Mapping[str, Any]) -> None:
    event, when = line["event"], line["t"]
    if event in ("ticket", "taken"):
        turn.order, asked = line["submitted"], line["asked"]
        turn.asked = Asked(asked["gpus"], asked["cores"], asked["memory_mb"])
    if event == "ticket":
        turn.waits = when
    elif event == "taken":
        turn.taken, turn.cards = when, tuple(line["cards"])
    elif event == "released":
        turn.released = when
