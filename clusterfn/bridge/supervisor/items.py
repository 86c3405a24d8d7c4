"""The items of a group: an element claims chunks, runs their items one by one, and takes over from dead elements.

To everything else an element is a job: `main` has claimed it and fenced its earlier attempts, `conclude` concludes it
if this process dies. Each item runs in the same `AttemptLoop` as a job and ends as a line of the element's
journal. Between two items, the element may yield to another user who waits for GPUs. Then it gives back what it has,
and waits in the queue like a job that has not begun.
"""

import contextlib
import errno
import os
import time

from .. import layout
from . import group, publish
from .attempt import SETTLE_S, WholeAttempt
from .attempt_loop import AttemptLoop, nothing_can_be_written
from .awaiting import await_values, known_inputs
from .dependencies import keep_exception
from .group import ItemRecorder
from .group_files import NO_ELEMENT
from .job import describe_place
from .limits import clock
from .run import ensure_environment, look_at_bridge
from .verdict import AttemptEnded, Verdict, concluded_by_another, exit_code, log_line, print_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import Attempt
    from .group_files import ItemJournal
    from .job import JobFolder
    from .run import AttemptRun
    from .watch import EndWatch

_TURN_S = 0.1
# SLURM is asked for a minute in addition, of which this is a part.
_SPARE_S = 30.0
# To look who waits takes as long as a tenth of a short item, and so does a look at the files of the bridge.
_YIELD_EVERY_S = 0.1
_BRIDGE_EVERY_S = 0.1
# On a busy disk, to cut a file short takes longer than a short item. The next item writes over a smaller one.
_LARGE = 1 << 20


def gave_way(written: int) -> Verdict:
    """Return the verdict on an element that has given back what it had, and waits in the queue again."""
    message = "it gave way to another user who waits, after %d items, and waits in the queue again" % written
    return Verdict(layout.PREEMPTED, message, stage="queue", exit_status=layout.EXIT_QUEUED)


def see_through(job: "JobFolder", attempt: "Attempt", watch: "EndWatch") -> int:
    """Pull until nothing is left for it, and publish how that went; the exit code of the process."""
    try:
        attempt.prepare()
        attempt.event("starting", pid=os.getpid(), **describe_place(job))
        verdict = ElementRun(job, attempt, watch).pull()
    except AttemptEnded as ended:
        verdict = ended.verdict
    except OSError as error:
        if error.errno not in layout.DISK_ERRORS:
            raise
        verdict = nothing_can_be_written(error, attempt.folder)
    finally:
        job.workers.close()
    if verdict.kind is None:
        log_line(verdict.message)
        return exit_code(verdict, False)
    won = attempt.publish(verdict.replace(by="supervisor", node=job.node))
    group.conclude_if_complete(job)
    print_state(attempt.number, verdict.kind, won)
    return exit_code(verdict, won)


