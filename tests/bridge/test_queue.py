"""The queue of a machine without a scheduler: who waits is a file, and starts in turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.apart import apart, rename
from tests.bridge.box import Box
from tests.bridge.group import Group
from tests.bridge.host import Job
from tests.bridge.layout import layout_bridge
from tests.processes import is_running
from tests.waiting import stays, until

WAITS = 20  # the exit status of who is left to the queue
NAP = "def f(s):\n    import time\n    time.sleep(s)\n    return s\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


@pytest.fixture
def patient(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A machine whose spooler looks again after ten minutes only: what it notices before that has woken it."""
    late = ("queue/spooler.py", "_LOOK_AGAIN_S = 5.0", "_LOOK_AGAIN_S = 600.0")
    monkeypatch.setattr(box.bench, "bridge", layout_bridge(tmp_path / "patient", late))
    return box


def ended(*jobs: Job) -> list[str]:
    """How they ended, once all have."""
    for job in jobs:
        until(job.has_outcome)
    return [job.outcome()["kind"] for job in jobs]


def running(box: Box, job: Job) -> Job:
    """Start it, and wait until its function runs."""
    box.start(job)
    job.wait_for("running")
    return job


def let_go(job: Job) -> None:
    """End a running job without a word, its script and its supervisor: what it holds is free then."""
    worker = job.worker_pid()
    for pid in (job.script.pid if job.script.poll() is None else 0, job.supervisor_pid()):
        if pid:
            os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(worker))


def cores(box: Box, wanted: int, seconds: float = 0.0, **spec: Any) -> Job:
    """A job without cards, held to the cores that there are."""
    spec.setdefault("limits", {})
    return box.bench.job(NAP, seconds, resources={"cores": wanted}, **spec)


def all_cores() -> int:
    return len(os.sched_getaffinity(0))


def test_who_waits_says_for_whom(box: Box):
    box.say(used={"0": 812})
    first, second = running(box, box.job(1, 600)), box.job(1)

    box.queued(second)

    reason = until(lambda: box.reason(second))
    nobody = "1 in use without a lease: 812 MB in use by an unknown process"
    assert reason == f"1 of 2 GPUs held by you (1); {nobody}; waiting for 1"
    assert f"f.{second.id}|PENDING|{reason}\n" in box.here("queue", str(box.bench.root))
    let_go(first)
    assert ended(second) == ["returned"]


def test_who_waits_is_started_by_the_holders_end(patient: Box):
    first, second = running(patient, patient.job(2, 600)), patient.job(2)
    patient.queued(second)
    until(lambda: patient.reason(second))

    let_go(first)

    assert ended(second) == ["returned"]


def test_who_waits_is_started_when_what_was_kept_for_another_user_is_kept_no_longer(patient: Box):
    held = patient.waits(2)
    job = patient.job(1)
    patient.queued(job)
    assert "reserved for 4242's earlier 2-GPU job" in until(lambda: patient.reason(job))

    held.close()

    assert until(patient.order) == [job.id]
    assert ended(job) == ["returned"]


def test_waiting_ends_with_queue_timeout(box: Box):
    running(box, box.job(2, 600))
    second = box.job(1, queue_timeout_s=0.5)

    box.queued(second)

    assert ended(second) == ["unsatisfiable"]
    outcome = second.outcome()
    assert outcome["stage"] == "lease"
    assert "its turn did not come within the 0.5 s of queue_timeout: 2 of 2 GPUs held by you (2)" in outcome["message"]
    until(lambda: not box.tickets())


def test_who_waits_can_be_stopped(box: Box):
    running(box, box.job(2, 600))
    second = box.job(1)
    box.queued(second)

    (second.folder / "cancel").touch()

    assert ended(second) == ["cancelled"]
    until(lambda: not box.tickets())


def test_who_waits_can_be_withdrawn(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1)
    box.queued(second)

    told = second.call("conclude", stdin=json.dumps({"kind": "cancelled", "message": "no", "withdraw": True}))

    assert json.loads(told.stdout) == {"attempt": 1, "kind": "cancelled", "won": True}
    assert not box.tickets()
    let_go(first)
    until(lambda: not box.spoolers())
    assert box.order() == [first.id]


