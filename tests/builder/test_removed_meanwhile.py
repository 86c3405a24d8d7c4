"""A job or a builder comes between two steps of the removal of an environment, in the process of the test."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfn.bridge.builder import cleanup, leases, locks
from tests.builder.host import Host
from tests.builder.test_keeping import lease, plan  # noqa: F401


def test_a_job_that_comes_while_its_environment_is_removed_keeps_its_lease(
    host: Host,
    plan: dict,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    root, job = str(host.root), lease(host, plan)
    (host.root / "uses" / plan["id"] / job.name).unlink()
    move = cleanup.move_aside

    def meanwhile(*how: Any) -> str:
        moved = move(*how)
        leases.add_lease(root, plan["id"], str(job))  # its supervisor finds no READY, and builds anew
        return moved

    monkeypatch.setattr(cleanup, "move_aside", meanwhile)
    with locks.LockHolder(root) as me:
        told = cleanup.remove_environment(root, plan["id"], me)

    assert told["removed"]
    assert leases.jobs_using(root, plan["id"]) == [job.name]


def test_an_environment_whose_lock_a_builder_has_taken_over_stays(
    host: Host,
    plan: dict,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    """As from a process that a signal has stopped, and which goes on now."""
    root, lock = str(host.root), host.root / "builds" / plan["id"] / "lock"

    def then_it_is_taken(*of: str) -> list[str]:
        (lock / "99").write_text("another0")
        return []

    monkeypatch.setattr(leases, "jobs_using", then_it_is_taken)
    with locks.LockHolder(root) as me:
        told = cleanup.remove_environment(root, plan["id"], me)

    assert (told["removed"], told["why"]) == (False, "it is being built")
    assert (host.prefix(plan) / "READY").exists() and host.leftovers() == []


def test_a_job_that_comes_between_the_looks_keeps_its_environment(
    host: Host,
    plan: dict,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    root, job, users = str(host.root), lease(host, plan), leases.jobs_using
    (host.root / "uses" / plan["id"] / job.name).unlink()

    def then_it_comes(*of: str) -> list[str]:
        found = users(*of)
        leases.add_lease(*of, str(job))
        return found

    monkeypatch.setattr(leases, "jobs_using", then_it_comes)
    with locks.LockHolder(root) as me:
        told = cleanup.remove_environment(root, plan["id"], me)

    assert (told["removed"], told["used_by"]) == (False, [job.name])
    assert (host.prefix(plan) / "READY").exists()
