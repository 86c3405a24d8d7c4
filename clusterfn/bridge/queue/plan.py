"""Decide which of one user's jobs may start now, which is the next of its line, and why the others wait. Pure.

Only this decides: the spooler asks for all jobs that wait, `admission` for the one that has just come. Of several users
the one comes next whose running jobs hold less (`machine.weight`), and of one user's jobs the first that was sent, of
those with the highest `priority=`. All programs see the same names, and so the same order. The reason of a job
that waits names the users who keep it waiting.

There is a line for each kind of GPU that is asked for, and one for jobs without GPUs. The first job of a line that does
not fit reserves all that it needs, in all lines. Others may pass it only with what would be left then. Between two
items, an element gives way to another user who would then hold less than its own does now. Jobs with GPUs start one
after another. A job that finds a process without a lease on a GPU takes another GPU, which the next job must not have
taken.
"""

import os

from ..supervisor.process_tree import user_name
from .machine import CORES, GPUS, MEMORY, OWN, RemainingResources, weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Container, Iterable, Mapping, Optional, Sequence

    from .lease_names import HeldNames
    from .machine import Demand, Kind, MachineResources, UserLimits, Waiting
    from .tickets import Ticket

SLOW = "its script takes long to come to the function (look at `setup:` of the host), so others go first"
_MOST_FURTHER = 64
LATER = "%s waits, who holds less of the machine"


def describe_wait(
    missing: "Sequence[str]", demand: "Demand", gpus_wait: str, room: "RemainingResources", limits: "UserLimits"
) -> str:
    """Say what a job waits for: `gpus_wait` is what it says of GPUs."""
    parts = []
    over = room.over(demand)
    if GPUS in missing:
        parts.append(gpus_wait)
    if CORES in missing:
        parts.append(_held("cores", room.core_users))
        parts.append("waiting for %d free core%s" % (demand.cores, "" if demand.cores == 1 else "s"))
    if MEMORY in missing:
        parts.append(_held("MB of memory", room.memory_users))
        parts.append("waiting for %d MB of free memory" % demand.memory_mb)
    if OWN in missing:
        named = [word for word in limits._fields if word in over or word == "memory_mb" and "memory" in over]
        allowed = ", ".join("%s: %s" % (word, getattr(limits, word)) for word in named)
        parts.append("waiting for your own jobs: limits: {%s}" % allowed)
    return "; ".join(filter(None, parts))


def _held(what: str, amounts: "Mapping[int, int]") -> str:
    users = ["%s (%d)" % (_named(uid), amount) for uid, amount in sorted(amounts.items()) if amount]
    return "%s held by %s" % (what, ", ".join(users)) if users else ""


def _named(uid: int) -> str:
    # The reasons are written for the user whose jobs these are.
    if uid == os.geteuid():
        return "you"
    return user_name(uid) if uid >= 0 else "an unknown user"


def _holding(names: "HeldNames", uid: int) -> str:
    held = [job.asked for job in names.running if job.uid == uid]
    amounts = (sum(asked.gpus for asked in held), "GPU"), (sum(asked.cores for asked in held), "core")
    parts = ["%d %s%s" % (count, what, "" if count == 1 else "s") for count, what in amounts if count]
    return " and ".join(parts) or "nothing"