def test_another_user_that_leaves_is_noticed(box: Box):
    box.say(cards=1, apps={"0": os.getpid()})
    job = box.job(1)
    box.queued(job)
    assert "pid" in until(lambda: box.reason(job))

    box.say(cards=1)

    assert ended(job) == ["returned"]
    assert job.value() == "0"


def test_who_gives_its_gpus_back_for_another_user_is_in_line_before_anybody_looks(box: Box, tmp_path: Path):
    gate = tmp_path / "gate"
    gate.touch()
    box.say(cards=1, apps={"0": os.getpid()}, gate=str(gate))
    job = box.job(1)
    box.start(job)
    until(lambda: f"gpu/{box.uuid(0)}" in box.apart.names())
    with box.mark("door"):  # a younger job is being admitted
        gate.unlink()
        stays(lambda: not box.tickets() and f"gpu/{box.uuid(0)}" in box.apart.names(), 0.5)

    until(lambda: box.tickets() == {job.id})
    until(lambda: f"gpu/{box.uuid(0)}" not in box.apart.names())


def test_who_meets_another_user_takes_no_gpu_that_is_kept_for_a_job_before_it(box: Box):
    box.say(cards=3)
    other = box.waits(2)
    job = box.job(1)
    with box.mark("door"):  # it has looked, and waits to be admitted
        box.start(job)
        until(lambda: box.looks() == 1)
        box.say(cards=3, apps={"2": os.getpid()})  # the one that is left for it

    until(lambda: box.tickets() == {job.id})

    first = until(box.holds)[0]  # it is written after the ticket
    assert first["event"] == "ticket", "it held no card that another job waits for"
    other.close()
    assert ended(job) == ["returned"]
    assert job.value() == "0"


def test_twelve_jobs_on_eight_gpus_never_share_one_and_none_leaks(box: Box):
    box.say(cards=8)
    jobs = [box.job(1 + index % 3, 0.2) for index in range(12)]

    box.start_all(jobs)

    assert ended(*jobs) == ["returned"] * 12
    until(lambda: len(box.order("released")) == 12)
    held: set[str] = set()
    for line in box.holds():
        cards = set(line.get("cards", ()))
        assert cards <= held if line["event"] == "released" else not cards & held, line
        held ^= cards
    assert not held
    until(lambda: not box.apart.names() & {f"gpu/{box.uuid(index)}" for index in range(8)})
    until(lambda: not box.spoolers())


def test_a_large_job_is_not_starved_by_small_ones(box: Box):
    """It finds one free card of two; who asks for one after it waits all the same, though no spooler says a word."""
    holder, large, small = running(box, box.job(1, 600)), box.job(2), box.job(1)
    box.queued(large)
    kill(until(box.spoolers))

    box.queued(small)

    assert until(lambda: box.reason(small)).endswith("1 job before it")
    let_go(holder)
    assert ended(large, small) == ["returned"] * 2
    assert box.order() == [holder.id, large.id, small.id]


def test_a_job_without_gpus_passes_one_that_waits_for_gpus(box: Box):
    running(box, box.job(2, 600))
    waiting, small = box.job(1), box.bench.job(NAP, 0.0)
    box.queued(waiting)

    box.start(small)

    assert ended(small) == ["returned"]
    assert not waiting.has_outcome()


def test_a_younger_job_of_another_user_does_not(box: Box):
    held = box.waits(2, 99999999999999)
    job = box.job(1)

    assert box.start(job).wait(150) == 0
    held.close()


def test_cores_are_counted_over_all_users(box: Box):
    held = box.mark(f"run/4242/aaaaaaaaaaaaaaaa/0/{all_cores()}/0")
    job = cores(box, 1)

    box.queued(job)
    assert until(lambda: box.reason(job)) == f"cores held by 4242 ({all_cores()}); waiting for 1 free core"

    held.close()
    assert ended(job) == ["returned"]


