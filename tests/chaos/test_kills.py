"""kill -9 of client, agent, its sshd, job.sh, supervisor and worker, alone and in pairs, at every stage of a job."""

from __future__ import annotations

import collections
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos import trial
from tests.chaos.lanes import Lane
from tests.chaos.trial import Plan, Result, Trial
from tests.chaos.world import World

pytestmark = pytest.mark.lab

# Read when this is imported: no test sees CLUSTERFN_ variables.
SEED = int(os.environ.get("CLUSTERFN_SEED") or random.SystemRandom().randrange(10**6))
RANDOM_KILLS = 100
AT_ONCE = 6

# Each stage, each victim, and the pairs that differ most.
# The slow one first: where both publishers die, twelve seconds of silence come before the verdict.
CHOSEN = (
    Plan("function", ("script", "supervisor"), "slurm"), Plan("start", ("script",), "slurm"),
    Plan("queue", ("client",), "slurm"), Plan("submit", ("client",), "bare"),
    Plan("submit", ("agent",), "slurm", 0.5), Plan("submit", ("sshd",), "slurm", 0.1),
    Plan("start", ("supervisor",), "bare"), Plan("lease", ("client", "agent"), "bare"),
    Plan("environment", ("agent", "supervisor"), "slurm"), Plan("load", ("worker",), "slurm"),
    Plan("function", ("supervisor", "client"), "bare"), Plan("function", ("agent", "worker"), "bare"),
    Plan("function", ("script",), "bare"), Plan("result", ("worker", "supervisor"), "bare"),
    Plan("supervisor", ("supervisor", "script"), "bare"), Plan("published", ("script",), "slurm"),
)  # fmt: skip


@pytest.mark.fault("24 25 26 27")
@pytest.mark.long
@pytest.mark.timeout(900)  # a stage or an end that does not come is told after four minutes each
def test_each_job_runs_once_and_ends_once_whatever_is_killed_when(
    world: World, new_lane: Callable[[], Lane], table: Callable[[str], None]
) -> None:
    began = time.monotonic()
    results = carry_out(world, CHOSEN, new_lane)
    table(as_table(results, f"{len(results)} kills in {time.monotonic() - began:.0f} s"))
    assert_all_hold(results)
    assert {result.plan.stage for result in results} == set(trial.STAGES)


@pytest.mark.fault("24 25 26 27")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_job_runs_once_and_ends_once_at_random_kills(
    world: World, new_lane: Callable[[], Lane], table: Callable[[str], None]
) -> None:
    rng = random.Random(SEED)
    plans = [trial.any_plan(rng) for _ in range(RANDOM_KILLS)]
    began = time.monotonic()
    results = carry_out(world, plans, new_lane)
    table(as_table(results, f"{len(results)} random kills in {time.monotonic() - began:.0f} s, CLUSTERFN_SEED={SEED}"))
    assert_all_hold(results)


def carry_out(world: World, plans: Sequence[Plan], new_lane: Callable[[], Lane]) -> list[Result]:
    """All of them, some at a time, in the order given; every outcome is read again three seconds later."""
    lanes: queue.SimpleQueue[Lane] = queue.SimpleQueue()
    lock = threading.Lock()

    def made() -> Lane:
        with lock:
            return new_lane()

    for _ in range(AT_ONCE):
        lanes.put(made())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda plan: one(world, plan, lanes, made), plans))


def one(world: World, plan: Plan, lanes: queue.SimpleQueue[Lane], made: Callable[[], Lane]) -> Result:
    """One plan, with a client that is free."""
    lane = lanes.get()
    tried = Trial(world, plan, lane, made)
    try:
        result = tried.run()
        time.sleep(3.0)
        result.wrong = [*(result.wrong or []), *tried.again()]
    except Exception as error:  # the others go on
        result = Result(plan, tried.job, wrong=[f"{type(error).__name__}: {error}"])
    finally:
        lanes.put(tried.lane if tried.lane.alive() else made())
    return result


def assert_all_hold(results: Sequence[Result]) -> None:
    """Nothing is wrong with any."""
    wrong = [trial.describe(result) for result in results if result.wrong]
    assert not wrong, f"seed {SEED}, {len(wrong)} of {len(results)}:\n" + "\n\n".join(wrong)


def as_table(results: Sequence[Result], title: str) -> str:
    """stage × victims -> outcomes."""
    cells: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        cells[result.plan.stage, "+".join(sorted(result.plan.victims))][f"{result.plan.scheduler} {result.kind}"] += 1
    slowest = max(results, key=lambda result: result.seconds)
    lines = [title, f"slowest from kill to end: {slowest.seconds:.1f} s ({slowest.plan})"]
    for (stage, victims), kinds in sorted(cells.items(), key=lambda cell: (trial.STAGES.index(cell[0][0]), cell[0][1])):
        shown = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        lines.append(f"  {stage:12} {victims:22} {shown}")
    return "\n".join(lines)
