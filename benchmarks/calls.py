"""Our own calls: warm, in a fresh process, many at once; and what a round trip adds to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from benchmarks import limits
from benchmarks.measure import Sample, Series, in_turns, total
from benchmarks.place import MINOR, ROUND_TRIP_S, Asked, Place
from benchmarks.report import Row
from tests.lab import apptainer
from tests.lab.handle import Lab
from tests.lab.layout import IMAGES

ROUNDS = 15
_ALL = "python + paramiko + connect + all starts"
_BOTH = "old + new interpreter with imports"


@contextlib.contextmanager
def warm(place: Place, *hosts: str) -> Iterator[dict[str, Sample]]:
    """A sample of a warm call for each host, each in a process of its own that is connected already."""
    with contextlib.ExitStack() as stack:
        asked = {host: Asked(place, place.script("calls.py", host)) for host in hosts}
        for process in asked.values():
            stack.callback(process.close)
            process.ask()
        yield {host: lambda process=process: _took(process) for host, process in asked.items()}  # type: ignore[misc]


def _took(process: Asked) -> float:
    began, _, ended = process.ask()
    return float(ended - began)


def bare(place: Place, lab: Lab | None) -> list[Row]:
    """A call over SSH against the starts of the interpreters that it cannot do without."""
    host = "bare" if lab else "here"
    with contextlib.ExitStack() as stack:
        calls = stack.enter_context(warm(place, *(["bare", "pair", "here"] if lab else ["here"])))
        parts: dict[str, Sample] = {f"warm {name}": sample for name, sample in calls.items()}
        parts[f"fresh {host}"] = lambda: place.until_first_line(place.script("first.py", host))
        parts |= limits.interpreters(place)
        if lab:
            parts |= limits.connections(place, lab)
            parts["line"], close = limits.held_line(place, lab)
            stack.callback(close)
        taken = in_turns(parts, ROUNDS)
    both = taken["supervisor"] + taken["worker"]
    pythons = [part for part in taken if part.endswith("bare") and part.startswith("Python")]
    rows = [Row(f"start of {name}", taken[name]) for name in (*pythons, "agent", "supervisor", "worker")]
    if lab:
        connects = ("ssh, a fresh connection, true", "python, import paramiko, connect, true")
        rows += [Row(name, taken[name]) for name in connects]
        rows.append(Row("a line there and back, held channel of paramiko", taken["line"]))
        rows.append(Row.versus("warm call over SSH", taken["warm bare"], both, _BOTH, limit=1.5))
        one = taken["warm bare"]
        rows.append(Row.versus("warm call over SSH to a list of two", taken["warm pair"], one, "one host", limit=1.2))
        what = "fresh process to first result over SSH"
        rows.append(Row.versus(what, taken["fresh bare"], _all_starts(taken), _ALL, limit=1.5))
    else:
        rows.append(Row("fresh process to first result, this machine", taken["fresh here"]))
    here = taken[f"Python {MINOR}, bare"]
    rows.append(Row.versus("warm call, this machine", taken["warm here"], here + here, "twice a bare Python"))
    return rows


def _all_starts(taken: Mapping[str, Series]) -> Series:
    return total([taken[name] for name in ("python, import paramiko, connect, true", "agent", "supervisor", "worker")])


def round_trips(place: Place) -> list[Row]:
    """What 50 ms of delay add to a call: the number of times that it goes there and back.

    Of the shortest times: the delay is always the same, and anything else only adds to it.
    """
    fresh = {
        f"fresh {host}": lambda host=host: place.until_first_line(place.script("first.py", host))
        for host in ("near", "far")
    }
    taken = in_turns(fresh, 9)
    with warm(place, "near", "far") as calls:
        taken |= in_turns({f"warm {name}": sample for name, sample in calls.items()}, 40)
    rows = []
    for what, limit in (("warm", 1.2), ("fresh", None)):
        trips = (taken[f"{what} far"].low - taken[f"{what} near"].low) / ROUND_TRIP_S
        rows.append(Row(f"round trips of a {what} call", Series((trips,)), "trips", limit=limit))
    return rows


def slurm(place: Place, lab: Lab) -> list[Row]:
    """Calls as batch jobs, against what sbatch and srun need for a Python."""
    with warm(place, "slurm") as calls:
        parts = dict(calls)
        parts["fresh"] = lambda: place.until_first_line(place.script("first.py", "slurm"))
        parts |= limits.slurm(place, lab)
        taken = in_turns({name: _after_a_rest(sample) for name, sample in parts.items()}, 5)
    batch = "sbatch of python until it has run"
    return [
        Row("srun of python", taken["srun of python"]),
        Row(batch, taken[batch]),
        Row.versus("warm call on SLURM", taken["slurm"], taken[batch], "sbatch of python"),
        Row.versus("fresh process to first result on SLURM", taken["fresh"], taken[batch], "sbatch of python"),
    ]


def _after_a_rest(sample: Sample) -> Sample:
    """SLURM puts off what comes right after another job's end."""

    def rested() -> float:
        time.sleep(0.7)
        return sample()

    return rested


