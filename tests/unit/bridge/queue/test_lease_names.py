"""What a name of a lease means, whoever has written it."""

from __future__ import annotations

import pytest

from clusterfn.bridge.queue import lease_names
from clusterfn.bridge.queue.lease import Leases
from clusterfn.bridge.queue.machine import Demand, Kind, Waiting


@pytest.mark.parametrize("number", ["٤٢", "４２", "-1", "", "4" * 21, "4_2"])
def test_a_number_in_other_digits_names_nobody(number):
    """Another user could name a victim by them, whose number is compared in ASCII."""
    seen = lease_names.HeldNames({f"run/{number}/job/0/4/10", f"wait/{number}/1/60/0/1/0/job~0//0"}, 0)

    assert seen.running == []
    assert seen.waiting == []


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("wait/7/1/160/8/1/0/job~0//0", True),
        ("wait/7/1/100/8/1/0/job~0//0", False),  # its time is over
        ("wait/7/1/161/8/1/0/job~0//0", False),  # longer than a spooler names a job
        ("wait/7/1/1000000/8/1/0/job~0//0", False),
        ("wait/7/1/160/8/1/0/job//0", False),  # without the number of further ones
        ("wait/7/1/160/8/1/0/job~0,0//0", False),
        ("wait/7/1000000/8/1/0/job", False),  # without a time
    ],
)
def test_a_name_that_waits_counts_for_a_minute_at_most_and_in_one_form(name: str, counts: bool):
    assert len(lease_names.HeldNames({name}, 100).waiting) == counts


def test_the_longest_name_has_room_for_an_ending():
    """A user whose name another one has bound takes it with an ending."""
    kind = Kind("NVIDIARTXA6000ADAGENERATION" * 3, 49140)
    waiting = Waiting(10**10, 2**31, "0123456789abcdef.1234", Demand(8, 64, 10**6), kind, 64)  # after 115 days
    name = lease_names.wait(waiting, 10**7)

    mark = Leases().hold(lease_names.with_ending(name, "0123abcd"))

    assert mark is not None
    mark.close()


def test_a_name_that_is_too_long_is_not_held_and_ends_no_spooler():
    assert Leases().hold("wait/1/2/3/" + "4" * 120 + "/0/0/job//0") is None


def test_a_users_next_job_counts_for_the_one_behind_it():
    names = ["wait/7/1/60/0/1/0/aa~0//0", "wait/7/2/60/0/1/0/bb~0//0", "wait/8/3/60/0/1/0/cc~0//0"]

    assert [job.job for _, job in lease_names.HeldNames(names, 1).in_order()] == ["aa", "cc", "bb"]
