"""What is waited for when a program ends: answers that are still to come, and what they lead to."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn.calls import payload, submit
from clusterfn.calls.job_tracker import Tracker
from clusterfn.errors import HostError, SubmitError, Unreachable, Unsatisfiable
from clusterfn.hosts import exit_flush
from clusterfn.hosts.host_contents import HostContents
from clusterfn.scheduler.base import RUNNING, JobState, Submission
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM


class Request(Future):
    """A request that the host answers when somebody waits for it."""

    waited_s: float | None = None

    def exception(self, timeout: float | None = None) -> None:
        self.waited_s = timeout
        self.set_result(None)


@pytest.mark.parametrize("has_nodes", [False, True])
def test_a_call_waits_for_the_disk_of_a_cluster_only(has_nodes):
    session = Mock(root="/root", contents=HostContents(), missing=set, scheduler=Mock(has_nodes=has_nodes))

    submit.send_contents(session, payload.pack(len, (bytes(2 << 20),), {}))

    assert session.connection.put.call_args.kwargs["sync"] == (True if has_nodes else "later")


def test_a_file_that_is_gone_here_when_the_host_needs_it_again_ends_its_job(tmp_path):
    argument = tmp_path / "data.bin"
    argument.write_bytes(b"data")
    sent, gone_on = Mock(exception=lambda *_: None), Future()
    upload = Mock(side_effect=lambda: argument.read_bytes() and sent)
    session = Mock(contents=HostContents(), host=SimpleNamespace(name="lab8"))
    uploads = submit.Uploads(session.contents.send("/root/files/a", upload), {"/root/files/a": upload})
    submit.send_folder(session, SimpleNamespace(folder="/root/jobs/x"), Mock(), [], uploads)
    needed = session.connection.put_tree.call_args.kwargs["needs"]
    sent.add_done_callback.call_args.args[0](sent)

    argument.unlink()
    needed.on_lacking(["/root/files/a"], gone_on.set_result)

    error = gone_on.result(20)
    assert isinstance(error, HostError) and error.host == "lab8"
    assert "it was not sent again: [Errno 2] No such file or directory: " in error.message


def refuse(tracker, kind=SubmitError):
    submit.JobSubmission(tracker, SimpleNamespace(on_refused=print)).on_not_started(kind("sbatch refused"))


@pytest.fixture
def tracker():
    removal = Request()
    connection = SimpleNamespace(run=lambda argv: removal)
    session = SimpleNamespace(host=SimpleNamespace(name="cluster"))
    known = {"connection": connection, "session": session, "folder": "/root/jobs/x", "sending": None}
    return SimpleNamespace(**known, removal=removal, end=lambda: None)


@pytest.mark.parametrize("kind", [SubmitError, Unsatisfiable])
def test_the_folder_of_a_refused_job_is_gone_before_the_program_ends(tracker, kind):
    refuse(tracker, kind)

    exit_flush.finish_all()

    assert 0 < tracker.removal.waited_s <= 5
    assert exit_flush.unanswered == {}


def test_so_is_that_of_one_that_is_refused_while_the_program_ends(tracker):
    submission = Request()
    submission.add_done_callback(lambda _: refuse(tracker))
    exit_flush.await_at_exit(submission)

    exit_flush.finish_all()

    assert tracker.removal.waited_s is not None
    assert exit_flush.unanswered == {}


@pytest.mark.parametrize("error", [Unreachable("it cannot be asked any more"), HostError("the connection is closed")])
def test_the_folder_of_a_job_that_may_run_stays(tracker, error):
    submit.JobSubmission(tracker, SimpleNamespace(on_refused=print)).on_not_started(error)

    exit_flush.finish_all()

    assert tracker.removal.waited_s is None


@pytest.mark.parametrize(
    ("status", "err", "started"),
    [
        (1, b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        (0, b"", True),
        (1, b"sbatch: error: invalid partition specified: nosuch", False),
    ],
)
def test_a_job_that_sbatch_may_have_taken_is_not_called_refused(status, err, started):
    answered, told = Future(), Mock()
    answered.id = 7
    session = Mock(scheduler=Slurm(SLURM, "ada"))
    session.connection.run.return_value = answered

    submit.start(session, Submission("run", ("sbatch",), "/"), (), told)
    answered.set_result(SimpleNamespace(rc=status, out=b"", err=err))

    assert (told.on_started.called, told.on_not_started.called) == (started, not started)


def test_a_withdrawn_job_is_cancelled_only_when_the_scheduler_knows_it():
    asked = []
    session = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    session.supervise.side_effect = lambda *_, **__: (
        asked.append("conclude") or Mock(result=lambda _: SimpleNamespace(rc=0, out=b'{"won": true}', err=b""))
    )
    session.connection.run.side_effect = lambda *_, **__: (
        asked.append("scancel") or Mock(result=lambda _: SimpleNamespace(rc=0, out=b"", err=b""))
    )
    tracker = Tracker(session, "7f3a000011112222", "f")
    tracker.submission = Mock(exception=lambda _: asked.append("sbatch has answered"))

    assert tracker.withdraw()

    assert asked == ["sbatch has answered", "conclude", "scancel"]


def test_a_job_is_missed_at_the_second_look_in_a_row():
    session = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    tracker = Tracker(session, "7f3a000011112222", "f")
    tracker.scheduler_id = "7"

    tracker.liveness.scheduler_said(None)
    tracker.liveness.scheduler_said(JobState(RUNNING, "RUNNING", "None", "7"))
    tracker.liveness.scheduler_said(None)
    assert not session.connection.have.called

    tracker.liveness.scheduler_said(None)
    assert session.connection.have.called
