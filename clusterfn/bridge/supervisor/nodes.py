"""A job or an item of several tasks, on one node or more: its attempt runs the first task, which starts the others.

One job keeps one outcome: the value is the first task's, the error that of the task that failed first. What ends the
attempt ends its launcher, and the other nodes see within a second that it has ended. They never conclude the job:
each puts its outcome into the attempt's folder, where the first one reads it.
"""

import json
import os
import signal
import sys
import time

from .. import layout
from ..agent.libc import become_subreaper, die_with_parent
from . import process_tree, publish, rendezvous, worker_process
from .attempt import Attempt, RunnableAttempt
from .classify_exit import describe_signal
from .job import JobFolder
from .limits import clock
from .publish import last_bytes
from .run import AttemptRun, run_through
from .text import last_lines, masked, portable
from .verdict import EXIT_LEFT_TO_AFTER, AttemptEnded, Verdict, document, exit_code, log_line
from .watch import EndWatch, Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import WholeAttempt

# Each look asks a shared file system.
_LOOK_EVERY_S = 1.0
_TICK_S = 0.2
# The launcher may be gone before what a node wrote is seen here, or before the signal that ends all nodes.
_SETTLE_S = 5.0
# The launcher waits as long as it takes for nodes that are busy, but these are the job's own.
_START_S = 300.0
# An error here may follow from an error on another node, whose report is on its way.
_CAUSE_S = 1.0
_FACTS = ("stage", "code", "signal", "evidence", "hint", "exception", "value", "notes", "node", "transient", "asked")


class Head(AttemptRun):
    """The attempt on the first node, and through it the others."""

    def __init__(self, job: JobFolder, attempt: "WholeAttempt", watch: EndWatch) -> None:
        super().__init__(job, attempt, watch)
        self._whole = attempt
        self._others = Others(job, attempt, self._secrets)
        # clusterfn's own launcher ends with the other nodes.
        self.processes.spared = self._others.processes
        self._looks = False

    def start(self) -> None:
        """Publish the address of the first node, start the worker here, then the other nodes."""
        nodes, tasks = self.job.tasks
        scheduler = self.job.scheduler
        os.environ.update(rendezvous.place(scheduler), **rendezvous.variables(scheduler, 0, nodes, tasks))
        super().start()
        self._others.start(nodes, tasks)

    def _turn(self) -> None:
        super()._turn()
        if self._looks and self._done is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        failed = self._others.failure()
        if failed is None and self._others.are_silent() and not self.watch.is_ending():
            found = self.job.scheduler.ending(self.job.path(layout.SCHEDULER_LOG))
            failed = found if found is not None and found.kind else self._others.silence()
        if failed is not None:
            raise AttemptEnded(failed)

    def result(self) -> Verdict:
        """The first node's, once all others have returned; of what it holds, soon after its end.

        Raises:
            AttemptEnded: Another node failed first, or something else ended the job.
        """
        self._looks = True
        try:
            verdict = super().result()
        finally:
            self._looks = False
        ended, since = time.time(), clock.now()
        while self._waits(verdict, since):
            self._turn()
            self.watch.look()
            if verdict.kind == layout.RETURNED:
                self._raise_failure()
        cause = self._others.failure(ended)
        if cause is not None:
            raise AttemptEnded(cause)
        return verdict

    def _waits(self, verdict: Verdict, since: float) -> bool:
        if verdict.kind == layout.RETURNED:
            return not self._others.have_returned()
        self._others.look_now()
        return clock.now() - since < _CAUSE_S and self._others.failure() is None

    def publish(self, verdict: Verdict) -> bool:
        """Publish; put what another node raised where the first one's would be."""
        if verdict.kept and verdict.value:
            os.rename(verdict.kept, self.attempt.path(layout.VALUE))
        return super().publish(verdict)

    def release(self) -> None:
        """Give the other nodes, which see that there is an outcome, the time to end what they started."""
        concluded = self._whole.has_ended()
        until = time.monotonic() + (self.job.spec["grace_s"] if concluded else 0.0)
        while self._others.processes() and time.monotonic() < until:
            time.sleep(_TICK_S)
            self.processes.reap()
        process_tree.end(lambda: sorted(self._others.processes()), self.processes.reap)
        super().release()


