"""Who gets how many items, and what SLURM allows: decided from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn.calls import mapping
from clusterfn.calls.mapping import MachineCapacity, MapOptions
from clusterfn.config.job_spec import Group
from clusterfn.scheduler.base import SchedulerLimits
from clusterfn.scheduler.slurm.site import read_limits

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
    limits = SchedulerLimits(time_s=3600.0)

    assert mapping.in_arrays(10_000, MapOptions(50, None), 600.0, limits) == Group(
        10_000, 5, 2000, 50, None, 3000.0, 1800.0
    )
    assert mapping.in_arrays(10, MapOptions(50, None), 60.0, limits) == Group(10, 1, 10, 10, None, 60.0, 1800.0)
    assert mapping.in_arrays(1000, MapOptions(50, None), 600.0, SchedulerLimits()) == Group(
        1000, 5, 200, 50, None, 3000.0, 1800.0
    )
    assert mapping.in_arrays(100, MapOptions(50, 10), 600.0, limits).element_s == 3540.0
    assert (
        mapping.in_arrays(4, MapOptions(2, None), 7200.0, limits).element_s == 7200.0
    )  # SLURM itself says that it cannot


def test_a_chunk_size_that_is_asked_for_is_one_elements_share():
    assert mapping.in_arrays(1000, MapOptions(50, 1), None, SchedulerLimits()) == Group(1000, 1, 1000, 50, 1, None)
    assert mapping.in_arrays(1000, MapOptions(50, 1), None, SchedulerLimits(jobs=100)) == Group(
        1000, 1, 100, 50, None, None
    )


@pytest.mark.parametrize(
    ("count", "how", "item_s", "said"),
    [
        (1000, MapOptions(50, 1), None, ("chunksize=1 makes 1000 elements", 'chunksize="auto" would make 50')),
        (1000, MapOptions(50, 1), 600.0, ("chunksize=1 makes 1000 elements", 'chunksize="auto" would make 200')),
        (
            600,
            MapOptions(50, 1),
            3500.0,
            ("58 min 20 s for each item fill the 1 h that the partition gives", "600 elements"),
        ),
        (
            600,
            MapOptions(50),
            3500.0,
            ("58 min 20 s for each item fill the 1 h that the partition gives", "600 elements"),
        ),
        (600, MapOptions(200), 60.0, ("max_parallel=200 makes 600 elements",)),
        (5000, MapOptions(2000), None, ()),  # each takes several
        (1000, MapOptions(50, 2), None, ()),
        (500, MapOptions(50, 1), None, ()),
        (500, MapOptions(50), 3500.0, ()),
    ],
)
def test_why_there_are_many_elements_of_one_item_and_what_makes_fewer_is_said(count, how, item_s, said):
    limits = SchedulerLimits(time_s=3600.0)
    told = mapping.load_on_controller(mapping.in_arrays(count, how, item_s, limits), how, item_s, limits, "SLURM")

    assert all(part in told for part in said) and bool(told) == bool(said)
    if how.chunk is None:
        assert "chunksize" not in told  # it is "auto" already


@settings(deadline=None)
@given(COUNTS, st.integers(1, 500), st.integers(1, 64), st.none() | st.integers(0, 64), st.none() | st.integers(0, 8))
def test_on_a_machine_there_are_no_more_than_it_has_room_for(count, most, cores, memory, cards):
    group = mapping.on_machine(count, MapOptions(most, None), MachineCapacity(cores, memory, cards))

    room = min(each for each in (most, cores, memory, cards, count) if each is not None)
    assert 1 <= group.elements == group.at_once <= max(1, room)
    assert -(-count // group.chunk) <= 4 * group.elements + 3


@pytest.mark.parametrize(("count", "cards", "at_once"), [(2, 1, 1), (2, 2, 2), (3, 2, 2), (2, 0, 1), (8, 3, 3)])
def test_two_items_that_would_share_a_gpu_run_one_after_another(count, cards, at_once):
    assert (
        mapping.on_machine(count, MapOptions(50, None), MachineCapacity(by_cores=16, by_gpus=cards)).at_once == at_once
    )


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
