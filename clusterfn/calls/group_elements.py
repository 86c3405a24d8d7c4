"""The elements of a group: starts them, as job arrays or processes, and knows which of them the scheduler has.

On SLURM an element is a task of a job array, elsewhere a process of its own. Each is followed as a job is, by a
`Follower` and its `LivenessMonitor`. What it reports about its items goes to `ItemResults`. Its end goes to
`group_tracker`, and so does what cannot have started, or is gone. Callbacks run on the connection's reader thread, so
they never wait.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SUSPENDED
from clusterfn.calls import conclusion, liveness, sending
from clusterfn.calls.follower import Follower
from clusterfn.calls.group_state import GroupBackend
from clusterfn.calls.item_results import ItemStream
from clusterfn.calls.queue_tracker import Entry
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.errors import ClusterfnError, HostError, SubmitError
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import SpawnReply
from clusterfn.hosts.rpc.requests import Followed
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerLimits, SchedulerVerdict, Submission

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.calls.group_state import GroupState
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

# The size of an array where the scheduler states no limit.
_LARGEST_ARRAY = 1000


class GroupElements(GroupBackend):
    """The elements of one group.

    Args:
        job, group: See `GroupBackend`.
        limits: What the scheduler allows.

    Attributes:
        element_tasks: The elements by their numbers.
    """

    # With either of these, no more elements are to begin.
    _failing_rest = _over = False

    def __init__(self, host: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits) -> None:
        super().__init__(host, layout.job_dir(job.root, job.id), layout.job_name(job.name, job.id))
        self.job = job
        self.spec = cast(Group, job.group)
        self.group = group
        self.limits = limits
        self.element_tasks: dict[int, ArrayTask] = {}
        self._submissions: list[Reply[Any]] = []
        self._scheduler_ids: set[str] = set()
        # The elements that this process is to start, and has not started.
        self._unsubmitted: set[int] = set()
        # Why some of those wait in this program.
        self._refusal = ""
        self._doubt: SubmitError | None = None
        self._looks = LookCounter()
        self._explaining: Future[None] | None = None

    def follow(self, numbers: Iterable[int]) -> None:
        """Follow these elements as soon as they begin."""
        raise NotImplementedError

    def refused(self, numbers: Iterable[int], error: BaseException) -> None:
        """Drop these elements, which were not started."""
        raise NotImplementedError

    def conclude_rest(self, verdict: SchedulerVerdict) -> Future[None]:
        """Conclude every item without an element by this verdict; elements that have not begun never will."""
        raise NotImplementedError

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        """Start these elements and follow them."""
        self._unsubmitted.update(numbers)
        self.follow(numbers)
        self._looks = LookCounter()
        scheduler, array = self.host.scheduler, self.limits.array
        largest = min(_LARGEST_ARRAY if array is None else array, self.limits.jobs or _LARGEST_ARRAY)
        for some, request in scheduler.elements(self.job, numbers, largest):
            elements = _WaitingElements(self, some, numbers, after)
            self._see(elements, sending.start(self.host, request, after, elements))

    def submissions(self) -> Sequence[Reply[Any]]:
        return self._submissions

    def room_for_more(self) -> int:
        """Return how many elements more may run side by side with those that the scheduler has, and are not over."""
        return 0 if self._over or self._failing_rest else self.spec.at_once - len(self._started())

    def _started(self) -> Sequence[ArrayTask]:
        """Return the elements that some process has started, and that are not over."""
        # The list is a copy, because another thread may add elements.
        elements = list(self.element_tasks.items())
        return [each for number, each in elements if number not in self._unsubmitted and not each.over]

    def request_for(self, some: range) -> Submission:
        """Return what submits these elements as one array, in addition to those that the scheduler has."""
        spec = replace(self.spec, at_once=max(1, self.room_for_more()))
        ((_, request),) = self.host.scheduler.elements(self.job._replace(group=spec), some, len(some))
        return request

    def submit_later(self, some: range, numbers: range, after: Sequence[Reply[Any]]) -> PendingSubmission:
        """Return the submission of elements that the scheduler does not take together with others."""
        elements = _WaitingElements(self, some, numbers, after)
        submission = PendingSubmission(self.host, self.request_for(some), after, elements)
        self._see(elements, submission)
        return submission

    def _see(self, elements: _WaitingElements, submission: Reply[Any]) -> None:
        self._submissions.append(submission)
        starting = loop.start(sending.see_started(self.host, submission, elements))
        self.starting.append(starting)
        if isinstance(submission, SpawnReply):
            exit_flush.await_at_exit(starting)

    def submitted(self, some: range, scheduler_id: str, doubt: SubmitError | None) -> None:
        """Take the scheduler's id of elements that were started together; with `doubt` perhaps none were."""
        self._unsubmitted.difference_update(some)
        self._note_acceptance()
        if self.host.scheduler.knows_all:
            # Earlier looks would find nothing, which would put off the next one.
            self.queued()
            self._scheduler_ids.update([scheduler_id] if scheduler_id else [])
        else:
            # With a scheduler that knows all, each task has an id of its own, in its claim.
            self.element_tasks[some[0]].tracker.scheduler_id = scheduler_id
        self._doubt = doubt or self._doubt

    def refused_for_now(self, reason: str) -> None:
        """Take why the scheduler does not take some elements now; those that were started take all of the work."""
        self._refusal = reason
        # The note on the host has another reason, and must be written again.
        self._is_refused = False
        self._note_if_all_wait_here()

    def _note_if_all_wait_here(self) -> None:
        """Show why none of its elements is in the scheduler's queue, if those that are left wait in this program."""
        if self._refusal and self._unsubmitted and not self._is_refused and not self._started():
            self._note_refusal(self._refusal)
            self.show_waiting()

    def queued(self) -> None:
        """Watch the elements that wait in the scheduler's queue."""
        self.host.watch.add(self.scheduler_name, self.on_scheduler, self.spec.element_s)

    def show_waiting(self) -> None:
        self.group.set_state(PENDING, self.waiting_reason)

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """Conclude the group: there will be no environment."""
        self.conclude_rest(SchedulerVerdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment"))
        self.cancel_at_scheduler()

    def on_scheduler(self, seen: Seen) -> None:
        """Take what the scheduler said of all elements at one look."""
        if isinstance(seen, Silent):
            self.queue_reason = seen.in_words
            self.show_waiting()
            return
        self._note_if_all_wait_here()
        # The scheduler cannot know any of them.
        if self._is_refused:
            return
        self.queue_reason = ""
        if seen is not None:
            waits = seen.phase == base.PENDING
            self.queue_reason = (self.reason_in_queue(seen) if waits else "") or seen.suspended
        self.show_waiting()
        # The scheduler may know what is being sent, or not yet.
        if any(_is_being_sent(submission) for submission in self._submissions):
            return
        verdict = self._looks.count(seen, self.host.settings.name)
        # The list is a copy, because another thread may add elements.
        elements = list(self.element_tasks.values())
        # What waits in this program changes nothing for the others: if those are gone, the group ends as they did.
        unbegun = [element for element in self._started() if not element.begun]
        # The queue of such a scheduler lists only what waits.
        if not self.host.scheduler.knows_all:
            if not any(element.waits for element in elements):
                self.host.unwatch(self.scheduler_name)
            elif self._looks.gone == liveness.LOOKS_UNSEEN and len(unbegun) == len(elements):
                # After fewer looks, the sender may still be about to start them.
                loop.begin(self._conclude_unless_they_start_later())
            elif self._looks.gone >= liveness.LOOKS:
                for element in unbegun:
                    loop.begin(element.tracker.liveness.process_ended())
        elif unbegun and verdict is not None and self._looks.hopeless == liveness.LOOKS:
            self.conclude_rest(verdict)
            self.cancel_at_scheduler()
        elif unbegun and not self._failing_rest:
            self._explain_if_gone(seen)

    async def _conclude_unless_they_start_later(self) -> None:
        """Conclude elements that have not begun, unless they may wait in the agent of another program: ask later then.

        Without an answer, that is asked later, too.
        """
        try:
            is_lost = not await liveness.may_start_later(self.host)
        except (ClusterfnError, CancelledError):
            is_lost = False
        if not is_lost:
            self._looks = LookCounter()
        elif not self._failing_rest and not self._over:
            self.conclude_rest(conclusion.NEVER_BEGAN)

    def _explain_if_gone(self, seen: JobState | None) -> None:
        """Ask the scheduler about elements that have not begun, once looks in a row have not found them."""
        if seen is not None and seen.scheduler_id:
            self._scheduler_ids.add(seen.scheduler_id.partition("_")[0])
            self._doubt = None
        claims = {element.tracker.scheduler_id for element in list(self.element_tasks.values())}
        ids = self._scheduler_ids | {claim.partition("_")[0] for claim in claims if claim}
        if self._looks.gone >= (liveness.LOOKS if ids or self._doubt is not None else liveness.LOOKS_UNSEEN):
            # What the scheduler says of the newest id decides.
            in_order = sorted(ids, key=lambda each: (len(each), each))
            # Each look may ask, and one question at a time is enough.
            if self._explaining is None or self._explaining.done():
                self._explaining = loop.start(self._explain(in_order))

    async def _explain(self, scheduler_ids: Sequence[str]) -> None:
        """Conclude the elements that have not begun, if the scheduler says why they never will."""
        verdict = await liveness.explain_unstarted(self.host, self.folder, scheduler_ids, self._doubt)
        if verdict is not None and not self._failing_rest and not self._over:
            self.conclude_rest(verdict)

    def _next(self, count: int) -> range:
        first = 1 + max(self.element_tasks, default=self.spec.elements)
        return range(first, first + count)


def _is_being_sent(submission: Reply[Any]) -> bool:
    """Whether the answer of the scheduler is on its way."""
    waits = isinstance(submission, PendingSubmission) and submission.is_waiting
    return not waits and not submission.done()


class _WaitingElements(WaitingJob):
    """Elements that are started by one request, a task array or one process, and wait until that is taken.

    Args:
        some: These elements.
        numbers: All that were started together with them.
        after: What all of them need.
    """

    def __init__(self, group: GroupElements, some: range, numbers: range, after: Sequence[Reply[Any]]) -> None:
        self._group, self._some, self._numbers, self._after = group, some, numbers, after

    def refused_for_now(self, reason: str) -> None:
        self._group.refused_for_now(reason)

    def taken(self, started: Started) -> None:
        self._group.submitted(self._some, started.scheduler_id, started.doubt)

    def refused(self, error: BaseException) -> None:
        none = any(reply.done() and reply.exception(0) is not None for reply in self._after)
        self._group.refused(self._numbers if none else self._some, error)

    def queued(self) -> None:
        self._group.queued()

    async def script_ended(self) -> None:
        # An element that was refused is gone from the table, and has ended.
        element = self._group.element_tasks.get(self._some[0])
        if element is not None:
            await element.tracker.liveness.process_ended()

    @property
    def refusal_note(self) -> str:
        return self._group.refusal_note

    def split(self, submission: PendingSubmission) -> PendingSubmission | None:
        """Let it start the first half of the elements."""
        half = len(self._some) // 2
        if not half:
            return None
        self._some, rest = self._some[:half], self._some[half:]
        submission.request = self._group.request_for(self._some)
        return self._group.submit_later(rest, self._numbers, self._after)

    def is_wanted_now(self, submission: PendingSubmission) -> bool:
        """Whether more elements may run, of which then no more run side by side than were asked for."""
        if self._group.room_for_more() < 1:
            return False
        submission.request = self._group.request_for(self._some)
        return True


class ArrayTask(Entry):
    """One element of a group. What it prints, and the progress of its files, are not shown.

    Args:
        owner: Its group.
        number: Which of its elements.
    """

    def __init__(self, owner: GroupBackend, number: int) -> None:
        self.owner, self.number = owner, number
        self.begun = self.over = False
        self.host, self.id, self.folder = owner.group.host, owner.group.id, owner.folder
        self.submitted_at = owner.group.submitted_at
        self.tracker = ArrayTaskTracker(owner, number)
        self.tracker.entry = self

    def follow_when_claimed(self) -> None:
        """Follow it once it has a claim: before that it has no files."""
        claim = self.owner.connection.wait(posixpath.join(self.tracker.folder, layout.CLAIM))
        self.tracker.awaited = claim
        loop.begin(self._see_claimed(claim))

    async def _see_claimed(self, coming: Reply[bytes]) -> None:
        error = await coming.error()
        if self.tracker.is_closed or self.begun:
            return
        if error is not None:
            self.lose(error if isinstance(error, ClusterfnError) else HostError(str(error), host=self.host))
            return
        claim = coming.result(0)
        self.tracker.scheduler_id = claim.decode("ascii", "replace").strip() or self.tracker.scheduler_id
        self.follow()
        self.tracker.liveness.watch_heartbeat()

    def follow(self) -> None:
        """Follow it from its first attempt on."""
        self.begun = True
        self.tracker.follow()

    def follow_now(self) -> None:
        """Follow it without a claim.

        An element that only gave up items never has one, and one that waits again gets it later.
        """
        if not self.begun:
            awaited = self.tracker.awaited
            self.follow()
            self.tracker.liveness.watch_heartbeat()
            if awaited is not None:
                awaited.cancel()

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits again."""
        return not self.over and self.state == PENDING

    def note_silence(self) -> None:
        self.owner.group.note_silence()

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        self._now = state, reason
        self.owner.group.set_state(state, reason if state in (PENDING, SUSPENDED) else "")

    def note_quiet(self, why: str, item: str = "") -> None:
        if why:
            self.owner.quiet(item, why)

    def show_connection(self, trouble: str) -> None:
        self.owner.group.show_connection(trouble)

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        self.over = True
        self.owner.ended(published)

    def lose(self, error: ClusterfnError) -> None:
        if not self.over:
            self.owner.group.fail(error)

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        self.over = True
        self.owner.cannot_conclude(error)


class ArrayTaskTracker(Follower):
    """Follows an element: as a job, with the journal and the values of each attempt."""

    def __init__(self, owner: GroupBackend, number: int) -> None:
        folder, name = layout.element_dir(owner.folder, number), f"{owner.scheduler_name}.{number}"
        super().__init__(owner.host, folder, name, bridge=owner.job.bridge, results=owner.job.results)
        self._owner, self._number = owner, number
        self._stream = ItemStream(number, 1)

    def log_path(self, stream: str) -> str:
        """Return the file of a stream; for "scheduler" that of this element."""
        if stream != "scheduler":
            return super().log_path(stream)
        name = self.host.scheduler.element_log(self._number, self.scheduler_id)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)

    def _follow_files(self, shown_by: Sequence[Callable[[str, bytes], Any]], heard: Mapping[str, int]) -> Reply[bytes]:
        """Follow what the present attempt reports about its items, and their values; what it prints is not shown."""
        results, stream = self._owner.item_results, ItemStream(self._number, self.attempt)
        self._stream = stream
        if self.results.max_bytes is not None:
            stream.values = posixpath.join(self.attempt_folder, layout.VALUES)
        files = [
            self._file(layout.EVENTS, self._take_events),
            self._file(layout.JOURNAL, lambda data: results.take_lines(stream, data)),
        ]
        if not stream.values:
            files.append(self._file(layout.VALUES, lambda data: results.take_values(stream, data)))
        waiting = self.connection.follow(files, posixpath.join(self.attempt_folder, layout.OUTCOME))
        self.awaited = waiting
        return waiting

    def _take_outcome(self, data: bytes) -> Reply[bytes] | None:
        # Its other files have been read to their ends.
        self._owner.item_results.take_end(self._stream)
        return super()._take_outcome(data)

    def _open_next(self, fields: dict[str, Any]) -> Reply[bytes]:
        waiting = super()._open_next(fields)
        if fields["kind"] == layout.PREEMPTED:
            self._owner.queued()
        return waiting

    def _file(self, name: str, on_data: Callable[[bytes], Any]) -> Followed:
        return Followed(posixpath.join(self.attempt_folder, name), on_data)
