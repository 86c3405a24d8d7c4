"""Follows the elements of a group on its host, starts new ones while items are left, and has the rest concluded.

`array_tasks` follows each element, `submit_group` starts them, `item_results` collects what they report about items,
and `liveness` has the host conclude. Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SHORT
from clusterfn.calls import console, job_display, liveness, outcome, remote_state, submit
from clusterfn.calls.array_tasks import ArrayTask, ArrayTaskTracker
from clusterfn.calls.dependencies import describe_open
from clusterfn.calls.item_results import ItemResults
from clusterfn.calls.job_tracker import BaseTracker
from clusterfn.calls.resubmit import PendingSubmission, SubmissionListener
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.errors import ClusterfnError, SubmitError, Unreachable
from clusterfn.hosts import exit_flush, remote_files
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerLimits, SchedulerVerdict, Submission

if TYPE_CHECKING:
    from clusterfn.calls.dependencies import Reference
    from clusterfn.calls.group_state import GroupBackend, GroupState
    from clusterfn.calls.remote_state import RemoteGroupState
    from clusterfn.hosts.connection import Completed, Reply
    from clusterfn.hosts.host_state import HostState

_LARGEST_ARRAY = 1000  # of a scheduler that does not say
_TIMEOUT_S = 60.0
_AGAIN, _AGAIN_S = 6, 5.0


@dataclass(frozen=True)
class Retried:
    """Items of a group that are retried: on the host they are a group of their own.

    Attributes:
        numbers: The index of each in the whole group.
        group: The whole as it ended before.
    """

    numbers: Sequence[int]
    group: GroupState


class GroupTracker(BaseTracker):
    """Follows one group: the `GroupBackend` of its state, and the `ArrayTaskOwner` of its elements.

    Args:
        session: Its host.
        job: What it was sent as.
        group: What it reports to.
        limits: What the scheduler allows.
        retried: Which items of `group` it follows, if not all.

    Attributes:
        inputs: The jobs whose values its items take, as far as this process knows them.
    """

    def __init__(
        self, session: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits,
        retried: Retried | None = None,
    ) -> None:  # fmt: skip
        super().__init__(session, layout.job_dir(job.root, job.id), layout.job_name(job.name, job.id))
        self.job = job
        self.spec = cast(Group, job.group)
        self.group = group
        self.numbers = retried.numbers if retried else range(self.spec.count)
        self._earlier = retried.group.backend if retried else None
        place = outcome.JobLocation(session.host.name, job.id, self.folder, job.results)
        self.item_results = ItemResults(
            group, self.numbers, place, self._item_ended, self._all_items_ended, self._fetch_part
        )
        self.limits = limits
        self.inputs: Sequence[Reference] = ()
        self.element_tasks: dict[int, ArrayTask] = {}
        self._submissions: list[Reply[Any]] = []
        self._scheduler_ids: set[str] = set()
        self._unsubmitted: set[int] = set()  # elements that this process is to start, and has not started
        self._refusal = ""  # why some of those wait here
        self._doubt: SubmitError | None = None
        self._lock = threading.RLock()
        self._before = -1
        self._stopping = self._failing_rest = False
        self._last: Mapping[str, Any] = {}
        self._bridge_is_damaged = False
        self._looks = LookCounter()
        self._again = 0
        self._complete: Reply[bytes] | None = None
        self._explaining: Reply[Completed] | None = None
        self._over = self.said_quiet = False
        group.backend = self

    # where an item is

    def read_log(self, index: int, stream: str) -> str:
        """Read what an item has printed."""
        if earlier := self._earlier_of(index):
            return earlier.read_log(index, stream)
        return self.item_results.read_log(self.connection, index, stream)

    def element_folder(self, index: int) -> str:
        """Return the folder of the element that runs or ran the item."""
        if earlier := self._earlier_of(index):
            return earlier.element_folder(index)
        return self.item_results.element_folder(index)

    def work_folder(self, index: int) -> str:
        """Return the folder in which the item runs or ran."""
        if earlier := self._earlier_of(index):
            return earlier.work_folder(index)
        return self.item_results.work_folder(index)

    def checkpoint_folder(self, index: int) -> str:
        """Return the item's own folder in the checkpoint of its group."""
        if earlier := self._earlier_of(index):
            return earlier.checkpoint_folder(index)
        return self.item_results.checkpoint_folder(index)

    def _earlier_of(self, index: int) -> GroupBackend | None:
        """Return what followed an item that is not retried."""
        return None if self.item_results.has(index) else self._earlier

    def _item_ended(self, index: int, kind: str) -> None:
        """Fetch the files that `outputs=` names of an item that has returned; say what cannot be fetched."""
        if kind == layout.PAYLOAD_BROKEN:  # damaged, and removed: the next call sends it again
            self.session.contents.forget()
        to = self.group.outputs_to
        for pattern in self.job.outputs if to is not None and kind == layout.RETURNED else ():
            folder, own = self.work_folder(index), cast(Path, to) / str(index)
            try:
                remote_files.fetch(self.connection, folder, pattern, own, index, self.group.on_transfer)
            except (ClusterfnError, OSError) as failed:
                console.tell(remote_files.not_fetched(failed, pattern, self.group.id, index))

    def _fetch_part(self, path: str, sink: Callable[[bytes], Any], begin: int, end: int) -> Reply[int]:
        return self.connection.get(path, sink, begin, until=end)

    def fetch_value(self, index: int, most: int, timeout: float | None) -> Any:
        """Fetch the value of an item, of up to `most` bytes, that was too large to come by itself."""
        if earlier := self._earlier_of(index):
            return earlier.fetch_value(index, most, timeout)
        return self.item_results.fetch_value(index, most, timeout)

    # starting and following

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        """Start these elements and follow them."""
        self._unsubmitted.update(numbers)
        self.follow(numbers)
        self._looks = LookCounter()
        scheduler, array = self.session.scheduler, self.limits.array
        largest = min(_LARGEST_ARRAY if array is None else array, self.limits.jobs or _LARGEST_ARRAY)
        for some, request in scheduler.elements(self.job, numbers, largest):
            on = _ElementsSubmission(self, some, numbers, after)
            self._submissions.append(submit.start(self.session, request, after, on))

    def submissions(self) -> Sequence[Reply[Any]]:
        return self._submissions

    def room_for_more(self) -> int:
        """Return how many elements more may run side by side with those that the scheduler has, and are not over."""
        return 0 if self._over or self._failing_rest else self.spec.at_once - len(self._started())

    def _started(self) -> Sequence[ArrayTask]:
        """Return the elements that some process has started, and that are not over."""
        elements = list(self.element_tasks.items())  # a copy: another thread may add elements
        return [each for number, each in elements if number not in self._unsubmitted and not each.over]

    def request_for(self, some: range) -> Submission:
        """Return what submits these elements as one array, in addition to those that the scheduler has."""
        spec = replace(self.spec, at_once=max(1, self.room_for_more()))
        largest = 0 if self.limits.array == 0 else len(some)
        ((_, request),) = self.session.scheduler.elements(self.job._replace(group=spec), some, largest)
        return request

    def submit_later(self, some: range, numbers: range, after: Sequence[Reply[Any]]) -> PendingSubmission:
        """Return the submission of elements that the scheduler does not take together with others."""
        on = _ElementsSubmission(self, some, numbers, after)
        submission = PendingSubmission(self.session, self.request_for(some), after, on)
        self._submissions.append(submission)
        return submission

    def refused_for_now(self, reason: str) -> None:
        """Take why the scheduler does not take some elements now; those that were started take all of the work."""
        self._refusal = reason
        self._is_refused = False  # the reason is another one
        self._note_if_all_wait_here()

    def _note_if_all_wait_here(self) -> None:
        """Show why none of its elements is in the scheduler's queue, if those that are left wait in this program."""
        if self._refusal and self._unsubmitted and not self._is_refused and not self._started():
            self._note_refusal(self._refusal)
            self.group.on_state(PENDING, self.waiting_reason)

    def queued(self) -> None:
        """Watch the elements that wait in the scheduler's queue."""
        self.session.watch.add(self.scheduler_name, self.on_scheduler, self.spec.element_s)

    def tracker_of(self, number: int) -> ArrayTaskTracker:
        """Return the tracker of an element."""
        return self.element_tasks[number].tracker

    def refused(self, numbers: Iterable[int], error: BaseException) -> None:
        """Drop these elements, which were not started; the group ends if none is left."""
        numbers = [number for number in numbers if number in self.element_tasks]
        if not numbers:
            return
        refused = submit.refusal_of(error, self.session.host.name, self.sending, "group")
        self._unsubmitted.difference_update(numbers)
        for number in numbers:
            self.element_tasks.pop(number).tracker.end()
        if self.element_tasks:
            console.warn(f"{refused.message}; {len(self.element_tasks)} elements take over all of the work")
            self._check()
            return
        if submit.is_from_host(error):
            job_display.forget_going(self.group)
            exit_flush.remove_folder(self.connection, self.folder)
        self.group.on_refused(refused)
        self._end()

    def follow(self, numbers: Iterable[int]) -> None:
        """Follow these elements as soon as they begin."""
        self.item_results.start_loading()
        for number in numbers:
            element = self.element_tasks[number] = ArrayTask(self, number)
            element.follow_when_claimed()
        if self._complete is None:
            self._complete = self.connection.wait(posixpath.join(layout.attempt_dir(self.folder, 1), layout.OUTCOME))
            self._complete.add_done_callback(self._on_complete)

    def _on_complete(self, reply: Reply[bytes]) -> None:
        """Find elements that another client started, once each item has its line."""
        if self._over:
            return
        error = reply.exception(0)
        if error is None:
            remote_state.list_elements(self.connection, self.folder).add_done_callback(self._on_listed)
        elif isinstance(error, ClusterfnError):  # no element may be left that could report
            self.group.on_refused(error)

    def _on_listed(self, reply: Reply[Completed]) -> None:
        if reply.exception(0) is None:
            there = remote_state.read_elements(reply.result(0))
            threading.Thread(target=self._read, args=(there,), name="clusterfn-group-rest", daemon=True).start()

    def _read(self, there: Sequence[int]) -> None:
        """Read what these elements have reported, whether they have a claim or not."""
        with self._lock:
            for number in there:
                if number not in self.element_tasks:
                    self.element_tasks[number] = ArrayTask(self, number)
                self.element_tasks[number].follow_now()
            if self._over:
                self._end()

    def attach(self, left: RemoteGroupState) -> None:
        """Follow a group that another process sent, and conclude it if that process died while it did so."""
        self._stopping, self._failing_rest = left.is_stopped, bool(left.given_up)
        self.follow(sorted({*range(1, self.spec.elements + 1), *left.numbers}))
        self._read(left.unclaimed)
        self.queued()
        if not left.is_complete:
            for number in left.given_up:
                self._conclude(self.element_tasks[number], liveness.STOPPED)
            if left.is_stopped and not left.given_up:
                self.cancel_at_scheduler()
                self._fail_unfinished(liveness.STOPPED)

    def is_caught_up(self, left: RemoteGroupState) -> bool:
        """Whether what the elements had reported by then has been received, or nothing more will be."""
        before = len(self.group) - self.spec.count  # items that are not retried, and have ended
        everything = self.group.has_news(len(self.group) - 1)
        return everything or (
            self.item_results.is_caught_up(left.journals)
            and self.group.has_news(before + self.item_results.count_ended() - 1)
        )

    # what the scheduler says

    def on_scheduler(self, seen: Seen) -> None:
        """Take what the scheduler said of all elements at one look."""
        if isinstance(seen, Silent):
            self._turn = seen.in_words
            self.group.on_state(PENDING, self.waiting_reason)
            return
        self._note_if_all_wait_here()
        if self._is_refused:  # it cannot know any of them
            return
        waits = seen is not None and seen.phase == base.PENDING
        self._turn = self.session.scheduler.in_words(seen) if seen is not None and waits else ""
        if seen is not None:
            self._turn = self._turn or self.session.scheduler.suspended(seen)
        if seen is not None and self.session.scheduler.waits_for_jobs(seen):
            self._turn = describe_open(self.inputs) or self._turn
        self.group.on_state(PENDING, self.waiting_reason)
        if any(_is_being_sent(submission) for submission in self._submissions):
            return  # the scheduler may know it, or not yet
        verdict = self._looks.count(seen, self.session.scheduler)
        elements = list(self.element_tasks.values())  # a copy: another thread may add elements
        # What waits in this program changes nothing for the others: if those are gone, the group ends as they did.
        unbegun = [element for element in self._started() if not element.begun]
        if not self.session.scheduler.knows_all:  # its queue lists only what waits
            if not any(element.waits for element in elements):
                self.session.unwatch(self.scheduler_name)
            elif self._looks.gone == liveness.LOOKS_UNSEEN and len(unbegun) == len(elements):
                self._fail_unfinished(liveness.NEVER_BEGAN)  # before that its sender may be about to start them
        elif unbegun and verdict is not None and self._looks.hopeless == liveness.LOOKS:
            self._fail_unfinished(verdict)
            self.cancel_at_scheduler()
        elif unbegun and not self._failing_rest:
            self._explain_if_gone(seen)

    def _explain_if_gone(self, seen: JobState | None) -> None:
        """Ask the scheduler about elements that have not begun, once looks in a row have not found them."""
        if seen is not None and seen.scheduler_id:
            self._scheduler_ids.add(seen.scheduler_id.partition("_")[0])
            self._doubt = None
        claims = {element.tracker.scheduler_id for element in list(self.element_tasks.values())}
        ids = self._scheduler_ids | {claim.partition("_")[0] for claim in claims if claim}
        if self._looks.gone >= (liveness.LOOKS if ids or self._doubt is not None else liveness.LOOKS_UNSEEN):
            in_order = sorted(ids, key=lambda each: (len(each), each))  # the newest has the last word
            if self._explaining is None or self._explaining.done():  # each look may ask
                self._explaining = liveness.explain_unstarted(
                    self.session, self.folder, in_order, self._doubt, self._fail_unstarted
                )

    def _fail_unstarted(self, verdict: SchedulerVerdict) -> None:
        if not self._failing_rest and not self._over:  # two looks may have asked
            self._fail_unfinished(verdict)

    def submitted(self, some: range, scheduler_id: str, doubt: SubmitError | None) -> None:
        """Take the scheduler's id of elements that were started together; with `doubt` perhaps none were."""
        self._unsubmitted.difference_update(some)
        self._note_acceptance()
        if self.session.scheduler.knows_all:
            self.queued()  # not before: a look that finds nothing would put off the next one
            self._scheduler_ids.update([scheduler_id] if scheduler_id else [])
        else:  # above, each task has an id of its own, in its claim
            self.tracker_of(some[0]).scheduler_id = scheduler_id
        self._doubt = doubt or self._doubt

    def waits_for(self, what: str) -> None:
        """Show what it waits for in addition to its turn; "" for nothing any more."""
        self._besides = what
        self.group.on_state(PENDING, self.waiting_reason)

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """Conclude the group: there will be no environment."""
        self._fail_unfinished(SchedulerVerdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment"))
        self.cancel_at_scheduler()

    # ends

    def ended(self, published: Mapping[str, Any]) -> None:
        """Record that an element has ended for good."""
        if published["kind"] != layout.RETURNED:
            self._last = published
        if published["kind"] == layout.UNSATISFIABLE:
            self._before = max(self._before, 0)  # others would fare no better, unless some items have ended
        if published["kind"] == layout.ENVIRONMENT and published.get("stage") == "start":
            self._bridge_is_damaged = True
        self._check()

    def _check(self) -> None:
        """Start others, or conclude the rest, if no element is left but items are; in a thread of its own."""
        threading.Thread(target=self._continue_or_conclude, name="clusterfn-group-next", daemon=True).start()

    def _continue_or_conclude(self) -> None:
        try:
            self._start_or_conclude()
        except ClusterfnError as error:  # the host can no longer be asked, and no element is left that could report
            self.group.on_refused(error)

    def _start_or_conclude(self) -> None:
        with self._lock:
            ended = self.item_results.count_ended()
            # an element that begins when the rest has been concluded finds nothing
            reporting = [each for each in self.element_tasks.values() if each.begun or not self._failing_rest]
            if ended == self.spec.count or not all(element.over for element in reporting):
                return
            progress, self._before = ended > self._before, ended
            if self._failing_rest and not progress:  # an element may have begun at the last moment: look again later
                self._again += 1
                if self._again > _AGAIN:
                    message = "the host could not conclude the items that are left"
                    self.group.on_refused(liveness.cannot_conclude_error(self.group, message))
                    return
                later = threading.Timer(_AGAIN_S, self._continue_or_conclude)
                later.daemon = True
                later.start()
            elif progress and not self._stopping and not self._failing_rest:
                self._start_others(self.spec.count - ended)
            else:
                self._fail_unfinished(self._verdict())

    def _start_others(self, left: int) -> None:
        """Start elements for the items that are left, after the bridge is sent again if others found it damaged."""
        others = self._next(max(1, min(self.spec.elements, math.ceil(left / self.spec.chunk))))
        console.tell(f"{left} of {self.spec.count} items have no process left: starting {len(others)} more elements")
        damaged, self._bridge_is_damaged = self._bridge_is_damaged, False
        before: list[Reply[bool]] = []
        with contextlib.suppress(Unreachable):  # they will find it as it is
            before = self.session.mend_bridge(self.job.bridge) if damaged else []
        self.start(others, before)

    def _next(self, count: int) -> range:
        first = 1 + max(self.element_tasks, default=self.spec.elements)
        return range(first, first + count)

    def quiet(self, item: str, told: str) -> None:
        """Say that an item has made no progress for long; only of the first such item."""
        if not self.said_quiet:
            self.said_quiet = True
            known = item.isdecimal() and len(item) < 10 and int(item) < len(self.numbers)
            which = self.group.label(self.numbers[int(item)]) if known else f"an item of {self.group.id[:SHORT]}"
            console.warn(f"{which} has {told}: clusterfn stack {self.group.id[:SHORT]} shows where it waits")

    def cannot_conclude(self, error: ClusterfnError) -> None:
        """End the group: the host cannot conclude one of its elements."""
        if not any(element.begun and not element.over for element in self.element_tasks.values()):
            job_display.forget_going(self.group)
        self.group.on_refused(error)

    def _verdict(self) -> SchedulerVerdict:
        """Return the verdict on items that no element will run: that of the last element that died."""
        last = self._last
        if self._stopping:
            return liveness.STOPPED
        if not last:
            return SchedulerVerdict(layout.LOST, "the elements of the group ended before the item began")
        evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
        return SchedulerVerdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")

    def _fail_unfinished(self, verdict: SchedulerVerdict) -> Reply[Completed]:
        """Conclude every item without an element by this verdict; elements that have not begun never will."""
        with self._lock:
            self._failing_rest = True
            number = self._next(1)[0]
            element = self.element_tasks[number] = ArrayTask(self, number)
        element.follow()
        return self._conclude(element, verdict)

    def _conclude(self, element: ArrayTask, verdict: SchedulerVerdict) -> Reply[Completed]:
        """Ask the host to conclude; the first verdict asked for an element is final."""
        return liveness.fail_unfinished_items(
            self.session, self.group, element.tracker.folder, self.job.bridge, verdict
        )

    def _all_items_ended(self) -> None:
        """End the group; an element that died may have been the one to publish its outcome."""
        if self._last and self.group.done() and not self._failing_rest:
            self._fail_unfinished(self._verdict())
        self._end()

    def stop(self) -> None:
        """End what runs, and keep the rest from ever starting."""
        self._stopping = True
        if self._stop_sending():
            return
        self.await_submissions()
        self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self.cancel_at_scheduler()
        self.end_if_stuck(self.group.done, lambda left: self.group.on_state(self.group.state, left), self._look)
        with contextlib.suppress(Unreachable):  # it continues without an answer
            self._fail_unfinished(self._verdict()).result(_TIMEOUT_S)

    def _look(self) -> None:
        for element in list(self.element_tasks.values()):
            if element.begun and not element.over:
                element.tracker.liveness.look_until_it_ends()

    def withdraw(self) -> None:
        """Keep items from ever starting that no element has taken."""
        if self._stop_sending():
            return
        self.await_submissions()
        self._fail_unfinished(liveness.WITHDRAWN).result(_TIMEOUT_S)

    def _end(self) -> None:
        self._over, self.inputs = True, ()
        self.item_results.close()
        self.session.unwatch(self.scheduler_name)
        if self._complete is not None:
            self._complete.cancel()
        for submission in list(self._submissions):
            if isinstance(submission, PendingSubmission):
                submission.withdraw()
        for element in list(self.element_tasks.values()):
            element.tracker.end()


def _is_being_sent(submission: Reply[Any]) -> bool:
    """Whether the answer of the scheduler is on its way."""
    waits = isinstance(submission, PendingSubmission) and submission.is_waiting
    return not waits and not submission.done()


class _ElementsSubmission(SubmissionListener):
    """The `SubmissionListener` of elements that are started by one request: a task array, or one process.

    Args:
        some: These elements.
        numbers: All that were started together with them.
        after: What all of them need.
    """

    def __init__(self, group: GroupTracker, some: range, numbers: range, after: Sequence[Reply[Any]]) -> None:
        self._group, self._some, self._numbers, self._after = group, some, numbers, after

    def on_started(self, scheduler_id: str, doubt: SubmitError | None) -> None:
        self._group.submitted(self._some, scheduler_id, doubt)

    def on_not_started(self, error: BaseException) -> None:
        none = any(reply.done() and reply.exception(0) is not None for reply in self._after)
        self._group.refused(self._numbers if none else self._some, error)

    def on_refused_for_now(self, reason: str) -> None:
        self._group.refused_for_now(reason)

    @property
    def note(self) -> str:
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

    def on_queued(self) -> None:
        self._group.queued()

    def on_script_ended(self) -> None:
        element = self._group.element_tasks.get(self._some[0])
        if element is not None:  # else it was refused, and has ended
            element.tracker.liveness.process_ended()
