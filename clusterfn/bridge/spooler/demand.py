"""What a job takes of a machine, of which cards, and what one user may take at most. Pure; read from spec.json."""

from collections import namedtuple

from ..supervisor.eligible import eligible, squeezed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping

    from ..supervisor.eligible import Card

Demand = namedtuple("Demand", ("gpus", "cores", "memory_mb"))
# Which cards will do: a type as `eligible.squeezed` has it, "" for any; the size of each, 0 for any.
Kind = namedtuple("Kind", ("type", "memory_mb"))
# What all running jobs of one user may take together; None: as much as there is.
Limits = namedtuple("Limits", ("gpus", "cores", "memory_mb", "jobs"))

ANY = Kind("", 0)
_ANY = 1 << 20


def of(spec: "dict[str, Any]") -> Demand:
    """What a job asks for; no memory if it does not say."""
    asked = spec["resources"]
    return Demand(asked["gpus"], asked["cores"], _mb(asked["memory_bytes"] or 0))


def kind(resources: "Mapping[str, Any]") -> Kind:
    """The cards that will do for a job, by the `resources` of its spec.json."""
    return Kind(squeezed(resources.get("gpu_type") or ""), _mb(resources.get("gpu_memory_bytes") or 0))


def cards_of(kind: Kind, there: "Iterable[Card]") -> "list[str]":
    """The UUIDs of those that will do."""
    return [card.uuid for card in eligible(there, kind.type or None, kind.memory_mb << 20 or None)]


def limits(spec: "dict[str, Any]") -> Limits:
    """What its user may take on this host."""
    given = spec.get("limits") or {}
    cores, memory = given.get("cores"), given.get("memory_bytes")
    if cores is None and spec["scheduler"] == "local":
        cores = _ANY  # one's own machine: its cores are shared in time, as among all programs there
    return Limits(given.get("gpus"), cores, None if memory is None else _mb(memory), given.get("jobs"))


def _mb(size: int) -> int:
    return -(-size >> 20)