class Others:
    """The job on its other nodes."""

    def __init__(self, job: JobFolder, attempt: "WholeAttempt", secrets: "list[str]") -> None:
        self._job = job
        self._nodes = attempt.path(layout.NODES)
        self._words = [str(attempt.number), *attempt.words_of_tasks()]
        self._secrets = secrets
        self._log = attempt.path(layout.LAUNCH_LOG)
        self.launcher_pid = 0
        self._ended: "dict[int, dict[str, Any]]" = {}
        self.ranks: "list[int]" = []
        self._next = 0.0
        self._gone: "Optional[float]" = None
        self._late = float("inf")

    def start(self, nodes: int, tasks: int) -> None:
        """Start them; raise AttemptEnded if there is no launcher."""
        self.ranks = list(range(1, nodes * tasks))
        os.makedirs(self._nodes, mode=0o700, exist_ok=True)
        folder = self._job.folder
        cores = self._job.spec["resources"]["cores"]
        launcher = self._job.scheduler.launch_command(nodes, tasks, cores, folder)
        program = os.path.join(self._job.spec["bridge"], layout.SUPERVISE)
        argv = [*launcher, sys.executable, "-I", "-S", program, "node", folder, *self._words]
        parent = os.getpid()
        self._late = clock.now() + _START_S
        self.launcher_pid = os.fork()
        if self.launcher_pid == 0:
            _become(argv, self._log, parent)

    def processes(self) -> "set[int]":
        """Return the pids of the launcher and of what it forked: srun has a helper, which outlives it by a moment."""
        if not self.launcher_pid:
            return set()
        own = process_tree.descendants(os.getpid())
        left = [pid for pid in own if process_tree.session_of(pid) == self.launcher_pid]
        return {*left, *process_tree.descendants(self.launcher_pid)}

    def look_now(self) -> None:
        """Read the files again at the next question."""
        self._next = 0.0

    def _look(self) -> None:
        if self._gone is None and not process_tree.is_alive(self.launcher_pid):
            self._gone = self._next = clock.now()
        if clock.now() < self._next:
            return
        self._next = clock.now() + _LOOK_EVERY_S
        for rank in self.ranks:
            folder = self._folder(rank)
            if rank in self._ended or not publish.is_there(folder, layout.OUTCOME):
                continue
            data = publish.read(folder, layout.OUTCOME)
            if data is not None:
                self._ended[rank] = json.loads(data.decode())

    def _folder(self, rank: int) -> str:
        return os.path.join(self._nodes, str(rank))

    def have_returned(self) -> bool:
        self._look()
        return len(self._ended) == len(self.ranks) and self.failure() is None

    def failure(self, before: "Optional[float]" = None) -> "Optional[Verdict]":
        """What the node that failed first said, if it was before that time of the wall clock; None if none did."""
        self._look()
        failed = [rank for rank, end in self._ended.items() if end["kind"] != layout.RETURNED]
        if not failed:
            return None
        first = min(failed, key=lambda rank: float(self._ended[rank]["t"]))
        end = self._ended[first]
        if before is not None and end["t"] > before:
            return None
        facts = {name: end[name] for name in _FACTS}
        which = "rank %d" % first if self._job.tasks[1] > 1 else "one"
        message = "on node %s, %s of %d: %s" % (end["node"], which, len(self.ranks) + 1, end["message"])
        return Verdict(end["kind"], message, kept=os.path.join(self._folder(first), layout.VALUE), **facts)

    def are_silent(self) -> bool:
        """Whether the launcher ended some time ago, and not all nodes left a word; or it has started none so far."""
        self._look()
        if len(self._ended) == len(self.ranks):
            return False
        if self._gone is None:
            return clock.now() >= self._late and not self._begun()
        return clock.now() >= self._gone + _SETTLE_S

    def _begun(self) -> "list[int]":
        return [rank for rank in self.ranks if os.path.exists(self._folder(rank))]

    def silence(self) -> Verdict:
        """Return the verdict on silent nodes: a supervisor was ended, or none was ever started."""
        begun = [rank for rank in self._begun() if rank not in self._ended]
        said = masked(last_lines(last_bytes(self._log)), self._secrets)
        if begun:
            message = "the supervisor on another node of the job (rank %d) ended without a word" % begun[0]
            return Verdict(layout.LOST, message, stage="supervisor", evidence=said or None, hint="call again")
        scheduler = self._job.scheduler
        message = "%s could not start the function on the other nodes of the job" % scheduler.launcher
        return Verdict(layout.NODE, message, stage="start", evidence=said or None, hint=scheduler.launcher_hint)


