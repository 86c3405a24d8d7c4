"""A scheduler that is dead, mad or hung says nothing of any job. These disturb everybody who uses the lab's SLURM."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.inprocess import Here, Sent
from tests.chaos.onhost import until
from tests.chaos.world import World

pytestmark = [pytest.mark.lab, pytest.mark.long]

AWAY_S = 15.0
SAVED_S = 10.0  # a controller that is killed forgets jobs that it has not saved


@pytest.fixture
def healed(world: World) -> Iterator[None]:
    """SLURM works again afterwards."""
    yield
    world.lab.slurm.heal()


def _looked(sent: Sent) -> None:
    """A look at the scheduler now; never the end of waiting."""
    sent.session.watch.look_now()


@pytest.mark.fault("19")
@pytest.mark.usefixtures("healed")
def test_controller_that_dies_for_a_while_fails_no_job(here: Here, world: World) -> None:
    running = here.submit("speak", "slurm", lines=200, every=0.25)
    waiting = here.submit("speak", "slurm-held", lines=3, every=0.1)
    running.await_at("function")
    assert until(waiting.in_slurm, 150)
    [held] = waiting.in_slurm()
    time.sleep(SAVED_S)
    world.lab.slurmctld.kill()
    try:
        until(lambda: _looked(waiting), AWAY_S, 1.0)
        assert not running.job.done() and not waiting.job.done()
    finally:
        world.lab.slurmctld.start()
    assert running.job.result(150) == 200
    running.stands(runs=len(running.there.attempts()))  # a controller that had not saved its state starts it again
    assert until(lambda: world.lab.slurm.run("scontrol", "release", held).returncode == 0, 150, 1.0)
    waiting.ends_once(3)
    assert "unreachable" not in waiting.job.reason


@pytest.mark.fault("20")
@pytest.mark.parametrize("host", ["mad-squeue", "hung-squeue"])
def test_squeue_out_of_its_mind_never_means_finished(here: Here, world: World, host: str) -> None:
    sent = here.submit("speak", host, lines=100, every=0.4)
    sent.await_at("function")
    mad = world.stubs / host / "mad"
    mad.touch()
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            sent.session.watch.look_now()
            assert not sent.job.done(), sent.job.status
            time.sleep(1.0)
    finally:
        mad.unlink()
    sent.ends_once(100)
