"""Groups whose items need cards: they leave half of them to others, and lose only the items that were killed."""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import KilledBySignal, WorkerLost, cluster
from tests.chaos import holds
from tests.chaos.onhost import until
from tests.chaos.reaper import Reaper
from tests.chaos.sharing import CARDS, Sharing, shared
from tests.chaos.watcher import Watcher
from tests.lab import Lab

pytestmark = pytest.mark.lab

# Read when this is imported: no test sees CLUSTERFN_ variables.
SEED = int(os.environ.get("CLUSTERFN_SEED") or random.SystemRandom().randrange(10**6))
QUOTA = {"supervisor": 6, "worker": 6, "agent": 3, "spooler": 4}
LOST = (WorkerLost, KilledBySignal)


@pytest.fixture
def sharing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    with shared(lab) as box:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(box.config))
        yield box


def on_cards(sharing: Sharing, seconds: float) -> Callable[[int], int]:
    """A function of an item that notes its run, and locks a file for each of its cards while it runs."""
    runs, witness = str(sharing.runs), str(sharing.witness)

    def item(number: int) -> int:
        import fcntl
        import os
        import time

        fd = os.open(os.path.join(runs, f"item-{number}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{os.getpid()}\n".encode())
        os.close(fd)
        locks = [os.open(os.path.join(witness, card), 0) for card in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(seconds)
        return number

    item.__module__ = "__main__"
    return item


def runs_of(sharing: Sharing) -> dict[int, int]:
    """Item -> how often it ran."""
    return {int(path.name[5:]): len(path.read_text().splitlines()) for path in sharing.runs.glob("item-*")}


def cards_of(names: frozenset[str], uid: int) -> int:
    """How many the jobs of a user have who run."""
    parts = [name.split("/") for name in names if name.startswith(f"clusterfn/run/{uid}/")]
    return sum(int(part[4]) for part in parts)


def test_a_group_leaves_half_of_the_gpus_to_who_waits_and_has_them_again(sharing: Sharing) -> None:
    watcher = Watcher(sharing.box)
    ada = sharing.uid("ada")
    with watcher.looking() as seen:
        group = cluster(host="ada", gpus=1)(on_cards(sharing, 0.8)).map(range(2000), max_parallel=CARDS)
        assert until(lambda: cards_of(frozenset(sharing.names()), ada) == CARDS, 150), sharing.names()
        lane, over = sharing.new_lane(), sharing.folder / "over"
        job = sharing.send_until(lane, "bob", 4, over)
        assert until(lambda: sharing.there(job).runs(), 150), sharing.there(job).history()
        told = _told_by_who_waits(sharing.root("ada") / "jobs" / group.id)
        unknown = _unknown(group.id, told)
        over.touch()
        word = lane.hear(job.id, "state")
        assert until(lambda: cards_of(frozenset(sharing.names()), ada) == CARDS, 150), sharing.names()
        assert not group.done() and len(list(sharing.root("ada").glob(f"jobs/{group.id}/elements/*"))) == CARDS
        group.stop()
        assert group.wait(150), group
    assert told and unknown.startswith("[]"), unknown
    assert word and len(word["value"]) == 4, word
    (turn,) = [turn for turn in sharing.turns() if turn.job == job.id]
    looks = range(seen.before(turn.taken or 0.0) + 1, seen.before(turn.released or 0.0) + 1)
    beside = collections.Counter(cards_of(seen.names[look], ada) for look in looks)
    assert beside and max(beside) <= 4, beside
    assert set(runs_of(sharing).values()) == {1}
    assert sharing.settles() == []


def _told_by_who_waits(folder: Path) -> list[int]:
    """Items that ended in elements of a group which wait in the queue again."""
    waits = [claim for claim in folder.glob("elements/*") if not (claim / "claim").exists()]
    assert len(waits) == CARDS // 2, waits
    texts = [path.read_text() for each in waits for path in each.glob("attempts/*/journal.jsonl")]
    return [line["index"] for text in texts for line in map(json.loads, text.splitlines()) if "index" in line]


def _unknown(group: str, items: list[int]) -> str:
    """Those of these items of which another program that attaches hears nothing."""
    text = f"""
import time, clusterfn
group, unknown, until = clusterfn.attach({group!r}, "ada"), {items!r}, time.monotonic() + 100
while unknown and time.monotonic() < until:
    time.sleep(0.1)
    unknown = [item for item in unknown if group.states[item] != "RETURNED"]
print(unknown)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=150, check=False)
    return done.stdout.strip() + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_group_loses_the_items_whose_processes_were_killed_and_no_others(
    sharing: Sharing, table: Callable[[str], None]
) -> None:
    """Another user's jobs come in between, strangers too; what was lost is got by `retry_failed`."""
    rng, count = random.Random(SEED), 150
    watcher = Watcher(sharing.box)
    watcher.send_strangers(random.Random(SEED + 1))
    with watcher.looking() as seen:
        # First: an agent that is killed while it starts is an error, and no reason to connect again.
        group = cluster(host="ada", gpus=1)(on_cards(sharing, 0.5)).map(range(count), max_parallel=CARDS)
        with Reaper(sharing.box, random.Random(SEED + 2), QUOTA, (0.4, 1.5)) as reaper:
            lane = sharing.new_lane()
            others = [sharing.send(lane, "bob", rng.randint(1, 4), rng.uniform(0.2, 2.0)) for _ in range(10)]
            results = group.results(600)
            told = sharing.told(300)
        runs = runs_of(sharing)
        again = group.retry_failed().results(300) if group.failed else results
        left = sharing.settles()
    lost = [each for each in results if not isinstance(each, int)]
    deaths = {kind: len(killed) for kind, killed in reaper.killed.items()}
    shown = dict(collections.Counter(type(each).__name__ for each in lost))
    table(f"{count} items on {CARDS} cards, CLUSTERFN_SEED={SEED}; killed {deaths}; lost {shown}; "
          f"others ended as {[told.get(job.id, {}).get('state') for job in others]}")  # fmt: skip
    _holds_all(results, lost, runs, reaper)
    assert again == list(range(count))
    turns = sharing.turns()
    killed = [job for jobs in reaper.killed.values() for job in jobs]
    wrong = [*left, *holds.doubly_held(turns, seen), *holds.ill_given(turns), *holds.unwitnessed(turns, seen),
             *holds.never_released(turns, killed), *holds.beside_strangers(turns, seen)]  # fmt: skip
    assert not wrong, f"CLUSTERFN_SEED={SEED}\n" + "\n".join(wrong)
    assert len(told) == len(others)


def _holds_all(results: list[Any], lost: list[Any], runs: dict[int, int], reaper: Reaper) -> None:
    """Each item ran once and ended once; no more are lost than processes were killed."""
    where = f"CLUSTERFN_SEED={SEED}"
    assert [each for each in results if isinstance(each, int)] == [
        number for number, each in enumerate(results) if isinstance(each, int)
    ], where
    assert all(isinstance(each, LOST) for each in lost), (where, lost)
    assert len(lost) <= len(reaper.killed["supervisor"]) + len(reaper.killed["worker"]), where
    assert set(runs.values()) == {1}, (where, {item: times for item, times in runs.items() if times != 1})
