"""Cards go from hand to hand among users, whoever is killed: none to two at once, and none lost.

Judged by `holds` from the journal, from the names that a watcher saw bound, and by each job itself, which locks a file
for every card that it was given. The box is the test's own.
"""

from __future__ import annotations

import collections
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.chaos import holds
from tests.chaos.holds import Seen
from tests.chaos.onhost import until
from tests.chaos.reaper import Reaper
from tests.chaos.sharing import CARDS, Sharing, shared
from tests.chaos.watcher import Watcher
from tests.lab import Lab

pytestmark = pytest.mark.lab

# Read when this is imported: no test sees CLUSTERFN_ variables.
SEED = int(os.environ.get("CLUSTERFN_SEED") or random.SystemRandom().randrange(10**6))
KILLED_AS = {
    "worker": frozenset(["signal", "returned"]),  # returned: it had said its last word
    "supervisor": frozenset(["lost", "returned"]),
}
UNHARMED = frozenset(["returned"])
CLASSES = {"lost": "WorkerLost", "signal": "KilledBySignal"}


@dataclass
class Play:
    """How many jobs of how long, and who dies meanwhile."""

    jobs: int
    longest_s: float
    quota: Mapping[str, int]
    pause_s: tuple[float, float]
    limit_s: float


@pytest.fixture
def sharing(lab: Lab) -> Iterator[Sharing]:
    with shared(lab) as box:
        yield box


SHORT = Play(14, 1.0, {"supervisor": 1, "worker": 1, "agent": 1, "spooler": 1}, (0.5, 1.5), 150.0)
LONG = Play(200, 2.0, {"supervisor": 12, "worker": 12, "agent": 10, "spooler": 12}, (0.3, 1.0), 900.0)


@pytest.mark.timeout(900)
def test_fourteen_jobs_of_two_users_never_share_a_gpu(sharing: Sharing, table: Callable[[str], None]) -> None:
    play(sharing, SHORT, table)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_jobs_of_two_users_never_share_a_gpu(sharing: Sharing, table: Callable[[str], None]) -> None:
    play(sharing, LONG, table)


def play(sharing: Sharing, how: Play, table: Callable[[str], None]) -> None:
    """All of it, from four clients; then every card can be had at once."""
    rng = random.Random(SEED)
    watcher = Watcher(sharing.box)
    watcher.send_strangers(random.Random(SEED + 1))
    began = time.monotonic()
    with watcher.looking() as seen:
        with Reaper(sharing.box, random.Random(SEED + 2), how.quota, how.pause_s) as reaper:
            lanes = [(sharing.new_lane(), user) for user in ("ada", "bob", "ada", "bob")]
            told: Mapping[str, Mapping[str, object]] = {}
            # Again if the reaper, which may stand still for a while, has not come to kill all by then.
            while len(sharing.sent) < how.jobs or (not reaper.done() and len(sharing.sent) < 3 * how.jobs):
                for number in range(how.jobs):
                    lane, user = lanes[number % len(lanes)]
                    sharing.send(lane, user, rng.randint(1, 4), rng.uniform(0.2, how.longest_s))
                told = sharing.told(how.limit_s)
        left = sharing.settles()
    lasted = time.monotonic() - began
    deaths = {kind: len(killed) for kind, killed in reaper.killed.items()}
    table(f"{len(sharing.sent)} jobs on {CARDS} cards in {lasted:.0f} s, CLUSTERFN_SEED={SEED}; killed {deaths}; "
          f"{ends(sharing)}; {len(seen.strangers)} strangers; {len(seen.times)} looks")  # fmt: skip
    assert len(seen.times) > lasted, "the watcher saw too little to judge by"
    wrong = [*left, *judged(sharing, seen, reaper), *as_published(sharing, told)]
    assert not wrong, f"CLUSTERFN_SEED={SEED}\n" + "\n".join(wrong)
    assert reaper.done(), f"killed only {deaths}"
    every_card_can_be_had(sharing)


def ends(sharing: Sharing) -> dict[str, int]:
    """How many jobs came to which end; "refused": its client's agent was killed before anything was sent."""
    found: collections.Counter[str] = collections.Counter()
    for job, kinds in sharing.finals().items():
        found.update(kinds or ["none" if sharing.there(sharing.sent[job]).folder.exists() else "refused"])
    return dict(found)


def judged(sharing: Sharing, seen: Seen, reaper: Reaper) -> list[str]:
    """What the journal and the watcher tell against it."""
    turns = sharing.turns()
    known = {turn.job for turn in turns}
    killed = [job for jobs in reaper.killed.values() for job in jobs]
    allowed = {job: UNHARMED for job, sent in sharing.sent.items() if sharing.there(sent).folder.exists()}
    for kind, kinds in KILLED_AS.items():
        for job in reaper.killed[kind]:
            allowed[job] = allowed[job] | kinds
    runs = {job.id: sharing.there(job).runs() for job in sharing.sent.values()}
    return [
        *holds.doubly_held(turns, seen),
        *holds.ill_given(turns),
        *holds.unwitnessed(turns, seen),
        *holds.never_released(turns, killed),
        *holds.beside_strangers(turns, seen),
        *holds.ill_ended(sharing.finals(), allowed),
        *(f"{job} ran without a word in the journal" for job in runs if runs[job] and job not in known),
        *(f"{turn} was to have {cards}" for turn in turns if turn.gpus != (cards := sharing.sent[turn.job].gpus)),
        *(f"{job} ran as {each}" for job, each in runs.items() if len(each) > 1),
    ]  # fmt: skip


def as_published(sharing: Sharing, told: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Jobs whose client says something else than the host, or nothing."""
    wrong = []
    for job, kinds in sharing.finals().items():
        word = told.get(job, {})
        error = word.get("error")
        said = error["type"] if isinstance(error, dict) else None
        value = word.get("value")
        if word.get("state") == "REFUSED" and not sharing.there(sharing.sent[job]).folder.exists():
            continue  # its client's agent was killed before anything was sent
        if not word or not kinds or said != CLASSES.get(kinds[0]):
            wrong.append(f"{job} ended as {kinds}, and its client says {word}")
        if isinstance(value, list) and len(value) != sharing.sent[job].gpus:
            wrong.append(f"{job} was to have {sharing.sent[job].gpus} cards and had {value}")
    return wrong


def every_card_can_be_had(sharing: Sharing) -> None:
    """A job that asks for all of them starts at once."""
    fresh = sharing.new_lane()
    job = sharing.send(fresh, "bob", CARDS, 0.0)
    word = fresh.hear(job.id, "state") or {}
    assert sorted(word.get("value", [])) == [str(number) for number, _ in enumerate(sharing.box.uuids())], word
    assert until(lambda: not sharing.names(), 150), sharing.names()
