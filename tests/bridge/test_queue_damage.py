"""The queue of a machine without a scheduler, where somebody or something has damaged what it lives on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn.bridge.layout import CLAIM
from tests.bridge.box import Box
from tests.bridge.host import Job
from tests.bridge.layout import layout_bridge
from tests.bridge.test_queue import WAITS, ended, kill, let_go, running
from tests.processes import is_running, named
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


def torn(ticket: Path) -> None:
    ticket.write_bytes(ticket.read_bytes()[:99] + b"\xff")


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all("State:\tT" in Path(f"/proc/{pid}/status").read_text() for pid in pids))


def test_a_stopped_spooler_is_replaced_and_never_goes_on(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(2)
    box.queued(second)
    until(lambda: box.reason(second))
    stopped = box.spoolers()
    stop(stopped)
    let_go(first)

    box.here("queue", str(box.bench.root))  # whoever watches a job of its owner's asks so

    assert ended(second) == ["returned"]
    assert not any(map(is_running, stopped))
    assert box.order() == [first.id, second.id]


def test_a_spooler_that_is_busy_is_left_alone(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(2)
    box.queued(second)
    spoolers = until(box.spoolers)

    for _ in range(3):
        box.here("queue", str(box.bench.root))

    assert box.spoolers() == spoolers
    let_go(first)
    assert ended(second) == ["returned"]


def test_a_job_that_hangs_keeps_other_users_waiting_for_a_minute_at_most(box: Box):
    """What it keeps for its job is written down with an end, which it puts off as long as it goes."""
    over = int(time.clock_gettime(time.CLOCK_BOOTTIME)) - 1
    held = box.mark(f"wait/4242/1/{over}/2/1/0/aaaaaaaaaaaaaaaa~0//0")
    job = box.job(1)

    assert box.start(job).wait(150) == 0

    assert ended(job) == ["returned"]
    held.close()


def until_s(box: Box) -> int:
    """Until when the name of the only job that waits counts, in seconds since the machine's start."""
    names = until(lambda: [name for name in box.apart.names() if name.startswith("wait/")])
    return max(int(name.split("/")[3]) for name in names)  # the next is there before the last one goes


def test_a_spooler_writes_down_no_end_that_is_farther_away_than_a_minute(box: Box):
    running(box, box.job(2, 600))
    box.queued(box.job(1))

    assert until_s(box) - time.clock_gettime(time.CLOCK_BOOTTIME) <= 60


@pytest.mark.long
def test_who_waits_for_long_is_kept_in_mind(box: Box):
    running(box, box.job(2, 600))
    second = box.job(1)
    box.queued(second)

    first = until_s(box)
    until(lambda: until_s(box) > first)


def as_fifo(ticket: Path) -> None:
    ticket.unlink()
    os.mkfifo(ticket)


def of_another_job(ticket: Path) -> None:
    ticket.write_text(ticket.read_text().replace(f'"job": "{ticket.name}"', '"job": "aaaaaaaaaaaaaaaa"'))


@pytest.mark.parametrize("damage", [as_fifo, torn, of_another_job])
def test_a_damaged_ticket_costs_its_own_job_its_place_and_keeps_nobody_else_waiting(
    box: Box, damage: Callable[[Path], None]
):
    first, bad, good = running(box, box.job(2, 600)), box.job(1), box.job(1)
    box.queued(bad)
    box.queued(good)
    kill(until(box.spoolers))
    ticket = box.machine / "queue" / bad.id
    damage(ticket)

    let_go(first)
    box.here("queue", str(box.bench.root))

    assert ended(good) == ["returned"]
    until(lambda: not os.path.lexists(ticket))
    bad.call("conclude", stdin=json.dumps({"kind": "lost", "message": "its processes are gone"}))
    assert "has lost its place in the queue of this machine" in bad.outcome()["message"]


def test_a_ticket_of_a_version_that_knows_more_limits_keeps_its_place(box: Box):
    first, later = running(box, box.job(2, 600)), box.job(1)
    box.queued(later)
    kill(until(box.spoolers))
    ticket = box.machine / "queue" / later.id
    fields = json.loads(ticket.read_text())
    ticket.write_text(json.dumps({**fields, "limits": {"nodes": 1}, "asked": {**fields["asked"], "nodes": 1}}))
    let_go(first)
    box.here("queue", str(box.bench.root))

    assert ended(later) == ["returned"]


