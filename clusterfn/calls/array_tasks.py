"""The elements of a group as they are followed from here, each as a job is: by a `Tracker` and its `Witness`.

What an element says of its items goes to the `Accounts`, that it has ended to the `Gathering`; nothing is concluded
here. Made by `gathering`.
"""

from __future__ import annotations

import collections
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.calls import catch_up
from clusterfn.calls.job import PENDING, Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError
from clusterfn.hosts.connection import Completed, HostConnection, Reply

if TYPE_CHECKING:
    from clusterfn.calls.group_tracker import Gathering

_TIMEOUT_S = 60.0


class Element:
    """One element as a `Tracker` sees it: in the place of a Job."""

    def __init__(self, gathering: Gathering, number: int) -> None:
        self.gathering = gathering
        self.number = number
        self.begun = self.over = False
        self.state, self.reason = PENDING, ""
        self.host, self.id = gathering.group.host, gathering.group.id
        self.submitted_at = gathering.group.submitted_at
        self.tracker = ElementTracker(gathering, number)

    @property
    def _as_job(self) -> Job[Any]:
        return cast("Job[Any]", self)

    def begin_when_claimed(self) -> None:
        """Follow it once it has a claim: until then there is nothing of it."""
        self.tracker.witness.call_if_helpless(self.on_refused)
        claim = self.gathering.connection.wait(posixpath.join(self.tracker.folder, layout.CLAIM))
        self.tracker.awaited = claim
        claim.add_done_callback(self._claimed)

    def _claimed(self, reply: Reply[bytes]) -> None:
        if self.tracker.closed or self.begun:
            return
        error = reply.exception(0)
        if error is not None:
            self.on_lost(error if isinstance(error, ClusterfnError) else HostError(str(error), host=self.host))
            return
        claim = reply.result(0)
        self.tracker.scheduler_id = claim.decode("ascii", "replace").strip() or self.tracker.scheduler_id
        self.follow()
        self.tracker.witness.listen()

    def follow(self) -> None:
        """From its first attempt on."""
        self.begun = True
        self.tracker.follow(self._as_job, 1)

    def follow_now(self) -> None:
        """The same without a claim, which one that only gave up items never has, and one that waits again has later."""
        if not self.begun:
            awaited = self.tracker.awaited
            self.follow()
            self.tracker.witness.listen()
            if awaited is not None:
                awaited.cancel()

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits again."""
        return not self.over and self.state == PENDING

    def on_state(self, state: str, reason: str = "") -> None:
        """What it waits for is what the group waits for."""
        self.state, self.reason = state, reason
        self.gathering.group.on_state(state, reason if state == PENDING else "")

    def on_retry(self, told: str) -> None:
        """It goes on in another attempt: its items say themselves which of them are run again."""

    def on_quiet(self, told: str, item: str = "") -> None:
        """An item of it has done nothing for long, as told; "": it does something again."""
        if told:
            self.gathering.quiet(item, told)

    def on_connection(self, trouble: str) -> None:
        """Why nothing can be heard of it."""
        self.gathering.group.on_connection(trouble)

    def on_outcome(self, published: Mapping[str, Any], _: bytearray) -> None:
        """It has ended for good."""
        self.over = True
        self.gathering.ended(published)

    def on_lost(self, error: ClusterfnError) -> None:
        """Nothing more can be learnt from here."""
        if not self.over:
            self.gathering.group.on_refused(error)

    def on_refused(self, error: ClusterfnError) -> None:
        """It cannot be concluded: its script is gone, and the host has no room, or has lost the means, to say why."""
        if not isinstance(error, HostDiskFull):
            self.tracker.session.distrust()
        error.host, error.job = self.host, self.id
        self.gathering.helpless(error)


class ElementTracker(Tracker):
    """Follows an element: as a job, with the journal and the values of each attempt."""

    def __init__(self, gathering: Gathering, number: int) -> None:
        super().__init__(gathering.session, gathering.job.id, gathering.job.name, bridge=gathering.job.bridge)
        self.folder = layout.element_dir(gathering.folder, number)
        self.scheduler_name = f"{gathering.scheduler_name}.{number}"  # nobody looks for it by itself
        self.awaited: Reply[Any] | None = None
        self.closed = False
        self._gathering, self._number = gathering, number

    def log_path(self, stream: str) -> str:
        """Of the scheduler: the file of this element."""
        if stream != "scheduler":
            return super().log_path(stream)
        slurm = self.session.host.scheduler == "slurm"
        name = layout.element_log(self.scheduler_id if slurm else self._number)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)

    def follow(self, job: Job[Any], attempt: int) -> None:
        """Follow an attempt from its beginning: what it says of its items, their values, its outcome."""
        self.attempt = attempt
        self._watch_connection(job)
        self._partial = b""
        element, stream = cast(Element, job), Stream(attempt)
        lines = self._follow(layout.JOURNAL, lambda data: self._gathering.accounts.on_lines(element, stream, data))
        values = self._follow(layout.VALUES, lambda data: self._gathering.accounts.on_values(element, stream, data))
        self._follows = [self._follow(layout.EVENTS, lambda data: self._on_events(job, data)), lines, values]
        waiting = self.connection.wait(posixpath.join(self.attempt_folder, layout.OUTCOME), drain=self._follows)
        waiting.add_done_callback(lambda reply: None if self.closed else self._drained(job, stream, reply))
        self.awaited = waiting

    def _drained(self, job: Job[Any], stream: Stream, reply: Reply[bytes]) -> None:
        """The attempt has its outcome, and nothing more comes of its files."""
        if reply.exception(0) is None:
            self._gathering.accounts.on_last(cast(Element, job), stream)
        self._on_outcome(job, reply)

    def _follow_next(self, job: Job[Any], told: dict[str, Any]) -> None:
        super()._follow_next(job, told)
        if told["kind"] == layout.PREEMPTED:
            self._gathering.queued()

    def _follow(self, name: str, on_data: Callable[[bytes], Any]) -> Reply[Any]:
        return self.connection.follow(posixpath.join(self.attempt_folder, name), on_data)

    def end(self) -> None:
        """Nothing of it needs to be heard any more."""
        open_still = [*self._follows, *([self.awaited] if self.awaited else [])]
        self.closed = True
        super().end()
        for reply in open_still:
            if not reply.done():
                reply.cancel()


class Record:
    """A line about an item that has ended, and its value's bytes."""

    def __init__(self, element: int, attempt: int, line: dict[str, Any], value: bytearray | None) -> None:
        self.element, self.attempt, self.line, self.value = element, attempt, line, value


