"""The elements of a group: starts them, as job arrays or processes, and knows which of them the scheduler has.

Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.element import ArrayTask, GroupOnHost
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts import loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerLimits, SchedulerVerdict, Submission

# Elements that only end items have numbers from here on, at random: several programs may ask for some at a time.
_FIRST_BURIAL = 1_000_000
# The size of an array where the scheduler states no limit.
_LARGEST_ARRAY = 1000


class Elements:
    """The elements of one group, `of`.

    Attributes:
        tasks: They, by their numbers.
        is_closed: Whether no more of them are to begin.
        has_ended: Whether none of them is followed any more.
    """

    is_closed = has_ended = False

    def __init__(self, of: GroupOnHost, limits: SchedulerLimits) -> None:
        self.of, self._host, self._queue, self._limits = of, of.host, of.queue, limits
        self.tasks: dict[int, ArrayTask] = {}
        self._scheduler_ids: set[str] = set()
        # The elements that this process is to start, and has not started.
        self._unsubmitted: set[int] = set()
        # Why some of those wait in this program.
        self._refusal = ""
        self._doubt: SubmitError | None = None
        self._looks = LookCounter()
        self._explaining = loop.Single(self._explain)

    def add(self, number: int) -> ArrayTask:
        """Return a new element of this number, which nothing follows yet."""
        element = self.tasks[number] = ArrayTask(self.of, number)
        element.requeued = self.queued
        return element

    def follow(self, numbers: Iterable[int]) -> None:
        """Follow these elements as soon as they begin."""
        for number in numbers:
            self.add(number).follow_when_claimed()

    def read(self, numbers: Iterable[int]) -> None:
        """Read what these elements have reported, whether they have a claim or not."""
        for number in numbers:
            (self.tasks.get(number) or self.add(number)).follow_now()

    def drop(self, numbers: Iterable[int]) -> bool:
        """Follow these elements no more, which were not started; return whether there were any."""
        self._unsubmitted.difference_update(numbers)
        dropped = [self.tasks.pop(number) for number in numbers if number in self.tasks]
        for element in dropped:
            element.close()
        return bool(dropped)

    def end(self) -> None:
        self.is_closed = self.has_ended = True
        for element in self.all():
            element.close()

    def all(self) -> list[ArrayTask]:
        # The list is a copy, because another thread may add elements.
        return list(self.tasks.values())

    def running(self) -> list[ArrayTask]:
        return [element for element in self.all() if element.begun and not element.over]

    def next_numbers(self, count: int) -> range:
        known = [number for number in list(self.tasks) if number < _FIRST_BURIAL]
        first = 1 + max(known, default=self.of.spec.elements)
        return range(first, first + count)

    def add_burial(self) -> ArrayTask:
        """Return a new element that does nothing but end items."""
        return self.add(_FIRST_BURIAL + secrets.randbelow(_FIRST_BURIAL))

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        self._unsubmitted.update(numbers)
        self.follow(numbers)
        self._looks = LookCounter()
        array, jobs = self._limits.array, self._limits.jobs
        largest = min(_LARGEST_ARRAY if array is None else array, jobs or _LARGEST_ARRAY)
        for some, request in self._host.scheduler.elements(self.of.job, numbers, largest):
            self._queue.submit(request, after, _WaitingElements(self, some, numbers, after))

    def room_for_more(self) -> int:
        """Return how many elements more may run side by side with those that the scheduler has, and are not over."""
        return 0 if self.is_closed else self.of.spec.at_once - len(self._started())

    def _started(self) -> Sequence[ArrayTask]:
        """Return the elements that some process has started, and that are not over."""
        elements = list(self.tasks.items())
        return [element for number, element in elements if number not in self._unsubmitted and not element.over]

    def request_for(self, some: range) -> Submission:
        """Return what submits these elements as one array, in addition to those that the scheduler has."""
        spec = replace(self.of.spec, at_once=max(1, self.room_for_more()))
        ((_, request),) = self._host.scheduler.elements(self.of.job._replace(group=spec), some, len(some))
        return request

    def submitted(self, some: range, scheduler_id: str, doubt: SubmitError | None) -> None:
        """Take the scheduler's id of elements that were started together; with `doubt` perhaps none were."""
        self._unsubmitted.difference_update(some)
        self._queue.note_acceptance()
        if self._host.scheduler.knows_all:
            # Earlier looks would find nothing, which would put off the next one.
            self.queued()
            self._scheduler_ids.update([scheduler_id] if scheduler_id else [])
        else:
            # With a scheduler that knows all, each task has an id of its own, in its claim.
            self.tasks[some[0]].at.scheduler_id = scheduler_id
        self._doubt = doubt or self._doubt

    def refused_for_now(self, reason: str) -> None:
        """Take why the scheduler does not take some elements now; those that were started take all of the work."""
        self._refusal = reason
        # The note on the host has another reason, and must be written again.
        self._queue.is_refused = False
        self._note_if_all_wait_here()

    def _note_if_all_wait_here(self) -> None:
        """Show why none of its elements is in the scheduler's queue, if those that are left wait in this program."""
        if self._refusal and self._unsubmitted and not self._queue.is_refused and not self._started():
            self._queue.note_refusal(self._refusal)
            self._show_waiting()

    def queued(self) -> None:
        """Watch the elements that wait in the scheduler's queue."""
        name, time_s = self._queue.scheduler_name, self.of.spec.element_s
        self._host.watch.add(name, self.on_scheduler, time_s, lambda: bool(self.running()))

    def _show_waiting(self) -> None:
        self.of.group.set_reason(self._queue.waiting_reason)

    def waits_for(self, what: str) -> None:
        """Show what it waits for in addition to its turn, and how far that is; "" for nothing any more."""
        self._queue.other_reason = what
        self._show_waiting()

    def cannot_have(self, verdict: SchedulerVerdict) -> None:
        """Conclude the group: there will be no environment, or the scheduler never starts what waits."""
        self.of.conclude(verdict)
        self._queue.cancel()

    def on_scheduler(self, seen: Seen) -> None:
        if isinstance(seen, Silent):
            self._queue.queue_reason = seen.in_words
            self._show_waiting()
            return
        self._note_if_all_wait_here()
        # The scheduler cannot know any of them.
        if self._queue.is_refused:
            return
        self._queue.queue_reason = ""
        if seen is not None:
            waits = seen.phase == base.PENDING
            self._queue.queue_reason = (self._queue.reason_in_queue(seen) if waits else "") or seen.suspended
        self._show_waiting()
        # The scheduler may know what is being sent, or not yet. What waits in this program is not sent.
        unanswered = [submission for submission in self._queue.submissions if not submission.done()]
        if not all(isinstance(submission, PendingSubmission) and submission.is_waiting for submission in unanswered):
            return
        verdict = self._looks.count(seen, self._host.settings.name)
        # What waits here changes nothing for the others: if those are gone, the group ends as they did.
        unbegun = [element for element in self._started() if not element.begun]
        # The queue of such a scheduler lists only what waits.
        if not self._host.scheduler.knows_all:
            if not any(element.state == PENDING and not element.over for element in self.all()):
                self._host.unwatch(self._queue.scheduler_name)
            elif self._looks.gone == liveness.LOOKS_UNSEEN and len(unbegun) == len(self.tasks):
                # After fewer looks, the sender may still be about to start them.
                loop.begin(self._conclude_unless_they_start_later())
            elif self._looks.gone >= liveness.LOOKS:
                for element in unbegun:
                    loop.begin(liveness.process_ended(element))
        elif unbegun and verdict is not None and self._looks.hopeless == liveness.LOOKS:
            self.cannot_have(verdict)
        elif unbegun and not self.is_closed:
            self._explain_if_gone(seen)

    async def _conclude_unless_they_start_later(self) -> None:
        """Conclude elements that have not begun; ask later if they may wait elsewhere, or without an answer."""
        try:
            is_lost = not await conclusion.may_start_later(self._host)
        except (ClusterfnError, CancelledError):
            is_lost = False
        if not is_lost:
            self._looks = LookCounter()
        elif not self.is_closed:
            self.of.conclude(conclusion.NEVER_BEGAN)

    def _explain_if_gone(self, seen: JobState | None) -> None:
        """Ask the scheduler about elements that have not begun, once looks in a row have not found them."""
        if seen is not None and seen.scheduler_id:
            self._scheduler_ids.add(seen.scheduler_id.partition("_")[0])
            self._doubt = None
        claims = {element.at.scheduler_id for element in self.all()}
        ids = self._scheduler_ids | {claim.partition("_")[0] for claim in claims if claim}
        looks = liveness.LOOKS if ids or self._doubt is not None else liveness.LOOKS_UNSEEN
        if self._looks.gone >= looks:
            # What the scheduler says of the newest id decides.
            in_order = sorted(ids, key=lambda scheduler_id: (len(scheduler_id), scheduler_id))
            loop.call(self._explaining.begin, in_order)

    async def _explain(self, scheduler_ids: Sequence[str]) -> None:
        """Conclude the elements that have not begun, if the scheduler says why they never will."""
        verdict = await conclusion.explain_unstarted(self._host, self.of.folder, scheduler_ids, self._doubt)
        if verdict is not None and not self.is_closed:
            self.of.conclude(verdict)


