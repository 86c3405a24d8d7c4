"""Groups whose items need cards: they leave some to others who hold less, and lose only the items that were killed."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterfn import cluster
from tests.chaos.onhost import until
from tests.chaos.sharing import CARDS, Sharing, shared
from tests.chaos.watcher import Watcher
from tests.lab import Lab

pytestmark = pytest.mark.lab


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


@pytest.mark.long
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
