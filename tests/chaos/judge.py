"""Whether a job of the storm ended truthfully, judged from what was ordered, published, told and killed: pure.

It says four kinds of wrong: `lost` (no outcome, or one that no client hears of), `invented` (a second outcome, or one
that neither the function nor a kill explains), `twice` (a run that nobody asked for) and `refused` (an order that no
client took, and that ran). It imports nothing of clusterfn, so that a mistake there is not made here as well.
"""

from __future__ import annotations

import collections
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOST, INVENTED, TWICE, REFUSED = "lost", "invented", "twice", "refused"
WRONGS = (LOST, INVENTED, TWICE, REFUSED)
# The end of an item that one host gave up for another, and that no other one has.
WITHDRAWN = "withdrawn"
DAEMONS = frozenset(["slurmd", "slurmctld"])
# What a client raises for each kind of outcome that a function or a kill of the storm can lead to.
CLASSES = {
    "raised": "ValueError", "exited": "ExitedEarly", "signal": "KilledBySignal", "lost": "WorkerLost",
    "node": "NodeFailed", "unsatisfiable": "Unsatisfiable", "cancelled": "Cancelled", "taken_back": "Preempted",
}  # fmt: skip
# What a client says of items that it could not send to another host.
NOT_SENT = ("HostError", "Unreachable", "SubmitError")
# kind of outcome -> whose death explains it; of SLURM's daemons on SLURM alone.
CAUSES = {
    "signal": frozenset(["worker"]),
    "lost": frozenset(["supervisor"]) | DAEMONS,
    "node": DAEMONS,
    "unsatisfiable": frozenset(["slurmd"]),
    # A controller that forgets a start starts the job once more; slurmd has it, and cancels it.
    "cancelled": frozenset(["slurmctld"]),
}