def test_memory_is_counted_where_it_is_asked_for(box: Box):
    held = box.mark("run/4242/aaaaaaaaaaaaaaaa/0/0/99999999")
    asked = box.bench.job(NAP, 0.0, resources={"memory_bytes": 1 << 28})
    silent = box.bench.job(NAP, 0.0)

    assert box.start(silent).wait(150) == 0
    box.queued(asked)
    said = "MB of memory held by 4242 (99999999); waiting for 256 MB of free memory"
    assert until(lambda: box.reason(asked)) == said

    held.close()
    assert ended(asked) == ["returned"]


@pytest.mark.parametrize("limit", [pytest.param("jobs", marks=pytest.mark.long), "gpus"])
def test_a_limit_of_ones_own_is_kept_and_reserves_nothing(box: Box, limit: str):
    limits = {limit: 1, "cores": 64}
    first = running(box, box.job(1, 600, limits=limits))
    second = box.job(1, limits=limits)

    box.queued(second)

    assert until(lambda: box.reason(second)) == f"waiting for your own jobs: limits: {{{limit}: 1}}"
    assert not [name for name in box.apart.names() if name.startswith("wait/")]
    let_go(first)
    assert ended(second) == ["returned"]


def test_a_ticket_of_an_earlier_boot_is_older_than_all_since(box: Box):
    box.say(cards=1)
    first, older, younger = running(box, box.job(1, 600)), box.job(1), box.job(1)
    box.queued(younger)
    box.queued(older)
    kill(box.spoolers())
    ticket = box.machine / "queue" / older.id
    ticket.write_text(json.dumps({**json.loads(ticket.read_text()), "boot": "another"}))

    let_go(first)
    box.here("queue", str(box.bench.root))

    assert ended(older, younger) == ["returned"] * 2
    assert box.order() == [first.id, older.id, younger.id]


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("asked", ["queue", "list"])
def test_a_killed_spooler_loses_nothing(box: Box, asked: str):
    first = running(box, box.job(2, 600))
    waiting = [box.job(1, 0.1) for _ in range(2)]
    for job in waiting:
        box.queued(job)

    kill(until(box.spoolers))
    assert "PENDING" in box.here(asked, str(box.bench.root))
    let_go(first)

    assert ended(*waiting) == ["returned"] * 2
    assert [len(list((job.folder / "attempts").iterdir())) for job in waiting] == [1] * 2


# A supervisor whose job has started a process, and that starts a spooler; then it ends what its job has started.
ADOPTS = """
import os, subprocess, sys
root, bridge = sys.argv[1:]
sys.path.insert(0, bridge)
from _clusterfn.bridge.queue import launch
from _clusterfn.bridge.agent import libc
from _clusterfn.bridge.supervisor import process_tree
libc.become_subreaper()
subprocess.run(["sh", "-c", "sleep 601 > /dev/null 2>&1 &"])
launch.revive_spooler(root, bridge)
subprocess.run(["sh", "-c", "sleep 602 > /dev/null 2>&1 &"])
names = ["sh"]
while "sh" in names:  # it has not become sleep yet
    names = sorted(process_tree.name_of(pid).partition(" ")[0] for pid in process_tree.descendants(os.getpid()))
left = process_tree.end(lambda: process_tree.descendants(os.getpid()), lambda: None)
print(names, left)
"""


def test_a_spooler_is_none_of_the_processes_that_end_with_the_job_whose_supervisor_started_it(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1)
    box.queued(second)
    kill(until(box.spoolers))
    argv = ["-I", "-S", "-c", ADOPTS, str(box.bench.root), str(box.bench.bridge)]

    done = box.apart.inside(
        lambda: subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=150, check=True)
    )

    assert done.stdout == "['sleep', 'sleep'] []\n"
    until(lambda: len(box.spoolers()) == 1)
    let_go(first)
    assert ended(second) == ["returned"]


def test_a_script_that_comes_to_the_door_when_its_job_has_ended_takes_nothing(box: Box):
    """A spooler that follows on a killed one starts what that one has started: its script may be slow on its way."""
    job = box.job(1)
    assert box.run(job)["kind"] == "returned"

    assert job.start(PATH=box.path, CLUSTERFN_TURN="1").wait(150) == 0

    assert box.order() == [job.id]


