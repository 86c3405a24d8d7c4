"""Follows the elements of a group on its host, starts new ones while items are left, and has the rest concluded.

Each element is followed as a job is, by a `Tracker` and its `Witness`; what it says of its items goes to the
`JobGroup`. Nothing is concluded here. Its callbacks run on the connection's reader thread, so they never wait; values
are loaded in a thread of its own, as that runs code of the user's. Made by `mapping` and `lookup`.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from clusterfn import division, download, layout, live, outcome
from clusterfn.elements import Element, Record, Stream
from clusterfn.errors import ClusterfnError, HostError, ResultError, SubmitError, Unreachable
from clusterfn.group import Ended, JobGroup, state_of
from clusterfn.host import Completed, HostConnection, Reply, SpawnReply
from clusterfn.job import PENDING, RETURNED
from clusterfn.scheduler import base
from clusterfn.scheduler.base import Answer, Evidence, Limits, Submission, Verdict
from clusterfn.send import answer_of, first_of
from clusterfn.session import Session
from clusterfn.spec import Group, JobSpec
from clusterfn.watch import Seen, Silent

_TIMEOUT_S = 60.0
_BURY_S = 600.0  # thousands of items
_AGAIN, _AGAIN_S = 6, 5.0
_LOOKS = 2
_BEGIN_S = 60.0
_LARGEST_ARRAY = 1000  # SLURM's own default


class Gathering:
    """One group as it is followed from here.

    Args:
        session: Its host.
        job: What it was sent as.
        group: Whom to tell.
        limits: What the scheduler allows.

    Attributes:
        submission: The request that starts its elements, while it is open.
    """

    def __init__(self, session: Session, job: JobSpec, group: JobGroup[Any], limits: Limits) -> None:
        self.session = session
        self.job = job
        self.spec = cast(Group, job.group)
        self.group = group
        self.submission: Reply[Any] | None = None
        self.folder = layout.job_dir(job.root, job.id)
        self.scheduler_name = layout.job_name(job.name, job.id)
        self._limits = limits
        self._elements: dict[int, Element] = {}
        self._places: dict[int, tuple[int, int, dict[str, Any]]] = {}
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._loading = threading.Thread(target=self._load_all, name="clusterfn-group", daemon=True)
        self._lock = threading.RLock()
        self._before = -1
        self._stopping = self._burying = False
        self._last: Mapping[str, Any] = {}
        self._looks = self._again = 0
        self._turn = self._besides = ""
        group.gathering = self

    @property
    def connection(self) -> HostConnection:
        """The connection to the group's host."""
        return self.session.connection

    # starting

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> list[Reply[Any]]:
        """Start these elements and follow them; gives the requests that start them."""
        self.follow(numbers)
        scheduler, replies = self.session.scheduler, []
        for some, request in scheduler.elements(self.job, numbers, self._limits.array or _LARGEST_ARRAY):
            replies.append(self._start(some, request, after))
        if scheduler.watch_command():
            self.session.watch.add(self.scheduler_name, self.on_scheduler)
        return replies

    def _start(self, some: range, request: Submission, after: Sequence[Reply[Any]]) -> Reply[Any]:
        connection = self.connection
        if request.do == "spawn":
            spawned = connection.spawn(request.argv, request.cwd, request.log, unset=request.unset, after=after)
            spawned.add_done_callback(lambda reply: self._spawned(some[0], reply, after))
            return spawned
        ran = connection.run(
            request.argv, cwd=request.cwd, unset=request.unset, timeout_s=request.timeout_s, after=after
        )
        ran.add_done_callback(lambda reply: self._submitted(some, reply, after))
        return ran

    def _spawned(self, number: int, reply: SpawnReply, after: Sequence[Reply[Any]]) -> None:
        self.submission = None
        error = reply.exception()
        if error is not None:
            self._refused(range(number, number + 1), first_of(after, error))
            return
        process, tracker = reply.result(0), self._elements[number].tracker
        tracker.scheduler_id = self.session.scheduler.submitted(Answer(pid=process.pid, starttime=process.starttime))
        reply.exited.add_done_callback(lambda exited: None if exited.exception() else tracker.witness.process_ended())

    def _submitted(self, some: range, reply: Reply[Completed], after: Sequence[Reply[Any]]) -> None:
        self.submission = None
        try:
            answer = answer_of(reply)
            self.session.scheduler.submitted(answer)
        except SubmitError as refusal:
            if not self.session.scheduler.ambiguous(answer):
                self._refused(some, refusal)
        except ClusterfnError as error:
            self._refused(some, first_of(after, error))

    def _refused(self, numbers: range, error: BaseException) -> None:
        """These elements never were; the group ends if none was."""
        refused = error if isinstance(error, ClusterfnError) else SubmitError(str(error))
        refused.host, refused.stage = self.session.host.name, refused.stage or "submit"
        for number in numbers:
            self._elements.pop(number).tracker.end()
        if self._elements:
            live.say(f"clusterfn: {refused.message}; {len(self._elements)} elements do the work of all\n")
            self._check()
            return
        self.group.on_refused(refused)
        self._end()
        if isinstance(error, SubmitError) or (isinstance(error, HostError) and error.kind):
            self.connection.run(["rm", "-rf", "--", self.folder])

    # following

    def follow(self, numbers: Iterable[int]) -> None:
        """Hear of these elements as soon as they begin."""
        if not self._loading.is_alive():
            self._loading.start()
        for number in numbers:
            element = self._elements[number] = Element(self, number)
            element.begin_when_claimed()

    def attach(self, numbers: Sequence[int]) -> None:
        """Follow a group that somebody else sent."""
        self.follow(numbers)
        if self.session.scheduler.watch_command():
            self.session.watch.add(self.scheduler_name, self.on_scheduler)
            return
        timer = threading.Timer(_BEGIN_S, self._withdraw_unbegun)  # by then whoever sent it has started them
        timer.daemon = True
        timer.start()

    def _withdraw_unbegun(self) -> None:
        if not self.group.done() and self._unbegun():
            self._bury(Verdict(layout.LOST, "the items were sent and never began", hint="group.retry_failed()"))

    def _unbegun(self) -> list[int]:
        return [number for number, element in self._elements.items() if not element.begun]

    def on_lines(self, element: Element, stream: Stream, data: bytes) -> None:
        """Lines of a journal have come."""
        for line in stream.lines(data):
            if "begin" in line:
                self._places[line["begin"]] = (element.number, stream.attempt, line)
                self.group.on_begin(line["begin"])
            elif "index" in line:
                known = self._places.get(line["index"], (0, 0, {}))[2]
                self._places[line["index"]] = (element.number, stream.attempt, {**known, **line})
                stream.waiting.append(line)
        self.on_values(element, stream, b"")

    def on_values(self, element: Element, stream: Stream, data: bytes) -> None:
        """Values have come; those that are whole are loaded."""
        for line, value in stream.ready(data):
            self._records.put(Record(element.number, stream.attempt, line, value))

    def _load_all(self) -> None:
        record = self._records.get()
        while record is not None:
            self._take(record)
            record = self._records.get() if not self.group.done() else None
        if self._last and self.group.done() and not self._burying:  # who died may have been the one to publish
            self._bury(self._verdict())
        self._end()

    def _take(self, record: Record) -> None:
        """Load one item's value or exception; what cannot be loaded is told as that."""
        line, index = record.line, record.line["index"]
        name = f"{self.group.id}[{index}]"
        place = outcome.Place(self.group.host, name, layout.element_dir(self.folder, record.element))
        published = {**dict.fromkeys(("stage", "message", "node")), **line, "attempt": record.attempt}
        usage = line.get("usage") or {}
        try:
            value = outcome.value_of(published, record.value, place) if line["kind"] == layout.RETURNED else None
        except ResultError as error:
            error.hint = (error.hint or "").replace(name, self.group.id)
            self.group.on_end(index, Ended(RETURNED, None, error, usage))
            return
        failure = None if line["kind"] == layout.RETURNED else outcome.exception_of(published, record.value, place)
        self.group.on_end(index, Ended(state_of(line["kind"]), value, failure, usage))

    # what the scheduler says

    def on_scheduler(self, seen: Seen) -> None:
        """One look at all elements together."""
        if isinstance(seen, Silent):
            self.waits_for(f"the scheduler is unreachable since {seen.for_s:.0f} s")
            return
        waits = seen is not None and seen.phase == base.PENDING
        self._turn = self.session.scheduler.in_words(seen) if seen is not None and waits else ""
        self.group.on_state(PENDING, "; ".join(filter(None, [self._turn, self._besides])))
        verdict = None if seen is None else self.session.scheduler.hopeless(seen)
        gone = seen is None or seen.phase == base.FINAL
        self._looks = self._looks + 1 if verdict is not None or gone else 0
        if self._looks == _LOOKS and self._unbegun():
            if verdict is not None:
                self._bury(verdict)
                self._cancel_at_scheduler()
            else:
                self._explain(seen.scheduler_id if seen is not None else "")

    def _explain(self, scheduler_id: str) -> None:
        """Nobody will start the elements that have not begun: why?"""
        scheduler, unknown = self.session.scheduler, Verdict(
            layout.LOST, "the scheduler does not know the elements of the group any more, and they never began",
            hint="group.retry_failed()", stage="submit",
        )  # fmt: skip
        if not scheduler_id:
            self._bury(unknown)
            return
        asked = self.connection.run(scheduler.evidence_command(scheduler_id.partition("_")[0]), unset=scheduler.unset)

        def told(reply: Reply[Completed]) -> None:
            said = b"" if reply.exception() else reply.result(0).out + reply.result(0).err
            evidence = Evidence(said.decode("utf-8", "replace"), "", scheduler_id)
            self._bury(scheduler.explain(evidence) or unknown)

        asked.add_done_callback(told)

    def waits_for(self, what: str) -> None:
        """What it waits for besides its turn; "" for nothing any more."""
        self._besides = what
        self.group.on_state(PENDING, "; ".join(filter(None, [self._turn, what])))

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """There will be no environment."""
        self._bury(Verdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment"))
        self._cancel_at_scheduler()

    # ends

    def ended(self, published: Mapping[str, Any]) -> None:
        """An element has ended for good."""
        if published["kind"] != layout.RETURNED:
            self._last = published
        self._check()

    def _check(self) -> None:
        """Where no element is left but items are: start others, or have the rest concluded."""
        threading.Thread(target=self._go_on, name="clusterfn-group-next", daemon=True).start()

    def _go_on(self) -> None:
        with self._lock:
            told = len(self._places_ended())
            if told == len(self.group) or any(self._may_speak(element) for element in self._elements.values()):
                return
            progress, self._before = told > self._before, told
            if self._burying and not progress:
                self._look_again()
            elif progress and not self._stopping and not self._burying:
                more = division.again(self.spec, len(self.group) - told)
                self.start(self._next(more))
            else:
                self._bury(self._verdict())

    def _may_speak(self, element: Element) -> bool:
        """Whether more is to come of it; one that begins when the rest has been concluded finds nothing."""
        return not element.over and (element.begun or not self._burying)

    def _look_again(self) -> None:
        """An element may have begun at the last moment, of which nothing is heard yet."""
        self._again += 1
        if self._again > _AGAIN:
            self.group.on_refused(self._helpless("the host could not conclude the items that are left"))
            return
        later = threading.Timer(_AGAIN_S, self._go_on)
        later.daemon = True
        later.start()

    def _places_ended(self) -> list[int]:
        return [index for index, (_, _, line) in list(self._places.items()) if "index" in line]

    def _next(self, count: int) -> range:
        first = 1 + max(self._elements, default=self.spec.elements)
        return range(first, first + count)

    def _verdict(self) -> Verdict:
        """What is to be said of items that nobody will run."""
        if self._stopping:
            return Verdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
        last = self._last
        if not last:
            return Verdict(layout.LOST, "the elements of the group ended before the item began")
        evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
        return Verdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")

    def _bury(self, verdict: Verdict) -> Reply[Completed]:
        """Have every item that nobody has concluded so; elements that have not begun never will."""
        with self._lock:
            self._burying = True
            number = self._next(1)[0]
            element = self._elements[number] = Element(self, number)
        element.follow()
        asked, folder = json.dumps(verdict.as_dict()).encode(), element.tracker.folder
        reply = self.session.supervise("bury", folder, bridge=self.job.bridge, stdin=asked, timeout_s=_BURY_S)
        reply.add_done_callback(self._buried)
        return reply

    def _buried(self, reply: Reply[Completed]) -> None:
        error = reply.exception()
        if error is None and reply.result(0).rc != 0:
            said = reply.result(0).err.decode("utf-8", "replace").splitlines()[-5:]
            error = self._helpless("the host could not conclude the group", said)
        if error is not None:
            self.group.on_refused(error if isinstance(error, ClusterfnError) else self._helpless(str(error)))

    def _helpless(self, message: str, evidence: Sequence[str] = ()) -> ClusterfnError:
        return ClusterfnError(
            message, host=self.group.host, job=self.group.id, stage="supervisor", evidence=evidence
        )  # fmt: skip

    def stop(self) -> None:
        """End what runs, and keep the rest from ever starting."""
        self._stopping = True
        submission = self.submission
        if submission is not None:
            submission.exception(_TIMEOUT_S)
        self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self._cancel_at_scheduler()
        with contextlib.suppress(Unreachable):  # it goes on
            self._bury(self._verdict()).result(_TIMEOUT_S)

    def _cancel_at_scheduler(self) -> None:
        scheduler = self.session.scheduler
        argv = scheduler.cancel_command(self.scheduler_name)
        if argv:
            self.connection.run(argv, unset=scheduler.unset)

    def _end(self) -> None:
        self._records.put(None)
        self.session.watch.remove(self.scheduler_name)
        for element in list(self._elements.values()):
            element.tracker.end()

    # what a user asks of one item

    def logs(self, index: int, stream: str) -> str:
        """What it has printed."""
        if stream not in (layout.STDOUT, layout.STDERR):
            raise ValueError(f"{stream!r}: an item has stdout and stderr")
        if index not in self._places:
            return ""
        number, attempt, line = self._places[index]
        folder = layout.attempt_dir(layout.element_dir(self.folder, number), attempt)
        at = line.get("out" if stream == layout.STDOUT else "err", 0)
        begin, size = at if isinstance(at, list) else (at, None)
        return download.read_part(self.connection, posixpath.join(folder, stream), begin, size)

    def work_folder(self, index: int) -> str:
        """Where it runs, or ran."""
        number, attempt, _ = self._places.get(index, (1, 1, {}))
        folder = layout.attempt_dir(layout.element_dir(self.folder, number), attempt)
        return posixpath.join(folder, layout.WORK, str(index))
