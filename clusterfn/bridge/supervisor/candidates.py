"""The cards among which a job's may be chosen; refuses it if there are too few."""

from ..layout import UNSATISFIABLE
from .eligible import asked, eligible, hint, in_words
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

    from .eligible import Card


def candidates(there: "Sequence[Card]", resources: "Mapping[str, Any]") -> "list[str]":
    """The UUIDs of all cards that are as asked for, whether they are free or not, in the order of `there`.

    Args:
        there: All cards of the machine.
        resources: Of spec.json.

    Raises:
        Verdict: They are fewer than are wanted.
    """
    wanted, kind, memory = resources["gpus"], resources.get("gpu_type"), resources.get("gpu_memory_bytes")
    fitting = eligible(there, kind, memory)
    if len(fitting) >= wanted:
        return [card.uuid for card in fitting]
    if kind is None and memory is None:
        has = "none" if not there else "only %d" % len(there)
        raise _too_few("%d GPUs" % wanted, has, "ask for fewer, or choose another host")
    raise _too_few(asked(wanted, kind, memory), in_words(there), hint(there, kind))


def _too_few(wanted: str, has: str, advice: str) -> Verdict:
    message = "the job asks for %s, and the host has %s" % (wanted, has)
    return Verdict(UNSATISFIABLE, message, stage="lease", hint=advice)
