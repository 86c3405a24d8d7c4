"""Admit a job to the machine or put it into the queue: a supervisor's first step where there is no scheduler.

Nothing of the job exists then, neither claim nor attempt. `plan` decides whether it may start. What it takes is held by
leases, which its worker inherits. Only one job on the machine is at the door at a time, so the first to come is the
first to be admitted.
"""

import os
import sys
import time

from ..layout import CLAIM, ENVIRONMENT, EXIT_QUEUED, EXIT_RETURNED
from ..supervisor import gpus, publish
from ..supervisor.attempt import unclaim
from ..supervisor.eligible_gpus import name_gpus
from ..supervisor.gpus import candidates
from ..supervisor.verdict import Verdict
from . import arrivals, capacity, gpu_leases, launch, lease_names, machine, plan, tickets
from .capacity import MachineResources
from .lease import leases_of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Sequence

    from ..supervisor.eligible_gpus import GpuInfo
    from ..supervisor.job import JobFolder
    from ..supervisor.watch import Signals
    from .lease import Lease, Leases

_AT_THE_DOOR_S = 5.0
_KNOCK_S = 0.002
_AGAIN_S = 2.0  # each time nvidia-smi is asked, which may take a second of the machine
_LISTED_S = 2.0
_NAMED_S = 2.0
_EXIT_LEFT_TO_AFTER = 143


