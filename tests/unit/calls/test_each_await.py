"""A fault at each `await` in the story of a call: its request is cancelled, takes too long, or loses its connection.

The awaits are found in the sources, and by chance walks through what may happen to a job: a new one is tested too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import Callable

import pytest

from clusterfn import ClusterfnError, HostError
from tests.fakes.held_host import Wait, World, awaits_of, refused
from tests.golden.samples import BARE, SLURM

FILES = ("sending", "submission_line", "following", "queue_place", "job_run", "job_tracker", "liveness", "conclusion")
STORY = [f"calls/{name}.py" for name in FILES]
# The first is of groups. A host asks for content again only if it has lost some, which does not happen here.
LEFT_OUT = ("explain_unstarted", "send_again")
PLACES = [place for name in STORY for place, (function, _) in awaits_of(name).items() if function not in LEFT_OUT]
WALKS, STEPS, OFTEN = 400, 30, 0.8


def walk(seed: int, patch: pytest.MonkeyPatch, is_there: Callable[[World], bool]) -> World:
    """Let a job have one chance after another, until it `is_there` or has ended."""
    chance = random.Random(seed)
    world = World((SLURM, BARE)[seed % 2], patch)
    for _ in range(STEPS):
        if is_there(world) or world.job.done():
            break
        due, unasked = world.due, world.unasked
        chance.choice(due if due and chance.random() < OFTEN else unasked)()
        world.settle()
    return world


@functools.cache
def walks() -> dict[tuple[str, int], tuple[int, bool]]:
    """Return by which walk each `await` is reached, and whether it waits for a request in the end, if any does."""
    found: dict[tuple[str, int], tuple[int, bool]] = {}
    for seed in range(WALKS):
        if found.keys() >= set(PLACES):
            break

        def look(world: World, seed: int = seed) -> bool:
            for wait in world.waits:
                known = found.get(wait.place)
                if known is None or (wait.request is not None and not known[1]):
                    found[wait.place] = seed, wait.request is not None
            return False

        with pytest.MonkeyPatch.context() as patch:
            walk(seed, patch, look).lose()
    return found


def wait_at(world: World, place: tuple[str, int], asks: bool) -> Wait | None:
    """Return that wait, if a conversation is there."""
    there = [wait for wait in world.waits if wait.place == place and (wait.request is not None) is asks]
    return there[0] if there else None


def cancel(world: World, wait: Wait) -> None:
    assert wait.request is not None
    wait.request.cancel()


def take_too_long(world: World, wait: Wait) -> None:
    assert wait.request is not None
    error = refused("timeout", "it did not end within 60 s")
    error.host = world.host.settings.name
    wait.request.reject(error)


def lose(world: World, wait: Wait) -> None:
    world.lose()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "{}:{}".format(*place))
def test_a_fault_where_a_call_waits_ends_the_job_with_an_error_in_words_and_leaves_nothing(place, caplog):
    assert place in walks(), "no walk reaches this await: let `World` have what leads to it"
    seed, asks = walks()[place]
    for fault in (cancel, take_too_long, lose) if asks else (lose,):
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.ERROR), contextlib.ExitStack() as ends:
            world = walk(seed, patch, lambda world: wait_at(world, place, asks) is not None)
            ends.callback(world.lose)
            wait = wait_at(world, place, asks)
            assert wait is not None, "the same walk leads elsewhere"
            was_outcome = wait.request is world.tracker.source.awaited

            fault(world, wait)
            world.settle()
            world.finish()

            error = world.job.exception(0)
            assert isinstance(error, ClusterfnError) and error.message and error.host == world.host.settings.name
            assert world.job.state != "UNKNOWN" or (isinstance(error, HostError) and (fault is lose or was_outcome))
            assert world.left == []
    assert [record.getMessage() for record in caplog.records] == []
