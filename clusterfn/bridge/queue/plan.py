"""Decide which of one user's jobs may start now, which is the next of its line, and why the others wait. Pure.

Only this decides: the spooler asks for all jobs that wait, `admission` for the one that has just come. Of several users
the one comes next who has used the least of the machine (`usage`), and of one user's jobs the first that was sent, of
those with the highest `priority=`. All programs see the same names, and so the same order. Whoever keeps a job waiting
is named in its reason.
There is a line for each kind of GPU that is asked for, and one for jobs without GPUs. The first job of a line that does
not fit reserves all that it needs, in all lines. Others may pass it only with what would be left then. While another
user waits for GPUs, a group has at most half of them. Jobs with GPUs start one after another. A job that finds a
process without a lease on a GPU takes another GPU, which the next job must not have taken.
"""

import os

from ..supervisor.process_tree import user_name
from .machine import CORES, GPUS, MEMORY, OWN, RemainingResources, Usage, use_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Container, Iterable, Mapping, Optional, Sequence

    from .lease_names import HeldNames
    from .machine import Demand, Kind, MachineResources, UserLimits, Waiting
    from .tickets import Ticket

SLOW = "its script takes long to come to the function (look at `setup:` of the host), so others go first"
_MOST_FURTHER = 64
HALF = "its group has half of the GPUs, and %s waits for GPUs"
LATER = "%s waits, who has used less of the machine lately"
# An element does not yield for a smaller difference, because its restart takes a second.
_SLACK_MS = 5000


def describe_wait(
    missing: "Sequence[str]", demand: "Demand", gpus_wait: str, room: "RemainingResources", limits: "UserLimits"
) -> str:
    """Say what a job waits for: `gpus_wait` is what it says of GPUs."""
    parts, over = [], room.over(demand)
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
        usage: What this user has used of the machine.
        place: The place of the first ticket, if its name says one already.
        pids: The process that holds a GPU, where its user has no job that runs with as many.
    """

    def __init__(
        self, machine: "MachineResources", names: "HeldNames", uid: int, gpus_of: "Callable[[Kind], list[str]]",
        holders: "Mapping[str, int]", unleased: "Mapping[str, str]", starting: "Container[str]" = (),
        late: "Container[str]" = (), overdue: "Container[str]" = (), usage: "Optional[Usage]" = None,
        pids: "Optional[Mapping[str, int]]" = None, place: "tuple[int, int]" = (0, 0),
    ) -> None:  # fmt: skip
        self.machine, self.names, self.uid, self.gpus_of = machine, names, uid, gpus_of
        self.holders, self.unleased, self.pids = holders, unleased, pids or {}
        self.starting, self.late, self.overdue = starting, late, overdue
        self.usage, self.place = usage or Usage(0, 0, 0, 0), place


class StartPlan:
    """A decision.

    Attributes:
        start: The jobs whose turn has come.
        gpus: The free GPUs among which each of these may choose, by job.
        named: The jobs for which others must wait: the next of each line, and those that are about to start.
        reasons: Why a job waits.
        places: The place of a job among those of all users: what its user has used, and when it was submitted. No job
            has an earlier one than those of the same user that come before it.
        further: Of a job in `named`: what each job like it adds, and how many more of them could start.
    """

    def __init__(self) -> None:
        self.further: "dict[str, tuple[int, int]]" = {}
        self.places: "dict[str, tuple[int, int]]" = {}
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
        view: Without the element.
    """
    if all(other.uid == view.uid for other in view.names.waiting):
        return ""
    planning = _Planning([ticket], view)
    return planning.group_has_its_half(ticket, planning.gpus_of(ticket)) or planning.others_come_first(ticket)