def _become(argv: "list[str]", log: str, parent: int) -> None:
    """Be the launcher, which ends with the supervisor; after a fork nothing else may run on."""
    try:
        # What it forks is known by its session.
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        worker_process.start_afresh(out, out)
        die_with_parent(signal.SIGKILL, parent)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, ("%s: %s\n" % (argv[0], error)).encode())
    finally:
        os._exit(127)


class NodeJob(JobFolder):
    """The job, but for what is asked of the first node alone, and the log of what started this one.

    Args:
        folder: Of the job, or of the element whose item it is.
        item: The words of `ItemAttempt.words_of_tasks`; none for a job.

    Attributes:
        shared: The attempt.
        over: The attempt whose outcome ends this task: that of the job, or what stands for that of the item.
        nodes: The folder with that of each task.
        rank: Which of the tasks this is.
        own: The working folder of an item below that of the attempt, and offset and size of its arguments.
    """

    def __init__(self, folder: str, attempt: int, item: "tuple[str, ...]" = ()) -> None:
        super().__init__(folder)
        self.shared, self.over = Attempt(self, attempt), Attempt(self, attempt)
        self.nodes = self.shared.path(layout.NODES)
        self.own = item[1:]
        if item:
            self.nodes = self.over.folder = os.path.join(self.nodes, item[0])
        self.rank = self.scheduler.rank(self.tasks[1])

    def path(self, *names: str) -> str:
        """Return a path of the job, but of this node for its log and for requests for stacks."""
        if names[0] == layout.STACK:
            return os.path.join(self.nodes, str(self.rank), layout.STACK)
        if names[0] == layout.SCHEDULER_LOG:
            return os.path.join(self.over.folder, layout.LAUNCH_LOG)
        return super().path(*names)


class NodeAttempt(RunnableAttempt):
    """The attempt on one node; the first node records its events."""

    def __init__(self, job: NodeJob) -> None:
        self.number = job.shared.number
        self.folder = os.path.join(job.nodes, str(job.rank))
        self._job = job
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def path(self, name: str) -> str:
        """Return a path in the node's folder; all nodes share the working directory."""
        if name != layout.WORK:
            return os.path.join(self.folder, name)
        return os.path.join(self._job.shared.path(layout.WORK), *self._job.own[:1])

    def call(self) -> "list[str]":
        """What the worker gets: where it writes, and that its value is not wanted."""
        return [self.folder, self._job.home, *self._job.own[1:], "discard"]

    def variables(self) -> "dict[str, str]":
        return {layout.INDEX_VARIABLE: self._job.own[0]} if self._job.own else {}

    def publish(self, verdict: Verdict) -> bool:
        """Inform the supervisor on the first node, with the time by the clock of this one."""
        outcome = document(self._job.id, self.number, verdict)
        outcome.update(t=time.time(), transient=portable(verdict.transient), asked=verdict.asked)
        return publish.publish(self.folder, layout.OUTCOME, (json.dumps(outcome) + "\n").encode())


def run_on_node(folder: str, attempt: str, *item: str) -> int:
    """Run a task on this node; by the exit status the launcher knows whether to end the others.

    The scheduler starts it as `supervise.py node JOB ATTEMPT [ITEM …]`. The process that waits here ends what a killed
    supervisor leaves behind.
    """
    job = NodeJob(folder, int(attempt), item)
    # The first task runs below the job's own supervisor.
    if job.rank == 0:
        return layout.EXIT_RETURNED
    become_subreaper()
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return _guard(pid)
    die_with_parent(signal.SIGTERM, guard)
    become_subreaper()
    signals = Signals()
    os.environ.update(rendezvous.variables(job.scheduler, job.rank, *job.tasks))
    work = AttemptRun(job, NodeAttempt(job), EndWatch(job, job.over, signals, also_ended_by=job.shared.folder))
    verdict, alive = run_through(work)
    if verdict.kind is None:
        log_line("on %s: %s" % (job.node, verdict.message))
        return EXIT_LEFT_TO_AFTER
    work.publish(verdict)
    if alive:
        work.finish()
    return exit_code(verdict, True)


def _guard(pid: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: process_tree.send_signal([pid], signal.SIGTERM))
    die_with_parent(signal.SIGTERM, os.getppid())
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    log_line("the supervisor on this node was ended by %s" % describe_signal(os.WTERMSIG(status)))
    process_tree.end(lambda: process_tree.descendants(os.getpid()), lambda: list(process_tree.collected()))
    return 128 + os.WTERMSIG(status)
