"""Which free cards are kept for those who wait: as many as can be of use to them, and none that another needs more.

A matching of cards and places, one place for each card that somebody waits for, by augmenting paths. Pure.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container, Iterable, Optional, Sequence


def kept(
    free: "Sequence[str]", waiting: "Iterable[tuple[int, Optional[Container[str]]]]", last: "Optional[Container[str]]"
) -> "set[str]":
    """The cards that are kept.

    Args:
        free: All that could be.
        waiting: How many each of those who wait needs, and which will do; None: every one does.
        last: Cards that are kept only where no others will do; None: all of them.
    """
    places = [cards for wanted, cards in waiting for _ in range(min(wanted, len(free)))]
    has = {}  # type: dict[int, str]
    for card in sorted(free, key=lambda card: last is None or card in last):
        _give(card, places, has, set())
    return set(has.values())


def _give(card: str, places: "Sequence[Optional[Container[str]]]", has: "dict[int, str]", asked: "set[int]") -> bool:
    """Find a place for a card; whoever has to make room for it finds another, so that no place is lost."""
    for place, cards in enumerate(places):
        if place in asked or cards is not None and card not in cards:
            continue
        asked.add(place)
        if place not in has or _give(has[place], places, has, asked):
            has[place] = card
            return True
    return False