class _Planning:
    def __init__(self, tickets: "Sequence[Ticket]", view: QueueView) -> None:
        self.view = view
        self.tickets = tickets
        self.room = RemainingResources(view.machine, view.names.running, view.uid, tickets[0].limits)
        self.plan = StartPlan()
        self._runs = {job.job for job in view.names.running if job.uid == view.uid}
        own = {ticket.job for ticket in tickets}
        others = [job for job in view.names.waiting if job.uid != view.uid or job.job not in own]
        self._usage = view.usage.copy()
        self._others = self._in_order(others)
        self._full: "set[tuple[int, str]]" = set()
        self._first: "Optional[Waiting]" = None
        self._lines: "set[Optional[Kind]]" = set()
        self._gpu_job_comes = False
        self._others_before = 0
        self._ahead: "list[tuple[int, int, str, list[str]]]" = []
        self._of_groups: "dict[str, int]" = {}

    def plan_all(self) -> StartPlan:
        place = self.view.place
        for number, ticket in enumerate(self.tickets):
            place = max(place, (self._usage.of(ticket.asked), ticket.ms))
            self.plan.places[ticket.job] = place
            own = (*place, self.view.uid)
            # Jobs of other users that come before this one get what they need first.
            while self._others and self._others[0][0] < own:
                _, further, other = self._others.pop(0)
                self._let_pass(other, further, ticket)
            self.room.limits = ticket.limits
            self._plan_one(ticket, number)
        return self.plan

    def _in_order(self, others: "Iterable[Waiting]") -> "list[tuple[tuple[int, int, int], int, Waiting]]":
        """Return the jobs of others and, with a number, the further ones that each user has behind each of them."""
        return sorted(
            ((other.used.ms + number * other.used.step_ms, other.ms, other.uid), number, other)
            for other in others
            for number in range(min(other.used.more, _MOST_FURTHER) + 1)
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
        kind, before, behind = self.gpus_of(ticket), number + self._others_before, self.tickets[number + 1 :]
        if ticket.job in self.view.overdue and ticket.job not in self._runs:
            self.plan.reasons[ticket.job] = SLOW
            return
        if ticket.job in self._runs or ticket.job in self.view.starting:
            self._goes(ticket, kind)
            self._gpu_job_comes = self._gpu_job_comes or self._is_awaited(ticket)
            return
        why = self.group_has_its_half(ticket, kind)
        missing = self.room.lacks(ticket.asked, kind) if kind is not None else []
        if not missing and not why:
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
        text = describe_wait(missing, ticket.asked, gpus_wait, self.room, ticket.limits) or why
        self.plan.reasons[ticket.job] = self._with_place_in_line(text, ticket, before)
        line = ticket.kind if ticket.asked.gpus else None
        # The first of its line reserves. A group that has its half keeps nothing from those for whom it waits.
        if not missing or why or line in self._lines:
            return
        self._lines.add(line)
        self.room.count(ticket.asked)
        # A job that only waits for its user's own jobs keeps nothing from other users.
        if missing != [OWN]:
            self._keep_for(self.view.uid, ticket.asked, ticket.kind)
            # A name cannot say which GPUs such a job accepts, so other users would keep all GPUs for it.
            if ticket.kind.only:
                return
            self.plan.named.append(ticket)
            self.plan.further[ticket.job] = self._further(ticket, behind)
            # The reserved job counts as used, so that another user comes before the next job of this one.
            self._usage.add(ticket.asked)

    def _with_place_in_line(self, text: str, ticket: "Ticket", before: int) -> str:
        """Add how many jobs come before it, and whose is the first and why."""
        if not before:
            return text
        after = "%d job%s before it" % (before, "" if before == 1 else "s")
        first, used_ms = self._first, self.plan.places[ticket.job][0]
        if first is not None:
            after += "; %s is next" % _named(first.uid)
        if first is not None and first.used.ms < used_ms:
            used = use_in_words(first.used.ms), "GPUs" if first.asked.gpus else "cores", use_in_words(used_ms)
            after += ", with %s of all %s used lately (you: %s)" % used
        return "%s; %s" % (text, after) if text else after

    def _further(self, ticket: "Ticket", behind: "Sequence[Ticket]") -> "tuple[int, int]":
        """Return what each further job like this one adds to what was used, and how many there are that may start."""
        # The group of such a job may have no more than half of the GPUs while another user waits.
        if ticket.asked.gpus and ticket.element is not None:
            return 0, 0
        alike = sum((each.asked, each.kind) == (ticket.asked, ticket.kind) for each in behind)
        return self._usage.step(ticket.asked), min(alike, self.room.further(ticket.asked))

    def gpus_of(self, ticket: "Ticket") -> "Optional[list[str]]":
        """List the GPUs that a job may get; None if they are too few or unknown, which its supervisor explains."""
        gpus = self.view.gpus_of(ticket.kind) if ticket.asked.gpus else []
        return gpus if len(gpus) >= ticket.asked.gpus else None

    def _is_awaited(self, ticket: "Ticket") -> bool:
        return bool(ticket.asked.gpus) and ticket.job not in self.view.late

    def _goes(self, ticket: "Ticket", kind: "Optional[list[str]]") -> None:
        self.plan.named.append(ticket)
        if ticket.job not in self._runs:
            self._usage.add(ticket.asked)
            self.room.take(ticket.asked, kind)
            group = _group(ticket)
            self._of_groups[group] = self._of_groups.get(group, 0) + ticket.asked.gpus

    def others_come_first(self, ticket: "Ticket") -> str:
        """Return `LATER` if an element without GPUs holds what users need who have used less; "" else."""
        if ticket.element is None or ticket.asked.gpus:
            return ""
        own = (self._usage.of(ticket.asked) - _SLACK_MS, 0, 0)
        for _, further, other in [each for each in self._others if each[0] < own and each[-1].uid != self.view.uid]:
            self._let_pass(other, further, ticket)
        self.room.limits = ticket.limits
        first = self._first if CORES in self.room.lacks(ticket.asked) else None
        return LATER % _named(first.uid) if first is not None else ""

    def group_has_its_half(self, ticket: "Ticket", kind: "Optional[list[str]]") -> str:
        """Return `HALF` if its group may have no more GPUs while another user waits for some; one element may run."""
        others = [each for each in self.view.names.waiting if each.uid != self.view.uid and each.asked.gpus]
        wanted = ((each.uid, self.view.gpus_of(each.kind)) for each in others)
        uids = sorted({uid for uid, gpus in wanted if kind is None or set(gpus).intersection(kind)})
        if ticket.element is None or not uids:
            return ""
        group, running = _group(ticket), self.view.names.running
        own = [job for job in running if job.uid == self.view.uid and job.job.startswith(group + ".")]
        has = sum(job.asked.gpus for job in own) + self._of_groups.get(group, 0) + ticket.asked.gpus
        return "" if has <= max(len(kind or []) // 2, ticket.asked.gpus) else HALF % _named(uids[0])


def _group(ticket: "Ticket") -> str:
    return str(ticket.job.partition(".")[0])
