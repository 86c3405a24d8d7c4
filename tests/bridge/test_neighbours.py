"""Users of one machine who do not trust each other: nobody stops another's queue, and all share alike."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bridge.apart import apart
from tests.bridge.box import waiting_name
from tests.bridge.host import Job
from tests.bridge.layout import layout_bridge
from tests.bridge.neighbours import PYTHON, Neighbour
from tests.bridge.test_queue import ended
from tests.processes import is_running
from tests.waiting import until

NAP = "def f(s):\n    import time\n    time.sleep(s)\n    return s\n"
SHOW = "def f(s=0):\n    import os, time\n    time.sleep(s)\n    return os.environ['CUDA_VISIBLE_DEVICES']\n"
ADA, MAL = 64_011, 64_012  # nobody has these numbers

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes other users"),
    pytest.mark.skipif(PYTHON is None, reason="needs a Python that every user can run"),
]


@pytest.fixture
def street() -> Iterator[Callable[[int], Neighbour]]:
    """Makes users of a machine with two cores."""
    os.umask(0o022)  # what is laid out here is for all of them
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-street-"))
    folder.chmod(0o755)
    bridge = layout_bridge(folder / "bridge", ("queue/lease.py", "_LOCK_S = 100.0", "_LOCK_S = 2.0"))  # some keep it
    two = set(sorted(os.sched_getaffinity(0))[:2])
    there: list[Neighbour] = []

    with apart() as namespace:

        def move_in(uid: int) -> Neighbour:
            there.append(Neighbour(folder, bridge, namespace, uid, two))
            return there[-1]

        yield move_in
        for each in there:
            each.bench.close()
        shutil.rmtree(folder, ignore_errors=True)


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a supervisor ends by itself once its worker is gone
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)))


def gpus(user: Neighbour, wanted: int, seconds: float = 0.0) -> Job:
    return user.job(SHOW, seconds, resources={"gpus": wanted})


def cores(user: Neighbour, wanted: int, seconds: float = 0.0) -> Job:
    return user.job(NAP, seconds, resources={"cores": wanted})


def names_of(user: Neighbour, *kinds: str) -> list[str]:
    starts = tuple(f"{kind}/{user.uid}/" for kind in kinds)
    return sorted(name for name in user.box.apart.names() if name.startswith(starts))


@dataclass
class Scene:
    """Three jobs of a user wait for GPUs and a fourth comes, while another user may hold all names that these need.

    Attributes:
        jobs: All four.
        waited_s: For how long each has waited since GPUs became free, or since it came.
    """

    jobs: list[Job]
    waited_s: list[float]


def play(ada: Neighbour, steal: Callable[[list[str]], contextlib.AbstractContextManager[object]]) -> Scene:
    """Let the jobs' turn come after their spooler was killed; `steal` takes the names first."""
    first, jobs = ada.running(gpus(ada, 2, 600)), [gpus(ada, 1) for _ in range(4)]
    for job in jobs[:3]:
        ada.queued(job)
    until(lambda: ada.box.reason(jobs[0]) and len(names_of(ada, "spool", "wait")) == 2)
    names = names_of(ada, "spool", "wait")
    kill(*ada.box.spoolers())
    until(lambda: not names_of(ada, "spool"))
    runs = [f"run/{uid}/{job.id}/1/1/0" for job in jobs for uid in (f"{ADA}", f"0{ADA}")]
    with steal([*names, *runs, "door"]):
        began = time.time()
        kill(first.worker_pid(), first.supervisor_pid())
        ada.here("queue", str(ada.bench.root))
        came = time.time()
        ada.start(jobs[3])
        assert ended(*jobs) == ["returned"] * 4
    taken = {line["job"]: line["t"] for line in ada.box.holds() if line["event"] == "taken"}
    return Scene(jobs, [taken[job.id] - since for job, since in zip(jobs, [began, began, began, came])])


@pytest.mark.long
@pytest.mark.parametrize("again", [False, True])
def test_who_takes_every_name_of_another_user_first_keeps_none_of_their_jobs_waiting(street, again, table):
    ada, mal = street(ADA), street(MAL)
    alone = play(ada, lambda names: contextlib.nullcontext())
    thieves = []

    @contextlib.contextmanager
    def steal(names: list[str]) -> Iterator[None]:
        with mal.binds(*names, again=again) as thief:
            thieves.append(thief)
            yield
            assert thief.poll() is None

    robbed = play(ada, steal)

    table(f"waited alone {alone.waited_s}, beside the thief {robbed.waited_s}")
    for without, beside in zip(alone.waited_s, robbed.waited_s):
        assert beside - without <= 18  # four of them wait 2 s for the lock
    told = ada.box.machine.joinpath("spooler.log").read_text() + "".join(job.log() for job in robbed.jobs)
    assert f"{MAL} (pid {thieves[0].pid}) has bound the name" in told


