"""What the storm orders: calls and maps, large and small, that return, raise, die, or succeed at the second try."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.judge import Ask

BARE, OTHER, SLURM = "storm", "storm-other", "storm-slurm"
ANY = "storm-any"  # a list of these three
MAP_OF = 20
_LARGE = 2_000_000
_RETRIES = 2
# How many calls, and items of maps, of each host: of five hundred jobs of two hosts, and of those of a list of three.
OF_TWO = {BARE: (190, 100), SLURM: (110, 100)}
OF_A_LIST = {ANY: (200, 10 * MAP_OF)}


@dataclass
class Order:
    """One call or map on its way: who has it, and what a client has said of it.

    Attributes:
        asks: One, or one for each item.
        sent: Whether a client said that it was sent.
        words: What a client said of its end.
        at: When it was ordered, and when it was over, in wall seconds.
        again: How often a client failed to attach to it.
        tries: How often the same was ordered before, under other ids.
        ran_on: The host that a client has chosen of a list; of a map those that share it.
        orphaned: Whether a client that had it has died.
    """

    host: str
    asks: list[Ask]
    is_map: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    sent: bool = False
    words: dict[str, Any] | None = None
    at: tuple[float, float] = (0.0, float("inf"))
    again: int = 0
    tries: int = 0
    ran_on: str = ""
    orphaned: bool = False

    @property
    def stem(self) -> str:
        """What its id begins with on the hosts: a map that several share has one in each."""
        return self.id[:12] if self.is_map and self.host == ANY else self.id

    def afresh(self) -> Order:
        """The same under another id: of this one it is not known whether it was sent."""
        return Order(self.host, self.asks, self.is_map, tries=self.tries + 1)

    def place(self) -> str:
        """Its column in the table."""
        return {BARE: "on a machine", SLURM: "on SLURM", ANY: "on a list"}.get(self.host, self.host) + (
            ", map" if self.is_map else ""
        )

    def told(self, index: int) -> dict[str, Any] | None:
        """What a client said of the end of one item, or of the call."""
        if self.words is None or not self.is_map:
            return self.words
        items = self.words.get("items")
        return items[index] if items else self.words

    def words_for(self, runs: Path) -> dict[str, Any]:
        """The order as a client gets it."""
        retries = max(ask.retries for ask in self.asks)
        options = {"retries": retries} if retries else {}
        if not self.is_map:
            ask = self.asks[0]
            given: Any = {"path": str(runs / self.id), **_arguments(ask)}
            if ask.ballast:
                given["ballast"] = ask.ballast
            return {"do": "submit", "call": "storm", "args": given, "options": options}
        columns = [_arguments(ask) for ask in self.asks]
        paths = [str(runs / f"{self.id}#{index}") for index in range(len(self.asks))]
        return {"do": "map", "call": "storm", "args": [paths, *map(list, zip(*(each.values() for each in columns)))]}


def _arguments(ask: Ask) -> dict[str, Any]:
    return {"number": ask.number, "seconds": ask.seconds, "size": ask.size, "ending": ask.ending}


def orders(rng: random.Random, share: float = 1.0, crowd: Mapping[str, tuple[int, int]] = OF_TWO) -> Iterator[Order]:
    """All of them in an order that only the seed knows; without end, for a storm that has not killed all by then."""
    number = 0
    while True:
        made = []
        for host, (calls, items_of_maps) in crowd.items():
            for _ in range(round(calls * share)):
                number += 1
                made.append(Order(host, [_call(rng, number)]))
            for _ in range(round(items_of_maps * share / MAP_OF)):
                items = [_item(rng, number + 1 + index) for index in range(MAP_OF)]
                number += MAP_OF
                made.append(Order(host, items, is_map=True))
        rng.shuffle(made)
        yield from made


def _call(rng: random.Random, number: int) -> Ask:
    ending = rng.choices(("returns", "raises", "exits", "flaky"), (70, 12, 6, 12))[0]
    large = rng.random() < 0.2
    return Ask(
        number, ending, round(rng.uniform(0.1, 4.0), 2), _LARGE if large else rng.choice((0, 4000)),
        ballast=_LARGE if large and rng.random() < 0.5 else 0,
        retries=_RETRIES if ending == "flaky" or rng.random() < 0.2 else 0,
    )  # fmt: skip


def _item(rng: random.Random, number: int) -> Ask:
    ending = rng.choices(("returns", "raises", "exits"), (85, 10, 5))[0]
    return Ask(number, ending, round(rng.uniform(0.1, 1.0), 2), _LARGE // 10 if rng.random() < 0.1 else 400)
