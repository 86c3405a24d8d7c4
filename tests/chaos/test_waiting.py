"""Jobs that wait for cards are files: their number costs no processes, nobody need stay, and machines are not mixed."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.onhost import until
from tests.chaos.reaper import command, kind_of, staff
from tests.chaos.sharing import CARDS, Sent, Sharing, shared
from tests.lab import Lab

pytestmark = pytest.mark.lab

SPOOLER_MB = 20.0


@pytest.fixture
def sharing(lab: Lab) -> Iterator[Sharing]:
    with shared(lab) as box:
        yield box


def taken_whole(sharing: Sharing, host: str) -> Path:
    """All cards are held, until the file that this names is made."""
    over = sharing.folder / f"over-{host}"
    holder = sharing.send_until(sharing.new_lane(), host, CARDS, over)
    assert until(lambda: sharing.there(holder).runs(), 150), sharing.there(holder).history()
    return over


def tickets(sharing: Sharing, host: str) -> list[Path]:
    """The jobs that wait, on whichever machine."""
    return list(sharing.root(host).glob("machines/*/queue/*"))


def of_user(sharing: Sharing, host: str) -> collections.Counter[str]:
    """What runs of a user on the box, by kind."""
    found = collections.Counter[str]()
    for pid in sharing.box.cable.pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid == sharing.uid(host):
                found[kind_of(command(pid)) or b" ".join(command(pid)).decode()] += 1
        except FileNotFoundError:
            continue
    return found


def resident_mb(pid: int) -> float:
    """RSS of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_jobs_wait_in_one_process_and_are_found_by_another_client(
    sharing: Sharing, table: Callable[[str], None]
) -> None:
    """All cards are held; client and agent die, cards are let go; who comes later gets all."""
    count = 100
    over = taken_whole(sharing, "ada")
    began = time.monotonic()
    lane = sharing.new_lane()
    jobs = [sharing.send(lane, "bob", 1 + number % 2, 0.0) for number in range(count)]
    assert until(lambda: len(tickets(sharing, "bob")) == count, 150 + 5 * count), len(tickets(sharing, "bob"))
    queued_s = time.monotonic() - began
    lane.kill()
    assert until(lambda: sum(of_user(sharing, "bob").values()) == 1, 150, 0.2), of_user(sharing, "bob")
    # A child that is about to become nvidia-smi looks like it for a moment.
    (spooler,) = until(lambda: len(found := staff(sharing.box)["spooler"]) == 1 and found, 150, 0.2)
    held_mb = resident_mb(spooler)

    freed = time.monotonic()
    over.touch()
    values = collected(sharing, jobs, 150 + 15 * count)

    lasted = time.monotonic() - freed
    table(
        f"{count} jobs queued in {queued_s:.0f} s, waiting in 1 process of {held_mb:.1f} MB; all done in {lasted:.0f} s"
    )
    assert [len(set(value)) for value in values] == [job.gpus for job in jobs]
    assert sharing.settles() == []
    assert held_mb < SPOOLER_MB


def collected(sharing: Sharing, jobs: list[Sent], limit_s: float) -> list[list[str]]:
    """What a new client gets of them."""
    lane = sharing.new_lane()
    for job in jobs:
        lane.order("attach", job.id, job.host)
    deadline = time.monotonic() + limit_s
    words = [lane.hear(job.id, "state", max(deadline - time.monotonic(), 1.0)) or {} for job in jobs]
    failed = [word for word in words if not word.get("value")]
    assert not failed, f"{len(failed)} of {len(words)}, the first of them: {failed[0]}"
    return [word["value"] for word in words]
