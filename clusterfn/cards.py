"""Which cards a machine without a scheduler has, as its nvidia-smi says; refuses a call that asks for others.

Asks the host once. Called by `session`; which of the cards are free is the host's own business.
"""

from __future__ import annotations

from clusterfn.bridge.supervisor.eligible import Card, asked, eligible, hint, in_words
from clusterfn.errors import HostError, Unsatisfiable
from clusterfn.host import HostConnection
from clusterfn.spec import Resources

_QUESTION = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits")


def ask(connection: HostConnection) -> tuple[Card, ...] | None:
    """All cards, none where there is no nvidia-smi; None if it cannot say, which the supervisor then explains."""
    try:
        answer = connection.run(_QUESTION, timeout_s=20.0).result(30.0)
    except HostError:
        return ()
    rows = [line.split(", ", 3) for line in answer.out.decode("utf-8", "replace").splitlines()]
    if answer.rc != 0 or not all(len(row) == 4 and row[0].isdigit() for row in rows):
        return None
    return tuple(Card(int(index), uuid, name, int(mib) if mib.isdigit() else 0) for index, uuid, mib, name in rows)


def suitable(there: tuple[Card, ...], wanted: Resources) -> list[Card]:
    """Those that are of the type and size that is asked for."""
    return eligible(there, wanted.gpu_type, wanted.gpu_memory_bytes)


def enough(there: tuple[Card, ...] | None, wanted: Resources, host: str) -> None:
    """Refuse a type or a size of which the host has too few.

    Raises:
        Unsatisfiable: It names the cards that are there.
    """
    if there is None or len(suitable(there, wanted)) >= wanted.gpus:
        return
    words = asked(wanted.gpus, wanted.gpu_type, wanted.gpu_memory_bytes)
    raise Unsatisfiable(
        f"the call asks for {words}, and {host} has {in_words(there)}",
        host=host, stage="submit", hint=hint(there, wanted.gpu_type),
    )  # fmt: skip
