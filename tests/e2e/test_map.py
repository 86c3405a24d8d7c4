"""Many calls of one function: each item ends once, with its own truth, whatever dies between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import clusterfn
from clusterfn import (
    ClusterfnError,
    ExitedEarly,
    KilledBySignal,
    OutOfMemory,
    ResultError,
    TimeLimit,
    WorkerLost,
    cluster,
)
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.e2e.many_items import measure
from tests.processes import is_running
from tests.waiting import until

pytestmark = pytest.mark.lab


def square(x):
    print("squaring", x)
    return x * x


def troubled(x):
    """Every kind of end in the middle of others."""
    import os
    import time

    if x == 3:
        raise KeyError(x)
    if x == 5:
        os._exit(7)
    if x == 7:
        os.kill(os.getpid(), 11)
    if x == 9:
        time.sleep(600)
    if x == 11:
        held = bytearray(400 << 20)
        time.sleep(600)  # memory is looked at ten times a second, on a busy machine less often
        return held[-1]
    return x


def leaves(x):
    if x:
        from pathlib import Path

        Path("a.txt").touch()


def counted_until_told(gate, wait_for):
    """Writes one line for each start of an item; those in `wait_for` wait for the file `go`."""
    folder = str(gate)

    def item(x):
        import os
        import pathlib
        import time

        with pathlib.Path(folder, f"began-{x}").open("a") as file:
            noted = pathlib.Path("../../../../processes").read_text().splitlines()
            supervisor = [line.split()[2] for line in noted if line.startswith("supervisor")][-1]
            file.write(f"{os.getpid()} {supervisor}\n")
        deadline = time.monotonic() + 200  # longer than any test waits for what must end it before
        while x in wait_for and not os.path.exists(os.path.join(folder, "go")):
            if time.monotonic() > deadline:
                raise TimeoutError("nobody said go")
            time.sleep(0.02)
        return x

    return item


for each in (square, troubled, leaves):
    each.__module__ = "__main__"


def began(gate, x):
    path = gate / f"began-{x}"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(("host", "count"), [("local", 3), ("tensor01", 150), ("slurm", 20)])
def test_results_come_in_order_and_files_do_not_grow_with_items(hosts, host, count):
    group = cluster(host=host, memory="256MB")(square).map(range(count), max_parallel=4)

    assert group.results(150) == [x * x for x in range(count)]
    assert group.done() and group.failed == {} and set(group.states) == {"RETURNED"}
    assert group.logs(2) == "squaring 2\n"
    # The last elements still remove empty folders, at which rglob would fail.
    assert sum(len(names) for _, _, names in os.walk(hosts.root / "jobs" / group.id)) < 150


@ON_SLURM
def test_each_end_in_the_middle_is_its_own(hosts, host):
    function = cluster(host=host, time="25s", memory="200MB")(troubled)

    results = function.map(range(13), max_parallel=4).results(150)

    ends = {index: type(result) for index, result in enumerate(results) if isinstance(result, BaseException)}
    assert ends == {3: KeyError, 5: ExitedEarly, 7: KilledBySignal, 9: TimeLimit, 11: OutOfMemory}
    assert [each for each in results if isinstance(each, int)] == [0, 1, 2, 4, 6, 8, 10, 12]
    assert "troubled" in str(results[3].__cause__) and results[5].code == 7


def test_what_is_tried_again_has_its_secrets(hosts, gate, monkeypatch):
    folder = str(gate)

    def second_time(x):
        import os

        os.rmdir(os.path.join(folder, "once"))  # who comes first, goes
        return os.environ["TRIED_TOKEN"] == x

    monkeypatch.setenv("TRIED_TOKEN", "s3cret")
    group = cluster(host="tensor01", secrets=["TRIED_TOKEN"])(second_time).map(["s3cret"])
    assert group.wait(150) and isinstance(group.failed[0], FileNotFoundError)

    (gate / "once").mkdir()
    monkeypatch.delenv("TRIED_TOKEN")

    assert group.retry_failed().results(150) == [True]


@ON_BARE
def test_a_group_is_found_again_and_is_one_line_of_jobs(hosts, host, run_script, capfd):
    text = f"""
import json
from clusterfn import cluster

@cluster(host={host!r})
def square(x):
    import time
    time.sleep(0.1)
    return x * x