class _WaitingElements(WaitingJob):
    """Some elements that one request starts, an array or a process; all `numbers` that start now need `after`."""

    def __init__(self, elements: Elements, some: range, numbers: range, after: Sequence[Reply[Any]]) -> None:
        self._of, self._elements = elements.of, elements
        self._some, self._numbers, self._after = some, numbers, after

    def refused_for_now(self, reason: str) -> None:
        self._elements.refused_for_now(reason)

    def taken(self, started: Started) -> None:
        self._elements.submitted(self._some, started.scheduler_id, started.doubt)

    def refused(self, error: BaseException) -> None:
        none = any(reply.done() and reply.exception(0) is not None for reply in self._after)
        if self._elements.drop(self._numbers if none else self._some):
            self._of.elements_refused(error)

    def queued(self) -> None:
        self._elements.queued()

    async def script_ended(self) -> None:
        # An element that was refused is gone from the table, and has ended.
        element = self._elements.tasks.get(self._some[0])
        if element is not None:
            await liveness.process_ended(element)

    def split(self, submission: PendingSubmission) -> PendingSubmission | None:
        half = len(self._some) // 2
        if not half:
            return None
        self._some, rest = self._some[:half], self._some[half:]
        submission.request = self._elements.request_for(self._some)
        others = _WaitingElements(self._elements, rest, self._numbers, self._after)
        request, queue = self._elements.request_for(rest), self._of.queue
        return queue.expect(PendingSubmission(self._of.host, request, self._after, others, queue.note))

    def is_wanted_now(self, submission: PendingSubmission) -> bool:
        """Whether more elements may run, of which then no more run side by side than were asked for."""
        if self._elements.room_for_more() < 1:
            return False
        submission.request = self._elements.request_for(self._some)
        return True
