"""The elements of a group: starts them, as job arrays or processes, and knows which of them the scheduler has.

Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.element import ArrayTask, ElementsRefused, NoneWillBegin, OfGroup
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.config.job_spec import Group
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts import loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerLimits, SchedulerVerdict, Submission

# The size of an array where the scheduler states no limit.
_LARGEST_ARRAY = 1000


class Elements:
    """The elements of one group.

    Args:
        of: The group.
        limits: What the scheduler allows.

    Attributes:
        queue: The place of the group in the scheduler's queue.
        tasks: The elements by their numbers.
        is_closed: Whether no more of them are to begin.
        has_ended: Whether none of them is followed any more.
    """

    is_closed = has_ended = False

    def __init__(self, of: OfGroup, limits: SchedulerLimits) -> None:
        self._of, self._host, self.queue = of, of.queue.host, of.queue
        self._spec = cast(Group, of.job.group)
        self._limits = limits
        self.tasks: dict[int, ArrayTask] = {}
        self._scheduler_ids: set[str] = set()
        # The elements that this process is to start, and has not started.
        self._unsubmitted: set[int] = set()
        # Why some of those wait in this program.
        self._refusal = ""
        self._doubt: SubmitError | None = None
        self._looks = LookCounter()
        self._explaining: Future[None] | None = None

    def add(self, number: int) -> ArrayTask:
        """Return a new element of this number, which nothing follows yet."""
        element = self.tasks[number] = ArrayTask(self._of, number)
        return element

    def follow(self, numbers: Iterable[int]) -> None:
        """Follow these elements as soon as they begin."""
        for number in numbers:
            self.add(number).follow_when_claimed()

    def read(self, numbers: Iterable[int]) -> None:
        """Read what these elements have reported, whether they have a claim or not."""
        for number in numbers:
            (self.tasks.get(number) or self.add(number)).follow_now()

    def drop(self, numbers: Iterable[int]) -> None:
        """Follow these elements no more, which were not started."""
        self._unsubmitted.difference_update(numbers)
        for number in numbers:
            self.tasks.pop(number).close()

    def end(self) -> None:
        """Follow none of them any more, and start no others."""
        self.is_closed = self.has_ended = True
        for element in list(self.tasks.values()):
            element.close()

    def running(self) -> list[ArrayTask]:
        """Return those that have begun and are not over."""
        # The list is a copy, because another thread may add elements.
        return [element for element in list(self.tasks.values()) if element.begun and not element.over]

    def next_numbers(self, count: int) -> range:
        """Return the numbers of so many more elements."""
        first = 1 + max(self.tasks, default=self._spec.elements)
        return range(first, first + count)

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        """Start these elements and follow them."""
        self._unsubmitted.update(numbers)
        self.follow(numbers)
        self._looks = LookCounter()
        scheduler, array = self._host.scheduler, self._limits.array
        largest = min(_LARGEST_ARRAY if array is None else array, self._limits.jobs or _LARGEST_ARRAY)
        for some, request in scheduler.elements(self._of.job, numbers, largest):
            elements = _WaitingElements(self, some, numbers, after)
            self.queue.submit(request, after, elements)

    def room_for_more(self) -> int:
        """Return how many elements more may run side by side with those that the scheduler has, and are not over."""
        return 0 if self.is_closed else self._spec.at_once - len(self._started())

    def _started(self) -> Sequence[ArrayTask]:
        """Return the elements that some process has started, and that are not over."""
        elements = list(self.tasks.items())
        return [element for number, element in elements if number not in self._unsubmitted and not element.over]

    def request_for(self, some: range) -> Submission:
        """Return what submits these elements as one array, in addition to those that the scheduler has."""
        spec = replace(self._spec, at_once=max(1, self.room_for_more()))
        ((_, request),) = self._host.scheduler.elements(self._of.job._replace(group=spec), some, len(some))
        return request

    def submit_later(self, some: range, numbers: range, after: Sequence[Reply[Any]]) -> PendingSubmission:
        """Return the submission of elements that the scheduler does not take together with others."""
        elements = _WaitingElements(self, some, numbers, after)
        return self.queue.expect(
            PendingSubmission(self._host, self.request_for(some), after, elements, self.queue.note)
        )

    def submitted(self, some: range, scheduler_id: str, doubt: SubmitError | None) -> None:
        """Take the scheduler's id of elements that were started together; with `doubt` perhaps none were."""
        self._unsubmitted.difference_update(some)
        self.queue.note_acceptance()
        if self._host.scheduler.knows_all:
            # Earlier looks would find nothing, which would put off the next one.
            self.queued()
            self._scheduler_ids.update([scheduler_id] if scheduler_id else [])
        else:
            # With a scheduler that knows all, each task has an id of its own, in its claim.
            self.tasks[some[0]].at.scheduler_id = scheduler_id
        self._doubt = doubt or self._doubt

    def refused(self, numbers: Iterable[int], error: BaseException) -> None:
        """Report that these elements were not started."""
        if left := [number for number in numbers if number in self.tasks]:
            self._of.put(ElementsRefused(left, error))

    def refused_for_now(self, reason: str) -> None:
        """Take why the scheduler does not take some elements now; those that were started take all of the work."""
        self._refusal = reason
        # The note on the host has another reason, and must be written again.
        self.queue.is_refused = False
        self._note_if_all_wait_here()

    def _note_if_all_wait_here(self) -> None:
        """Show why none of its elements is in the scheduler's queue, if those that are left wait in this program."""
        if self._refusal and self._unsubmitted and not self.queue.is_refused and not self._started():
            self.queue.note_refusal(self._refusal)
            self._show_waiting()

    def queued(self) -> None:
        """Watch the elements that wait in the scheduler's queue."""
        self._host.watch.add(self.queue.scheduler_name, self.on_scheduler, self._spec.element_s)

    def _show_waiting(self) -> None:
        self._of.state.set_state(PENDING, self.queue.waiting_reason)

    def waits_for(self, what: str) -> None:
        """Show what it waits for in addition to its turn, and how far that is; "" for nothing any more."""
        self.queue.other_reason = what
        self._show_waiting()

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """Conclude the group: there will be no environment."""
        self._of.put(NoneWillBegin(SchedulerVerdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment")))
        self.queue.cancel()

    def on_scheduler(self, seen: Seen) -> None:
        """Take what the scheduler said of all elements at one look."""
        if isinstance(seen, Silent):
            self.queue.queue_reason = seen.in_words
            self._show_waiting()
            return
        self._note_if_all_wait_here()
        # The scheduler cannot know any of them.
        if self.queue.is_refused:
            return
        self.queue.queue_reason = ""
        if seen is not None:
            waits = seen.phase == base.PENDING
            self.queue.queue_reason = (self.queue.reason_in_queue(seen) if waits else "") or seen.suspended
        self._show_waiting()
        # The scheduler may know what is being sent, or not yet.
        if any(_is_being_sent(submission) for submission in self.queue.submissions):
            return
        verdict = self._looks.count(seen, self._host.settings.name)
        # The list is a copy, because another thread may add elements.
        elements = list(self.tasks.values())
        # What waits in this program changes nothing for the others: if those are gone, the group ends as they did.
        unbegun = [element for element in self._started() if not element.begun]
        # The queue of such a scheduler lists only what waits.
        if not self._host.scheduler.knows_all:
            if not any(element.waits for element in elements):
                self._host.unwatch(self.queue.scheduler_name)
            elif self._looks.gone == liveness.LOOKS_UNSEEN and len(unbegun) == len(elements):
                # After fewer looks, the sender may still be about to start them.
                loop.begin(self._conclude_unless_they_start_later())
            elif self._looks.gone >= liveness.LOOKS:
                for element in unbegun:
                    loop.begin(liveness.process_ended(element))
        elif unbegun and verdict is not None and self._looks.hopeless == liveness.LOOKS:
            self._of.put(NoneWillBegin(verdict))
            self.queue.cancel()
        elif unbegun and not self.is_closed:
            self._explain_if_gone(seen)

    async def _conclude_unless_they_start_later(self) -> None:
        """Conclude elements that have not begun, unless they may wait in the agent of another program: ask later then.

        Without an answer, that is asked later, too.
        """
        try:
            is_lost = not await conclusion.may_start_later(self._host)
        except (ClusterfnError, CancelledError):
            is_lost = False
        if not is_lost:
            self._looks = LookCounter()
        elif not self.is_closed:
            self._of.put(NoneWillBegin(conclusion.NEVER_BEGAN))

    def _explain_if_gone(self, seen: JobState | None) -> None:
        """Ask the scheduler about elements that have not begun, once looks in a row have not found them."""
        if seen is not None and seen.scheduler_id:
            self._scheduler_ids.add(seen.scheduler_id.partition("_")[0])
            self._doubt = None
        claims = {element.at.scheduler_id for element in list(self.tasks.values())}
        ids = self._scheduler_ids | {claim.partition("_")[0] for claim in claims if claim}
        if self._looks.gone >= (liveness.LOOKS if ids or self._doubt is not None else liveness.LOOKS_UNSEEN):
            # What the scheduler says of the newest id decides.
            in_order = sorted(ids, key=lambda scheduler_id: (len(scheduler_id), scheduler_id))
            # Each look may ask, and one question at a time is enough.
            if self._explaining is None or self._explaining.done():
                self._explaining = loop.start(self._explain(in_order))

    async def _explain(self, scheduler_ids: Sequence[str]) -> None:
        """Conclude the elements that have not begun, if the scheduler says why they never will."""
        verdict = await conclusion.explain_unstarted(self._host, self.queue.folder, scheduler_ids, self._doubt)
        if verdict is not None and not self.is_closed:
            self._of.put(NoneWillBegin(verdict))


def _is_being_sent(submission: Reply[Any]) -> bool:
    """Whether the answer of the scheduler is on its way."""
    waits = isinstance(submission, PendingSubmission) and submission.is_waiting
    return not waits and not submission.done()


class _WaitingElements(WaitingJob):
    """Elements that are started by one request, a task array or one process, and wait until that is taken.

    Args:
        elements: Those of the group.
        some: These elements.
        numbers: All that were started together with them.
        after: What all of them need.
    """

    def __init__(self, elements: Elements, some: range, numbers: range, after: Sequence[Reply[Any]]) -> None:
        self._elements, self._some, self._numbers, self._after = elements, some, numbers, after

    def refused_for_now(self, reason: str) -> None:
        self._elements.refused_for_now(reason)

    def taken(self, started: Started) -> None:
        self._elements.submitted(self._some, started.scheduler_id, started.doubt)

    def refused(self, error: BaseException) -> None:
        none = any(reply.done() and reply.exception(0) is not None for reply in self._after)
        self._elements.refused(self._numbers if none else self._some, error)

    def queued(self) -> None:
        self._elements.queued()

    async def script_ended(self) -> None:
        # An element that was refused is gone from the table, and has ended.
        element = self._elements.tasks.get(self._some[0])
        if element is not None:
            await liveness.process_ended(element)

    def split(self, submission: PendingSubmission) -> PendingSubmission | None:
        """Let it start the first half of the elements."""
        half = len(self._some) // 2
        if not half:
            return None
        self._some, rest = self._some[:half], self._some[half:]
        submission.request = self._elements.request_for(self._some)
        return self._elements.submit_later(rest, self._numbers, self._after)

    def is_wanted_now(self, submission: PendingSubmission) -> bool:
        """Whether more elements may run, of which then no more run side by side than were asked for."""
        if self._elements.room_for_more() < 1:
            return False
        submission.request = self._elements.request_for(self._some)
        return True