def _describe_gpus(
    count: int, gpus: "Sequence[str]", view: "QueueView", ahead: "Sequence[tuple[int, int, str]]", kept: int
) -> str:
    """Say why a job cannot have GPUs: "8 of 8 GPUs held by ada (5), bob (3); waiting for 2".

    Args:
        gpus: Those of its kind.
        ahead: uid, number of GPUs, and "earlier " or "", of each job that waits, comes before, and has some of these
            GPUs kept for it.
        kept: How many of them are.
    """
    parts = []
    holders = {gpu: view.holders[gpu] for gpu in gpus if gpu in view.holders}
    if holders:
        shown = [_named(uid) for uid in holders.values()]
        names = ["%s (%d)" % (name, shown.count(name)) for name in sorted(set(shown))]
        parts.append("%d of %d GPUs held by %s" % (len(shown), len(gpus), ", ".join(names)))
    for uid in sorted({holders[gpu] for gpu in view.pids if gpu in holders}):
        pids = sorted({str(pid) for gpu, pid in view.pids.items() if holders.get(gpu) == uid})
        parts.append("%s holds GPUs for no job of clusterfn (pid %s)" % (_named(uid), ", ".join(pids)))
    used = {gpu: view.unleased[gpu] for gpu in gpus if gpu in view.unleased}
    if used:
        parts.append("%d in use without a lease: %s" % (len(used), ", ".join(used.values())))
    text = "; ".join(parts)
    # Some GPUs are free, so the text must say why this job does not get them.
    if kept and ahead:
        free = len(set(gpus) - set(holders) - set(used))
        reserved_gpus = "the others" if kept == free else "%d of the others" % kept
        if free == len(gpus):
            reserved_gpus = "%d of %d GPUs" % (kept, free)
        jobs = ["%s's %s%d-GPU job" % (user_name(uid), when, wanted) for uid, wanted, when in ahead]
        reserved = "%s reserved for %s" % (reserved_gpus, " and ".join(jobs))
        text = ", ".join(filter(None, [text, reserved]))
    return "%s; waiting for %d" % (text or "too few of %d GPUs are free" % len(gpus), count)


class QueueView:
    """The state of the machine and the queue at one look.

    Attributes:
        machine: The resources of the machine.
        names: The names that were held at one look.
        uid: Whose tickets they are.
        gpus_of: The GPUs of a kind.
        holders: uid of a GPU's holder, by its UUID; -1 where that is not known.
        unleased: Who uses a GPU without a lease.
        starting: Jobs whose script was started, and is not in yet.
        late: Jobs whose turn has come and which are not awaited now: their script takes long, or failed and rests.
        overdue: Those of `starting` for which nothing is kept any more.
        pids: The process that holds a GPU, where its user has no job that runs with as many.
        now_ms: Since the machine's start.
    """

    def __init__(
        self,
        machine: "MachineResources",
        names: "HeldNames",
        uid: int,
        gpus_of: "Callable[[Kind], list[str]]",
        holders: "Mapping[str, int]",
        unleased: "Mapping[str, str]",
        starting: "Container[str]" = (),
        late: "Container[str]" = (),
        overdue: "Container[str]" = (),
        pids: "Optional[Mapping[str, int]]" = None,
        now_ms: int = 0,
    ) -> None:
        self.machine = machine
        self.names = names
        self.uid = uid
        self.gpus_of = gpus_of
        self.holders = holders
        self.unleased = unleased
        self.pids = pids or {}
        self.starting = starting
        self.late = late
        self.overdue = overdue
        self.now_ms = now_ms


class StartPlan:
    """A decision.

    Attributes:
        start: The jobs whose turn has come.
        gpus: The free GPUs among which each of these may choose, by job.
        named: The jobs for which others must wait: the next of each line, and those that are about to start.
        reasons: Why a job waits.
        since_ms: Since when a job is the next one. Other users order the named jobs of one user by this.
        further: Of a job in `named`: how many more jobs like it could start.
    """

    def __init__(self) -> None:
        self.further: "dict[str, int]" = {}
        self.since_ms: "dict[str, int]" = {}
        self.start: "list[Ticket]" = []
        self.gpus: "dict[str, list[str]]" = {}
        self.named: "list[Ticket]" = []
        self.reasons: "dict[str, str]" = {}


def plan_starts(tickets: "Sequence[Ticket]", view: QueueView) -> StartPlan:
    """Decide what is to be done with these tickets, the oldest first."""
    return _Planning(tickets, view).plan_all() if tickets else StartPlan()


def must_yield(ticket: "Ticket", view: QueueView) -> str:
    """Return why an element has to give way to another user between two items; "" if it need not.

    Args:
        view: As if the element did not run.
    """
    return "" if ticket.element is None else _Planning([ticket], view).why_yield(ticket)


