"""Hold GPUs of this machine: as many as a job asks for or none, and never one that a process without a lease uses."""

from ..supervisor import gpus
from . import lease_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

    from .lease import Lease, Leases


class TooFew(Exception):
    """Other jobs or processes have the GPUs.

    Attributes:
        strangers: GPUs that are used without a lease, and by whom.
    """

    def __init__(self, strangers: "dict[str, str]") -> None:
        super().__init__(strangers)
        self.strangers = strangers


def hold_gpus(marks: "Leases", free: "Iterable[str]", wanted: int) -> "dict[str, Lease]":
    """Hold the first `wanted` of these GPUs.

    Raises:
        TooFew: Others have taken them meanwhile; none is held then.
    """
    held: "dict[str, Lease]" = {}
    for uuid in free:
        if len(held) == wanted:
            break
        mark = marks.hold(lease_names.gpu(uuid))
        if mark is not None:
            held[uuid] = mark
    if len(held) < wanted:
        release_gpus(held)
        raise TooFew({})
    return held


def replace_used_gpus(marks: "Leases", held: "dict[str, Lease]", every: "Sequence[str]") -> "dict[str, Lease]":
    """Replace held GPUs that a process without a lease uses by others of `every`; return all in PCI order.

    Such processes are looked for after a GPU is held: one may have come at any time before.

    Raises:
        TooFew: There are not as many; none is held then.
        Verdict: nvidia-smi fails; none is held then.
    """
    wanted, strangers = len(held), {}  # type: int, dict[str, str]
    try:
        while True:
            met = gpus.used_by_others(held)
            strangers.update(met)
            if not met:
                return {uuid: held[uuid] for uuid in every if uuid in held}
            release_gpus({uuid: held.pop(uuid) for uuid in met})
            held.update(hold_gpus(marks, [uuid for uuid in every if uuid not in strangers], wanted - len(held)))
    except TooFew:
        release_gpus(held)
        raise TooFew(strangers) from None
    except BaseException:  # a signal's exception too: what is held here is given back by no other process
        release_gpus(held)
        raise


def release_gpus(held: "dict[str, Lease]") -> None:
    """Release them, as far as this process is concerned."""
    for mark in held.values():
        mark.close()
    held.clear()
