"""Elements of a group, with real processes: each item runs once and has one line, whoever is killed."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.bridge.group import Group, once
from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.interpreters import interpreter
from tests.processes import is_running, supervisor_of
from tests.waiting import until


@pytest.mark.parametrize("host", ["3.6", "3.13"])
def test_elements_share_the_items(bridge, tmp_path, host):
    found = interpreter(host)
    if found is None:
        pytest.skip(f"Python {host} is not installed here")
    bench = Bench(tmp_path, bridge, str(found), sys.executable)
    group = Group(bench, 7, 2, failing=(3,))

    codes = [process.wait(150) for process in [group.start(1), group.start(2)]]

    assert codes == [0, 0] and once(group, 7)
    assert group.ends() == {x: ["raised" if x == 3 else "returned"] for x in range(7)}
    assert group.outcome()["message"] == "7 of 7 ended: 6 returned, 1 raised"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the queue")
def test_an_element_that_comes_when_each_item_has_ended_takes_nothing(bench):
    group = Group(bench, 2, 2)
    assert group.start(1).wait(150) == 0
    (journal,) = bench.root.glob("machines/*/holds.jsonl")
    before = journal.read_text()

    assert group.start(2).wait(150) == 0

    assert journal.read_text() == before
    assert not (group.folder_of(2) / "attempts").exists()


def test_the_chunk_of_a_dead_element_is_taken_over(bench):
    group = Group(bench, 6, 3, waiting=(1, 3))
    killed, other = group.start(1, CLUSTERFN_TEST="1"), None
    until(lambda: group.began(1))
    other = group.start(2)
    until(lambda: group.began(3))

    killed.kill()
    killed.wait(150)
    until(lambda: not is_running(group.began(1)[0]))
    group.call("conclude", 1, stdin=json.dumps({"kind": "lost", "message": "gone", "stage": "supervisor"}))
    group.go()

    assert other.wait(150) == 0 and once(group, 6)
    assert group.ends() == {x: ["lost" if x == 1 else "returned"] for x in range(6)}


def test_an_element_that_lives_keeps_its_chunk(bench):
    group = Group(bench, 4, 2, waiting=(0,))
    slow = group.start(1)
    until(lambda: group.began(0))

    assert group.start(2).wait(150) == 0
    assert sorted(group.ends()) == [2, 3] and not group.began(1)
    group.go()
    assert slow.wait(150) == 0 and once(group, 4)


def test_an_element_that_is_started_again_resumes_after_what_is_reported(bench):
    group = Group(bench, 5, 5, waiting=(2,), scheduler="slurm")
    first = group.start(1, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="0")
    until(lambda: group.began(2))
    first.kill()
    first.wait(150)
    until(lambda: not is_running(group.began(2)[0]))
    with next(group.folder.glob("elements/1/attempts/1/journal.jsonl")).open("a") as journal:
        journal.write('{"index": 3, "ki')  # torn by a crash

    again = group.start(1, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")

    assert again.wait(150) == 0 and once(group, 5)
    assert group.ends() == {x: ["lost" if x == 2 else "returned"] for x in range(5)}
    assert group.outcome(1)["superseded_by"] == 2


def test_a_fenced_element_ends_its_item_and_tells_nothing_more(bench):
    group = Group(bench, 3, 3, waiting=(1,), scheduler="slurm")
    fenced = group.start(1)
    until(lambda: group.began(1))

    group.call("conclude", 1, stdin=json.dumps({"kind": "node", "message": "went down", "stage": "scheduler"}))

    assert fenced.wait(150) == 0 and not is_running(group.began(1)[0])
    assert sorted(group.ends()) == [0] and not group.began(2)
    group.go()
    assert group.start(2).wait(150) == 0 and once(group, 3)
    assert group.ends() == {0: ["returned"], 1: ["node"], 2: ["returned"]}
    taken_over = (group.folder / "claims" / "0.2").stat().st_mtime
    assert group.line(2)["t"] - taken_over >= 2.0  # the one before looks every second whether it is fenced


# Writes down each file that is flushed to the disk, and whether the chunk counted as done by then.
FLUSHES = """import time
flush = os.fsync
def tell(fd):
    flush(fd)
    name = os.path.basename(os.readlink("/proc/self/fd/%d" % fd))
    with open(os.environ["FLUSHED"], "a") as told:
        print(name, os.path.exists(os.environ["DONE"]), file=told)
