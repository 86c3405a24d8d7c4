"""The life of one element of a group: it claims chunks, runs their items one by one, and takes over from the dead.

To everybody else it is a job: `main` has claimed it and fenced its earlier attempts, `after` concludes it if this
process dies. Between two items it may give way to another user who waits for cards: then it gives back what it has and
waits in the queue like a job that has not begun.
"""

import errno
import os
import time

from ..layout import CANCELLED, EXIT_PUBLISHED, EXIT_QUEUED, EXIT_RETURNED, HOST_DISK, LOST, PREEMPTED, RETURNED
from . import item, place, retries
from .chunks import NOBODY, Chunks
from .journal import Journal
from .log import say, state
from .run import look_at_bridge
from .verdict import Fenced, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

    from .attempt import Attempt
    from .job import Job
    from .watch import Watch

_EXIT_LEFT_TO_AFTER = 143
_SETTLE_S = 2.0  # who was fenced looks for that every second
_TURN_S = 0.1
_SPARE_S = 30.0  # of the minute that SLURM is asked for in addition
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEVER_SAID = "the process that watched over the item is gone, and left no word"


class GaveWay(Verdict):
    """It waits in the queue again."""

    def __init__(self, told: int) -> None:
        message = "it gave way to another user who waits for cards, after %d items, and waits in the queue again" % told
        super().__init__(PREEMPTED, message, stage="queue")


def see_through(job: "Job", attempt: "Attempt", watch: "Watch") -> int:
    """Pull until nothing is left for it, and publish how that went; the exit code of the process."""
    from . import grouped

    try:
        attempt.prepare()
        attempt.event("starting", pid=os.getpid(), **place.facts(job))
        verdict = Element(job, attempt, watch).pull()
    except Verdict as found:
        verdict = found
    except OSError as error:
        if error.errno not in _FULL:
            raise
        message = "the disk of the host is full: %s (%s)" % (os.strerror(error.errno), error.filename or attempt.folder)
        verdict = Verdict(HOST_DISK, message, hint="free space there, then call map again", stage="start")
    if verdict.kind is None:
        say(verdict.facts["message"])
        return EXIT_RETURNED if isinstance(verdict, Fenced) else _EXIT_LEFT_TO_AFTER
    won = attempt.publish(verdict.kind, dict(verdict.facts, by="supervisor", node=job.node))
    grouped.conclude_if_complete(job)
    state(attempt.number, verdict.kind, won)
    if isinstance(verdict, GaveWay):
        return EXIT_QUEUED
    return EXIT_RETURNED if verdict.kind == RETURNED or not won else EXIT_PUBLISHED


class Teller:
    """Gives each item of the chunks that it pulls its line."""

    def __init__(self, job: "Job", attempt: "Attempt", sync: bool) -> None:
        self.job = job
        self.attempt = attempt
        self.chunks = Chunks(job.home, job.spec["group"])
        self.journal = Journal(attempt.folder, sync)
        self.told = 0
        self.before: "dict[int, list[str]]" = {}

    def pulled(self, most: "Optional[int]" = None) -> "Iterator[int]":
        """Its chunks of an earlier start, then those that nobody has, `most` of them, then those of the dead."""
        number: "int" = self.job.element or 0
        if self.attempt.number > 1:
            self.settle()
            yield from self.chunks.held_by(number)
        taken = 0
        while most is None or taken < most:
            chunk = self.chunks.take(number, self.share())
            if chunk is None:
                break
            yield chunk
            taken += 1
        chunk = self.chunks.take_over(number)
        while chunk is not None:
            if self._may_linger(chunk):
                self.settle()
            yield chunk
            chunk = self.chunks.take_over(number)

    def share(self) -> int:
        """How many items to claim next, at most."""
        return int(self.job.spec["group"]["chunk"])

    def _may_linger(self, chunk: int) -> bool:
        """Whether the element that had it was concluded by others, and may not have noticed yet."""
        before = self.chunks.holders(chunk)[-2]
        if before == NOBODY:
            return False
        end = self.chunks.end_of(before)
        return not end or end.get("by") not in ("supervisor", "after")

    def settle(self) -> None:
        """Let whoever had it notice that he is fenced."""
        time.sleep(_SETTLE_S)

    def left(self, chunk: int) -> "Iterator[int]":
        """Its items that have not begun, or may run again; else those that have begun get their line here."""
        ended, begun = self._past(chunk)
        for index in self.chunks.items(chunk):
            if index not in ended and (index not in begun or self._runs_again(index, begun[index], chunk)):
                yield index

    def _runs_again(self, index: int, before: "list[str]", chunk: int) -> bool:
        """Whether `retries=` has an item run again that was not heard of; `before`: what was said of each time."""
        death, of = self._death(chunk), retries.allowed(self.job)
        why = death.facts["message"]
        said = [told or retries.in_words(number, "", why, number, of) for number, told in enumerate(before, 1)]
        if death.kind not in retries.LOSSES or len(before) > of:
            usage = self.chunks.usage_of(chunk, index)
            self.tell(index, Verdict(death.kind, **dict(death.facts, earlier=said[:-1], usage=usage)))
            return False
        self.before[index] = said
        return True

    def _past(self, chunk: int) -> "tuple[set[int], dict[int, list[str]]]":
        if self.attempt.number == 1 and self.chunks.holders(chunk) == [self.job.element]:
            return set(), {}
        return self.chunks.past(chunk)

    def tell(self, index: int, verdict: Verdict) -> None:
        """Give an item that does not run the line that this verdict is."""
        self.journal.end(index, verdict.kind or LOST, verdict.facts)
        self.told += 1

    def _death(self, chunk: int) -> Verdict:
        """What became of whoever had it before."""
        ends = [self.chunks.end_of(each) for each in self.chunks.holders(chunk) if each != self.job.element]
        known = [end for end in ends if end and end["kind"] != RETURNED]
        if not known:
            own = [each["message"] for each in self.attempt.outcomes_before() if each["by"] == "after"]
            said = own[-1] if own else _NEVER_SAID
            return Verdict(LOST, said, stage="supervisor", hint="call it again: group.retry_failed()")
        facts = {name: known[-1].get(name) for name in ("message", "stage", "evidence", "hint", "node", "signal")}
        return Verdict(known[-1]["kind"], facts.pop("message") or "", **facts)


