"""What never got to its scheduler, or was killed before it had begun, ends in an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from clusterfn import SubmitError
from tests.chaos.inprocess import Here
from tests.chaos.lanes import Lane
from tests.chaos.onhost import JobOnHost, until
from tests.chaos.world import World

pytestmark = pytest.mark.lab


def test_sbatch_that_never_submitted_is_an_error_after_a_look(here: Here, world: World) -> None:
    """SLURM's own words, within minutes, and nothing left behind; nor does it run if SLURM comes with it later."""
    words = {"no-sbatch": "Socket timed out", "busy-sbatch": "Unable to contact slurm controller"}
    jobs = [here.submit("speak", host, lines=5, every=0.1) for host in words]
    scripts = [until(sent.script, 150) for sent in jobs]
    for sent, script in zip(jobs, scripts):
        error = sent.job.exception(150)
        assert isinstance(error, SubmitError), error
        assert words[sent.host] in str(error)
        assert until(lambda: not sent.there.folder.exists(), 150), sent.there.history()
        assert sent.in_slurm() == {}
        late = world.runs / f"late-{sent.job.id}.sh"
        late.write_bytes(script)
        line = f"sbatch --parsable -p short --mem=100M -o /dev/null --job-name={sent.name} {late}"
        number = world.lab.ssh("slurm-second", line).stdout.decode().strip()
        world.lab.slurm.wait_job(number, "COMPLETED", "FAILED", "CANCELLED")
        assert sent.there.runs() == []


def test_script_killed_before_the_claim_after_its_client_is_lost_to_a_second_client(
    world: World, new_lane: Callable[[], Lane]
) -> None:
    """On a bare host, while it reads its setup lines."""
    job = JobOnHost(world.root, os.urandom(8).hex(), world.runs)
    first = new_lane()
    arguments = {"path": str(job.runs_file), "lines": 3, "every": 0}
    first.order("submit", job.id, "bare-stuck", call="speak", args=arguments)
    assert until(lambda: (job.folder / "started").exists() and "script" in job.pids(), 150, 0.002)
    first.kill()
    os.kill(job.pids()["script"], signal.SIGKILL)
    second = new_lane()
    first.process.wait()
    second.order("attach", job.id, "bare-stuck")
    assert (second.hear(job.id, "state") or {}).get("error", {}).get("type") == "WorkerLost"