def test_a_job_that_runs_or_waits_is_not_started_by_a_second_script(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1)
    box.queued(second)

    again = [box.start(first).wait(150), box.start(second).wait(150)]

    assert again == [0, WAITS]
    assert box.tickets() == {second.id}
    assert len(list((first.folder / "attempts").iterdir())) == 1


def test_a_job_that_waits_is_let_in_out_of_turn_by_no_second_script(box: Box):
    first, older, younger = running(box, box.job(2, 600)), box.job(2), box.job(1)
    box.queued(older)
    box.queued(younger)
    kill(until(box.spoolers))
    let_go(first)

    again = box.start(younger).wait(150)

    assert again == WAITS
    assert ended(older, younger) == ["returned"] * 2
    assert box.order() == [first.id, older.id, younger.id]


def test_a_job_that_runs_has_no_ticket_though_no_spooler_looks(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1, 600)
    box.queued(second)
    kill(until(box.spoolers))
    let_go(first)

    second.start(PATH=box.path, CLUSTERFN_TURN="1")  # as the spooler does, which dies right after it

    second.wait_for("running")
    assert not box.tickets() and not box.spoolers()


def test_a_death_is_not_concluded_of_a_job_that_waits(box: Box):
    first, second = running(box, box.job(2, 600)), box.job(1)
    box.queued(second)

    told = second.call("conclude", stdin=json.dumps({"kind": "lost", "message": "its processes are gone"}))

    assert json.loads(told.stdout) == {"attempt": None, "kind": None, "won": False}
    let_go(first)
    assert ended(second) == ["returned"]


def test_a_job_whose_ticket_was_removed_by_hand_is_reported(box: Box):
    running(box, box.job(2, 600))
    second = box.job(1)
    box.queued(second)
    (box.machine / "queue" / second.id).unlink()

    second.call("conclude", stdin=json.dumps({"kind": "lost", "message": "its processes are gone", "hint": "dmesg"}))

    told = second.outcome()
    assert (told["kind"], told["stage"], told["hint"]) == ("lost", "queue", "call again: nothing of it has run")
    assert "has lost its place in the queue of this machine: its ticket was removed" in told["message"]


def test_a_death_is_not_concluded_of_a_job_that_has_begun_meanwhile(box: Box, tmp_path: Path):
    """Who waits is started by another process than the one that queued it, and that one is gone."""
    waits = "def f(path):\n    import os, time\n    while not os.path.exists(path):\n        time.sleep(0.05)\n"
    job = running(box, box.bench.job(waits, str(tmp_path / "go"), resources={"gpus": 2}))

    told = job.call("conclude", stdin=json.dumps({"kind": "lost", "message": "its processes are gone"}))

    assert json.loads(told.stdout) == {"attempt": None, "kind": None, "won": False}
    (tmp_path / "go").touch()
    assert ended(job) == ["returned"]


def test_a_death_is_concluded_though_a_process_of_the_function_holds_its_name(box: Box):
    """Forked by the function, it has inherited the names; whoever concludes ends it."""
    forks = "def f():\n    import os, time\n    print(os.fork(), flush=True)\n    time.sleep(600)\n"
    job = running(box, box.bench.job(forks))
    left = int(next(word for word in until(lambda: two(job.output().split())) if word != "0"))
    os.kill(job.script.pid, signal.SIGSTOP)  # it must not conclude by itself
    let_go(job)
    until(lambda: not is_running(job.script.pid))
    assert is_running(left)

    told = job.call("conclude", stdin=json.dumps({"kind": "lost", "message": "its processes are gone"}))

    assert json.loads(told.stdout) == {"attempt": 1, "kind": "lost", "won": True}
    until(lambda: not is_running(left))


def two(words: list[str]) -> list[str]:
    """They, once both are there."""
    return words if len(words) == 2 else []


