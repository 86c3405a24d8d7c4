"""Cards of this machine, held by marks: as many as a job asks for or none, and never one that somebody else uses."""

from ..supervisor import nvidia
from . import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

    from .marks import Mark, Marks


class TooFew(Exception):
    """Somebody else has them.

    Attributes:
        strangers: Cards that are used without a lease, and by whom.
    """

    def __init__(self, strangers: "dict[str, str]") -> None:
        super().__init__(strangers)
        self.strangers = strangers


def hold(marks: "Marks", free: "Iterable[str]", wanted: int) -> "dict[str, Mark]":
    """Marks on the first `wanted` of these cards.

    Raises:
        TooFew: Others have taken them meanwhile; none is held then.
    """
    held: "dict[str, Mark]" = {}
    for uuid in free:
        if len(held) == wanted:
            break
        mark = marks.hold(names.gpu(uuid))
        if mark is not None:
            held[uuid] = mark
    if len(held) < wanted:
        release(held)
        raise TooFew({})
    return held


def unused(marks: "Marks", held: "dict[str, Mark]", every: "Sequence[str]") -> "dict[str, Mark]":
    """As many marks on cards that no stranger uses, others being taken instead of those that one does; in PCI order.

    Strangers are looked for after a card is marked: whoever holds no lease may have come at any time before.

    Raises:
        TooFew: There are not as many; none is held then.
        Verdict: nvidia-smi fails; none is held then.
    """
    wanted, strangers = len(held), {}  # type: int, dict[str, str]
    try:
        while True:
            met = nvidia.used_by_others(held)
            strangers.update(met)
            if not met:
                return {uuid: held[uuid] for uuid in every if uuid in held}
            release({uuid: held.pop(uuid) for uuid in met})
            held.update(hold(marks, [uuid for uuid in every if uuid not in strangers], wanted - len(held)))
    except TooFew:
        release(held)
        raise TooFew(strangers) from None
    except BaseException:  # a signal's exception too: what is held here nobody else gives back
        release(held)
        raise


def release(held: "dict[str, Mark]") -> None:
    """Give them back, as far as this process is concerned."""
    for mark in held.values():
        mark.close()
    held.clear()