def test_more_names_than_a_process_may_open_keep_nobody_waiting(box: Box):
    """Everybody on the machine can make such names, and jobs of other users that run do."""
    first, second = box.job(2, 600), box.job(1)
    first.start(PATH=box.path, before=few_files)
    first.wait_for("running")
    names = [f"run/4242/{number:016x}/0/0/0" for number in range(80)]
    held = [box.mark(name) for name in [*names, *(f"gpu/GPU-of-nobody-{number}" for number in range(80))]]

    assert second.start(PATH=box.path, before=few_files).wait(150) == WAITS
    (spooler,) = until(box.spoolers)
    until(lambda: box.reason(second))
    let_go(first)

    assert ended(second) == ["returned"]
    assert spooler
    for each in held:
        each.close()


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))


def test_a_job_whose_end_cannot_be_published_keeps_nobody_else_waiting(box: Box):
    first, bad, good = running(box, box.job(2, 600)), box.job(1), box.job(1)
    box.queued(bad)
    box.queued(good)
    (bad.folder / "spec.json").unlink()
    os.mkfifo(bad.folder / "spec.json")  # whoever reads it waits for ever
    (bad.folder / "cancel").touch()
    until(lambda: readers_of(bad))

    let_go(first)

    assert ended(good) == ["returned"]
    until(lambda: kill(readers_of(bad)) or bad.id not in box.tickets())
    kill(readers_of(bad))  # a script that was started just before


@pytest.mark.parametrize("file", ["spec.json", "scheduler.log"])  # before and after it has claimed the job
def test_an_end_that_takes_too_long_to_publish_is_published_again(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
):
    soon = layout_bridge(tmp_path / "soon", ("queue/scripts.py", "_CONCLUDES_S = 30.0", "_CONCLUDES_S = 2.0"))
    monkeypatch.setattr(box.bench, "bridge", soon)
    blocks, slow = running(box, box.job(2, 600)), box.job(1)
    box.queued(slow)
    (slow.folder / file).touch()
    kept = (slow.folder / file).rename(tmp_path / "kept")
    os.mkfifo(slow.folder / file)
    (slow.folder / "cancel").touch()
    until(lambda: readers_of(slow) and (file == "spec.json" or (slow.folder / CLAIM).exists()))
    before = set(readers_of(slow))
    until(lambda: set(readers_of(slow)) - before)
    kept.replace(slow.folder / file)  # the reader goes on waiting for the one before

    assert ended(slow) == ["cancelled"]
    let_go(blocks)


def readers_of(job: Job) -> list[int]:
    """Pids of those that read its spec.json: whoever starts it or publishes its end."""
    return [*named("conclude", job.folder), *named("run", job.folder)]


def test_a_job_whose_script_cannot_be_started_keeps_nobody_else_waiting(box: Box):
    first, bad, good = running(box, box.job(2, 600)), box.job(1), box.job(1)
    box.queued(bad)
    (bad.folder / "scheduler.log").unlink(missing_ok=True)
    (bad.folder / "scheduler.log").mkdir()
    box.queued(good)
    spoolers = until(box.spoolers)

    let_go(first)

    assert ended(good) == ["returned"]
    assert box.spoolers() == spoolers


