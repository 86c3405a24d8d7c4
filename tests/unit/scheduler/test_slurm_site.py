"""What sinfo, sacctmgr and scontrol say of a site, as recorded or as their manuals show it."""

from __future__ import annotations

import textwrap

from clusterfn.scheduler.base import SchedulerLimits
from clusterfn.scheduler.slurm.site import Account, read_accounts, read_limits, read_partitions


def lines(block: str) -> list[str]:
    return textwrap.dedent(block).strip("\n").splitlines()


SINFO = """
    main*|up|7-00:00:00|90|(null)
    gpu|up|2-00:00:00|4|gpu:a100:4(S:0-1)
    gpu|up|2-00:00:00|8|gpu:h100:8
    old|inact|infinite|1|(null)
    sinfo: warning: something of the site
"""


def test_a_partition_of_several_kinds_of_nodes_is_one():
    found = {each.name: each for each in read_partitions(lines(SINFO))}

    assert list(found) == ["main", "gpu", "old"]
    assert (found["gpu"].nodes, found["gpu"].gres) == (12, "gpu:a100:4(S:0-1), gpu:h100:8")
    assert (found["main"].default, found["main"].time_limit, found["old"].state) == (True, "7-00:00:00", "inact")


def test_a_partition_has_the_memory_of_its_largest_node_where_slurm_knows_it():
    rows = ["main*|up|1:00:00|2|(null)|1", "main*|up|1:00:00|2|(null)|1", "big|up|1:00:00|2|(null)|1"]
    rows += ["big|up|1:00:00|2|(null)|8000+", "old|up|1:00:00|2|(null)"]
    found = {each.name: (each.memory_mb, each.has_no_memory) for each in read_partitions(rows)}

    assert found == {"main": (1, True), "big": (8000, False), "old": (None, False)}


def test_an_array_has_no_more_tasks_than_the_scheduler_takes_in_one():
    told = "MaxArraySize = 100001\nSchedulerParameters     = defer,max_array_tasks=1000,bf_interval=30\n"

    assert read_limits([told, "", ""], None).array == 1000
    assert read_limits([told.replace("100001", "101"), "", ""], None).array == 100
    assert read_limits([told.replace("max_array_tasks", "other"), "", ""], None).array == 100000
    assert [read_limits([f"MaxArraySize = {size}", "", ""], None).array for size in (0, 1, 2, 1001)] == [0, 0, 1, 1000]
    too_long = [f"MaxArraySize = {'9' * 5000}", "", f"{'9' * 5000}|40"]
    assert read_limits(too_long, None) == SchedulerLimits(jobs=40)


SACCTMGR = """
    physics||normal,long
    physics||normal,long
    bio|gpu|
"""


def test_associations_are_accounts():
    assert read_accounts(["sacctmgr: error: You are not running a supported accounting_storage plugin"]) == ()
    assert read_accounts(lines(SACCTMGR)) == (Account("physics", "", ("normal", "long")), Account("bio", "gpu", ()))
