"""Answers about one job that come together, in another order, or when its program or its connection has ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.bridge import layout
from clusterfn.errors import Cancelled, ClusterfnError, HostError, SubmitError
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import Spawned
from tests.fakes.held_host import AGAIN, ENDED, Request, World, refused, said
from tests.golden.samples import BARE, SLURM
from tests.waiting import WAIT_S, until

INVALID = said(err="sbatch: error: invalid partition specified: nosuch", rc=1)
FULL = said(err="sbatch: error: AssocMaxSubmitJobLimit", rc=1)


def asked(world: World, what: str) -> Request:
    """Return the open request of that kind, once there is one."""
    found: Request = until(lambda: next((r for r in list(world.host.held.open.values()) if r.what == what), None))
    return found


def spawned(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    return World(BARE, patch), "spawn", refused("denied", "Permission denied")


def submitted(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    return World(SLURM, patch), "sbatch", INVALID


def submitted_again(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    world = World(SLURM, patch)
    world.answer(asked(world, "sbatch"), FULL)
    world.settle()
    world.finish_pauses()
    return world, "sbatch", INVALID


@pytest.mark.parametrize("submit", [spawned, submitted, submitted_again])
def test_a_program_that_ends_while_a_call_is_submitted_waits_for_what_the_answer_leads_to(
    submit: Callable[[pytest.MonkeyPatch], tuple[World, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, what, answer = submit(monkeypatch)
    done = threading.Event()

    def host() -> None:
        world.answer(asked(world, what), answer)
        world.answer(asked(world, "sh"), said())  # the removal of its folder
        done.set()

    answers = threading.Timer(0.2, host)
    answers.start()
    exit_flush.finish_all()
    was_done = done.is_set()
    answers.join(WAIT_S)
    world.lose()

    assert was_done


@pytest.mark.parametrize(("outcome", "error"), [(ENDED, Cancelled), (AGAIN, HostError)])
def test_an_outcome_that_has_come_counts_although_its_connection_is_lost_before_it_is_taken(
    outcome: bytes, error: type[ClusterfnError], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, gate = World(BARE, monkeypatch), threading.Event()
    world.answer(asked(world, "spawn"), Spawned(5, 1))
    world.settle()
    loop.call(gate.wait, WAIT_S)  # the loop has much to do
    world.answer(asked(world, "follow"), outcome)
    world.lose()
    gate.set()
    world.settle()

    assert isinstance(world.job.exception(WAIT_S), error)
    assert world.left == []


@pytest.mark.parametrize(
    ("kind", "is_believed"), [(layout.PAYLOAD_BROKEN, False), (layout.ENVIRONMENT, False), (layout.EXITED, True)]
)
def test_what_was_damaged_on_the_host_is_sent_again_with_the_next_job(
    kind: str, is_believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(SLURM, monkeypatch)

    world.answer(asked(world, "follow"), json.dumps({"kind": kind, "message": "the blob a was altered"}).encode())
    world.settle()
    world.lose()
    world.settle()

    contents: Any = world.host.contents
    assert contents.distrust.called != is_believed


def test_a_job_that_its_scheduler_never_took_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SLURM, monkeypatch)
    world.answer(asked(world, "sbatch"), said(rc=0))  # no number: it may have been taken
    world.settle()

    never = {"kind": layout.LOST, "stage": "submit", "message": "SLURM does not know the job"}
    world.answer(asked(world, "follow"), json.dumps(never).encode())
    world.settle()
    open_requests = [each.what for each in world.host.held.open.values()]
    world.lose()
    world.settle()

    assert isinstance(world.job.exception(0), SubmitError)
    assert open_requests[-2:] == ["scancel", "sh"], "sh removes it"


@pytest.mark.parametrize(("stage", "is_chosen_again"), [(layout.GPU_STAGE, True), ("environment", False)])
def test_an_environment_for_other_gpus_is_given_up_before_its_job_has_the_error(
    stage: str, is_chosen_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, seen = World(SLURM, monkeypatch), []
    host: Any = world.host
    host.environments = Mock()
    world.job.add_done_callback(lambda _: seen.append(host.environments.forget.called))

    ended = {"kind": layout.ENVIRONMENT, "stage": stage, "message": "PyTorch does not run on the GPUs of n1"}
    world.answer(asked(world, "follow"), json.dumps(ended).encode())
    world.settle()
    world.lose()
    world.settle()

    assert seen == [is_chosen_again]