def test_false_names_of_another_user_take_and_keep_nothing(street):
    ada, mal = street(ADA), street(MAL)
    job = cores(ada, 2)
    far, old = f"wait/{MAL}/1/99999999/2/2/0/cccccccccccccccc~9//0", f"wait/{MAL}/1/2/2/0/dddddddddddddddd"
    with mal.binds(f"run/{ADA}/aaaaaaaaaaaaaaaa/2/2/99999999", waiting_name(ADA, 2, cores=2), far, old):
        assert ada.start(job).wait(150) == 0, job.log()
        assert job.outcome()["kind"] == "returned"


@pytest.mark.parametrize(
    ("asked", "name", "why"),
    [
        ({"cores": 2}, lambda: f"run/{MAL}/aaaaaaaaaaaaaaaa/0/2/0", f"cores held by {MAL} (2)"),
        ({"memory_bytes": 1 << 28}, lambda: f"run/{MAL}/a/0/0/99999999", f"MB of memory held by {MAL} (99999999)"),
        ({"cores": 2}, lambda: waiting_name(MAL, 0, cores=2), f"1 job before it; {MAL} is next"),
        ({"gpus": 1}, lambda: waiting_name(MAL, 2), f"reserved for {MAL}'s earlier 2-GPU job"),
    ],
    ids=["cores", "memory", "a place", "reserved GPUs"],
)
def test_who_keeps_a_job_waiting_is_named_whatever_they_hold(
    street, asked: dict[str, int], name: Callable[[], str], why: str
):
    ada, mal = street(ADA), street(MAL)
    job = ada.job(SHOW if "gpus" in asked else NAP, 0.0, resources=asked)
    with mal.binds(name()):
        ada.queued(job)
        until(lambda: why in ada.box.reason(job))
    assert ended(job) == ["returned"]


def test_who_holds_a_gpu_for_no_job_is_named_with_the_process(street):
    ada, mal = street(ADA), street(MAL)
    job = gpus(ada, 1)
    with mal.binds(*[f"gpu/{ada.box.uuid(number)}" for number in range(2)]) as thief:
        ada.queued(job)

        held = f"2 of 2 GPUs held by {MAL} (2); {MAL} holds GPUs for no job of clusterfn (pid {thief.pid})"
        until(lambda: ada.box.reason(job) == f"{held}; waiting for 1")
    assert ended(job) == ["returned"]


def test_where_the_kernel_does_not_say_who_bound_a_name_a_taken_name_keeps_nobody_waiting_either(street):
    """Linux before 5.3: SO_PEERCRED of the holder says it."""
    ada, mal = street(ADA), street(MAL)
    (table,) = ada.bench.bridge.rglob("queue/lease.py")
    text = table.read_text()
    assert "_SHOW_UID = 1, 0x40" in text
    table.write_text(text.replace("_SHOW_UID = 1, 0x40", "_SHOW_UID = 1, 0"))
    job = cores(ada, 1)

    with mal.binds(f"run/{ADA}/{job.id}/0/1/0"):
        assert ada.start(job).wait(150) == 0, job.log()

    assert job.outcome()["kind"] == "returned"


def test_what_shares_the_cores_in_time_keeps_no_other_user_waiting(street):
    """Jobs of one's own machine, and of a host whose limits allow more cores than there are."""
    ada, mal = street(ADA), street(MAL)
    local = [ada.running(ada.job(NAP, 600, scheduler="local", resources={"cores": 2})) for _ in range(2)]
    more = ada.running(ada.job(NAP, 600, limits={"cores": 8}, resources={"cores": 2}))
    job = cores(mal, 2)

    assert mal.start(job).wait(150) == 0, job.log()

    fourth = ada.job(NAP, 0, scheduler="local", resources={"cores": 3})
    ada.queued(fourth)
    until(lambda: ada.box.reason(fourth) == "waiting for your own jobs: limits: {cores: 8}")
    for each in (*local, more):
        kill(each.worker_pid(), each.supervisor_pid())
    assert ended(fourth) == ["returned"]


def test_who_takes_all_cpu_names_only_changes_which_cpus_a_job_gets(street):
    ada, mal = street(ADA), street(MAL)
    job = ada.job("def f():\n    import os\n    return len(os.sched_getaffinity(0))\n", resources={"cores": 1})
    with mal.binds(*[f"cpu/{cpu}" for cpu in os.sched_getaffinity(0)]):
        assert ada.start(job).wait(150) == 0, job.log()

    assert job.value() == 1
