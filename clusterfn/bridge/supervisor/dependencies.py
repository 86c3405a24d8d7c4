"""The jobs whose values a job takes as arguments: whether they have ended, what failed, and where their values lie.

A job waits for them before it holds anything: in the queue of its machine, or by the scheduler's own option. What has
become of them is decided here alone, by their outcomes. A scheduler may call a job failed that has returned, and takes
one that it has forgotten for one that succeeded.
"""

import json
import os
import time
from collections import namedtuple

from .. import layout
from ..schedulers.registry import scheduler_named
from . import publish
from .group_files import ItemEnds
from .job import ITEM_LINE, JOB_OUTCOME, DamagedFile, Dependency, checked, describe_waiting, each_folder, read_spec
from .process_tree import boot_id, script_runs
from .publish import names_in, numbers_in
from .text import native
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

    from .spec import Spec

# A job that has ended for good; attempt: the folder of the attempt that did; at: when, by the clock of the file system.
_Ended = namedtuple("_Ended", ("outcome", "attempt", "at"))
# A value, or an exception, in a file; what failed has the facts of its end.
_Place = namedtuple("_Place", ("path", "offset", "size", "failed"))

# A client starts what it has sent, unless it was ended in between.
_NEVER_STARTED_S = 600.0
_LARGEST_EXCEPTION = 16 << 20
_FACTS = ("kind", "message", "stage", "evidence", "hint", "exception", "signal", "code", "node", "earlier", "attempt")
_GONE = "it is not on the host: it was rejected, or was removed after `keep:`"
_SILENT = "it has left no outcome, and no process of it is left"
_DAMAGED = "its files on the host are damaged: %s"


