"""A group as a whole: how its items ended, what they use, its one outcome, and items that will not run any more."""

import glob
import itertools
import json
import os
import sys
import time

from .. import layout
from ..layout import ATTEMPTS, CANCELLED, COMMAND, ELEMENTS, GONE, LOST, RAISED, RESULT, RETURNED, VERDICT, item_usage
from . import publish, retries
from .attempt import SETTLE_S, Attempt, make_folder, read_live_usage
from .group_files import NO_ELEMENT, Chunks, ItemJournal, journal_lines
from .job import JobFolder
from .publish import numbers_in
from .text import native
from .verdict import Verdict, requested
from .watch import as_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator, Optional

_ITEM_USAGE = item_usage(0).replace("0", "*")
_NEVER_SAID = "the process that watched the item is gone, and left no result"


def kinds(home: str) -> "dict[int, str]":
    """Return how each item ended that has ended."""
    found: "dict[int, str]" = {}
    for number in numbers_in(os.path.join(home, ELEMENTS)):
        for line in journal_lines(home, number):
            if "index" in line:
                found.setdefault(line["index"], line["kind"])
    return found


def in_words(ended: "dict[int, str]", count: int) -> str:
    """Describe the counts: "98 of 100 ended: 95 returned, 3 raised"."""
    known = list(ended.values())
    parts = ["%d %s" % (known.count(kind), kind) for kind in sorted(set(known), key=lambda kind: kind != RETURNED)]
    return "%d of %d ended%s" % (len(known), count, ": " + ", ".join(parts) if parts else "")


def conclude_if_complete(job: JobFolder) -> None:
    """Publish the group's outcome if each item has its line; elements that still wait are not needed then."""
    spec = job.spec["group"]
    if not Chunks(job.home, spec).complete():
        return
    ended = kinds(job.home)
    group = JobFolder(job.home)
    # The group ends like its worst item, as in `JobGroup.state`.
    ranks = [CANCELLED, None, RAISED, COMMAND, RESULT, RETURNED]
    # What another host runs says nothing of this one.
    moved = glob.glob(os.path.join(glob.escape(job.home), ELEMENTS, "*", layout.MOVED))
    own = [kind for kind in ended.values() if kind != CANCELLED or not moved or job.cancelled()]
    worst = min(own, key=lambda kind: ranks.index(kind if kind in ranks else None), default=RETURNED)
    usage = usage_of_ended_items(job.home)
    Attempt(group, 1).publish(Verdict(worst, in_words(ended, spec["count"]), by="supervisor", usage=usage))
    job.scheduler.cancel_waiting_elements()


