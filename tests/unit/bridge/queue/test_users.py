"""`clusterfn top`: what clusterfn runs on a machine, and for whom."""

from __future__ import annotations

import os
import pwd

from clusterfn.bridge.queue import lease_names, report
from clusterfn.bridge.queue.machine import ANY, Demand, Waiting

ME = pwd.getpwuid(os.getuid()).pw_name
NAMES = [
    lease_names.run(os.getuid(), "7f3a000011112222", Demand(2, 4, 8192)),
    lease_names.run(4_000_000, "90aa000011112222.3", Demand(0, 1, 0)),
    lease_names.wait(Waiting(5, os.getuid(), "c0de000011112222", Demand(1, 1, 512), ANY, 0), 550),
    lease_names.wait(Waiting(5, 4_000_000, "too-old-to-count", Demand(1, 1, 512), ANY, 0), 10),
    "door", "gpu/GPU-1", "run/nonsense",
]  # fmt: skip


def test_the_jobs_of_all_users_are_listed_with_what_they_asked_for():
    words = ("user", "job", "state", "gpus", "cores", "memory_mb")
    rows = [
        (ME, "7f3a000011112222", "RUNNING", 2, 4, 8192),
        ("4000000", "90aa000011112222.3", "RUNNING", 0, 1, 0),
        (ME, "c0de000011112222", "PENDING", 1, 1, 512),
    ]
    assert report.look_at_jobs(NAMES, 500) == [dict(zip(words, row)) for row in rows]


def test_who_waits_is_listed_in_the_order_in_which_they_come():
    names = [
        lease_names.wait(Waiting(5, 4_000_000, "aaaa000011112222", Demand(1, 1, 0), ANY, 0), 550),
        lease_names.wait(Waiting(9, 4_000_001, "bbbb000011112222", Demand(1, 1, 0), ANY, 0), 550),
        lease_names.run(4_000_000, "cccc000011112222", Demand(2, 1, 0)),
        lease_names.run(4_000_001, "dddd000011112222", Demand(1, 1, 0)),
    ]

    assert [row["job"][:4] for row in report.look_at_jobs(names, 500)] == ["cccc", "dddd", "bbbb", "aaaa"]


def test_a_name_that_another_user_has_bound_is_no_job():
    assert report.look_at_jobs(dict.fromkeys(NAMES[1:2], 4_000_009), 500) == []
