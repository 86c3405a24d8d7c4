"""What is waited for when a program ends: answers that are still to come, and what they lead to."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn.calls import liveness, sending
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.calls.submission_line import WaitingJob
from clusterfn.errors import ClusterfnError, HostError, SubmitError, Unreachable, Unsatisfiable
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.bridge_bundle import HostContents
from clusterfn.hosts.connection import Reply, Spawned, SpawnReply
from clusterfn.hosts.host_state import FollowWindow, HostState
from clusterfn.packing import payload
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import FINAL, PENDING, RUNNING, SchedulerVerdict, Submission
from clusterfn.scheduler.slurm.states import SlurmState
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM
from tests.turns import answered, printed, settle
from tests.waiting import WAIT_S


class Request(Future):
    """A request that the host answers when somebody waits for it."""

    waited_s: float | None = None

    def exception(self, timeout: float | None = None) -> None:
        self.waited_s = timeout
        self.set_result(None)


@pytest.mark.parametrize("has_nodes", [False, True])
def test_a_call_waits_for_the_disk_of_a_cluster_only(has_nodes):
    host = Mock(root="/root", contents=HostContents(), missing=set, scheduler=Mock(has_nodes=has_nodes))

    sending.send_contents(host, payload.pack(len, (bytes(2 << 20),), {}))

    assert host.connection.put.call_args.kwargs["sync"] is has_nodes


def test_a_file_that_is_gone_here_when_the_host_needs_it_again_ends_its_job(tmp_path):
    argument = tmp_path / "data.bin"
    argument.write_bytes(b"data")
    sent = Mock(exception=lambda *_: None)
    upload = Mock(side_effect=lambda: argument.read_bytes() and sent)
    host = Mock(contents=HostContents(), settings=SimpleNamespace(name="lab8"))
    host.send_again = lambda *given: HostState.send_again(host, *given)
    uploads = sending.Uploads(host.contents.send("/root/files/a", upload), {"/root/files/a": upload})
    sending.send_folder(SimpleNamespace(folder="/root/jobs/x", host=host), Mock(), [], uploads)
    needed = host.connection.put_tree.call_args.kwargs["needs"]

    argument.unlink()

    error = loop.start(needed.send_again(["/root/files/a"])).result(WAIT_S)
    assert isinstance(error, HostError) and error.host == "lab8"
    assert "it was not sent again: [Errno 2] No such file or directory: " in error.message


@pytest.fixture
def removal():
    return Request()


@pytest.fixture
def tracker(removal):
    connection = SimpleNamespace(run=lambda argv: removal)
    made = Tracker(Mock(root="/root", connection=connection, settings=SLURM), "7f3a", "train")
    Job(made.run, made.source)
    return made


@pytest.mark.parametrize("kind", [SubmitError, Unsatisfiable])
def test_the_folder_of_a_refused_job_is_gone_before_the_program_ends(tracker, removal, kind):
    tracker.refused(kind("sbatch refused"))

    exit_flush.finish_all()

    assert 0 < removal.waited_s <= 5
    assert exit_flush.unanswered == {}


@pytest.mark.parametrize("error", [Unreachable("it cannot be asked any more"), HostError("the connection is closed")])
def test_the_folder_of_a_job_that_may_run_stays(tracker, removal, error):
    tracker.refused(error)

    exit_flush.finish_all()

    assert removal.waited_s is None


@pytest.mark.parametrize(
    ("status", "err", "started"),
    [
        (1, b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        (0, b"", True),
        (1, b"sbatch: error: invalid partition specified: nosuch", False),
        (1, b"sbatch: error: Batch job submission failed: Access/permission denied", False),
    ],
)
def test_a_job_that_sbatch_may_have_taken_is_not_called_refused(status, err, started):
    host = Mock(scheduler=Slurm(SLURM, "ada"))
    host.connection.run.return_value = printed(b"", err, status)

    told = Future()
    job = Mock(WaitingJob, taken=told.set_result, refused=told.set_exception)

    QueuePlace(host, "/root/jobs/7f3a", "train.7f3a").submit(Submission("run", ("sbatch",), "/"), (), job)

    assert (told.exception(WAIT_S) is None) == started
    assert not started or told.result().doubt is not None


def test_a_withdrawn_job_is_cancelled_only_when_the_scheduler_knows_it():
    asked = []
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    host.bridge.supervise.side_effect = lambda *_, **__: (
        asked.append("conclude") or Mock(result=lambda _: SimpleNamespace(rc=0, out=b'{"won": true}', err=b""))
    )
    host.connection.run.side_effect = lambda argv, **_: (
        asked.append(argv) or Mock(result=lambda _: SimpleNamespace(rc=0, out=b"", err=b""))
    )
    tracker = Tracker(host, "7f3a000011112222", "f")
    starting = tracker.run.queue.expect(Reply(lambda: None))
    starting.future.add_done_callback(lambda _: asked.append("sbatch has answered"))
    threading.Timer(0.1, starting.resolve, (None,)).start()

    assert tracker.run.withdraw()

    cancelled = ("scancel", "--user=ada", "--name=f.7f3a000011112222")
    assert asked == ["sbatch has answered", "conclude", cancelled]


@pytest.mark.parametrize(
    ("scheduler_id", "looks"), [("7", 2), ("", 4)], ids=["in the queue", "another process may be submitting it"]
)
def test_a_job_is_missed_after_some_looks_in_a_row(scheduler_id, looks):
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    tracker = Tracker(host, "7f3a000011112222", "f")
    tracker.run.at.scheduler_id = scheduler_id

    host.connection.have.return_value = Reply(lambda: None)

    def look(seen):
        liveness.scheduler_said(tracker.run, seen)
        settle()

    for _ in range(looks - 1):
        look(None)
    look(SlurmState(RUNNING, "RUNNING", "None", "7"))
    for _ in range(looks - 1):
        look(None)
    assert not host.connection.have.called

    look(None)
    assert host.connection.have.called


def test_a_job_that_can_never_start_is_concluded_at_the_second_look_and_only_then():
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root", settings=SLURM)
    host.bridge.supervise.side_effect = lambda *_, **__: printed(b'{"attempt": null}')
    tracker, asked = Tracker(host, "7f3a000011112222", "f"), []
    for _ in range(3):
        liveness.scheduler_said(tracker.run, SlurmState(PENDING, "PENDING", "QOSMaxGRESPerJob", "7"))
        settle()
        asked.append(host.bridge.supervise.call_count)

    assert asked == [0, 1, 1]


def test_a_job_that_the_host_cannot_conclude_is_given_up_after_two_failures_in_a_row():
    said = [b"no words", b'{"attempt": null}', b"no words", b"no words"]
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root", settings=SLURM)
    host.bridge.supervise.side_effect = lambda *_, **__: printed(said.pop(0))
    host.connection.have.side_effect = lambda _: answered([True])
    tracker, given_up, verdict = Tracker(host, "7f3a000011112222", "f"), [], SchedulerVerdict("lost", "it is gone")
    job = Job(tracker.run, tracker.source)
    for _ in range(4):
        loop.start(liveness.conclude_or_give_up(tracker.run, verdict)).result(WAIT_S)
        settle()
        given_up.append(tracker.run.is_closed)
    assert isinstance(job.exception(WAIT_S), ClusterfnError)

    assert given_up == [False, False, False, True]
    assert host.contents.distrust.called, "the bridge itself may be missing there"


@pytest.mark.parametrize(
    ("answer", "asked_of_slurm"),
    [(b'{"attempt": "1", "won": true}', ["scancel"]), (b'{"attempt": null}', [])],
    ids=["it waits", "it has begun meanwhile"],
)
def test_a_program_that_ends_first_has_a_hopeless_job_taken_out_of_the_queue(answer, asked_of_slurm):
    concluded, cancelled, asked = Reply(lambda: None), printed(), []
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    host.bridge.supervise.return_value = concluded
    host.connection.run.side_effect = lambda argv, **_: asked.append(argv[0]) or cancelled
    verdict = SchedulerVerdict("unsatisfiable", "it asks for too much", withdraw=True)

    run = Tracker(host, "7f3a000011112222", "f").run
    liveness.conclude_and_cancel(run, verdict)
    told = SimpleNamespace(rc=0, out=answer, err=b"")
    threading.Timer(0.1, lambda: concluded.resolve(told)).start()
    exit_flush.finish_all()

    assert asked == asked_of_slurm


@pytest.mark.parametrize(
    ("is_this_machine", "pid", "named"),
    [(True, os.getpid(), f"this program, pid {os.getpid()}, ada"), (True, 1, "pid 1, ada"),
     (False, os.getpid(), f"pid {os.getpid()}, ada")],
    ids=["this program", "another one", "the same number on another machine"],
)  # fmt: skip
def test_a_job_that_waits_for_a_gpu_of_this_program_says_so(is_this_machine, pid, named):
    tracker = Tracker(Mock(root="/root", settings=Mock(is_this_machine=is_this_machine)), "7f3a000011112222", "f")
    tracker.run.queue.queue_reason = f"1 in use without a lease: python3 (pid {pid}, ada); waiting for 1"

    assert tracker.run.queue.waiting_reason == f"1 in use without a lease: python3 ({named}); waiting for 1"


@pytest.mark.parametrize(("phase", "state"), [(RUNNING, "RUNNING"), (FINAL, "SUSPENDED")])
def test_a_suspended_job_runs_again_once_its_scheduler_says_so(phase, state):
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root", follow_window=FollowWindow())
    tracker = Tracker(host, "7f3a000011112222", "f")
    job = Job(tracker.run, tracker.source)
    tracker.run.set_state("SUSPENDED", "by an administrator")

    tracker.on_scheduler(SlurmState(phase, phase.upper(), "None", "7"))

    assert job.state == state


class Told(WaitingJob):
    """A job that keeps what it is told."""

    def __init__(self):
        self.told = []

    def taken(self, started):
        self.told.append("taken")

    def queued(self):
        self.told.append("queued")

    async def script_ended(self):
        self.told.append("ended")


@pytest.mark.parametrize(
    ("status", "told"),
    [(None, ["taken", "queued", "ended"]), (0, ["taken", "ended"]), (Bare("boot").queued_status, ["taken", "queued"])],
    ids=["unknown", "ended", "queued"],
)  # fmt: skip
def test_a_script_whose_end_nobody_saw_is_looked_for_in_the_queue_too(status, told):
    spawned, job, host = SpawnReply(lambda: None), Told(), Mock(scheduler=Bare("boot"))
    host.connection.spawn.return_value = spawned
    spawned.resolve(Spawned(5, 1))
    spawned.exited.resolve(status)

    place = QueuePlace(host, "/root/jobs/7f3a", "train.7f3a")
    place.submit(Submission("spawn", ("job.sh",), "/", "log"), (), job)
    exit_flush.finish_all()
    settle()

    assert job.told == told
    assert place.submissions == [], "what is answered is not kept"