class ElementRun(ItemRecorder):
    """One attempt of an element."""

    _next_yield = _next_bridge = 0.0

    def __init__(self, job: "JobFolder", attempt: "Attempt", watch: "EndWatch") -> None:
        super().__init__(job, attempt, sync=job.scheduler.has_nodes)
        self.watch = watch
        self._ends = self.chunks.ends()
        self._inputs = known_inputs(job)
        # The last moment at which an item can begin and still have its time before the scheduler ends the element.
        element_s, item_s = job.spec["group"]["element_s"], job.spec["resources"]["time_s"]
        self._until: "Optional[float]" = None
        if element_s and item_s:
            self._until = clock.now() + element_s - item_s + _SPARE_S
        self._took: "list[float]" = []

    def pull(self) -> Verdict:
        """Run what there is to run, and return why nothing is left; raise AttemptEnded if the element must end."""
        if self.job.spec.get("after"):
            await_values(self.job, self.attempt, self.watch)
        ensure_environment(self.job, self.attempt, self.watch)
        for chunk in self.pulled(self.job.spec["group"]["per_element"]):
            if not self._run(chunk):
                return Verdict(layout.RETURNED, "its time is over, after %d items" % self.written)
        return Verdict(layout.RETURNED, "nothing is left to do, after %d items" % self.written)

    def share(self) -> int:
        """As many as fill the time that one is to have by what those before took; one to see how long it takes."""
        spec = self.job.spec["group"]
        if spec["aim_s"] is None:
            return int(spec["chunk"])
        if not self._took:
            return 1
        mean_s = sum(self._took) / len(self._took)
        return max(1, min(int(spec["chunk"]), int(spec["aim_s"] / mean_s)))

    def settle(self) -> None:
        """Wait likewise, but look at what may end this element."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            self.watch.look()
            time.sleep(_TURN_S)

    def _run(self, chunk: int) -> bool:
        """Run its items; False if no other may begin as its time is over."""
        for index in self.left(chunk):
            if self.written and self._is_late():
                return False
            try:
                self.watch.look()
                self.give_way(chunk)
                failed = self._inputs.failure(index) if self._inputs is not None else None
                if failed is not None:
                    self._fail(index, failed)
                    continue
                self._look_at_bridge()
                self._run_item(index)
            except AttemptEnded as ended:
                if ended.verdict.kind == layout.CANCELLED:
                    self._give_up(chunk, ended.verdict)
                raise
        self.finish(chunk)
        return True

    def give_way(self, chunk: int) -> None:
        """Wait in the queue again if it must, but for the first item: each turn is good for one."""
        number = self.job.element or NO_ELEMENT
        if not self.written or time.monotonic() < self._next_yield:
            return
        self._next_yield = time.monotonic() + _YIELD_EVERY_S
        if self.job.held.yield_to_other_users(lambda: self.chunks.give_back(chunk, number)):
            raise AttemptEnded(gave_way(self.written))

    def _look_at_bridge(self) -> None:
        if time.monotonic() >= self._next_bridge:
            self._next_bridge = time.monotonic() + _BRIDGE_EVERY_S
            look_at_bridge(self.job)

    def _give_up(self, chunk: int, verdict: Verdict) -> None:
        ended, _ = self.chunks.past(chunk)
        for index in self.chunks.items(chunk):
            if index not in ended:
                self.tell(index, verdict)
        self.finish(chunk)

    def _fail(self, index: int, verdict: Verdict) -> None:
        """Write the end of an item whose input has no value, with the exception of that."""
        path = self.attempt.path(layout.VALUE)
        self.journal.end(index, keep_exception(verdict, path), path)
        self.written += 1

    def _run_item(self, index: int) -> None:
        begin = self._ends[index - 1] if index else 0
        began = clock.now()
        place = (begin, self._ends[index] - begin)
        before = self.before.pop(index, [])
        self.watch.time_s = self.job.spec["resources"]["time_s"]
        item = ItemAttempt(self.attempt, self.journal, index, place, before)
        verdict = ItemLoop(self.job, item, self.watch).see_through()
        self.written += 1
        self._took.append(clock.now() - began)
        # The environment has been checked, and need not be checked for the next item.
        self.job.spec["building"] = None
        if verdict.kind == layout.CANCELLED:
            raise AttemptEnded(verdict)

    def _is_late(self) -> bool:
        """Whether the scheduler would end another item with the element; without `time` by what the longest took."""
        if self._until is not None:
            return clock.now() > self._until
        ends = self.job.scheduler.end_time()
        return ends is not None and time.time() + max(self._took, default=0.0) + _SPARE_S > ends + clock.stopped_s


class ItemAttempt(WholeAttempt):
    """One item's attempt, as `AttemptRun` needs it.

    Args:
        attempt: The element's.
        place: Offset and size of its arguments in items.pkl.
        before: What was said of each time that it ran and was followed by another.
    """

    def __init__(
        self, attempt: "Attempt", journal: "ItemJournal", index: int, place: "tuple[int, int]", before: "list[str]"
    ) -> None:
        self.number = attempt.number
        self.folder = attempt.folder
        self._attempt = attempt
        self._journal = journal
        self._index = index
        self._place = place
        self.before = before
        self._waited = False
        self._tasks = os.path.join(layout.NODES, "%d.%d" % (index, len(before) + 1))
        self._own = {
            layout.WORK: os.path.join(layout.WORK, str(index)),
            layout.USAGE: layout.item_usage(index),
            layout.NODES: self._tasks,
            layout.LAUNCH_LOG: os.path.join(self._tasks, layout.LAUNCH_LOG),
        }
        self._from = [0, 0]

    def path(self, name: str) -> str:
        """As the element's; a folder to work in and a file of what it uses are its own."""
        return self._attempt.path(self._own.get(name, name))

    def call(self) -> "list[str]":
        return [self.folder, self._attempt.job.home, *map(str, self._place)]

    def variables(self) -> "dict[str, str]":
        """Return which item it is, by which `clusterfn.checkpoint()` names the item's folder."""
        return {layout.INDEX_VARIABLE: str(self._index)}

    def words_of_tasks(self) -> "list[str]":
        """Return the names of the folders of its other tasks and of its work, and where its arguments are."""
        return [os.path.basename(self._tasks), str(self._index), *map(str, self._place)]

    def has_ended(self) -> bool:
        """Write for its other tasks that it has ended, as its own outcome is a line in the journal."""
        # The item ended before its other tasks were started.
        if not os.path.isdir(self.path(layout.NODES)):
            return True
        try:
            publish.publish(self.path(layout.NODES), layout.OUTCOME, b"{}")
        except OSError:
            # The disk is full, and the launcher of the other tasks is ended at once.
            return False
        return True

    def prepare(self) -> None:
        """Note where its output begins in that of the element."""
        self._from = [_size(self._attempt.path(name)) for name in (layout.STDOUT, layout.STDERR)]

    def wait(self, reason: str) -> None:
        self._waited = True
        self._attempt.event("pending", reason=reason)

    def begin(self) -> bool:
        self._look_at_fence()
        publish.once_there_is_room(lambda: os.makedirs(self.path(layout.WORK), mode=0o700, exist_ok=True))
        self._journal.begin(self._index, out=self._from[0], err=self._from[1])
        if self._waited:
            self._attempt.event("running", node=self._attempt.job.node)
        return True

    def event(self, name: str, **facts: "Any") -> None:
        """Add only an event about idleness or a suspension: the steps of items are not recorded."""
        if name in ("quiet", "active", "suspended", "resumed"):
            self._attempt.event(name, item=str(self._index), **facts)

    def publish(self, verdict: Verdict) -> bool:
        """Write its line in the journal."""
        self._look_at_fence()
        sizes = [_size(self.path(name)) for name in (layout.STDOUT, layout.STDERR)]
        out, err = ([begin, end - begin] for begin, end in zip(self._from, sizes))
        self._journal.end(self._index, verdict.replace(earlier=self.before), self.path(layout.VALUE), out=out, err=err)
        # The line has the usage now.
        with contextlib.suppress(OSError):
            os.unlink(self.path(layout.USAGE))
        return True

    def followed(self, why: str, requeued: bool = False) -> "ItemAttempt":
        """Write that it is to run again, with its element if that is `requeued`; return the attempt that follows."""
        self._look_at_fence()
        self._journal.again(self._index, why, requeued)
        return ItemAttempt(self._attempt, self._journal, self._index, self._place, [*self.before, why])

    def retries_used(self) -> int:
        return len(self.before)

    def _look_at_fence(self) -> None:
        """Raise AttemptEnded if another process has concluded the element, and so this item."""
        if os.path.exists(self._attempt.path(layout.OUTCOME)):
            raise AttemptEnded(concluded_by_another())

    def tidy(self) -> None:
        """Leave nothing that is of no use: the value has been copied, the folder may be empty."""
        if _size(self.path(layout.VALUE)) > _LARGE:
            os.truncate(self.path(layout.VALUE), 0)
        if os.path.isdir(self.path(layout.NODES)):
            _keep_output(self.path(layout.NODES))
        try:
            os.rmdir(self.path(layout.WORK))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def _keep_output(folder: str) -> None:
    """Remove what the tasks of an item have left, except what they and srun printed: there may be 10,000 items."""
    for below, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(below, name)
            if name not in (layout.STDOUT, layout.STDERR, layout.LAUNCH_LOG) or not _size(path):
                os.unlink(path)
        if not os.listdir(below):
            os.rmdir(below)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class ItemLoop(AttemptLoop):
    """The attempts of an item, until its line is in the journal."""

    attempt: ItemAttempt

    def __init__(self, job: "JobFolder", attempt: ItemAttempt, watch: "EndWatch") -> None:
        super().__init__(job, watch)
        self.attempt = attempt

    def see_through(self) -> Verdict:
        """Run the item until its line is written; return the verdict in it.

        Raises:
            AttemptEnded: Nothing is written: the element ends.
        """
        verdict, alive = self.run()
        if self.work is None:
            raise AttemptEnded(verdict)
        self.end(self.work, verdict, alive)
        return verdict

    def follow(self, work: "AttemptRun", verdict: Verdict) -> ItemAttempt:
        return self.attempt.followed(self.describe(1 + self.attempt.retries_used(), verdict))

    def write(self, work: "AttemptRun", verdict: Verdict) -> bool:
        """Write the line, unless it is the element that ends: another has it now, or the reason is not known yet."""
        if verdict.kind == layout.PREEMPTED:
            self.attempt.followed(verdict.message, requeued=True)
        if verdict.kind in (None, layout.HOST_DISK, layout.PREEMPTED):
            raise AttemptEnded(verdict)
        return super().write(work, verdict)

    def close(self, work: "AttemptRun") -> None:
        """Give back what the attempt had, and leave nothing of it that is of no use."""
        super().close(work)
        self.attempt.tidy()
