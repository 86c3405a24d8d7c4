"""The cards among which a job's may be chosen; refuses it if there are too few. Called by `admission` and `spool`."""

from ...layout import UNSATISFIABLE
from . import nvidia
from .eligible import asked, eligible, hint, in_words
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


def candidates(resources: "Mapping[str, Any]") -> "list[str]":
    """The UUIDs, in PCI order, of all cards that are as asked for, whether they are free or not.

    Args:
        resources: Of spec.json.

    Raises:
        Verdict: They are fewer than are wanted; or nvidia-smi is missing, hangs, or answers something else.
    """
    wanted, kind, memory = resources["gpus"], resources.get("gpu_type"), resources.get("gpu_memory_bytes")
    if kind is None and memory is None:
        every = nvidia.cards()
        if len(every) < wanted:
            has = "none" if not every else "only %d" % len(every)
            raise _too_few("%d GPUs" % wanted, has, "ask for fewer, or choose another host")
        return every
    there = nvidia.described()
    fitting = eligible(there, kind, memory)
    if len(fitting) < wanted:
        raise _too_few(asked(wanted, kind, memory), in_words(there), hint(there, kind))
    return [card.uuid for card in fitting]


def _too_few(wanted: str, has: str, advice: str) -> Verdict:
    message = "the job asks for %s, and the host has %s" % (wanted, has)
    return Verdict(UNSATISFIABLE, message, stage="lease", hint=advice)