class Stream:
    """One attempt's journal and values as they come; either may be ahead of the other."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._partial = b""
        self._values = bytearray()
        self._from = 0

    def lines(self, data: bytes) -> list[dict[str, Any]]:
        """The whole lines of what has come; one that a crash has torn is passed over."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [told for told in map(_read, lines) if told]

    def ready(self, data: bytes) -> Iterable[tuple[dict[str, Any], bytearray | None]]:
        """The lines whose values are here, in order, with them."""
        self._values += data
        while self.waiting:
            size = (self.waiting[0].get("value") or {}).get("size")
            if size is None:
                yield self.waiting.popleft(), None
                continue
            begin = self.waiting[0]["at"] - self._from
            if len(self._values) < begin + size:
                return
            value = self._values[begin : begin + size]
            del self._values[: begin + size]
            self._from += begin + size
            yield self.waiting.popleft(), value

    def left(self) -> Iterable[tuple[dict[str, Any], bytearray]]:
        """The lines whose values will never be whole, as after a crash of the machine, with what there is of them."""
        while self.waiting:
            line = self.waiting.popleft()
            yield line, self._values[max(0, line.get("at", 0) - self._from) :]


@dataclass(frozen=True)
class Left:
    """What is there of a group that somebody else sent.

    Attributes:
        numbers: Its elements that have a folder.
        unclaimed: Those of them that have begun and have no claim: they wait in the queue again, or only gave up items.
        given_up: The latter.
        is_stopped: Whether the group's end was asked for.
        is_complete: Whether each item has its line.
        journals: How many bytes there are of the journal of each element and attempt.
    """

    numbers: Sequence[int]
    unclaimed: Sequence[int]
    given_up: Sequence[int]
    is_stopped: bool
    is_complete: bool
    journals: Mapping[tuple[int, int], int]


def left(connection: HostConnection, folder: str) -> Left:
    """Look what there is, in one round trip."""
    wanted = ["(", "-type", "d", "-o", "-name", layout.CLAIM, "-o", "-name", layout.VERDICT, ")"]
    elements = posixpath.join(folder, layout.ELEMENTS)
    found = connection.run(["find", elements, "-mindepth", "1", "-maxdepth", "2", *wanted])
    told = catch_up.ask(connection, elements, 4, layout.JOURNAL)
    outcome = posixpath.join(layout.attempt_dir(folder, 1), layout.OUTCOME)
    stopped, complete = connection.have([posixpath.join(folder, layout.CANCEL), outcome]).result(_TIMEOUT_S)
    paths = [path[len(elements) + 1 :] for path in found.result(_TIMEOUT_S).out.decode().splitlines()]
    claimed = set(_with(paths, layout.CLAIM))
    unclaimed = [number for number in _with(paths, layout.ATTEMPTS) if number not in claimed]
    journals = {_attempt_of(path): size for path, size in catch_up.sizes(elements, told).items()}
    return Left(_with(paths, ""), unclaimed, _with(paths, layout.VERDICT), stopped, complete, journals)


def _attempt_of(path: str) -> tuple[int, int]:
    """The element and the attempt whose file that is."""
    number, _, attempt, _ = path.split("/")
    return int(number), int(attempt)


def _with(paths: Iterable[str], name: str) -> list[int]:
    """The elements that have this in their folder; "" for the folder itself."""
    found = [number for number, _, rest in (path.partition("/") for path in paths) if rest == name]
    return sorted(int(number) for number in found if number.isdecimal())


def listed(connection: HostConnection, folder: str) -> Reply[Completed]:
    """Ask which elements of a group are there; `numbers` reads the answer."""
    return connection.run(["ls", "-1", posixpath.join(folder, layout.ELEMENTS)])


def numbers(answer: Completed) -> list[int]:
    """Those of the elements that are there."""
    return [int(name) for name in answer.out.decode().split() if name.isdecimal()]


def _read(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) and _is_account(told) else {}


def _is_account(told: Mapping[str, Any]) -> bool:
    """Whether the line says something of one item, and where its value is if it has one."""
    value = told.get("value")
    numbers = [told[name] for name in ("begin", "retry", "index") if name in told]
    wanted = numbers if value is None else [*numbers, told.get("at"), value.get("size") if type(value) is dict else -1]
    return bool(numbers) and all(type(number) is int and number >= 0 for number in wanted)