class NotNow(Exception):
    """The job is not admitted by this process.

    Attributes:
        status: With what the supervisor exits.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Admitted:
    """What a job holds of the machine.

    Attributes:
        uuids: Its GPUs, in PCI order.
    """

    def __init__(self, admission: "_Admission", cards: "dict[str, Lease]", refusal: "Optional[Verdict]" = None) -> None:
        self.uuids = list(cards)
        self._admission = admission
        self._cards = cards
        self._refusal = refusal

    def cards(self, failed: "Sequence[str]" = ()) -> "list[str]":
        """Its cards; those that failed it are given back for others that are free.

        Raises:
            Verdict: It was let in only to say why it can have none.
        """
        if self._refusal is not None:
            raise self._refusal
        if any(card in failed for card in self.uuids):
            self._admission.exchange(self._cards, failed)
            self.uuids = [card for card in self._admission.every if card in self._cards]
        return self.uuids

    def refuse(self) -> None:
        """Raise the Verdict of a job that was let in only because its environment cannot be made."""
        if self._refusal is not None and self._refusal.kind == ENVIRONMENT:
            raise self._refusal

    def in_words(self) -> str:
        """Its cards, as people find them."""
        return name_gpus(self._admission.there, self.uuids)

    def worker_fds(self) -> "list[int]":
        """What the worker must inherit to hold it too."""
        return [mark.fileno() for mark in self._admission.held(self._cards)]

    def touch(self) -> None:
        """It lives: what it holds must not look old."""
        for mark in self._admission.held(self._cards):
            mark.touch()

    def confirm(self) -> None:
        """It is claimed: it waits no longer, whatever becomes of it."""
        self._admission.queue.remove(self._admission.job.id)

    def yield_to_other_users(self, first: "Callable[[], None]") -> bool:
        """Give it back and wait in the queue again if its group has more than half of the cards and another user waits.

        Args:
            first: Called before anybody else may start the job.
        """
        return self._admission.give_way(self._cards, first)

    def release(self) -> None:
        """Give it back."""
        self._admission.release(self._cards)


def request_admission(job: "JobFolder", signals: "Signals", waits: bool = True) -> Admitted:
    """What the job may have; it is the job's then. One that can never have it is let in to say so.

    Args:
        job: It is on a machine without a scheduler.
        signals: That this process gets; one that tells it to end ends its waiting.
        waits: Whether it may be left to the queue; else this process waits.

    Raises:
        NotNow: It waits in the queue from now on, or another process is at it, or this one is to wait no longer.
    """
    turn = os.environ.pop(launch.TURN, None)
    admission = _Admission(job, signals, waits)
    try:
        # A spooler of an older version lets a job come whose environment is missing: no other process would build it.
        if turn == launch.ENVIRONMENT or turn is not None and admission.lacks_environment():
            from ..supervisor import built

            built.prepare(job, admission.look_at_ends)
            if turn == launch.ENVIRONMENT:
                raise NotNow(EXIT_QUEUED, "the environment is there, and the job waits in the queue")
        if admission.asked.gpus:
            admission.there = gpus.list_gpus()
            admission.every = candidates(admission.there, job.spec["resources"])
        return Admitted(admission, admission.ask(turn is not None) if sys.platform.startswith("linux") else {})
    except Verdict as refusal:
        return Admitted(admission, {}, refusal)


class _Again(Exception):
    """It does not fit, and has no ticket."""


class _Admission:
    """One job at the door.

    Attributes:
        there: All cards of the machine, if it asks for some.
        every: Those that are of its kind.
    """

    def __init__(self, job: "JobFolder", signals: "Signals", waits: bool) -> None:
        self.job = job
        self.signals = signals
        self.there: "list[GpuInfo]" = []
        self.every: "list[str]" = []
        self.uid = os.getuid()
        self.lease: "str" = job.spec["lease"]
        self.marks = leases_of_kind(self.lease)
        self.asked = capacity.demand_of(job.spec)
        self.limits = capacity.limits_of(job.spec)
        self.queue = tickets.Queue(job.root)
        self.ticket = self.queue.of(job.id)
        self.submitted = self.ticket.submitted if self.ticket else 0
        self.strangers: "dict[str, str]" = {}
        self.needs: "list[str]" = []
        if job.spec.get("building"):
            from ..supervisor import built  # like subprocess, few jobs need it

            self.needs = built.needs(job.spec["building"])
        self._waits_there = waits
        self._run: "Optional[Lease]" = None

    def ask(self, turn: bool) -> "dict[str, Lease]":
        """The marks of its cards. `turn`: its own user's spooler has let it come.

        Raises:
            NotNow: As `ask`.
            Verdict: nvidia-smi fails.
        """
        if self.ticket and not turn and self._waits_there:
            raise self._goes_on_waiting()
        if not turn:
            arrivals.wait_for_earlier_submissions(os.getppid(), self._has_come)
        while True:
            try:
                return self._once()
            except _Again:
                self.look_at_ends()
                time.sleep(_AGAIN_S)

    def lacks_environment(self) -> bool:
        """Whether it can wait in the queue until its environment is there."""
        return self._waits_there and not all(map(os.path.exists, self.needs))

    def look_at_ends(self) -> None:
        """Raise NotNow if the job is to end."""
        if self.job.cancelled() or self.signals.told_to_end():
            raise NotNow(_EXIT_LEFT_TO_AFTER, "the job is to end: it waits for cards no longer")

    def _has_come(self, other: "arrivals.EarlierJob") -> bool:
        """Whether a job has been at the door: it runs or waits, or is there just now."""
        if os.path.exists(os.path.join(other.folder, CLAIM)) or self.queue.of(other.job) is not None:
            return True
        return any((job.uid, job.job) == (self.uid, other.job) for job in self._seen().running)

    def _once(self) -> "dict[str, Lease]":
        if self.every and (self.strangers or any(other.asked.gpus for other in self._seen().waiting)):
            self.strangers = gpus.used_by_others(card.uuid for card in self.there)
        held = self._at_the_door()
        if self.every:
            held = self._without_strangers(held)
        facts = {"asked": self.asked, "submitted": self.submitted, "cards": list(held)}
        tickets.record_event(self.job.root, tickets.TAKEN, self.job.id, **facts)
        return held

    def held(self, held: "dict[str, Lease]") -> "list[Lease]":
        """All its marks."""
        return list(held.values()) + ([self._run] if self._run else [])

    def release(self, held: "dict[str, Lease]") -> None:
        """Let all of them go."""
        if self._run is None:
            return
        # Before the next holder may record that it has them.
        tickets.record_event(self.job.root, tickets.RELEASED, self.job.id, cards=list(held))
        gpu_leases.release_gpus(held)
        self._run.close()
        self._run = None

    def exchange(self, held: "dict[str, Lease]", failed: "Sequence[str]") -> None:
        """Hold other cards in place of those that failed, as far as others are free."""
        others = [card for card in self.every if card not in failed]
        for bad in [card for card in held if card in failed]:
            try:
                better = gpu_leases.replace_used_gpus(self.marks, gpu_leases.hold_gpus(self.marks, others, 1), others)
            except (gpu_leases.TooFew, Verdict):  # the same again is better than none
                return
            tickets.record_event(self.job.root, tickets.EXCHANGED, self.job.id, cards=list(better), released=[bad])
            held.update(better)
            held.pop(bad).close()

    def give_way(self, held: "dict[str, Lease]", first: "Callable[[], None]") -> bool:
        """As `Admitted.yield_to_other_users`."""
        ticket = self._own_ticket()
        if not held or not plan.must_yield(ticket, self._view(self._seen())):
            return False
        door = _enter(self.marks)
        try:
            gives = plan.must_yield(ticket, self._view(self._seen()))
            if gives:
                first()
                self._wait_again(held)
            return gives
        finally:
            if door is not None:
                door.close()

    def _wait_again(self, held: "dict[str, Lease]") -> None:
        """Behind those that wait now, and for as long as it takes: it has begun. A ticket counts where no claim is."""
        self.submitted = machine.now_ns()
        unclaim(self.job)
        self.queue.write(dict(self._told(plan.HALF), queue_timeout_s=None))
        self.release(held)
        self._note_ticket(plan.HALF)

    def _note_ticket(self, reason: str) -> None:
        facts = {"asked": self.asked, "submitted": self.submitted, "reason": reason}
        tickets.record_event(self.job.root, tickets.TICKET, self.job.id, **facts)

    def _seen(self) -> lease_names.Seen:
        """All names that are held now, but for its own as a job that runs."""
        own = lease_names.run(self.uid, self.job.id, self.asked)
        return lease_names.Seen(self.marks.names() - {own}, machine.now_s())

    def _at_the_door(self) -> "dict[str, Lease]":
        door = _enter(self.marks)
        try:
            self._run = self._hold_run()
            if self._run is None:
                raise NotNow(EXIT_RETURNED, "another submission is at the job: nothing to do")
            self._look_at_claim()
            self.submitted = self.submitted or machine.now_ns()
            return self._look()
        except gpu_leases.TooFew:
            raise self._queue(self._why_no_gpus(), True) from None
        finally:
            if door is not None:
                door.close()

    def _look_at_claim(self) -> None:
        """A script that was slow on its way must take nothing when its job has begun, or even ended, by another."""
        claimed = (publish.read(self.job.folder, CLAIM) or b"").decode("ascii", "replace")
        if claimed not in ("", self.job.submission):
            self.queue.remove(self.job.id)
            raise NotNow(EXIT_RETURNED, "the job is claimed by submission %s: nothing to do" % claimed)

    def _hold_run(self) -> "Optional[Lease]":
        """Its name, which only another submission wants; a process that lists files may hold it for a moment."""
        name, until = lease_names.run(self.uid, self.job.id, self.asked), time.monotonic() + _LISTED_S
        while True:
            mark = self.marks.hold(name)
            if mark is not None or self.lease != "file" or time.monotonic() > until:
                return mark

    def _look(self) -> "dict[str, Lease]":
        seen = self._seen()
        if self.lacks_environment():
            raise self._queue("its environment is not there yet")  # no GPU is reserved for it meanwhile
        if not self.ticket and self._waits_there and self.queue.names():
            raise self._queue("")
        job, made = self.job.id, plan.plan_starts([self._own_ticket()], self._view(seen))
        if job not in made.gpus:
            raise self._queue(made.reasons[job], bool(made.named))
        return gpu_leases.hold_gpus(self.marks, made.gpus[job], self.asked.gpus)

    def _own_ticket(self) -> "tickets.Ticket":
        """Its ticket, or the one that it would get."""
        return self.ticket or self.queue.as_ticket(self._told(""))

    def _view(self, seen: lease_names.Seen, no_gpus: bool = False) -> plan.QueueView:
        """What its admission is decided by; `no_gpus`: as if no GPU were free."""
        every = [card.uuid for card in self.there]  # older jobs may be content with another kind
        free = [card for card in every if not no_gpus and card not in seen.cards and card not in self.strangers]
        there = MachineResources(
            machine.cores(), machine.memory_mb(), machine.available_mb() if self.asked.memory_mb else 0, free
        )
        own_kind = capacity.kind_of(self.job.spec["resources"])
        return plan.QueueView(
            there, seen, self.uid,
            lambda kind: self.every if kind == own_kind else capacity.gpus_of_kind(kind, self.there),
            seen.holders(self.every, (self.uid, self.job.id)), self.strangers,
        )  # fmt: skip

    def _why_no_gpus(self) -> str:
        """Why it waits although GPUs were free: others have taken them meanwhile, or use them without a lease."""
        ticket, seen = self._own_ticket(), self._seen()
        for no_gpus in (False, True):
            reasons = plan.plan_starts([ticket], self._view(seen, no_gpus)).reasons
            if reasons:
                break
        return reasons.get(self.job.id, "")

    def _without_strangers(self, held: "dict[str, Lease]") -> "dict[str, Lease]":
        try:
            return gpu_leases.replace_used_gpus(self.marks, held, self.every)
        except gpu_leases.TooFew as few:
            self.strangers = few.strangers
        raise self._queue(self._why_no_gpus(), True)

    def _queue(self, reason: str, reserves: bool = False) -> Exception:
        """Write its ticket, let go, and see that a spooler looks at it.

        Args:
            reason: Why it waits.
            reserves: Whether younger jobs of other users must wait for it from now on, the spooler being told later.
        """
        first = self._named() if reserves and self.ticket is None and self._waits_there else None
        if self.ticket is None and self._waits_there:
            self.queue.write(self._told(reason))
            self._note_ticket(reason)
        if self._run is not None:
            self._run.close()
            self._run = None
        return self._goes_on_waiting(first) if self._waits_there else _Again()

    def _named(self) -> "Optional[launch.FirstInLine]":
        kind = capacity.kind_of(self.job.spec["resources"])
        until_s = machine.now_s() + lease_names.VALID_S - 1  # a spooler's own name for it must be another
        ms = self.ticket.ms if self.ticket else self.submitted // 10**6
        name = lease_names.wait(capacity.Waiting(ms, self.uid, self.job.id, self.asked, kind), until_s)
        mark = self.marks.hold(name)
        return None if mark is None else launch.FirstInLine(self.job.id, until_s, name, mark)

    def _goes_on_waiting(self, first: "Optional[launch.FirstInLine]" = None) -> NotNow:
        started = launch.ensure_spooler(self.queue, self.marks, self.lease, self.job.spec["bridge"], first)
        if first is not None:
            if not started:
                self._until_named(first)
            first.mark.close()
        return NotNow(EXIT_QUEUED, "the job waits in the queue")

    def _until_named(self, first: "launch.FirstInLine") -> None:
        """Wait until the spooler that is there has named the job too: no job may pass it in between."""
        until = time.monotonic() + _NAMED_S
        while time.monotonic() < until and self.job.id in self.queue.names():
            if any("/%s/" % self.job.id in name and name != first.name for name in self._seen().waits):
                return
            time.sleep(_KNOCK_S)

    def _told(self, reason: str) -> "dict[str, object]":
        spec = self.job.spec
        return {
            "format": 1, "job": self.job.id, "name": spec["name"], "folder": self.job.folder, "home": self.job.home,
            "element": self.job.element, "submitted": self.submitted, "t": time.time(), "reason": reason,
            "asked": self.asked._asdict(), "limits": self.limits._asdict(), "resources": spec["resources"],
            "queue_timeout_s": spec["queue_timeout_s"], "lease": self.lease, "bridge": spec["bridge"],
            "needs": self.needs, "env": launch.environment_of(os.getppid()),
        }  # fmt: skip


def _enter(marks: "Leases") -> "Optional[Lease]":
    """Hold the door, once it is free; None if another process keeps it for ever: the names alone decide then."""
    until = time.monotonic() + _AT_THE_DOOR_S
    while True:
        door = marks.hold(lease_names.DOOR)
        if door is not None or time.monotonic() > until:
            return door
        time.sleep(_KNOCK_S)
