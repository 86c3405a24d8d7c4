"""Names that are held by sockets: what one means, and one holder, whatever other programs bind."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.queue import gpu_leases, lease, lease_names
from clusterfn.bridge.queue.lease import AdmissionLock, Leases
from clusterfn.bridge.queue.machine import Demand, Kind, Waiting
from clusterfn.bridge.supervisor.verdict import AttemptEnded

BOB = 64_001  # nobody has this number


@pytest.fixture
def own_name() -> str:
    """A name that no other process of this machine uses."""
    if not sys.platform.startswith("linux"):
        pytest.skip("abstract sockets are Linux's")
    return f"gpu/GPU-of-test-{os.getpid()}"


def test_a_socket_of_another_kind_holds_no_name(own_name: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"\0clusterfn/{own_name}")

        assert own_name not in set(lease.Leases().binders())
        mark = lease.Leases().hold(own_name)

    assert mark is not None and lease.Leases().binders()[own_name] == os.getuid()
    mark.close()


def test_a_name_is_held_by_who_has_bound_it_though_nothing_listens(own_name: str):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0clusterfn/{own_name}")

        assert lease.Leases().hold(own_name) is None
        assert lease.Leases().binders()[own_name] == os.getuid()


def test_a_name_that_its_user_holds_with_an_ending_is_held(own_name: str):
    own = f"run/{os.getuid()}/{own_name[4:]}/0/1/0"
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0clusterfn/{lease_names.with_ending(own, 'abcdef01')}")

        assert lease.Leases().hold(own) is None

    mark = lease.Leases().hold(own)
    assert mark is not None
    mark.close()


def test_of_gpus_that_are_too_few_none_is_held(own_name: str):
    uuids, leases = [f"{own_name[4:]}-{letter}" for letter in "abc"], lease.Leases()
    mark = leases.hold(lease_names.gpu(uuids[1]))
    assert mark is not None

    with pytest.raises(gpu_leases.TooFew):
        gpu_leases.hold_gpus(leases, uuids, 3)

    held = gpu_leases.hold_gpus(leases, uuids, 2)
    assert list(held) == [uuids[0], uuids[2]]
    gpu_leases.release_gpus(held)
    mark.close()


def test_a_gpu_that_another_program_uses_is_exchanged_for_one_that_was_not_met_yet(own_name: str, monkeypatch):
    uuids, leases = [f"{own_name[4:]}-{letter}" for letter in "abc"], lease.Leases()
    looks = iter([{uuids[0]: "python3 (pid 812, bob)"}, {}])
    monkeypatch.setattr(gpu_leases.gpus, "used_by_others", lambda _: next(looks))

    held = gpu_leases.replace_used_gpus(leases, gpu_leases.hold_gpus(leases, uuids, 2), uuids)

    assert list(held) == uuids[1:]
    gpu_leases.release_gpus(held)


def test_where_the_kernel_lists_no_sockets_the_table_of_proc_does(own_name: str, monkeypatch: pytest.MonkeyPatch):
    mark = lease.Leases().hold(own_name)
    assert mark is not None

    monkeypatch.setattr(lease, "SOCK_DIAG", 1 << 20)  # a sandbox knows no such family

    assert lease.Leases().binders()[own_name] is None
    mark.close()


def test_of_all_names_that_another_user_binds_a_part_is_looked_at_and_ones_own_are_always(monkeypatch):
    monkeypatch.setattr(lease, "MOST_OF_ANOTHER", 20)
    bound: dict[str, int | None] = {f"run/{BOB}/{number}": BOB for number in range(100)}
    bound |= {f"run/{os.getuid()}/{number}": os.getuid() for number in range(100)} | {"gpu/one": None}
    monkeypatch.setattr(lease, "bound_names", lambda _: dict(bound))

    seen = lease.Leases().binders()

    held_by = list(seen.values())
    assert (held_by.count(BOB), held_by.count(os.getuid()), seen["gpu/one"]) == (20, 100, None)


def test_a_lock_that_one_process_keeps_is_waited_for_no_longer_than_two_seconds(own_name, monkeypatch):
    monkeypatch.setattr(lease_names, "ADMISSION", own_name)
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    marks = lease.Leases()
    mark = marks.hold(own_name)
    assert mark is not None

    with AdmissionLock(marks) as lock:
        assert not lock.is_held
    mark.close()
    with AdmissionLock(marks) as lock:
        assert lock.is_held
    assert not lock.is_held
    assert next(clock) >= 2.0


def test_where_a_sandbox_forbids_such_sockets_the_job_ends_with_what_to_do(own_name: str, monkeypatch):
    def forbid(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("_socket.socket", forbid)

    with pytest.raises(AttemptEnded) as caught:
        lease.Leases().hold(own_name)

    verdict = caught.value.verdict
    assert (verdict.kind, verdict.stage) == ("environment", "lease")
    assert "abstract unix socket" in verdict.message and "Permission denied" in verdict.message
    assert (verdict.hint or "").startswith("let jobs bind such sockets")


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

    mark = Leases().hold(lease_names.with_ending(name, os.urandom(4).hex()))

    assert mark is not None
    mark.close()


def test_a_name_that_is_too_long_is_not_held_and_ends_no_spooler():
    assert Leases().hold("wait/1/2/3/" + "4" * 120 + "/0/0/job//0") is None


def test_a_users_next_job_counts_for_the_one_behind_it():
    names = ["wait/7/1/60/0/1/0/aa~0//0", "wait/7/2/60/0/1/0/bb~0//0", "wait/8/3/60/0/1/0/cc~0//0"]

    assert [job.job for _, job in lease_names.HeldNames(names, 1).in_order()] == ["aa", "cc", "bb"]