os.fsync = tell
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says which file a descriptor is")
@pytest.mark.parametrize("how", ["run", "cancelled", "bury"])
def test_no_loss_of_power_leaves_a_chunk_that_is_done_without_its_lines(bench, tmp_path, monkeypatch, how):
    bridge = layout_bridge(tmp_path / "telling", ("supervisor/group_files.py", "import time", FLUSHES))
    monkeypatch.setattr(bench, "bridge", bridge)
    group = Group(bench, 3, 3, waiting=(1,))
    monkeypatch.setenv("FLUSHED", str(tmp_path / "flushed"))
    monkeypatch.setenv("DONE", str(group.folder / "done" / "0"))
    if how == "bury":
        verdict = {"kind": "lost", "message": "gone", "stage": "supervisor"}
        group.folder_of(1)
        assert group.call("bury", 1, stdin=json.dumps(verdict)) == 0
    else:
        element = group.start(1)
        until(lambda: group.began(1))
        (group.folder / "cancel").touch() if how == "cancelled" else group.go()
        assert element.wait(150) == (10 if how == "cancelled" else 0)

    assert len(group.ends()) == 3 and (group.folder / "done" / "0").exists()
    flushed = (tmp_path / "flushed").read_text().splitlines()
    assert {"values False", "journal.jsonl False"} <= set(flushed)


# Starts a process of its own, and leaves its supervisor no room for the item's line.
LEAVES = """
def f(x):
    import os, resource, subprocess
    left = subprocess.Popen(["sleep", "603"], start_new_session=True)
    with open(os.path.join({folder!r}, "began-%d" % x), "w") as file:
        file.write("%d\\n" % left.pid)
    with open("../../../../processes") as file:
        supervisor = int(file.read().split()[2])
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (1, 1))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can limit another process")
def test_an_item_that_cannot_be_recorded_leaves_no_process_behind(bench, tmp_path, monkeypatch):
    patient = "ROOM_PAUSES_S = (0.5, 1.0, 2.0, 4.0) + (5.0,) * 10"
    soon = layout_bridge(tmp_path / "soon", ("layout.py", patient, "ROOM_PAUSES_S = (0.5,)"))
    monkeypatch.setattr(bench, "bridge", soon)
    group = Group(bench, 1, 1, source=LEAVES)

    assert group.start(1).wait(150) not in (0, 10, 20)

    (left,) = group.began(0)
    lives = is_running(left)
    if lives:
        os.kill(left, signal.SIGKILL)
    assert not lives and not group.ends()


@pytest.mark.parametrize("kind", ["unsatisfiable", "cancelled"])
def test_what_is_left_is_buried_and_who_comes_late_finds_nothing(bench, kind):
    group = Group(bench, 6, 2, waiting=(0,))
    alive = group.start(1)
    until(lambda: group.began(0))
    verdict = {"kind": kind, "message": "never", "evidence": [], "hint": "less", "stage": "queue"}

    group.call("bury", 5, stdin=json.dumps(verdict))

    assert {x: kinds for x, kinds in group.ends().items()} == {x: [kind] for x in range(2, 6)}
    group.go()
    assert alive.wait(150) == 0 and group.start(2).wait(150) == 0
    assert [len(group.began(x)) for x in range(6)] == [1, 1, 0, 0, 0, 0]
    assert group.outcome()["kind"] == kind
    assert group.outcome()["message"] == f"6 of 6 ended: 2 returned, 4 {kind}"


def test_some_items_are_given_up_for_another_host_and_the_elements_go_on_with_the_rest(bench):
    group = Group(bench, 9, 2, waiting=(0,))
    alive = group.start(1)
    until(lambda: group.began(0))
    moved = json.dumps({"kind": "cancelled", "message": "withdrawn", "stage": "queue", "most": 3})
    # A process that died had taken these, and said nothing of them.
    (group.folder / "claims" / "1").write_text("5 2 3")

    assert [group.call("bury", 5, stdin=moved) for _ in range(2)] == [0, 0]

    assert group.ends() == {x: ["cancelled"] for x in (2, 3, 4)}
    group.go()
    assert alive.wait(150) == 0
    assert [len(group.began(x)) for x in range(9)] == [1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert group.call("bury", 6, stdin=moved) == 0 and len(group.ends()) == 9
    assert group.outcome()["kind"] == "returned"
    assert group.outcome()["message"] == "9 of 9 ended: 6 returned, 3 cancelled"


def test_items_of_a_cancelled_group_are_cancelled_whatever_its_scheduler_says(bench):
    group = Group(bench, 3, 1)
    (group.folder / "cancel").touch()
    verdict = {"kind": "lost", "message": "the scheduler no longer knows the group's elements", "stage": "submit"}

    assert group.call("bury", 5, stdin=json.dumps(verdict)) == 0
    assert group.ends() == {x: ["cancelled"] for x in range(3)}


def test_what_died_over_giving_items_up_is_resumed_and_its_verdict_is_kept(bench):
    group = Group(bench, 1, 1, group={"count": 2000})
    (group.folder / "cancel").touch()
    stopped, other = ({"kind": kind, "message": "stopped", "stage": "queue"} for kind in ("cancelled", "lost"))

    died = group.call("bury", 5, stdin=json.dumps(stopped), before=lambda: limit_files(140_000))

    assert died != 0 and 100 < len(group.ends()) < 1900
    state, message = listed(bench, group.folder)
    assert state == "PENDING" and "; it was stopped, and attaching to it concludes the rest" in message

    assert [group.call("bury", 5, stdin=json.dumps(other)) for _ in range(2)] == [0, 0]
    ends = group.ends()
    assert set(ends) == set(range(2000)) and {kind for kinds in ends.values() for kind in kinds} == {"cancelled"}
    assert sum(map(len, ends.values())) <= 2001, "the line at the limit may lack only its end, and is written again"
    assert group.outcome()["message"] == "2000 of 2000 ended: 2000 cancelled"
    assert not (group.folder / "elements" / "5" / "attempts" / "3").exists()


def limit_files(size: int) -> None:
    """Let every file have so many bytes at most: who writes more dies."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_cancelled_element_ends_its_whole_chunk(bench):
    group = Group(bench, 5, 3, waiting=(1,))
    element = group.start(1)
    until(lambda: group.began(1))

    (group.folder / "cancel").touch()

    assert element.wait(150) == 10
    assert group.ends() == {0: ["returned"], 1: ["cancelled"], 2: ["cancelled"]}
    assert group.outcome(1)["kind"] == "cancelled" and not group.began(3)
    assert (group.folder / "done" / "0").exists()