def test_a_script_that_cannot_be_started_a_thousand_times_ends_no_spooler(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changes = [
        ("queue/scripts.py", "_AGAIN_MOST_S = 5.0", "_AGAIN_MOST_S = 0.001"),
        ("queue/spooler.py", "_STARTING_S = 0.1", "_STARTING_S = 0.001"),
        ("queue/spooler.py", "_LOOK_AGAIN_S = 5.0", "_LOOK_AGAIN_S = 0.001"),
    ]
    monkeypatch.setattr(box.bench, "bridge", layout_bridge(tmp_path / "restless", *changes))
    first, bad = running(box, box.job(2, 600)), box.job(1)
    box.queued(bad)
    (bad.folder / "scheduler.log").unlink(missing_ok=True)
    (bad.folder / "scheduler.log").mkdir()
    spoolers = until(box.spoolers)
    log = box.machine / "spooler.log"

    let_go(first)

    until(lambda: log.read_text().count("could not be started") > 1100 or not box.spoolers())
    assert box.spoolers() == spoolers


def test_a_job_whose_setup_hangs_keeps_nobody_else_waiting_and_is_withdrawn_at_once(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    late = layout_bridge(tmp_path / "late", ("queue/scripts.py", "_KEPT_S = 300.0", "_KEPT_S = 999.0"))
    monkeypatch.setattr(box.bench, "bridge", late)
    first, bad, good = running(box, box.job(2, 600)), box.job(1), box.job(1)
    box.queued(bad)
    script = bad.folder / "job.sh"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 600\n", 1))
    box.queued(good)

    let_go(first)

    assert ended(good) == ["returned"]
    assert not bad.has_outcome()
    (bad.folder / "cancel").touch()
    assert ended(bad) == ["cancelled"]
    for pid in named(bad.folder / "job.sh"):
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize("end", ["cancelled", pytest.param("unsatisfiable", marks=pytest.mark.long)])
def test_a_job_whose_setup_hangs_gives_the_only_gpu_up_and_can_still_be_ended(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
):
    soon = layout_bridge(tmp_path / "soon", ("queue/scripts.py", "_KEPT_S = 300.0", "_KEPT_S = 4.0"))
    monkeypatch.setattr(box.bench, "bridge", soon)
    box.say(cards=1)
    first, bad, good = running(box, box.job(1, 600)), box.job(1, queue_timeout_s=600.0), box.job(1)
    box.queued(bad)
    script = bad.folder / "job.sh"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 600\n", 1))
    box.queued(good)
    let_go(first)
    until(lambda: named(bad.folder / "job.sh"))
    try:
        assert ended(good) == ["returned"]
        until(lambda: not any(name.startswith("wait/") and bad.id in name for name in box.apart.names()))
        until(lambda: "others go first" in box.reason(bad))

        if end == "cancelled":
            (bad.folder / "cancel").touch()
        else:
            # Its limit is lowered: a machine that was just started cannot have had it in its queue for longer.
            ticket = box.machine / "queue" / bad.id
            ticket.with_name(".new").write_text(json.dumps({**json.loads(ticket.read_text()), "queue_timeout_s": 0.1}))
            ticket.with_name(".new").rename(ticket)

        assert ended(bad) == [end]
        until(lambda: not box.tickets())
        assert named(bad.folder / "job.sh")
    finally:
        for pid in named(bad.folder / "job.sh"):
            os.killpg(pid, signal.SIGKILL)


def test_queue_timeout_is_not_measured_by_a_clock_that_is_set(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1, queue_timeout_s=600.0)
    box.queued(second)
    kill(until(box.spoolers))
    ticket = box.machine / "queue" / second.id
    told = json.loads(ticket.read_text())
    ticket.write_text(json.dumps({**told, "t": told["t"] - 3600}))  # the clock was set forward by an hour since

    box.here("queue", str(box.bench.root))
    let_go(first)

    assert ended(second) == ["returned"]


def test_a_supervisor_that_dies_once_it_has_left_its_job_to_the_queue_loses_nothing(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1)
    box.queued(second)
    kill(until(box.spoolers))

    second.call("after", "137", PATH=box.path)  # as its script does

    assert not second.has_outcome()
    assert until(box.spoolers)
    let_go(first)
    assert ended(second) == ["returned"]


def waiting_at(held: socket.socket) -> list[socket.socket]:
    """Who has connected, and was not answered before."""
    held.setblocking(False)
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(held.accept()[0])
    return found


@pytest.mark.long
def test_who_asks_for_gpus_takes_no_place_at_the_door_of_their_holder(box: Box):
    """There are few, and whoever waits for the holder's end needs one."""
    held = [box.mark(f"gpu/{box.uuid(index)}") for index in (0, 1)]
    held.append(box.mark("run/4242/aaaaaaaaaaaaaaaa/2/1/0"))
    jobs = [box.job(1) for _ in range(6)]
    for job in jobs:
        box.queued(job)
    until(lambda: "2 of 2 GPUs held by you (2)" in box.reason(jobs[0]))

    there = [waiting_at(each) for each in held]
    assert max(map(len, there)) == 1
    for each in [*held, *sum(there, [])]:
        each.close()
    assert ended(*jobs) == ["returned"] * 6


def test_another_users_false_name_of_a_job_does_not_keep_it_from_starting(box: Box):
    job = box.job(1)
    held = box.mark(f"run/{os.getuid()}/{job.id}/2/1/0")

    assert box.start(job).wait(150) == 0
    held.close()