class ItemRecorder:
    """Gives each item of the chunks that it pulls its line."""

    def __init__(self, job: JobFolder, attempt: Attempt, sync: bool) -> None:
        self.job = job
        self.attempt = attempt
        self.chunks = Chunks(job.home, job.spec["group"])
        self.chunks.make_folders()
        self.journal = ItemJournal(attempt.folder, sync)
        self.written = 0
        self.before: "dict[int, list[str]]" = {}

    def pulled(self, most: "Optional[int]" = None) -> "Iterator[int]":
        """Its chunks of an earlier start, then those that no element has, `most` of them, then those of the dead."""
        number: "int" = self.job.element or 0
        if self.attempt.number > 1:
            # The process of an attempt that others have ended may not have noticed yet.
            if any(outcome.get("by") != "supervisor" for outcome in self.attempt.outcomes_before()):
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
        """Return how many items to claim next, at most."""
        return int(self.job.spec["group"]["chunk"])

    def _may_linger(self, chunk: int) -> bool:
        """Whether the element that had it was concluded by others, and may not have noticed yet."""
        before = self.chunks.holders(chunk)[-2]
        if before == NO_ELEMENT:
            return False
        end = self.chunks.end_of(before)
        return not end or end.get("by") not in ("supervisor", "after")

    def settle(self) -> None:
        """Give the previous element time to notice that it is fenced."""
        time.sleep(SETTLE_S)

    def left(self, chunk: int) -> "Iterator[int]":
        """Its items that have not begun, or may run again; else those that have begun get their line here."""
        ended: "set[int]" = set()
        begun: "dict[int, list[str]]" = {}
        if self.attempt.number > 1 or self.chunks.holders(chunk) != [self.job.element]:
            ended, begun = self.chunks.past(chunk)
        for index in self.chunks.items(chunk):
            if index not in ended and (index not in begun or self._runs_again(index, begun[index], chunk)):
                yield index

    def _runs_again(self, index: int, before: "list[str]", chunk: int) -> bool:
        """Whether `retries=` has an item run again that sent no word; `before`: what was said of each time."""
        death = self._death(chunk)
        of = retries.allowed(self.job)
        # The scheduler has started this element again, as it may, and no other has had the chunk.
        started = Attempt(self.job, self.attempt.number - 1).owner()
        is_own = len(self.chunks.holders(chunk)) == 1
        if is_own and not of and self.job.spec.get("restarts") and started not in ("", self.job.start):
            return True
        why = death.message
        said = [followed or retries.in_words(number, "", why, number, of) for number, followed in enumerate(before, 1)]
        if death.kind not in GONE or not retries.are_left(self.job, len(before) - 1):
            usage = self.chunks.usage_of(chunk, index)
            self.tell(index, death.replace(earlier=said[:-1], usage=usage))
            return False
        self.before[index] = said
        return True

    def finish(self, chunk: int) -> None:
        """Note that each of its items has a line, once a loss of power can take none of these lines."""
        self.journal.flush()
        self.chunks.finish(chunk)

    def tell(self, index: int, verdict: Verdict) -> None:
        """Write this verdict as the line of an item that does not run."""
        self.journal.end(index, verdict)
        self.written += 1

    def _death(self, chunk: int) -> Verdict:
        """Return how the element ended that had it before."""
        ends = [self.chunks.end_of(element) for element in self.chunks.holders(chunk) if element != self.job.element]
        known = [end for end in ends if end and end["kind"] != RETURNED]
        if not known:
            own = [outcome["message"] for outcome in self.attempt.outcomes_before() if outcome["by"] == "after"]
            said = own[-1] if own else _NEVER_SAID
            return Verdict(LOST, said, stage="supervisor", hint="call it again: group.retry_failed()")
        facts = {name: known[-1].get(name) for name in ("stage", "evidence", "hint", "node", "signal")}
        return Verdict(known[-1]["kind"], known[-1].get("message") or "", **facts)


def fail_unfinished_items(folder: str) -> int:
    """Write the verdict as the end of every item that no element has or will have; resume where another process died.

    Args:
        folder: That of an element which does only this; its journal takes the lines. The verdict is what was on stdin
            when it was first asked for. Elements that begin later find nothing that is left.
            With `most` it is for so many of the items that no element has: another host runs these.
    """
    for path in (os.path.dirname(folder), folder):
        make_folder(path)
    said = sys.stdin.read()
    name = layout.MOVED if json.loads(said).get("most") else VERDICT
    publish.publish(folder, name, said.encode())
    job = JobFolder(folder)
    if Chunks(job.home, job.spec["group"]).end_of(job.element or 0) is None:
        known = native(json.loads((publish.read(folder, name) or b"").decode()))
        attempt = Attempt.new(job)
        by = attempt.fence()
        if by is None:
            attempt.prepare()
            verdict = as_known(job, requested(known))
            failed = _fail_items(ItemRecorder(job, attempt, sync=False), verdict, known.get("most"))
            attempt.publish(Verdict(RETURNED, "%d items were given up" % failed, by="conclude"))
        else:
            attempt.supersede(by)
    conclude_if_complete(job)
    # This import is late, because elements load this module to run items, and notify no user.
    from .notify import tell_end

    tell_end(job.home)
    return 0


