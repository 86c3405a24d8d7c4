"""The job on one node but the first: the same attempt, seen through by the same `Run`, told to the supervisor there.

The scheduler starts it as `supervise.py node JOB ATTEMPT`. It never concludes the job: its outcome is put into the
attempt's folder, where `nodes` reads it. It ends what it started as soon as the attempt has an outcome, or on request.
"""

import json
import os
import signal
import time

from ..layout import EXIT_PUBLISHED, EXIT_RETURNED, LAUNCH_LOG, NODES, OUTCOME, RETURNED, SCHEDULER_LOG, STACK, WORK
from . import process_tree, publish, rendezvous, worker_process
from .attempt import Attempt
from .classify_exit import describe_signal
from .job import JobFolder
from .run import AttemptRun, run_through
from .text import portable
from .verdict import document, say
from .watch import EndWatch, Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EXIT_NO_WORD = 143


class NodeJob(JobFolder):
    """The job, but for what is asked of the first node alone, and the log of what started this one."""

    def __init__(self, folder: str, attempt: int) -> None:
        super().__init__(folder)
        self.shared = Attempt(self, attempt)
        self.rank = self.scheduler.rank()

    def path(self, *names: str) -> str:
        """As the job's."""
        if names[0] == STACK:
            return os.path.join(self.shared.path(NODES), str(self.rank), STACK)
        return self.shared.path(LAUNCH_LOG) if names[0] == SCHEDULER_LOG else super().path(*names)


class NodeAttempt:
    """The attempt on one node, as `AttemptRun` needs it.

    Args:
        job: The job.
    """

    def __init__(self, job: NodeJob) -> None:
        self.number = job.shared.number
        self.folder = os.path.join(job.shared.path(NODES), str(job.rank))
        self._job = job
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def path(self, name: str) -> str:
        """A path in the node's folder; all nodes work in one."""
        return self._job.shared.path(WORK) if name == WORK else os.path.join(self.folder, name)

    def call(self) -> "list[str]":
        """What the worker is told: where it writes, and that its value is not wanted."""
        return [self.folder, self._job.folder]

    def wait(self, reason: str) -> None:
        """Told by the first node."""

    def begin(self) -> bool:
        """Return True: the first node has begun the attempt."""
        return True

    def event(self, name: str, **facts: "Any") -> None:
        """Told by the first node."""

    def beat(self) -> None:
        """The first node's heart beats."""

    def publish(self, kind: str, facts: "dict[str, Any]") -> bool:
        """Tell the supervisor on the first node, and when it was by the clock of this one."""
        outcome = document(self._job.id, self.number, kind, portable(facts))
        outcome.update(t=time.time(), transient=facts.get("transient"))
        return publish.publish(self.folder, OUTCOME, (json.dumps(outcome) + "\n").encode())


def run(folder: str, attempt: str) -> int:
    """See the function through on this node; the exit status tells its launcher whether to end the others.

    What a supervisor that is killed leaves behind is ended by the process that waits for it here.
    """
    worker_process.become_subreaper()
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return _guard(pid)
    worker_process.die_with_parent(signal.SIGTERM, guard)
    worker_process.become_subreaper()
    return _supervise(folder, attempt, Signals())


def _guard(pid: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: _tell(pid))
    worker_process.die_with_parent(signal.SIGTERM, os.getppid())
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    say("the supervisor on this node was ended by %s" % describe_signal(os.WTERMSIG(status)))
    process_tree.end(lambda: process_tree.descendants(os.getpid()), _reap)
    return 128 + os.WTERMSIG(status)


def _tell(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it has just ended
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:  # none is left
        return


def _supervise(folder: str, attempt: str, signals: Signals) -> int:
    job = NodeJob(folder, int(attempt))
    os.environ.update(rendezvous.variables(job.scheduler, job.rank, job.spec["resources"]["nodes"]))
    work = AttemptRun(job, NodeAttempt(job), EndWatch(job, job.shared, signals))
    verdict, alive = run_through(work)
    if verdict.kind is None:
        say("on %s: %s" % (job.node, verdict.facts["message"]))
        return _EXIT_NO_WORD
    work.publish(verdict)
    if alive:
        work.finish()
    return EXIT_RETURNED if verdict.kind == RETURNED else EXIT_PUBLISHED
