"""A SLURM that takes no more jobs for now: calls wait for it in this program, with its own words."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import clusterfn
from tests.e2e.conftest import MINOR
from tests.lab import Lab
from tests.lab.own_slurm import OwnSlurm
from tests.waiting import WAIT_S, stays, until

pytestmark = pytest.mark.lab
# As a limit of an association or a QOS does it (`test_qos`): sbatch says its name, then why it fails.
LIMIT = """\
function slurm_job_submit(job, part, uid)
  local full = io.open("{folder}/full")
  if full == nil then return slurm.SUCCESS end
  local most = tonumber(full:read("*l")) or 0
  full:close()
  local first, last = string.match(job.array_inx or "1-1", "(%d+)-(%d+)")
  if tonumber(last) - tonumber(first) < most then return slurm.SUCCESS end
  slurm.log_user("AssocMaxSubmitJobLimit")
  return slurm.ESLURM_ACCOUNTING_POLICY or 2050
end
function slurm_job_modify(job, rec, part, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
WORDS = "not in the queue of SLURM yet; AssocMaxSubmitJobLimit: you have as many jobs as you may have there"


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[OwnSlurm]:
    settings = {"JobSubmitPlugins": "lua", "SelectTypeParameters": "CR_Core", "MinJobAge": 3600}  # `queued` counts
    with lab.own_slurm(settings, nodes=1, files={"job_submit.lua": LIMIT}) as own:
        yield own


@pytest.fixture
def may_have(site: OwnSlurm, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], object]:
    """Set how many elements a submission may have from now on; 0 refuses each."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(site.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR))))
    return lambda most: (site.folder / "full").write_text(f"{most}\n")


def queued(site: OwnSlurm) -> list[str]:
    """What was submitted and SLURM still knows, with each element of an array: one line may stand for several."""
    return site.run("squeue", "--noheader", "--states=all", "--array", "--format=%F").stdout.split()


def test_a_call_waits_with_slurms_words_until_there_is_room(ask, site, may_have):
    may_have(0)
    before = queued(site)
    first, second = (clusterfn.cluster(abs).submit(-number) for number in (1, 2))
    until(lambda: WORDS in first.reason and WORDS in second.reason)
    states = first.state, second.state
    listed = ask("jobs")

    may_have(1)

    assert states == ("PENDING", "PENDING")
    assert sum("AssocMaxSubmitJobLimit" in line for line in listed.stdout.splitlines()) == 2
    assert [first.result(WAIT_S), second.result(WAIT_S)] == [1, 2]
    assert len(set(queued(site)) - set(before)) == 2  # none was submitted twice


def test_a_call_that_another_program_cancels_while_it_waits_is_never_submitted(site, may_have):
    may_have(0)
    before = queued(site)
    job = clusterfn.cluster(abs).submit(-1)
    until(lambda: WORDS in job.reason)

    subprocess.run([sys.executable, "-m", "clusterfn", "cancel", job.id], capture_output=True, check=True)
    assert type(job.exception(WAIT_S)) is clusterfn.Cancelled
    may_have(1)

    assert clusterfn.cluster(abs)(-2) == 2
    assert len(set(queued(site)) - set(before)) == 1


def test_a_call_that_waits_for_room_can_be_cancelled_and_leaves_nothing(site, may_have):
    may_have(0)
    before = queued(site)
    job = clusterfn.cluster(abs).submit(-1)
    until(lambda: WORDS in job.reason)

    assert job.cancel()
    may_have(1)

    stays(lambda: job.state == "CANCELLED" and set(queued(site)) == set(before), 3)


def test_elements_of_a_map_go_in_arrays_as_large_as_there_is_room(site, may_have):
    may_have(3)
    before = queued(site)

    values = list(clusterfn.cluster(abs).map(range(-10, 0)))

    after = [array for array in queued(site) if array not in before]
    assert values == list(range(10, 0, -1))
    assert 0 < max(after.count(array) for array in after) <= 3


def test_no_more_items_run_side_by_side_than_asked_for_if_the_array_is_divided(site, may_have, tmp_path):
    def takes(seconds):
        import time

        begin = time.time()
        time.sleep(seconds)
        return begin, time.time()

    may_have(1)

    spans = list(clusterfn.cluster(time="1min")(takes).map([0.8] * 6, max_parallel=2))

    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= 2


@pytest.mark.long
def test_ctrl_c_in_a_program_that_waits_for_room_drops_its_job(site, may_have, tmp_path):
    may_have(0)
    before = queued(site)
    text = "import clusterfn\nclusterfn.cluster(abs).submit(-1)\n"
    told = []
    with subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True) as program:
        for line in program.stderr:
            told.append(line)
            if "waits in this program" in line:
                program.send_signal(signal.SIGINT)
    may_have(1)

    assert any(WORDS in line for line in told) and "was stopped" in told[-1]
    assert set(queued(site)) == set(before)


# MaxJobCount: sbatch does not end by itself for two minutes, and SLURM counts jobs for MinJobAge after their end.


@pytest.mark.long
def test_a_slurm_that_holds_as_many_jobs_as_it_can_is_waited_for(lab, tmp_path, monkeypatch):
    with lab.own_slurm({"MaxJobCount": 6, "MinJobAge": 2, "SelectTypeParameters": "CR_Core"}, nodes=1) as own:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(own.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR))))
        for _ in range(5):
            own.run("sbatch", "--wrap", f"while [ ! -e {own.folder}/go ]; do sleep 0.2; done")
        job = clusterfn.cluster(abs).submit(-1)
        until(lambda: "Slurm temporarily unable to accept job" in job.reason)
        (own.folder / "go").touch()

        assert job.result(WAIT_S) == 1
        assert list(clusterfn.cluster(abs).map(range(-30, 0))) == list(range(30, 0, -1))