class Dependencies:
    """What has become of jobs below one root; those that have ended are read once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._ended: "dict[str, _Ended]" = {}
        self._open: "dict[str, bool]" = {}
        self._specs: "dict[str, Spec]" = {}
        self._item_ends: "dict[str, ItemEnds]" = {}
        # These are the groups whose items were looked at since `look_again`.
        self._looked_at: "set[str]" = set()

    def look_again(self) -> None:
        """Look again at those that had not ended."""
        self._open.clear()
        self._looked_at.clear()

    def still_open(self, wanted: "Iterable[Dependency]") -> "list[Dependency]":
        """Return those that may still end in a value."""
        for dependency in wanted:
            if dependency.job not in self._open:
                self._open[dependency.job] = self._end_of(dependency.job) is None and self._lost(dependency) is None
        return [dependency for dependency in wanted if self._open[dependency.job]]

    def is_refused(self, job: str) -> bool:
        """Whether its scheduler refuses it for now, and a client has lately said that it submits it later."""
        return time.time() - _date(os.path.join(layout.job_dir(self.root, job), layout.REFUSED)) < layout.REFUSED_FOR_S

    def has_ended(self, wanted: Dependency) -> bool:
        """Whether nothing of it can change any more: its job has ended, or the items of the group that are taken."""
        return not self.still_open([wanted]) or self._open_items(wanted) == []

    def describe_open(self, wanted: "Iterable[Dependency]") -> str:
        """Say which jobs a job waits for that takes these values; "" if it waits for nothing."""
        open_ones = self.still_open(wanted)
        return describe_waiting(open_ones) if open_ones else ""

    def _open_items(self, wanted: Dependency) -> "Optional[list[int]]":
        """Return the items of a group that have not ended; None if it is no group."""
        count = self._count_of(wanted.job)
        if count is None:
            return None
        ends = self._ends_of(wanted.job)
        return [index for index in (range(count) if wanted.items is None else wanted.items) if index not in ends.lines]

    def _count_of(self, job: str) -> "Optional[int]":
        spec = self._spec_of(job)
        return spec["group"]["count"] if spec is not None and spec.get("group") else None

    def _ends_of(self, job: str) -> ItemEnds:
        ends = self._item_ends.setdefault(job, ItemEnds(layout.job_dir(self.root, job)))
        if job not in self._looked_at:
            self._looked_at.add(job)
            ends.look()
        return ends

    def ended_at(self, wanted: "Iterable[Dependency]") -> float:
        """Return when the last of them ended, as seconds since 1970; 0.0 if none has."""
        ends = [self._end_of(dependency.job) for dependency in wanted]
        return max([end.at for end in ends if end is not None], default=0.0)

    def failure(self, wanted: "Iterable[Dependency]") -> "Optional[Verdict]":
        """Return the verdict on a job that takes these values, if one of them will never exist."""
        reasons = [(dependency, self._why_without_value(dependency)) for dependency in wanted]
        failed = [(dependency, why) for dependency, why in reasons if why is not None]
        if not failed:
            return None
        first, place = failed[0]
        others = len(failed) - 1
        cause = place.failed
        which = "%s (%s)" % (cause["name"], cause["job"][:4])
        which += "[%d]" % cause["item"] if "item" in cause else ""
        message = "%s has no value: %s" % (which, cause["message"])
        # The cause is a job for which that job waited itself.
        if cause["job"] != first.job:
            message = "%s (%s) never ran, because %s" % (first.name, first.job[:4], message)
        evidence = ["%s (%s) failed too" % (other.name, other.job[:4]) for other, _ in failed[1:11]]
        evidence += ["and %d more" % (others - 10)] if others > 10 else []
        hint = "call both again"
        if cause["kind"] not in (layout.CANCELLED, *layout.GONE):
            hint = "correct %s, and %s" % (cause["name"], hint)
        at = (place.path, place.offset, place.size) if 0 < place.size < _LARGEST_EXCEPTION else None
        return Verdict(
            layout.DEPENDENCY, message, stage="queue", evidence=evidence, hint=hint, cause=cause, exception_at=at
        )

    def places(self, wanted: "Iterable[Dependency]") -> "dict[str, Any]":
        """Return the content of inputs.json: where the worker finds each value, or why there is none."""
        found = {}
        for dependency in wanted:
            spec, count = self._spec_of(dependency.job), self._count_of(dependency.job)
            none = self._lost_value(dependency)
            folders = spec.get("sys_path") or [] if spec is not None else []
            try:
                if none is None and count is not None:
                    places = self._items(dependency, count)
                else:
                    places = {0: none or _place_of_job(dependency, self._ended[dependency.job])}
            except DamagedFile as error:
                folders = []
                none = _no_value(dependency, _DAMAGED % error)
                places = {0: none}
            facts = {"name": dependency.name, "folders": folders, "group": count is not None}
            facts["places"] = {str(index): list(place) for index, place in places.items()}
            found[dependency.job] = dict(facts, lost=none and none.failed)
        return found

    def _why_without_value(self, wanted: Dependency) -> "Optional[_Place]":
        none = self._lost_value(wanted)
        end = self._end_of(wanted.job)
        spec = self._spec_of(wanted.job)
        if none is not None or spec is None or end is None and not (spec.get("group") and self.has_ended(wanted)):
            return none
        try:
            if end is not None and not spec.get("group"):
                place = _place_of_job(wanted, end)
                return place if place.failed else None
            items = self._items(wanted, spec["group"]["count"])
            return next((items[index] for index in sorted(items) if items[index].failed), None)
        except DamagedFile as error:
            return _no_value(wanted, _DAMAGED % error)

    def _lost_value(self, wanted: Dependency) -> "Optional[_Place]":
        """Return why a value will never exist; None if it does, or may. What items have returned outlives a group."""
        if self._open_items(wanted) == [] and not self._is_missing(wanted.job):
            return None
        return self._lost(wanted)

    def _lost(self, wanted: Dependency) -> "Optional[_Place]":
        """Return why a job will never end that has not; None if it has, or may."""
        if self._end_of(wanted.job) is not None:
            return None if self._spec_of(wanted.job) else _no_value(wanted, _DAMAGED % "it has no spec.json")
        if self._is_missing(wanted.job):
            return _no_value(wanted, _GONE)
        return _no_value(wanted, _SILENT) if self._is_silent(wanted.job) else None

    def _items(self, wanted: Dependency, count: int) -> "dict[int, _Place]":
        """Return where the value of each item of a group lies that is asked for; "no line" of one that has none."""
        ends = self._ends_of(wanted.job)
        if ends.damage:
            raise DamagedFile(ends.damage)
        nothing = _no_value(wanted, "the item has no line in any journal")
        home = layout.job_dir(self.root, wanted.job)
        found = {}
        for index in range(count) if wanted.items is None else wanted.items:
            line = ends.lines.get(index)
            found[index] = nothing if line is None else _place_of_item(wanted, home, *line)
        return found

    def _end_of(self, job: str) -> "Optional[_Ended]":
        if job not in self._ended:
            folder = layout.job_dir(self.root, job)
            for number in numbers_in(os.path.join(folder, layout.ATTEMPTS)):
                attempt = layout.attempt_dir(folder, number)
                outcome = _read(attempt, layout.OUTCOME)
                if outcome is not None and outcome.get("final"):
                    self._ended[job] = _Ended(outcome, attempt, _date(os.path.join(attempt, layout.OUTCOME)))
                    break
        return self._ended.get(job)

    def _spec_of(self, job: str) -> "Optional[Spec]":
        if job not in self._specs:
            try:
                self._specs[job] = read_spec(layout.job_dir(self.root, job))
            except (OSError, DamagedFile):
                # The folder is not there yet or no longer.
                return None
        return self._specs.get(job)

    def _is_missing(self, job: str) -> bool:
        """Whether its folder is gone for certain."""
        try:
            os.stat(layout.job_dir(self.root, job))
            return False
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            # The file server does not answer.
            return False
        try:
            # NFS remembers that a name was missing, unless its folder is listed.
            return job not in os.listdir(os.path.join(self.root, layout.JOBS))
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _is_silent(self, job: str) -> bool:
        """Whether a job without a scheduler has lost all of its processes, or was never started."""
        spec = self._spec_of(job)
        if spec is None or scheduler_named(spec["scheduler"]).has_nodes:
            # The job may wait in the queue of the scheduler.
            return False
        folder = layout.job_dir(self.root, job)
        machines = os.path.join(self.root, layout.MACHINES)
        for machine in (os.path.join(machines, name) for name in names_in(machines)):
            if time.time() - _date(os.path.join(machine, layout.STARTING)) < layout.STARTING_FOR_S:
                # The job may wait in an agent for its turn to begin.
                return False
            if any(name.partition(".")[0] == job for name in names_in(os.path.join(machine, layout.QUEUE))):
                return False
            interrupted = os.path.join(machine, layout.INTERRUPTED)
            kept = [_read(interrupted, name) for name in names_in(interrupted) if name.partition(".")[0] == job]
            if any(ticket is not None and ticket.get("boot") != boot_id() for ticket in kept):
                # A restart has interrupted the job, and the next process that looks at that queue requeues it.
                return False
        paths = [os.path.join(home, layout.STARTED) for home in each_folder(folder)]
        started = [path for path in paths if _date(path)]
        last = max(last_beat(folder), *map(_date, [os.path.join(folder, layout.SPEC)] + started))
        silent_s = layout.STALE_AFTER_S if started else _NEVER_STARTED_S
        return time.time() - last > silent_s and not any(map(script_runs, started))


def keep_exception(failed: Verdict, path: str) -> Verdict:
    """Copy the exception of the job that failed to this path: the caller of the job that needed it gets it too.

    Returns:
        The verdict, with what is there.
    """
    if failed.exception_at is None:
        return failed
    source, offset, size = failed.exception_at
    try:
        with open(source, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        with open(path, "r+b" if os.path.exists(path) else "wb") as copy:
            copy.write(data)
            copy.truncate()
    except OSError:
        # The file was removed meanwhile or the disk is full. The outcome has the text of the exception.
        return failed
    return failed.replace(value={"size": size}) if len(data) == size else failed


def ended_by_scheduler(wanted: Dependency, waits: str) -> Verdict:
    """Return the verdict on a job whose input has left the scheduler without an outcome."""
    cause = _cause(wanted, {"kind": layout.LOST, "message": "its scheduler ended it, and it left no outcome"})
    return Verdict(layout.DEPENDENCY, "%s: %s" % (waits, cause["message"]), stage="queue", cause=cause)


def _place_of_job(wanted: Dependency, end: _Ended) -> _Place:
    checked(end.outcome, JOB_OUTCOME, layout.OUTCOME)
    size = (end.outcome.get("value") or {}).get("size") or 0
    path = os.path.join(end.attempt, layout.VALUE)
    returned = end.outcome["kind"] == layout.RETURNED
    return _Place(path, 0, size, None if returned else _cause(wanted, end.outcome))


def _place_of_item(wanted: Dependency, home: str, element: int, line: "dict[str, Any]") -> _Place:
    checked(line, ITEM_LINE, layout.JOURNAL)
    size = (line.get("value") or {}).get("size") or 0
    # Which attempt wrote the line is known by the journal that has it.
    folder = os.path.join(layout.element_dir(home, element), layout.ATTEMPTS, str(line["attempt"]))
    failed = None if line["kind"] == layout.RETURNED else dict(_cause(wanted, line), item=line["index"])
    return _Place(os.path.join(folder, layout.VALUES), line.get("at") or 0, size, failed)


def _cause(wanted: Dependency, outcome: "dict[str, Any]") -> "dict[str, Any]":
    """Return how the first job of the chain failed."""
    handed_on = outcome.get("cause")
    if outcome["kind"] == layout.DEPENDENCY and handed_on:
        return dict(handed_on)
    facts = {name: outcome.get(name) for name in _FACTS}
    return dict(facts, job=wanted.job, name=wanted.name, message=facts["message"] or "it ended as %r" % facts["kind"])


def _no_value(wanted: Dependency, message: str) -> _Place:
    """Return why a value will never exist."""
    return _Place("", 0, 0, _cause(wanted, {"kind": layout.LOST, "message": message}))


def last_beat(folder: str) -> float:
    """Return when a job, or an element of a group, last showed that it lives, as seconds since 1970."""
    attempts = (os.path.join(home, layout.ATTEMPTS) for home in each_folder(folder))
    beats = (os.path.join(home, name, layout.HEARTBEAT) for home in attempts for name in names_in(home))
    return max(map(_date, beats), default=0.0)


def _read(folder: str, name: str) -> "Optional[dict[str, Any]]":
    try:
        data = publish.read(folder, name)
        return None if data is None else dict(native(json.loads(data.decode())))
    except (OSError, ValueError, TypeError):
        # A function has damaged its file, which counts as no value.
        return None


def _date(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