def test_waiting_jobs_are_files_and_one_small_process(box: Box):
    running(box, box.job(2, 600))
    jobs = [box.job(1) for _ in range(10)]
    scripts = [box.start(job) for job in jobs]
    assert [script.wait(150) for script in scripts] == [WAITS] * 10

    (spooler,) = until(box.spoolers)
    assert box.tickets() == {job.id for job in jobs}
    assert not any(job.tagged() for job in jobs)
    status = Path(f"/proc/{spooler}/status").read_text()
    rss_kb = int(status.split("VmRSS:")[1].split()[0])
    assert rss_kb < 20 << 10, rss_kb


def group_of(box: Box, count: int, waiting: tuple[int, ...], kind: str | None = None) -> Group:
    """A group whose items need a card each."""
    group = Group(box.bench, count, 1, waiting, resources={"gpus": 1, "gpu_type": kind})
    script = (group.folder / "job.sh").read_text().replace(str(group.folder), str(group.folder) + "/elements/$1")
    (group.folder / "job.sh").write_text(script.replace("'", '"'))
    return group


def queue_element(box: Box, group: Group, number: int, reason: str = "1 of 1 GPUs held") -> None:
    """Start it by its script, whose variables the spooler will have, and see why it waits."""
    (group.folder / "elements" / str(number)).mkdir(parents=True)
    script = ["/bin/sh", str(group.folder / "job.sh"), str(number)]
    env = {**os.environ, "PATH": box.path}
    waits = box.apart.inside(lambda: subprocess.run(script, env=env, timeout=150))
    assert waits.returncode == WAITS
    until(lambda: reason in str(box.status()))


def test_an_element_does_not_start_where_who_holds_less_waits(box: Box):
    group = group_of(box, 2, (0, 1))
    first = group.start(1, PATH=box.path)
    until(lambda: group.began(0) or group.began(1))
    held = box.waits(2)

    kept = "the others reserved for 4242's earlier 2-GPU job; waiting for 1"
    why = "1 job before it; 4242 is next, who holds nothing (you: 1 GPU and 1 core)"
    queue_element(box, group, 2, f"1 of 2 GPUs held by you (1), {kept}; {why}")

    held.close()
    until(lambda: not box.tickets())
    group.go()
    assert first.wait(150) == 0
    until(lambda: len(group.ends()) == 2)


def test_an_element_that_waits_is_not_started_once_its_group_has_ended(box: Box):
    box.say(cards=1)
    group = group_of(box, 1, (0,))
    first = group.start(1, PATH=box.path)
    until(lambda: group.began(0))
    queue_element(box, group, 2)

    group.go()

    assert first.wait(150) == 0
    until(lambda: not box.tickets() and not box.spoolers())
    assert box.order() == [f"{group.folder.name}.1"]


def test_elements_that_wait_are_not_concluded_one_by_one_once_their_group_is_stopped(box: Box):
    """Whoever stops a group has its items concluded."""
    box.say(cards=1)
    running(box, box.job(1, 600))
    group = group_of(box, 1, ())
    queue_element(box, group, 1)

    (group.folder / "cancel").touch()

    until(lambda: not box.tickets() and not box.spoolers())
    assert not (group.folder / "elements" / "1" / "attempts").exists()


def test_machines_that_share_a_home_do_not_mix_their_queues(box: Box):
    """Another hostname in another network namespace is another machine."""
    running(box, box.job(2, 600))
    here = box.job(1)
    box.queued(here)
    there = box.job(1)

    with apart() as other:
        started = there.start(before=lambda: (other.enter(), rename("another")), PATH=box.path)
        assert started.wait(150) == 0

    assert there.outcome()["kind"] == "returned"
    assert box.tickets() == {here.id}
    assert len(list((box.bench.root / "machines").glob("*-another/holds.jsonl"))) == 1


def test_a_job_that_waits_for_an_input_takes_no_turn_from_the_next_one(box: Box):
    producer = running(box, box.job(0, 600))
    taker, other = box.job(0, after={producer.id: {"name": "f", "items": None}}), box.job(0)
    box.queued(taker)
    until(lambda: box.reason(taker).startswith("waiting for"))

    assert box.start(other).wait(150) == 0, "it starts at once, without a ticket"
    assert box.tickets() == {taker.id}
