"""The cards of a machine without a scheduler: asked of the host in one round trip, and written as two tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import shortened
from clusterfn.calls.job import SHORT
from clusterfn.cli import screen
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import Session

_HEAD = ("GPU", "NAME", "MEMORY", "USE", "HELD BY")
_QUEUE_HEAD = ("", "WAITING", "FOR", "SINCE", "")
_REASON = 160
_TIMEOUT_S = 60.0


def look(session: Session) -> dict[str, Any]:
    """`cards` and `waiting`, as `supervise.py gpus` tells them.

    Raises:
        ClusterfnError: nvidia-smi is there and says no more than that something is wrong.
        HostError: The host cannot be reached.
    """
    answer = session.supervise("gpus", session.root, session.host.lease).result(_TIMEOUT_S)
    if answer.rc != 0:
        said = answer.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not tell of its cards", host=session.host.name, evidence=said)
    told: dict[str, Any] = json.loads(answer.out)
    trouble = told.pop("trouble")
    if trouble:
        raise ClusterfnError(
            f"the cards of {session.host.name} cannot be seen: {trouble}", host=session.host.name,
            hint="run nvidia-smi there: its driver must answer before a GPU can be given out",
        )  # fmt: skip
    return told


def none(told: Mapping[str, Any]) -> str:
    """Why there is nothing to show; "" if there are cards."""
    return "" if told["cards"] else "nvidia-smi is not there, or lists none"


class Lines:
    """Both tables as text. Who watches is told for how long a held card has done nothing: since it was first seen so.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle: dict[str, tuple[Any, float]] = {}

    def of(self, told: Mapping[str, Any]) -> str:
        """The text of one look."""
        rows = [self._row(card) for card in told["cards"]]
        free = sum(_is_free(card) for card in told["cards"])
        queue = [_waiting(place, each) for place, each in enumerate(told["waiting"], 1)]
        parts = [f"{free} of {len(rows)} GPUs free", screen.table(_HEAD, rows)]
        return "\n\n".join([*parts, *([screen.table(_QUEUE_HEAD, queue)] if queue else [])])

    def _row(self, card: Mapping[str, Any]) -> Sequence[str]:
        return (
            str(card["index"]), card["name"], _memory(card["used_mib"], card["total_mib"]),
            _use(card["use_percent"]) + self._for_how_long(card), _held_by(card),
        )  # fmt: skip

    def _for_how_long(self, card: Mapping[str, Any]) -> str:
        """How long a held card has been seen at 0 % with the same memory by the same holder."""
        state = (card["used_mib"], json.dumps(card["holder"]))
        if card["holder"] is None or card["use_percent"] != 0:
            self._idle.pop(card["uuid"], None)
            return ""
        if self._idle.get(card["uuid"], ((), 0.0))[0] != state:
            self._idle[card["uuid"]] = (state, self._clock())
        seconds = self._clock() - self._idle[card["uuid"]][1]
        return f" for {screen.age(seconds)}" if seconds >= 1 else ""


def _is_free(card: Mapping[str, Any]) -> bool:
    return card["holder"] is None and not card["without_lease"]


def _memory(used_mib: int | None, total_mib: int | None) -> str:
    used, total = ("?" if mib is None else f"{mib / 1024:.1f}" for mib in (used_mib, total_mib))
    return f"{used} of {total} GB"


def _use(percent: int | None) -> str:
    return "?" if percent is None else f"{percent} %"


def _held_by(card: Mapping[str, Any]) -> str:
    if card["holder"] is not None:
        since = card["holder"]["since"]
        return _who(card["holder"]) + ("" if since is None else f", {screen.age(time.time() - since)}")
    if card["without_lease"]:
        return f"in use without a lease: {', '.join(card['without_lease'])}"
    return "free"


def _who(holder: Mapping[str, Any]) -> str:
    """Of one's own jobs their name and id."""
    if not holder["own"]:
        return str(holder["user"])
    job = f"({holder['job'][:SHORT]})" if holder["job"] else ""
    return f"you: {holder['name'] or 'a job'} {job}".rstrip()


def _waiting(place: int, job: Mapping[str, Any]) -> Sequence[str]:
    since = screen.age(time.time() - job["since"])
    return (str(place), _who(job), _asked(job["asked"]), since, shortened(job["reason"], _REASON))


def _asked(asked: Mapping[str, int]) -> str:
    """What a job waits for: its cards, else its cores."""
    number, unit = (asked["gpus"], "GPU") if asked["gpus"] else (asked["cores"], "core")
    return f"{number} {unit}{'' if number == 1 else 's'}"