class _Planning:
    def __init__(self, tickets: "Sequence[Ticket]", view: QueueView) -> None:
        self.view = view
        self.tickets = tickets
        self.room = RemainingResources(view.machine, view.names.running, view.uid, tickets[0].limits)
        self.plan = StartPlan()
        self._runs = {job.job for job in view.names.running if job.uid == view.uid}
        own = {(view.uid, ticket.job) for ticket in tickets}
        others = [(place, job) for place, job in view.names.in_order() if (job.uid, job.job) not in own]
        before = [job for _, job in others if job.uid == view.uid and job.ms < tickets[0].ms]
        # What this user holds once the jobs that come before have started.
        self._held = view.names.held_by(view.uid) + sum(weight(job.asked) for job in before)
        self._others = self._with_further(others)
        since = view.names.since.items()
        self._since = sorted(ms for key, ms in since if key in own and key[1] not in self._runs)
        self._last_ms = -1
        self._full: "set[tuple[int, str]]" = set()
        self._first: "Optional[Waiting]" = None
        self._lines: "set[Optional[Kind]]" = set()
        self._gpu_job_comes = False
        self._others_before = 0
        self._ahead: "list[tuple[int, int, str, list[str]]]" = []

    def plan_all(self) -> StartPlan:
        for number, ticket in enumerate(self.tickets):
            # A job of higher priority takes over since when the one behind it was next.
            since_ms = self._since[0] if self._since else max(ticket.ms, self.view.now_ms)
            self.plan.since_ms[ticket.job] = max(since_ms, self._last_ms + 1)
            place = self._held, self.plan.since_ms[ticket.job], self.view.uid
            # Jobs of other users that come before this one get what they need first.
            while self._others and self._others[0][0] < place:
                _, further, other = self._others.pop(0)
                self._let_pass(other, further, ticket)
            self.room.limits = ticket.limits
            self._plan_one(ticket, number)
        return self.plan

    def _with_further(
        self, others: "Iterable[tuple[tuple[int, int, int], Waiting]]"
    ) -> "list[tuple[tuple[int, int, int], int, Waiting]]":
        """Return the jobs of others and, with a number, the further ones that each user has behind each of them."""
        return sorted(
            ((held + number * weight(other.asked), ms, uid), number, other)
            for (held, ms, uid), other in others
            for number in range(min(other.more, _MOST_FURTHER) + 1)
        )

    def _let_pass(self, other: "Waiting", further: int, ticket: "Ticket") -> None:
        """Keep for another job what it needs; for a further one only if it can start at once."""
        if further:
            gpus = self.view.gpus_of(other.kind) if other.asked.gpus else []
            if (other.uid, other.job) in self._full or self.room.lacks_room(other.asked, gpus):
                self._full.add((other.uid, other.job))
                return
        self._others_before += 1
        self._first = self._first or (other if other.uid != self.view.uid else None)
        self._keep_for(other.uid, other.asked, other.kind, "" if other.ms > ticket.ms else "earlier ")

    def _keep_for(self, uid: int, demand: "Demand", kind: "Kind", when: str = "earlier ") -> None:
        gpus = self.view.gpus_of(kind) if demand.gpus else []
        self._ahead.append((uid, demand.gpus, when, gpus))
        self.room.reserve(demand, gpus)

    def _plan_one(self, ticket: "Ticket", number: int) -> None:
        kind = self.gpus_of(ticket)
        before = number + self._others_before
        behind = self.tickets[number + 1 :]
        if ticket.job in self.view.overdue and ticket.job not in self._runs:
            self.plan.reasons[ticket.job] = SLOW
            return
        if ticket.job in self._runs or ticket.job in self.view.starting:
            self._goes(ticket, kind)
            self._gpu_job_comes = self._gpu_job_comes or self._is_awaited(ticket)
            return
        missing = self.room.lacks(ticket.asked, kind) if kind is not None else []
        if not missing:
            # Jobs with GPUs start one after another. A job may exchange a GPU that another process uses, and the next
            # job must not have taken the replacement.
            if ticket.asked.gpus and self._gpu_job_comes:
                self.plan.reasons[ticket.job] = self._with_place_in_line("", ticket, before)
            else:
                self._gpu_job_comes = self._gpu_job_comes or self._is_awaited(ticket)
                self.plan.start.append(ticket)
                self.plan.gpus[ticket.job] = self.room.left(kind)
            self._goes(ticket, kind)
            return
        gpus = kind or []
        ahead = [(uid, count, when) for uid, count, when, theirs in self._ahead if set(theirs).intersection(gpus)]
        kept = len(self.room.suitable(gpus)) - len(self.room.left(gpus))
        gpus_wait = _describe_gpus(ticket.asked.gpus, gpus, self.view, ahead, kept) if GPUS in missing else ""
        text = describe_wait(missing, ticket.asked, gpus_wait, self.room, ticket.limits)
        self.plan.reasons[ticket.job] = self._with_place_in_line(text, ticket, before)
        line = ticket.kind if ticket.asked.gpus else None
        # The first of its line reserves.
        if line in self._lines:
            return
        self._lines.add(line)
        self.room.count(ticket.asked)
        # A job that only waits for its user's own jobs keeps nothing from other users.
        if missing != [OWN]:
            self._keep_for(self.view.uid, ticket.asked, ticket.kind)
            # A name cannot say which GPUs such a job accepts, so other users would keep all GPUs for it.
            if ticket.kind.only:
                return
            self._name(ticket)
            alike = sum((other.asked, other.kind) == (ticket.asked, ticket.kind) for other in behind)
            self.plan.further[ticket.job] = min(alike, self.room.further(ticket.asked))

    def _with_place_in_line(self, text: str, ticket: "Ticket", before: int) -> str:
        """Add how many jobs come before it, and whose is the first and why."""
        if not before:
            return text
        after = "%d job%s before it" % (before, "" if before == 1 else "s")
        first = self._first
        names = self.view.names
        uid = self.view.uid
        if first is not None:
            after += "; %s is next" % _named(first.uid)
        if first is not None and names.held_by(first.uid) < names.held_by(uid):
            after += ", who holds %s (you: %s)" % (_holding(names, first.uid), _holding(names, uid))
        return "%s; %s" % (text, after) if text else after

    def gpus_of(self, ticket: "Ticket") -> "Optional[list[str]]":
        """List the GPUs that a job may get; None if they are too few or unknown, which its supervisor explains."""
        gpus = self.view.gpus_of(ticket.kind) if ticket.asked.gpus else []
        return gpus if len(gpus) >= ticket.asked.gpus else None

    def _is_awaited(self, ticket: "Ticket") -> bool:
        return bool(ticket.asked.gpus) and ticket.job not in self.view.late

    def _goes(self, ticket: "Ticket", kind: "Optional[list[str]]") -> None:
        if ticket.job in self._runs:
            self.plan.named.append(ticket)
        else:
            self._name(ticket)
            self.room.take(ticket.asked, kind)

    def _name(self, ticket: "Ticket") -> None:
        self.plan.named.append(ticket)
        self._last_ms = self.plan.since_ms[ticket.job]
        del self._since[:1]
        # It counts as held, so that another user comes before the next job of this one.
        self._held += weight(ticket.asked)

    def why_yield(self, ticket: "Ticket") -> str:
        """Return `LATER` if this element holds what other users need who would then hold less than its own; "" else."""
        own = self._held + weight(ticket.asked)
        for (held, _, uid), further, other in self._others:
            if uid != self.view.uid and held + weight(other.asked) < own:
                self._let_pass(other, further, ticket)
        self.room.limits = ticket.limits
        missing = {GPUS, CORES}.intersection(self.room.lacks(ticket.asked, self.gpus_of(ticket)))
        return LATER % _named(self._first.uid) if self._first is not None and missing else ""
