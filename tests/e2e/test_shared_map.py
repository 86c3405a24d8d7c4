"""A map over a list of hosts: all share its items, and what has not begun moves to one that has nothing left."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import clusterfn
from clusterfn import EnvironmentBuildError, HostError, MapError, cluster
from clusterfn.calls import host_choice, shared_group
from clusterfn.calls.demand import Demand
from clusterfn.hosts import bridge_bundle
from tests.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the queue")
HOSTS = """hosts:
  quick: {{scheduler: local, root: {0}/quick, limits: {{cores: 64}}, env: {{TAKES: "0.1"}}}}
  slow: {{scheduler: local, root: {0}/slow, limits: {{cores: 64}}, env: {{TAKES: "0.8"}}}}
  lab: {{any: [quick, slow]}}
"""


def slept(x, folder, quick=0, slow=0):
    """Say on which host each item runs, in a file to which each run adds; wait until the other has begun so many."""
    with Path(folder, str(x)).open("a") as file:
        file.write(os.environ["TAKES"])
    other, enough = ("0.1", quick) if os.environ["TAKES"] == "0.8" else ("0.8", slow)
    while Path(folder, "stop").exists() or sum(p.read_text() == other for p in Path(folder).glob("[0-9]*")) < enough:
        time.sleep(0.05)  # a busy machine may start the processes of one host late
    time.sleep(float(os.environ["TAKES"]))
    if Path(folder, f"fail-{x}").exists():
        raise ValueError(x)
    return -x


class Unprintable(Exception):
    def __str__(self):
        return 7


def raises(x):
    raise Unprintable(x) if x % 2 else RuntimeError("the item was given up for another host")


for function in (slept, raises):
    function.__module__ = "__main__"


@pytest.fixture
def ran(tmp_path, warm_root, monkeypatch):
    """The folder in which each item that ran has its file. Two hosts, `lab`, are this machine twice."""
    for name in ("quick", "slow"):
        shutil.copytree(warm_root, tmp_path / name, copy_function=os.link)
    (tmp_path / "clusterfn.yml").write_text(HOSTS.format(tmp_path))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    monkeypatch.setattr(host_choice, "PATIENCE_S", 60.0)  # a busy machine may need more than 5 s
    (tmp_path / "ran").mkdir()
    return tmp_path / "ran"


def test_both_hosts_share_the_items_and_the_quick_one_gets_some_of_the_others(ran, capsys):
    (ran / "stop").touch()
    group = cluster(host="lab")(slept).map(range(60), sequential_up_to=40, folder=str(ran), quick=36, slow=1)
    before = collections.Counter(group.hosts)
    (ran / "stop").unlink()

    assert group.results(150) == [-x for x in range(60)]

    assert before == {"quick": 30, "slow": 30} and group.host == "quick, slow"
    # What a host had not given up would still run there.
    until(lambda: all(job.state not in ("PENDING", "RUNNING") for job in clusterfn.jobs("lab")))
    after = collections.Counter(group.hosts)
    assert after["quick"] > 35 and after["slow"] >= 1
    assert [{"0.1": "quick", "0.8": "slow"}.get((ran / str(x)).read_text()) for x in range(60)] == group.hosts
    told = capsys.readouterr().err
    assert "clusterfn: slept on quick, slow" in told and "(from slow, of " in told
    assert told.count("completed in") == 1 and "SEQUENTIAL" not in told


def test_another_process_finds_all_of_it_by_one_id_and_follows_what_moves(ran):
    group = cluster(host="lab")(slept).map(range(40), folder=str(ran), quick=21)
    until(lambda: "RETURNED" in group.states)
    program = f"import clusterfn; g = clusterfn.attach({group.id!r}); print(g.results(), len(set(g.hosts)), g.label(3))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150)

    values = group.results(150)
    pulled = subprocess.run([sys.executable, "-m", "clusterfn", "pull", group.id], capture_output=True, text=True)

    assert "has left a file" in pulled.stderr, pulled.stderr
    assert other.stdout.strip() == f"{values} 2 3" and values == [-x for x in range(40)]
    again = clusterfn.attach(group.id)
    assert again.hosts == group.hosts and again.state == "RETURNED" and again.logs(39) == ""
    listed = {job.id for job in clusterfn.jobs("lab")}
    assert len(listed) >= 3 and all(clusterfn.attach(part).id == group.id for part in listed)


def test_what_a_program_leaves_runs_on_where_it_is(ran):
    (ran / "stop").touch()  # nothing ends, and so moves, before the program does
    program = f"""