def _fail_items(recorder: ItemRecorder, verdict: Verdict, most: "Optional[int]") -> int:
    number, chunks = recorder.job.element or 0, recorder.chunks
    # A process that died may have taken some, and said nothing of them yet.
    one = itertools.islice(iter(lambda: chunks.take(number, most or 0), None), 1)
    given_up = (chunks.held_by(number) or one) if most else itertools.chain(chunks.take_all(number), recorder.pulled())
    for chunk in given_up:
        for index in recorder.left(chunk):
            recorder.tell(index, verdict)
        recorder.finish(chunk)
    return recorder.written


def usage_of_running_items(elements: "Iterable[JobFolder]") -> "Optional[dict[str, Any]]":
    """Return what the items use that run now in these elements of a group; None without one."""
    found = []
    for element in elements:
        folder = os.path.join(glob.escape(element.path(ATTEMPTS)), str(element.attempts()[-1]))
        found += [read_live_usage(path) for path in glob.glob(os.path.join(folder, _ITEM_USAGE))]
    return sum_of_usages([usage for usage in found if usage is not None and usage.get("now") is not None])


def usage_of_ended_items(home: str) -> "Optional[dict[str, Any]]":
    """Return what the items of a group have used that have ended; None if none has said it."""
    lines = (line for element in numbers_in(os.path.join(home, ELEMENTS)) for line in journal_lines(home, element))
    return sum_of_usages([line["usage"] for line in lines if "index" in line and isinstance(line.get("usage"), dict)])


def sum_of_usages(usages: "list[dict[str, Any]]") -> "Optional[dict[str, Any]]":
    """Return the usage of several items as one; None for none.

    `items` counts them. Times are sums. `longest_s` and `peak_memory_bytes` are those of the largest item, as each
    item has its own time and memory.
    """
    if not usages:
        return None
    found = {
        "items": len(usages),
        "wall_s": round(sum(_number(usage, "wall_s") for usage in usages), 3),
        "cpu_s": round(sum(_number(usage, "cpu_s") for usage in usages), 3),
        "longest_s": max(_number(usage, "wall_s") for usage in usages),
        "peak_memory_bytes": max(_number(usage, "peak_memory_bytes") for usage in usages),
        "gpus": _gpus_of(usages),
    }  # type: dict[str, Any]
    now = [usage["now"] for usage in usages if isinstance(usage.get("now"), dict)]
    if now:
        found["now"] = {
            "cores": round(sum(_number(usage, "cores") for usage in now), 2),
            "memory_bytes": sum(_number(usage, "memory_bytes") for usage in now),
            "gpus": [gpu for usage in now for gpu in usage.get("gpus") or []],
        }
    return found


def _gpus_of(usages: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """Return each GPU once, with its peaks, and its mean use over the time of all items that had it."""
    found = {}  # type: dict[str, dict[str, Any]]
    shares = {}  # type: dict[str, list[tuple[float, float]]]
    for usage in usages:
        for gpu in usage.get("gpus") or []:
            uuid = str(gpu.get("uuid"))
            known = found.setdefault(uuid, dict(gpu))
            for name in ("peak_memory_bytes", "peak_use_percent"):
                values = [entry[name] for entry in (known, gpu) if entry.get(name) is not None]
                known[name] = max(values) if values else None
            if gpu.get("mean_use_percent") is not None:
                shares.setdefault(uuid, []).append((gpu["mean_use_percent"], _number(usage, "wall_s")))
    for uuid, parts in shares.items():
        whole = sum(seconds for _, seconds in parts)
        mean = sum(percent * seconds for percent, seconds in parts) / whole if whole else parts[0][0]
        found[uuid]["mean_use_percent"] = round(mean, 1)
    return list(found.values())


def _number(facts: "dict[str, Any]", name: str) -> float:
    return facts.get(name) or 0