def test_no_item_begins_that_would_not_have_its_time(bench):
    group = Group(bench, 3, 3, resources={"time_s": 60.0}, group={"element_s": 20.0})

    assert group.start(1).wait(150) == 0
    assert sorted(group.ends()) == [0]
    assert group.start(2).wait(150) == 0 and group.start(3).wait(150) == 0
    assert group.ends() == {x: ["returned"] for x in range(3)} and once(group, 3)


def has_usage(group: Group, x: int) -> bool:
    """Whether its first element has written how much the item has used so far."""
    return any(path.stat().st_size for path in group.folder.glob(f"elements/1/attempts/*/usage-{x}.json"))


def test_the_script_of_a_killed_supervisor_goes_on_with_its_items_and_leaves_nothing_of_the_one_that_ran(bench):
    group = Group(bench, 5, 5, waiting=(1, 3))
    script = group.script(1)
    for x in (1, 3):
        until(lambda x=x: group.began(x) and has_usage(group, x))
        (ran,) = group.began(x)
        os.kill(supervisor_of(group.folder_of(1)), signal.SIGKILL)
        until(lambda ran=ran: not is_running(ran))

    assert script.wait(150) == 0 and once(group, 5)
    assert group.ends() == {x: ["lost" if x in (1, 3) else "returned"] for x in range(5)}
    assert "the supervisor of the job was ended by SIGKILL" in group.line(1)["message"]
    fenced = (group.folder / "elements/1/attempts/1/outcome.json").stat().st_mtime
    assert group.line(2)["t"] - fenced >= 2.0  # a supervisor that only seemed to be dead would have noticed by then
    assert group.outcome(1)["superseded_by"] == 2 and group.outcome()["kind"] == "lost"
    lost, returned = (group.line(index)["usage"] for index in (1, 2))
    assert lost["last_known"] and lost["wall_s"] > 0 and lost["peak_memory_bytes"] > 1 << 20
    assert "last_known" not in returned