from clusterfn import cluster
from tests.e2e.test_shared_map import slept
slept.__module__ = "__main__"
print(cluster(host="lab")(slept).map(range(16), folder={str(ran)!r}).id)
"""
    left = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=True)

    group = clusterfn.attach(left.stdout.strip())
    (ran / "stop").unlink()

    assert group.results(150) == [-x for x in range(16)] and "Cancelled" not in str(group.failed)
    assert collections.Counter(group.hosts) == {"quick": 8, "slow": 8}


def test_failed_items_run_again_and_stop_and_withdraw_are_for_all_hosts(ran):
    for x in (1, 17):
        (ran / f"fail-{x}").touch()
    group = cluster(host="lab")(slept).map(range(20), folder=str(ran))
    group.results(150)
    assert sorted(group.failed) == [1, 17]
    for x in (1, 17):
        (ran / f"fail-{x}").unlink()
        (ran / f"{x}").unlink()

    assert group.retry_failed().results(150) == [-x for x in range(20)] and group.state == "RETURNED"
    assert clusterfn.attach(group.id).results(150) == [-x for x in range(20)]

    for end in ("cancel", "withdraw"):
        folder = ran / end
        folder.mkdir()
        (folder / "stop").touch()
        group = cluster(host="lab")(slept).map(range(200), folder=str(folder))
        until(
            lambda: {"quick", "slow"} == {group.hosts[x] for x, state in enumerate(group.states) if state == "RUNNING"}
        )
        getattr(group, end)()
        (folder / "stop").unlink()
        assert group.wait(100) and group.state == "CANCELLED"
        assert len(list(folder.iterdir())) < 20


def test_what_an_item_raises_is_its_own_whatever_it_says(ran):
    group = cluster(host="lab")(raises).map(range(8))

    assert group.wait(150) and len(group.failed) == 8
    assert {type(error).__name__ for error in group.failed.values()} == {"Unprintable", "RuntimeError"}
    assert pytest.raises(MapError, group.results).value.log is None


def test_a_host_for_which_nothing_can_be_prepared_is_passed_over_and_named(ran, monkeypatch, capsys):
    find = Demand.find_environment

    def lacking(self, payload):
        if self.job.host.name == "slow":
            raise EnvironmentBuildError("it lacks numpy")
        return find(self, payload)

    monkeypatch.setattr(Demand, "find_environment", lacking)
    group = cluster(host="lab")(slept).map(range(4), folder=str(ran))

    assert group.results(150) == [0, -1, -2, -3] and set(group.hosts) == {"quick"}
    assert "slow gets none of the items: it lacks numpy" in capsys.readouterr().err


def test_a_host_that_could_not_give_items_up_is_asked_again(ran, monkeypatch):
    supervise, failed = bridge_bundle.HostBridge.supervise, []

    def full(self, command, *rest, **more):
        if command == "bury" and not failed:
            failed.append(command)
            raise HostError("no room", host="slow")
        return supervise(self, command, *rest, **more)

    monkeypatch.setattr(bridge_bundle.HostBridge, "supervise", full)
    group = cluster(host="lab")(slept).map(range(120), folder=str(ran), quick=61)

    assert group.results(150) == [-x for x in range(120)] and failed
    assert {len((ran / str(x)).read_text()) for x in range(120)} == {3}
    assert collections.Counter(group.hosts)["quick"] > 60


@pytest.mark.parametrize("end", ["cancel", pytest.param("withdraw", marks=pytest.mark.long)])
def test_programs_that_end_a_map_at_the_same_time_end_it_once_and_nothing_moves_any_more(ran, monkeypatch, end):
    group = cluster(host="lab")(slept).map(range(400), folder=str(ran))
    others = [clusterfn.attach(group.id) for _ in range(2)]
    notes, moves, go = shared_group.notes, threading.Event(), threading.Event()
    monkeypatch.setattr(shared_group, "notes", lambda first: moves.set() or go.wait(150) and notes(first))
    assert moves.wait(100)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(lambda other: getattr(other, end)(), others))
    go.set()

    for known in (group, *others):
        assert known.wait(150) and set(known.states) == {"RETURNED", "CANCELLED"}, known.failed
    assert len(clusterfn.jobs("lab")) == 2
    assert group.retry_failed().wait(150) and group.state == "RETURNED"


def test_a_host_that_cannot_be_reached_is_named_when_the_map_is_cancelled(ran):
    group = cluster(host="lab")(slept).map(range(400), folder=str(ran))
    config = Path(os.environ["CLUSTERFN_CONFIG"])
    told = config.read_text()
    config.write_text(told.replace("slow: {scheduler: local", "slow: {address: 127.0.0.1:1, scheduler: bare"))
    attached = clusterfn.attach(group.id)

    with pytest.raises(HostError, match=r"127\.0\.0\.1|slow"):
        attached.cancel()
    group.cancel()
    assert group.wait(150)


def test_a_sweep_uses_all_of_them(ran):
    configs = {"x": list(range(12)), "folder": [str(ran)], "quick": [1], "slow": [1]}
    found = clusterfn.sweep(cluster(host="lab")(slept), configs)

    assert {path.read_text() for path in ran.iterdir()} == {"0.1", "0.8"} and found.best.config["x"] == 0


@pytest.fixture
def cable(lab, hosts, warm_root, tmp_path, monkeypatch):
    """A GPU server behind a cable; `lab` is it and this machine."""
    with lab.own_gpubox() as box:
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=(box.alias("cfbash"),))
        here = f"  quick: {{scheduler: local, root: {warm_root}, env: {{TAKES: '0.1'}}, limits: {{cores: 64}}}}\n"
        both = f"  lab: {{any: [quick, {box.alias('cfbash')}]}}\n"
        path.write_text(path.read_text() + here + both)
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        monkeypatch.setattr(host_choice, "PATIENCE_S", 60.0)
        monkeypatch.setattr(shared_group, "GONE_S", 3.0)
        yield box.cable, box.alias("cfbash")
        box.cable.up()


def held(x, gate):
    """Wait on the server until the file is there; elsewhere return at once."""

    while "TAKES" not in os.environ and not os.path.exists(gate):
        time.sleep(0.05)
    return -x


held.__module__ = "__main__"


@pytest.mark.lab
def test_items_on_a_host_that_is_gone_fail_with_its_name_and_run_again_on_the_other(cable, gate):
    cable, name = cable
    group = cluster(host="lab")(held).map(range(60), gate=str(gate / "go"))
    until(lambda: any(host == name and state == "RUNNING" for host, state in zip(group.hosts, group.states)))
    cable.down()
    cable.cut()

    values = group.results(150)

    failed = group.failed
    assert failed and all(isinstance(error, HostError) and error.host == name for error in failed.values())
    assert "has been gone" in str(next(iter(failed.values())))
    assert [value for x, value in enumerate(values) if x not in failed] == [-x for x in range(60) if x not in failed]
    assert group.retry_failed().results(150) == [-x for x in range(60)]
    assert {group.hosts[x] for x in failed} == {"quick"}