print(json.dumps(square.map(range(8), max_parallel=2).id))
"""
    group_id = run_script(text)
    group = clusterfn.attach(group_id)

    assert group.results(150) == [x * x for x in range(8)]
    assert capfd.readouterr().err.endswith("\nclusterfn: 8/8 returned\n")  # when it began was not seen
    assert group.label(3) == "3"
    line = until(lambda: [job for job in clusterfn.jobs(host) if job.id == group_id and job.state == "RETURNED"])
    assert line[0].message == "8 of 8 ended: 8 returned"


def test_an_item_that_left_no_files_has_none_and_says_so(hosts, tmp_path):
    group = cluster(host="tensor01")(leaves).map(range(2))
    assert group.wait(150)

    assert group.files(0) == [] and [file.name for file in group.files(1)] == ["a.txt"]
    with pytest.raises(ClusterfnError, match="item 0 left no file that matches '\\*'") as refused:
        group.download(0, "*", to=tmp_path)
    assert refused.value.evidence == ("the function left no files in its folder",)
    bare = cluster(host="tensor01")(leaves).map([0])
    assert bare.wait(150) and bare.files(0) == []
    with pytest.raises(ClusterfnError) as refused:
        group.download(1, "*.pt", to=tmp_path)
    assert refused.value.hint == 'group.download(1, "**", to=".") fetches what it left'


def test_what_had_ended_of_a_group_that_runs_is_known_when_attach_returns(hosts, gate):
    sent = cluster(host="tensor01")(counted_until_told(gate, [3])).map(range(4), max_parallel=2)
    until(lambda: sent.states.count("RETURNED") == 3 and began(gate, 3))

    group = clusterfn.attach(sent.id)

    assert group.states == ["RETURNED"] * 3 + ["RUNNING"]
    (gate / "go").touch()
    assert group.results(150) == [0, 1, 2, 3]


@ON_SLURM
def test_a_killed_element_costs_the_item_that_ran_and_nothing_else(hosts, gate, host):
    group = cluster(host=host)(counted_until_told(gate, (1, 4))).map(range(12), max_parallel=2)
    pid, supervisor = until(lambda: began(gate, 1))[0]
    kept = f"jobs/{group.id}/elements/*/attempts/1/usage-1.json"
    until(lambda: any(path.stat().st_size for path in hosts.root.glob(kept)))

    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not is_running(pid))
    (gate / "go").touch()

    results = group.results(150)
    assert isinstance(results[1], WorkerLost), results
    assert group.usage(1)["last_known"] and group.usage(1)["wall_s"] > 0
    assert [each for each in results if isinstance(each, int)] == [0, *range(2, 12)]
    assert [len(began(gate, x)) for x in range(12)] == [1] * 12


def test_where_the_running_items_are_can_be_asked(ask, hosts, gate):
    group = cluster(host="tensor01")(counted_until_told(gate, (1, 2))).map(range(3), max_parallel=2)
    until(lambda: began(gate, 1) and began(gate, 2))

    def stack():
        shown = ask("stack", group.id)
        return shown if shown.stdout.count("time.sleep(0.02)") == 2 else None

    shown = until(stack)  # a busy process may answer too late, or from between two naps
    (gate / "go").touch()

    assert shown.returncode == 0 and "==> item 1: 1 <==" in shown.stdout and "==> item 2: 2 <==" in shown.stdout
    assert group.results(150) == [0, 1, 2]
    with pytest.raises(clusterfn.ClusterfnError, match="there are no stacks of 1: it is RETURNED"):
        group.stack(1)


def test_a_value_that_a_crash_cut_short_is_the_damage_of_its_item_alone(hosts):
    group = cluster(host="tensor01")(square).map(range(5), max_parallel=1)
    assert group.results(150) == [0, 1, 4, 9, 16]
    (values,) = (hosts.root / "jobs" / group.id).glob("elements/1/attempts/1/values")
    os.truncate(values, values.stat().st_size - 3)  # a machine that goes down may keep a line and lose the value

    *others, damaged = clusterfn.attach(group.id).results(150)

    assert others == [0, 1, 4, 9] and isinstance(damaged, ResultError)
    assert "the value is damaged" in damaged.message


@pytest.mark.parametrize("ends_at_once", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_refused_map_leaves_nothing_behind(hosts, lab, tmp_path, monkeypatch, ends_at_once):
    config = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=("slurm",))
    config.write_text(config.read_text().replace("cpu: short", "cpu: nosuch"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    text = f"""
import json
from clusterfn import ClusterfnError, cluster

group = cluster(host="slurm")(abs).map(range(501), chunksize=1)
try:
    {"pass" if ends_at_once else "group.results(150)"}
except ClusterfnError as error:
    assert "nosuch" in str(error) or "partition" in str(error), error
print(json.dumps(group.id))
"""
    path = tmp_path / "refused.py"
    path.write_text(text)

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=150, check=True)

    assert json.loads(done.stdout) not in hosts.jobs() and "keeps running" not in done.stderr


@ON_SLURM
def test_a_group_that_was_stopped_before_all_had_begun_is_found_with_all_its_ends(ask, hosts, host, run_script):
    text = f"""
import json, time
from clusterfn import cluster

@cluster(host={host!r})
def wait(x):
    time.sleep(600 if x else 0)
    return x

group = wait.map(range(8), max_parallel=2)
next(iter(group))
print(json.dumps(group.id))
"""
    group_id = run_script(text)
    ran = ask("cancel", group_id)

    assert ran.returncode == 0 and "was stopped: CANCELLED (8 of 8 ended: 1 returned, 7 cancelled)" in ran.stderr
    until(lambda: next(job.state for job in clusterfn.jobs(host) if job.id == group_id) == "CANCELLED")
    group = clusterfn.attach(group_id)
    assert group.wait(150) and group.states == ["RETURNED"] + ["CANCELLED"] * 7, group


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_items_are_few_files_and_few_questions(hosts, lab):
    count = 10_000
    told = measure(count, hosts.root)

    print(told)
    assert told["each result once and in its place"]
    assert told["elements"] > 1000  # more than one array may have: MaxArraySize is 1001
    assert told["files"] < count / 2 and told["peak memory of the client in MB"] < 200
    assert told["looks at squeue"] < 60 + told["seconds"] / 60