class Element(Teller):
    """One attempt of an element."""

    def __init__(self, job: "Job", attempt: "Attempt", watch: "Watch") -> None:
        super().__init__(job, attempt, sync=job.slurm)
        self.watch = watch
        self._ends = self.chunks.ends()
        self._until = self._no_item_after()
        self._took: "list[float]" = []

    def pull(self) -> Verdict:
        """Run what there is to run; why nothing is left for it.

        Raises:
            Verdict: The element must end, and why.
        """
        self._have_environment()
        for chunk in self.pulled(self.job.spec["group"]["per_element"]):
            if not self._run(chunk):
                return Verdict(RETURNED, "its time is over, after %d items" % self.told)
        return Verdict(RETURNED, "nothing is left to do, after %d items" % self.told)

    def share(self) -> int:
        """As many as fill the time that one is to have by what those before took; one to see how long it takes."""
        group = self.job.spec["group"]
        if group["aim_s"] is None:
            return int(group["chunk"])
        if not self._took:
            return 1
        mean_s = sum(self._took) / len(self._took)
        return max(1, min(int(group["chunk"]), int(group["aim_s"] / mean_s)))

    def settle(self) -> None:
        """The same, with an eye on what may end this one."""
        until = time.monotonic() + _SETTLE_S
        while time.monotonic() < until:
            self.watch.look()
            time.sleep(_TURN_S)

    def _run(self, chunk: int) -> bool:
        """Run its items; False if no other may begin as its time is over."""
        left = self.left(chunk)
        for index in left:
            if self.told and self._is_late():
                return False
            try:
                self.watch.look()
                self._give_way(chunk)
                look_at_bridge(self.job)
                self._run_item(index)
            except Verdict as verdict:
                if verdict.kind == CANCELLED:
                    self._give_up(chunk, verdict)
                raise
        self.chunks.finish(chunk)
        return True

    def _give_way(self, chunk: int) -> None:
        """Wait in the queue again if it must, but for the first item: each turn is good for one."""
        held, number = self.job.held, self.job.element or NOBODY
        if self.told and held is not None and held.gives_way(lambda: self.chunks.give_back(chunk, number)):
            raise GaveWay(self.told)

    def _give_up(self, chunk: int, verdict: Verdict) -> None:
        ended, _ = self.chunks.past(chunk)
        for index in self.chunks.items(chunk):
            if index not in ended:
                self.tell(index, verdict)
        self.chunks.finish(chunk)

    def _run_item(self, index: int) -> None:
        begin, began = self._ends[index - 1] if index else 0, time.monotonic()
        place, before = (begin, self._ends[index] - begin), self.before.pop(index, [])
        self.watch.time_s = self.job.spec["resources"]["time_s"]
        verdict: "Optional[Verdict]" = None
        while verdict is None:
            attempt = item.ItemAttempt(self.attempt, self.journal, index, place, before)
            verdict = item.run(self.job, attempt, self.watch)
        self.told += 1
        self._took.append(time.monotonic() - began)
        self.job.spec["building"] = None  # it has been looked at
        if verdict.kind == CANCELLED:
            raise verdict

    def _have_environment(self) -> None:
        if self.job.spec.get("building"):
            from . import built

            if self.job.held is not None:
                self.job.held.refuse()
            built.ready(self.job, self.attempt, self.watch)

    def _is_late(self) -> bool:
        """Whether another item would be ended by SLURM with the element; without `time` by what the longest took."""
        if self._until is not None:
            return time.monotonic() > self._until
        ends = os.environ.get("SLURM_JOB_END_TIME", "") if self.job.slurm else ""
        return ends.isdecimal() and time.time() + max(self._took, default=0.0) + _SPARE_S > int(ends)

    def _no_item_after(self) -> "Optional[float]":
        """The last moment at which an item can begin and still have its time before SLURM ends the element."""
        element_s: "Any" = self.job.spec["group"]["element_s"]
        item_s: "Any" = self.job.spec["resources"]["time_s"]
        return None if not element_s or not item_s else time.monotonic() + element_s - item_s + _SPARE_S
