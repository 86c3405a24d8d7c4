"""What a map is told by a host before it sends anything, what it says, and what it reads of a group sent before.

Who gets how many items, and what SLURM allows, are decided from numbers alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn import ConfigError, Executor, cluster
from clusterfn.calls import mapping, sent_group
from clusterfn.calls.mapping import MachineCapacity, MapOptions
from clusterfn.config import units
from clusterfn.config.job_spec import EnvironmentRef, Group, JobSpec
from clusterfn.config.spec import Host, Interpreter, Limits, Resources
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import SchedulerLimits
from clusterfn.scheduler.slurm.site import read_limits
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import BARE, SLURM, job

GB = 1 << 30
LOCAL = Host("local", "", "local", "")


def host_with(host: Host, **facts: Any) -> Any:
    """Of a host that has told these facts, and has eight cards."""
    connection = SimpleNamespace(facts=SimpleNamespace(**{"cpus": 64, "memory_bytes": 100 * GB, **facts}))
    capacity = SimpleNamespace(count_gpus_for=lambda asked: 8)
    return SimpleNamespace(settings=host, connection=connection, capacity=capacity)


def at_once(host: Host, asked: Resources) -> int:
    return mapping.on_machine(100, MapOptions(), mapping.machine_capacity(host_with(host), asked)).at_once


@pytest.mark.parametrize(
    ("free_gb", "asked_gb", "wanted"), [(50, None, 4), (2.5, None, 2), (0.5, None, 1), (50, 20, 2), (500, 40, 2)]
)
def test_here_are_at_most_four_workers_and_fewer_where_memory_is_short(monkeypatch, free_gb, asked_gb, wanted):
    monkeypatch.setattr(units, "free_memory", lambda: int(free_gb * GB))
    asked = Resources(memory_bytes=asked_gb * GB if asked_gb else None)

    assert at_once(LOCAL, asked) == wanted


def test_elsewhere_memory_counts_where_it_is_asked_for_and_what_is_free_there_is_the_queues_matter(monkeypatch):
    monkeypatch.setattr(units, "free_memory", lambda: 1)

    assert at_once(BARE, Resources()) == 50
    assert at_once(BARE, Resources(memory_bytes=30 * GB)) == 3
    assert at_once(BARE._replace(limits=Limits(memory_bytes=60 * GB)), Resources(memory_bytes=30 * GB)) == 2
    assert at_once(BARE, Resources(gpus=3)) == 2
    assert at_once(BARE._replace(limits=Limits(gpus=3)), Resources(gpus=1)) == 3
    assert at_once(BARE, Resources(cores=20)) == 3
    assert at_once(BARE._replace(limits=Limits(jobs=2)), Resources()) == 2


def test_free_memory_is_what_linux_says_is_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    told = tmp_path / "proc" / "meminfo"
    told.parent.mkdir()
    told.write_text("MemTotal:  9000000 kB\nMemFree:  1000 kB\nMemAvailable:    2097152 kB\nSwapFree: 1048576 kB\n")
    monkeypatch.setattr(units, "Path", lambda path: tmp_path / path[1:])

    assert (units.free_memory(), units.free_memory(swap=True)) == (2 * GB, 3 * GB)
    told.unlink()
    assert units.free_memory() is None


@pytest.mark.parametrize(
    ("line", "mount", "limit", "usage", "kind", "unlimited"),
    [
        ("0::/", "sys/fs/cgroup", "memory.max", "memory.current", "", "max"),
        (
            "4:cpu,memory:/", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_",
            "9223372036854771712",
        ),
    ],
)  # fmt: skip
def test_free_memory_is_what_the_groups_of_a_process_leave_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, line: str, mount: str, limit: str, usage: str, kind: str,
    unlimited: str,
):  # fmt: skip
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def group(path: str, most: str) -> None:
        write(f"{mount}/{path}{limit}", f"{most}\n")
        write(f"{mount}/{path}{usage}", f"{900 << 20}\n")
        write(f"{mount}/{path}memory.stat", f"{kind}active_file {100 << 20}\n{kind}inactive_file {200 << 20}\nanon 7\n")

    write("proc/meminfo", "MemAvailable: 2097152 kB\n")
    write("proc/self/cgroup", f"7:pids:/\n{line}user/session\n")
    monkeypatch.setattr(units, "Path", lambda path: tmp_path / path[1:])
    group("", unlimited)
    group("user/session/", unlimited)
    assert units.free_memory() == 2 * GB

    group("user/", str(GB))
    assert units.free_memory() == GB - (600 << 20)
    group("user/session/", str(700 << 20))
    assert units.free_memory() == 100 << 20


@pytest.mark.parametrize(
    ("gpus", "how", "group", "said"),
    [
        (1, {}, Group(12, 1, 8, 8), "PARALLEL processing, each item on GPUs of its own, waiting while others have"),
        (1, {}, Group(2, 1, 1, 1), "SEQUENTIAL processing to avoid GPU deadlock"),
        (0, {"sequential_up_to": 2}, Group(3, 1, 3, 3), "PARALLEL processing, each item in a process of its own"),
        (0, {"sequential_up_to": 3}, Group(3, 1, 1, 1), "SEQUENTIAL processing, as sequential_up_to=3 asks"),
        (0, {}, Group(3, 1, 3, 3), ""),
    ],
)
def test_which_way_is_chosen_is_said(capfd, gpus, how, group, said):
    sent = job(resources=Resources(gpus=gpus))
    host = SimpleNamespace(scheduler=scheduler_for(sent.host))
    one: Any = SimpleNamespace(job=sent, host=host, where="train on tensor01 (host='tensor01')")

    mapping.say_how(one, group, MapOptions(**how))

    shown = capfd.readouterr().err
    assert f"{group.count} items, {group.at_once} at a time\n" in shown
    is_said = f"clusterfn: Using {said}" in shown and f"(train: {group.count})\n" in shown
    assert is_said if said else "Using" not in shown


SENT = JobSpec(
    id="7f3a000011112222", name="train", host=SLURM, root="/root", bridge="/root/bridge/abc",
    host_python="/usr/bin/python3", interpreter=Interpreter("/opt/py/bin/python", (3, 11), {"set": {"A": "b"}}),
    resources=Resources(2, GB, 1, 60.0, GB, "a6000"), sys_path=("/s",), modules=("cuda",), env={"A": "b"},
    secrets={"TOKEN": "s3cret"}, outputs=("*.pt",), cwd="/scratch",
    building=EnvironmentRef("ab", "/envs", True, "12.4", ("lab",)),
    group=Group(10, 2, 5, 4, 1, 60.0, 1800.0), log_limit_bytes=5, grace_s=3.0, stall_s=600.0, retries=2,
    login_umask=0o027,
    resume="7f3a" * 4, quiet_s=60.0, scheduler_options={"qos": "long"}, after={"ab" * 8: {"name": "a", "items": None}},
    passed_on={"warn_s": 30.0, "priority": 2}, requeue={"node": 1}, arguments="1 … 10", has_value=False,
    shared=(("hpc", "7" * 16, 2),),
)  # fmt: skip


def test_a_group_that_was_sent_before_is_started_again_as_it_was_sent():
    defaults = JobSpec(*[getattr(SENT, name) for name in ("id", "name", "host", "root", "bridge", "host_python")],
                       Resources(), Interpreter("", (3, 9)))  # fmt: skip
    same = [name for name in JobSpec._fields[6:] if getattr(SENT, name) == getattr(defaults, name)]
    unseen = ["serving", "kernel", "keep_value", "results", "notify"]
    assert same == unseen, "what this test would not see to be lost; no group has these, and notify has a file"

    read = JobSpec.from_json(json.loads(SENT.to_json()), SLURM, "/usr/bin/python3")

    # values of secrets are not in it, and job.sh loads the modules
    assert read == SENT._replace(secrets={}, modules=(), host=SLURM.with_scheduler_options({"qos": "long"}))
    ((_, submission),) = Slurm(SLURM, "ada").elements(read, range(1, 3), 10)
    assert "--requeue" in submission.argv


@pytest.mark.parametrize(("options", "told"), [({"clusters": "far"}, "far"), ({"cluster": "far"}, "far"), ({}, None)])
def test_a_job_says_in_which_cluster_it_waits(options: dict[str, str], told: str | None):
    sent = SENT._replace(host=SLURM._replace(scheduler_options=options))

    assert json.loads(sent.to_json()).get("clusters") == told


# scontrol of SLURM 22.05, shortened.
CONFIG = "MaxArraySize            = 1001\nMaxBatchRequeue         = 5\nMaxJobCount             = 10000\n"
PARTITIONS = (
    "PartitionName=short AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0\n"
    "PartitionName=long AllowGroups=ALL Default=NO MaxTime=2-12:00:00 MinNodes=0\n"
    "PartitionName=free AllowGroups=ALL Default=NO MaxTime=UNLIMITED MinNodes=0\n"
)
COUNTS = st.integers(1, 20_000)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 500), st.none() | st.integers(1, 300), st.none() | st.floats(1, 1e5))
def test_on_slurm_every_item_has_a_place(count, at_once, chunk, item_s):
    group = mapping.in_arrays(
        count, MapOptions(at_once, chunk), item_s, SchedulerLimits(array=1000, jobs=10_000, time_s=3600.0)
    )

    assert group.count == count and 1 <= group.at_once <= min(at_once, group.elements)
    assert group.elements <= 10_000
    assert group.per_element is None or group.elements * group.chunk * group.per_element >= count
    if item_s is None and chunk is None:
        assert -(-count // group.chunk) <= 4 * group.elements


def test_an_element_asks_for_the_time_of_its_chunk_and_no_more_than_there_is():
    limits, fifty = SchedulerLimits(time_s=3600.0), MapOptions(50, None)

    assert mapping.in_arrays(10_000, fifty, 600.0, limits) == Group(10_000, 5, 2000, 50, None, 3000.0, 1800.0)
    assert mapping.in_arrays(10, fifty, 60.0, limits) == Group(10, 1, 10, 10, None, 60.0, 1800.0)
    assert mapping.in_arrays(1000, fifty, 600.0, SchedulerLimits()) == Group(1000, 5, 200, 50, None, 3000.0, 1800.0)
    assert mapping.in_arrays(100, MapOptions(50, 10), 600.0, limits).element_s == 3540.0
    # SLURM itself says that it cannot.
    assert mapping.in_arrays(4, MapOptions(2, None), 7200.0, limits).element_s == 7200.0


def test_a_chunk_size_that_is_asked_for_is_one_elements_share():
    one = MapOptions(50, 1)
    assert mapping.in_arrays(1000, one, None, SchedulerLimits()) == Group(1000, 1, 1000, 50, 1, None)
    assert mapping.in_arrays(1000, one, None, SchedulerLimits(jobs=100)) == Group(1000, 1, 100, 50, None, None)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 500), st.integers(1, 64), st.none() | st.integers(0, 64), st.none() | st.integers(0, 8))
def test_on_a_machine_there_are_no_more_than_it_has_room_for(count, most, cores, memory, cards):
    group = mapping.on_machine(count, MapOptions(most, None), MachineCapacity(cores, memory, cards))

    room = min(each for each in (most, cores, memory, cards, count) if each is not None)
    assert 1 <= group.elements == group.at_once <= max(1, room)
    assert -(-count // group.chunk) <= 4 * group.elements + 3


@pytest.mark.parametrize(("count", "cards", "at_once"), [(2, 1, 1), (2, 2, 2), (3, 2, 2), (2, 0, 1), (8, 3, 3)])
def test_two_items_that_would_share_a_gpu_run_one_after_another(count, cards, at_once):
    group = mapping.on_machine(count, MapOptions(50, None), MachineCapacity(by_cores=16, by_gpus=cards))
    assert group.at_once == at_once


@pytest.mark.parametrize(
    ("count", "up_to", "cards", "at_once"),
    [(2, 2, None, 1), (3, 2, None, 3), (5, 5, 8, 1), (2, 0, 1, 1), (2, None, None, 2), (2, 0, None, 2)],
)
def test_how_many_take_turns_can_be_said_with_and_without_gpus(count, up_to, cards, at_once):
    group = mapping.on_machine(count, MapOptions(sequential_up_to=up_to), MachineCapacity(by_cores=16, by_gpus=cards))

    assert group.at_once == at_once
    on_slurm = mapping.in_arrays(count, MapOptions(sequential_up_to=up_to), None, SchedulerLimits())
    assert on_slurm.at_once == (1 if up_to and count <= up_to else count)  # each has GPUs of its own there


@pytest.mark.parametrize(
    ("partition", "time_s"), [(None, 3600.0), ("long", 216_000.0), ("long,short", 3600.0), ("free", None), ("x", None)]
)
def test_limits_are_what_the_tools_print(partition, time_s):
    assert read_limits([CONFIG, PARTITIONS, "500|\n|40\n"], partition) == SchedulerLimits(1000, 40, time_s)
    assert read_limits(["", "", ""], partition) == SchedulerLimits()


def test_a_scheduler_that_was_away_is_asked_again_for_its_limits():
    host: Any = Mock(limits=None, scheduler=Slurm(SLURM, "ada"))
    host.connection.run.side_effect = [*[printed(rc=1)] * 3, *map(printed, (CONFIG, PARTITIONS)), printed(rc=1)]

    seen = [sent_group.limits_of(host, 0, SLURM) for _ in range(3)]
    assert seen == [SchedulerLimits(), *[SchedulerLimits(1000, 10_000, 3600.0)] * 2]


def printed(text: str = "", rc: int = 0) -> Any:
    return Mock(result=lambda _: Mock(rc=rc, out=text.encode()))


@pytest.fixture
def no_file(monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said once a host is looked for."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", "/nowhere/clusterfn.yml")
    return r"CLUSTERFN_CONFIG=/nowhere/clusterfn.yml is not a file"


@pytest.mark.parametrize("called", [lambda: cluster(abs).map(), lambda: list(Executor().map(abs))])
def test_a_map_of_nothing_is_refused_as_the_builtin_one_is(called: Callable[[], object]):
    with pytest.raises(TypeError, match=r"there is nothing to call abs with: give .* as map\(f, values\)"):
        called()


def learn(x: int, rate: float = 0.1) -> float:
    return x * rate


def add(a: int, b: int) -> int:
    return a + b


TIP = "'b'; each item is one argument: to pass its parts as arguments, call add.map(*zip(*items))"


@pytest.mark.parametrize(
    ("called", "kind", "says"),
    [
        (lambda: cluster(learn).map([1], [2], [3]), TypeError, "from 1 to 2 positional arguments but 3 were given"),
        (lambda: cluster(learn).map([1], x=2), TypeError, "multiple values for argument 'x'"),
        (lambda: cluster(learn).map([1], raet=0.2), ConfigError, "did you mean rate?"),
        (lambda: list(Executor().map(learn, [1], [2], [3])), TypeError, "but 3 were given"),
        (lambda: cluster(add).map([(1, 2), (3, 4)]), TypeError, TIP),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_rejected_before_a_host_is_opened(called, kind, says, no_file):
    with pytest.raises(kind) as rejected:
        called()
    assert says in str(rejected.value)


def test_tuples_that_were_not_all_meant_as_arguments_get_no_tip(no_file: str):
    with pytest.raises(TypeError, match="argument: 'b'$"):
        cluster(add).map([(1, 2), (3, 4, 5)])


def test_a_map_of_a_number_is_refused_with_what_to_give():
    with pytest.raises(TypeError, match=r"10 is not iterable: give map\(\) a list, or range\(N\)"):
        cluster(abs).map(10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (([1, 2], ["a"]), "learn.map() got lists of different lengths: 2, 1; 1 call can be made"),
        (([1, 2], iter([0.1])), "got lists of different lengths: 2, an iterator; 1 call can"),
        (([1], []), "lengths: 1, 0; 0 calls"),
        ((itertools.count(), itertools.repeat(0.1)), "learn.map() got more than 6 items"),
    ],
)
def test_lists_that_no_calls_can_be_made_of_are_rejected(lists: Any, says: str, no_file: str, monkeypatch: Any):
    monkeypatch.setattr(mapping, "MOST_ITEMS", 6)
    with pytest.raises(ConfigError) as rejected:
        cluster(learn).map(*lists)
    assert says in str(rejected.value)


@pytest.mark.parametrize(
    "lists", [([1, 2], itertools.repeat(0.1)), ([1, 2], itertools.count()), ([1, 2], (0.1 for _ in range(5)))]
)
def test_an_iterator_may_be_longer(lists: tuple[Any, ...], no_file: str):
    with pytest.raises(ConfigError, match=no_file):
        cluster(learn).map(*lists)


def test_a_map_of_an_empty_list_is_empty():
    assert cluster(abs).map([]).results() == []
