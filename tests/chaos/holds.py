"""Whether a machine gave its cards out as promised, judged from outside: pure, from what was written and seen.

Written: the journal of holds (docs/reference/job-directory.md). Seen: samples of the abstract names that were bound,
and since when strangers' processes were on cards. Every check gives sentences, none if all is well. It imports nothing
of clusterfn, so that a mistake there is not made here as well.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

GPU, OURS = "clusterfn/gpu/", "clusterfn/"


@dataclass
class Turn:
    """One job's way through the queue.

    Attributes:
        gpus: How many it asked for.
        taken: When it was let in, in wall seconds; None if it never was.
        released: When it gave everything back; None if it was killed before it could say so.
    """

    user: str
    job: str
    gpus: int = 0
    cards: tuple[str, ...] = ()
    taken: float | None = None
    released: float | None = None

    def __str__(self) -> str:
        return f"{self.job} of {self.user}"


@dataclass
class Seen:
    """What a watcher saw.

    Attributes:
        times: Of its looks, in order.
        names: What was bound at each look.
        strangers: (card, from, until) of processes that are nobody's job.
    """

    times: list[float] = field(default_factory=list)
    names: list[frozenset[str]] = field(default_factory=list)
    strangers: list[tuple[str, float, float]] = field(default_factory=list)

    def add(self, when: float, names: Iterable[str]) -> None:
        """One more look."""
        self.times.append(when)
        self.names.append(frozenset(names))

    def before(self, when: float) -> int:
        """The number of the last look before that moment; -1 if there is none."""
        return bisect.bisect_left(self.times, when) - 1

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
        f"{turn} asked for {turn.gpus} cards and got {list(turn.cards)}"
        for turn in turns
        if turn.taken is not None and len(set(turn.cards)) != turn.gpus
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
            turn = replace(turn, cards=(*kept, *line["cards"]), taken=line["t"], released=None)
            found.append(turn)
        latest[job] = turn
        _note(turn, line)
    return found


def _note(turn: Turn, line: Mapping[str, Any]) -> None:
    event, when = line["event"], line["t"]
    if event in ("ticket", "taken"):
        turn.gpus = line["asked"]["gpus"]
    if event == "taken":
        turn.taken, turn.cards = when, tuple(line["cards"])
    elif event == "released":
        turn.released = when