def sessions(place: Place, lab: Lab | None) -> list[Row]:
    """A call of a session, and of an actor, against a line through an open connection; and many at once."""
    host = "bare" if lab else "here"
    with contextlib.ExitStack() as stack:
        asked = {
            name: Asked(place, [*place.script("session.py", host), "2", *words])
            for name, words in {"one": ["{}"], "two": ['{"workers": 2}'], "actor": ["{}", "actor"]}.items()
        }
        if lab:
            asked["node"] = Asked(place, [*place.script("session.py", "slurm"), "1", "{}", "own"])
        for process in asked.values():
            stack.callback(process.close)
            for _ in range(3):  # the first ones go as files, until the session listens
                process.ask()
        parts: dict[str, Sample] = {name: _after_a_moment(asked[name]) for name in asked if name != "two"}
        if lab:
            parts["line"], close = limits.held_line(place, lab)
            stack.callback(close)
        taken = in_turns(parts, 60)
        many = in_turns(
            {f"{name} {calls}": _at_once(asked[name], calls) for calls in (200, 1000) for name in ("two", "actor")}, 3
        )
    rows = [Row("call of an actor", taken["actor"])]
    for calls in (200, 1000):
        rows += [
            Row(f"each of {calls:,} calls at once in a session with 2 workers", many[f"two {calls}"], limit=4),
            Row(f"each of {calls:,} calls at once of an actor", many[f"actor {calls}"], limit=1),
        ]
    if not lab:
        return [Row("call in a session", taken["one"]), *rows]
    goal = Series(tuple(3 * line + 0.007 for line in taken["line"].values))
    return [
        Row.versus("call in a session over SSH", taken["one"], goal, "3 lines + 7 ms", limit=1.0),
        Row("call in a session on a SLURM node", taken["node"], limit=8),
        *rows,
    ]


def containers(place: Place) -> list[Row]:
    """A call and an item of a map in each runtime, against the same outside; all with this minor of Python."""
    image = IMAGES / f"python{MINOR}"
    program = apptainer.build() / "apptainer"
    alone = {
        "bwrap": ["bwrap", "--ro-bind", image, "/", "/usr/bin/env"],
        "charliecloud": ["ch-run", image, "--", "/usr/bin/env"],
        "apptainer": [program, "--quiet", "exec", image, "/usr/bin/env"],
    }
    with contextlib.ExitStack() as stack:
        asked = {
            kind: Asked(place, place.script("container.py", "prepared", f"{kind}:{image}" if kind else ""))
            for kind in ("", *alone)
        }
        for process in asked.values():
            stack.callback(process.close)
            process.ask("call")
        parts: dict[str, Sample] = {
            f"{what} {kind}": lambda process=process, what=what: float(process.ask(what))  # type: ignore[misc]
            for what in ("call", "map")
            for kind, process in asked.items()
        }
        taken = in_turns(parts | {kind: limits.as_user(place, words) for kind, words in alone.items()}, 3)
    rows = []
    for kind in alone:
        goal = taken["call "] + taken[kind] + Series((0.02,) * len(taken[kind].values))
        rows += [
            Row(f"start of {kind}", taken[kind]),
            Row.versus(f"call in {kind}", taken[f"call {kind}"], goal, "outside + start + 20 ms", limit=1.0),
            Row.versus(f"item of a map in {kind}", taken[f"map {kind}"], taken["map "], "outside", limit=1.2),
        ]
    return [Row("call outside", taken["call "]), *rows]


def _after_a_moment(asked: Asked) -> Sample:
    def one() -> float:
        time.sleep(0.01)
        return float(asked.ask())

    return one


def _at_once(asked: Asked, calls: int) -> Sample:
    return lambda: float(asked.ask(str(calls))) / calls


def shared_map(place: Place) -> list[Row]:
    """400 items on two machines, of which one needs twice as long for each, against the best that they could do."""
    asked = Asked(place, place.script("maps.py", "pair"))
    try:
        taken = in_turns({"map": lambda: float(asked.ask())}, 3)["map"]
    finally:
        asked.close()
    best = Series((400 / (4 / 0.2 + 4 / 0.4),))
    return [Row.versus("map of 400 items on two hosts, one half as fast", taken, best, "the ideal", limit=1.2)]


def at_once(place: Place, lab: Lab | None) -> list[Row]:
    """Twenty calls together: what each costs, against one alone and against the interpreters' own work."""
    asked = Asked(place, place.script("many.py", "bare" if lab else "here"))
    try:
        parts: dict[str, Sample] = {"20": lambda: float(asked.ask()) / 20}
        taken = in_turns(parts | limits.interpreters(place), 5)
    finally:
        asked.close()
    both = taken["supervisor"] + taken["worker"]
    return [Row.versus("each of 20 calls at once", taken["20"], both, _BOTH)]