@pytest.mark.parametrize(("told", "kind"), [(True, None), (False, "lost")])
def test_a_script_tries_again_only_where_an_item_had_begun(bench, told, kind):
    group = Group(bench, 1, 1, waiting=(0,))
    if told:
        killed = group.start(1)
        until(lambda: group.began(0))
        killed.kill()
        killed.wait(150)
    else:
        (group.folder / "elements" / "1").mkdir(parents=True)

    assert group.call("after", 1, "137") == (12 if told else 10)
    assert (group.folder / "elements/1/attempts/1/outcome.json").exists() is not told
    assert told or group.outcome(1)["kind"] == kind


def test_what_an_item_uses_while_it_runs_is_not_kept_beside_its_line(bench):
    group = Group(bench, 1, 1, waiting=(0,))
    element = group.start(1)
    so_far = group.folder / "elements/1/attempts/1/usage-0.json"
    until(lambda: so_far.exists() and so_far.stat().st_size)

    group.go()

    assert element.wait(150) == 0
    assert not so_far.exists()
    assert "last_known" not in group.line(0)["usage"]


def test_secrets_stay_until_the_whole_group_has_ended(bench):
    group = Group(bench, 2, 1, waiting=(1,), secret={"TOKEN": "s3cret"}, group={"per_element": 1})

    assert group.start(1).wait(150) == 0
    assert (group.folder / "secrets").exists()
    group.go()
    assert group.start(2).wait(150) == 0
    assert not (group.folder / "secrets").exists()


def test_the_list_says_when_nobody_runs_the_rest_and_when_nothing_is_heard(bench):
    group = Group(bench, 4, 2, waiting=(1,), group={"elements": 1})
    killed = group.start(1)
    until(lambda: group.began(1))
    killed.kill()
    killed.wait(150)
    heartbeat = group.folder / "elements" / "1" / "attempts" / "1" / "heartbeat"

    os.utime(heartbeat, (time.time() - 1000,) * 2)
    state, message = listed(bench, group.folder)
    assert state == "UNKNOWN"
    assert message.startswith("1 of 4 ended: 1 returned; no heartbeat from their processes")

    group.call("conclude", 1, stdin=json.dumps({"kind": "lost", "message": "gone", "stage": "supervisor"}))
    told = "1 of 4 ended: 1 returned; the rest runs once you attach to it"
    assert listed(bench, group.folder) == ("PENDING", told)


def listed(bench: Bench, folder: Path) -> tuple[str, str]:
    line = bench.listed()[folder.name]
    return line["state"], line["message"]


def test_what_is_claimed_follows_what_items_took(bench):
    quick = Group(bench, 9, 4, group={"aim_s": 1800.0})
    slow = Group(bench, 4, 3, waiting=(0, 1, 2, 3), group={"aim_s": 0.01})
    slow.go()

    assert quick.start(1).wait(150) == 0 and slow.start(1).wait(150) == 0

    assert claims(quick) == [(1, 0, 1), (1, 1, 4), (1, 5, 4)]  # one to see how long it takes, then whole chunks
    assert claims(slow) == [(1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 3, 1)]  # each takes longer than is to be claimed
    assert once(quick, 9) and once(slow, 4)


def claims(group: Group) -> list[tuple[int, ...]]:
    """Element, first item and number of items of each claim."""
    files = sorted((group.folder / "claims").iterdir(), key=lambda path: int(path.name))
    return [tuple(map(int, path.read_text().split())) for path in files]


def test_an_element_ends_before_slurm_would_end_it_with_an_item(bench):
    group = Group(bench, 3, 3, scheduler="slurm")
    soon = str(int(time.time()) + 20)

    assert group.start(1, SLURM_JOB_ID="7", SLURM_JOB_END_TIME=soon).wait(150) == 0
    assert sorted(group.ends()) == [0]
    assert group.start(2, SLURM_JOB_ID="8", SLURM_JOB_END_TIME=str(int(time.time()) + 9999)).wait(150) == 0
    assert group.ends() == {x: ["returned"] for x in range(3)} and once(group, 3)


def test_many_who_begin_at_once_share_out_every_item_once(bench):
    group = Group(bench, 24, 2)

    assert [process.wait(150) for process in [group.start(number) for number in range(1, 7)]] == [0] * 6

    assert once(group, 24) and group.ends() == {x: ["returned"] for x in range(24)}
    assert [first for _, first, _ in claims(group)] == list(range(0, 24, 2))