@dataclass(frozen=True)
class Ask:
    """One call, or one item of a map, as it was ordered.

    Attributes:
        ending: "returns", "raises", "exits", or "flaky", which raises in its first attempt what `retries=` retries.
        size: Of its value's data, in bytes.
        ballast: Of an argument, in bytes.
    """

    number: int
    ending: str = "returns"
    seconds: float = 0.0
    size: int = 0
    ballast: int = 0
    retries: int = 0

    def value(self) -> dict[str, Any]:
        """What a client must say of the value."""
        data = self.number.to_bytes(4, "big") * (self.size // 4)
        sent = random.Random(self.number).randbytes(self.ballast) if self.ballast else b""
        shown = {"value": self.number * 7 + 3 + zlib.crc32(sent)}
        return {"value": shown, "size": len(data), "sum": zlib.crc32(data)}

    @property
    def kind(self) -> str:
        """Of the outcome that its function leads to."""
        return {"raises": "raised", "exits": "exited"}.get(self.ending, "returned")


@dataclass
class Fate:
    """What became of it.

    Attributes:
        name: The job's id; of an item with its index.
        place: Its column in the table.
        on_slurm: Whether SLURM ran it.
        taken: Whether a client said that it was sent. Else it may have begun, or not.
        told: What a client said of its end; None if none did.
        ends: Its final outcomes; of an item each line with its end.
        runs: "<job>/<attempt>" for each run of its function.
        attempts: How many there are; 1 for an item.
        hit: Whose death has hit it, and how often; of an item, those of its group.
        beside: Which of SLURM's daemons were killed while it was not over.
        orphaned: Whether a client that had it has died.
    """

    name: str
    ask: Ask
    place: str
    on_slurm: bool = False
    taken: bool = True
    told: Mapping[str, Any] | None = None
    ends: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[str] = ()
    attempts: int = 1
    hit: Mapping[str, int] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    orphaned: bool = False

    @property
    def end(self) -> str:
        """How it ended, in a word."""
        if not self.ends:
            error = (self.told or {}).get("error")
            return str(error["type"]) if error else ("nothing" if self.taken else "not sent")
        kind = str(self.ends[0]["kind"])
        return kind if kind == self.ask.kind else CLASSES.get(kind, kind)


@dataclass(frozen=True)
class Wrong:
    """One thing that must not be: which of WRONGS, and what was seen."""

    kind: str
    text: str


def judged(fate: Fate) -> list[Wrong]:
    """All that is wrong with one."""
    return [*_ends_once(fate), *_ran_as_often_as_asked(fate)]


def judged_groups(fates: Iterable[Fate]) -> list[Wrong]:
    """Groups on a bare host that lost more items than processes of theirs were killed."""
    found: dict[str, list[Fate]] = collections.defaultdict(list)
    for fate in fates:
        if "#" in fate.name and not fate.on_slurm:
            found[fate.name.partition("#")[0]].append(fate)
    wrong = []
    for name, items in found.items():
        lost = [each.name for each in items if each.ends and each.ends[0]["kind"] not in (each.ask.kind, WITHDRAWN)]
        killed = sum(items[0].hit.values())
        if len(lost) > killed:
            wrong.append(Wrong(INVENTED, f"{name}: {killed} of its processes were killed, and {lost} did not end well"))
    return wrong


def _ends_once(fate: Fate) -> list[Wrong]:
    told, name = fate.told, fate.name
    if not fate.ends:
        return _without_an_outcome(fate)
    kinds = [str(each["kind"]) for each in fate.ends]
    if len(set(kinds)) > 1 or (len(kinds) > 1 and "#" not in name):  # two may have concluded the same for an item
        return [Wrong(INVENTED, f"{name} has {len(kinds)} final outcomes: {kinds}")]
    kind = kinds[0]
    if told is None:
        return [Wrong(LOST, f"{name} has ended ({kind}), and no client heard of it")]
    if kind == WITHDRAWN:
        return _on_its_way(fate)
    wrong = []
    if kind != fate.ask.kind and not _explained(fate, kind):
        wrong.append(Wrong(INVENTED, f"{name} is {kind}: {fate.ends[0].get('message')}; killed: {dict(fate.hit)}"))
    if kind == "returned":
        expected = fate.ask.value()
        given = {key: told.get(key) for key in expected}
        if given != expected:
            text = f"{name} returned, and a client was given {given} instead of {expected}: {told.get('error')}"
            wrong.append(Wrong(INVENTED if "value" in told else LOST, text))
        return wrong
    error = told.get("error") or {}
    if error.get("type") != CLASSES.get(kind):
        wrong.append(Wrong(INVENTED, f"{name} is {kind}, and a client says {dict(told)}"))
    if kind == "raised" and f"call {fate.ask.number} fails on purpose" not in str(error.get("text")):
        wrong.append(Wrong(INVENTED, f"{name} raised what it does not raise: {error.get('text')}"))
    return wrong


def _without_an_outcome(fate: Fate) -> list[Wrong]:
    told = fate.told
    if not fate.taken and told is None:
        return [Wrong(REFUSED, f"{fate.name} was never sent, and ran: {fate.runs}")] if fate.runs else []
    if not fate.taken and not fate.runs and "#" in fate.name and "error" in (told or {}):
        return []  # the client died before all parts of the map were sent
    if told is None or "error" not in told:
        return [Wrong(LOST, f"{fate.name} was sent and has no outcome; a client says {told}")]
    # SLURM's controller was away: the job is not SLURM's, and must never have run.
    if told["error"]["type"] == "SubmitError" and fate.on_slurm and "slurmctld" in fate.beside and not fate.runs:
        return []
    return [Wrong(LOST, f"{fate.name} has no outcome; it ran {len(fate.runs)} times; a client says {told['error']}")]


def _on_its_way(fate: Fate) -> list[Wrong]:
    """An item that one host gave up and no other has: it never ran, and who was to send it is dead or says why not."""
    error = (fate.told or {}).get("error") or {}
    text = f"{fate.name} was given up by a host, and ran {len(fate.runs)} times; a client says {fate.told}"
    if fate.runs or not error:
        return [Wrong(INVENTED, text)]
    is_explained = error["type"] in NOT_SENT or (error["type"] == "Cancelled" and fate.orphaned)
    return [] if is_explained else [Wrong(LOST, text)]


def _explained(fate: Fate, kind: str) -> bool:
    causes = CAUSES.get(kind, frozenset())
    return any(fate.hit.get(each) for each in causes) or (fate.on_slurm and bool(causes & fate.beside))


def _ran_as_often_as_asked(fate: Fate) -> list[Wrong]:
    """Once; again where `retries=` asks for it, or where SLURM starts it again that has lost its daemon."""
    again = fate.ask.retries + (fate.attempts - 1 if fate.on_slurm and fate.beside else 0)
    runs, most = len(fate.runs), 1 + again
    if runs > most or (len(set(fate.runs)) != runs and "#" not in fate.name):
        return [Wrong(TWICE, f"{fate.name} ran {runs} times, with retries={fate.ask.retries}: {list(fate.runs)}")]
    if fate.ends and fate.ends[0]["kind"] in ("returned", "raised", "exited") and not runs:
        return [Wrong(INVENTED, f"{fate.name} is {fate.ends[0]['kind']}, and never ran")]
    return []


def as_table(
    title: str, killed: Mapping[str, int], fates: Sequence[Fate], wrong: Iterable[Wrong], left: Sequence[str]
) -> str:
    """Who was killed how often, jobs by place and end, and how many were lost, invented, run twice, or left."""
    places = sorted({fate.place for fate in fates})
    cells = collections.Counter((fate.end, fate.place) for fate in fates)
    sums = collections.Counter(fate.end for fate in fates)
    ends = sorted(sums, key=lambda end: (end[0].isupper(), -sums[end], end == "not sent", end))
    lines = [title, "killed: " + ", ".join(f"{kind} {count}" for kind, count in killed.items())]
    lines.append(f"  {'ended as':16}" + "".join(f"{place:>20}" for place in places))
    lines += [f"  {end:16}" + "".join(f"{cells[end, place]:>20}" for place in places) for end in ends]
    counts = collections.Counter(each.kind for each in wrong)
    told = f"lost {counts[LOST]}, invented {counts[INVENTED]}, run twice {counts[TWICE]}, "
    lines.append(f"{len(fates)} orders: {told}run though refused {counts[REFUSED]}, left over {len(left)}")
    return "\n".join(lines)
