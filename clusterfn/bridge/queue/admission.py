"""Admit a job to the machine or put it into the queue: a supervisor's first step where there is no scheduler.

The job has neither claim nor attempt then. `plan` decides whether it may start. Leases hold what it takes, and its
worker inherits them. The machine admits one job at a time, so the first to come is the first to be admitted.
"""

import contextlib
import os
import sys
import time

from ..layout import CLAIM, ENVIRONMENT, EXIT_QUEUED, EXIT_RETURNED, OUTCOME, READY, TURN, attempt_dir, environment_dir
from ..supervisor import gpus, publish
from ..supervisor.eligible_gpus import name_gpus
from ..supervisor.gpus import candidates
from ..supervisor.job import dependencies_of
from ..supervisor.verdict import Verdict, say
from . import arrivals, launch, lease_names, machine, plan, tickets
from .lease import admission_lock, holder_in_words, leases_of_kind
from .lease_names import ADMISSION
from .machine import MachineResources, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence

    from ..supervisor.dependencies import Dependencies
    from ..supervisor.eligible_gpus import GpuInfo
    from ..supervisor.job import JobFolder
    from ..supervisor.watch import Signals
    from .lease import Lease

_POLL_S = 0.002
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


def request_admission(job: "JobFolder", signals: "Signals", waits: bool = True) -> "Admission":
    """Hold what the job asks for; admit a job that can never have it, so that it says so.

    Args:
        job: A job on a machine without a scheduler.
        signals: The signals of this process; one that asks it to end ends its waiting.
        waits: Whether the job may be left to the queue; else this process waits.

    Raises:
        NotNow: It waits in the queue from now on, or another process has it, or this one is to wait no longer.
    """
    turn = os.environ.pop(TURN, None)
    if turn == launch.ENVIRONMENT and not waits:  # a supervisor died at it: its job is claimed, and has no ticket
        turn = None
    admission = Admission(job, signals, waits, (turn or "").partition(launch.KEPT)[2])
    if admission.after and job.element is None:
        admission.refusal = admission.values().failure(admission.after)
        if admission.refusal is not None:
            return admission  # it needs nothing to say so
    try:
        # A spooler of an older version lets a job come whose environment is missing: no other process would build it.
        if turn == launch.ENVIRONMENT or turn is not None and admission.lacks_environment():
            from ..supervisor import built  # few jobs build an environment

            built.prepare(job, admission.look_at_ends)
            if turn == launch.ENVIRONMENT:
                raise NotNow(EXIT_QUEUED, "the environment is there, and the job waits in the queue")
        if admission.asked.gpus:
            admission.there = gpus.list_gpus()
            admission.every = candidates(admission.there, job.spec["resources"])
        if sys.platform.startswith("linux"):
            admission.take(turn is not None)
    except Verdict as refusal:
        admission.refusal = refusal
    return admission


class _Again(Exception):
    """The job does not fit, and gets no ticket: try again."""


class Admission:
    """What a job without a scheduler asks of its machine, and what it holds of it.

    Attributes:
        uuids: The GPUs that it holds, in PCI order.
        held: The names by which it holds them.
        there: All GPUs of the machine, if it asks for some.
        every: Those that are of its kind.
        refusal: Why it was admitted although it can have nothing: it ends with that.
    """

    def __init__(self, job: "JobFolder", signals: "Signals", waits: bool, lock_kept: str = "") -> None:
        self.job = job
        self.signals = signals
        self.uuids: "list[str]" = []
        self.there: "list[GpuInfo]" = []
        self.every: "list[str]" = []
        self.refusal: "Optional[Verdict]" = None
        self.uid = os.getuid()
        self.lease: "str" = job.spec["lease"]
        self.marks = leases_of_kind(self.lease)
        self.asked = machine.demand_of(job.spec)
        self.limits = machine.limits_of(job.spec)
        self.queue = tickets.Queue(job.root)
        self.ticket = self.queue.of(job.id)
        self.submitted = self.ticket.submitted if self.ticket else 0
        self.strangers: "dict[str, str]" = {}
        building: "dict[str, Any]" = job.spec.get("building") or {}
        roots = [building["root"], building["node_root"]] if building else []
        self.after = dependencies_of(job.spec)
        self.needs = [os.path.join(environment_dir(root, building["id"]), READY) for root in roots if root]
        self._waits_there = waits
        self._lock_kept = lock_kept
        self._resumes = bool((job.spec.get("requeue") or {}).get("node")) and job.element is None
        self._waits_again = ""  # why, from `queue_again` on
        self._run: "Optional[Lease]" = None
        self.held: "dict[str, Lease]" = {}

    def cards(self, failed: "Sequence[str]" = ()) -> "list[str]":
        """Return the job's GPUs; exchange those that failed it for others, as far as others are free.

        Raises:
            Verdict: It was admitted only to say why it can have none.
        """
        if self.refusal is not None:
            raise self.refusal
        from . import gpu_leases  # many jobs ask for no GPU

        others = [card for card in self.every if card not in failed]
        for bad in [card for card in self.uuids if card in failed]:
            try:
                better = gpu_leases.replace_used_gpus(self.marks, gpu_leases.hold_gpus(self.marks, others, 1), others)
            except (gpu_leases.TooFew, Verdict):  # the same again is better than none
                break
            tickets.record_event(self.job.root, tickets.EXCHANGED, self.job.id, cards=list(better), released=[bad])
            self.held.update(better)
            self.held.pop(bad).close()
            self.uuids = [card for card in self.every if card in self.held]
        return self.uuids

    def refuse(self) -> None:
        """Raise the Verdict of a job that was admitted only because its environment cannot be made."""
        if self.refusal is not None and self.refusal.kind == ENVIRONMENT:
            raise self.refusal

    def in_words(self) -> str:
        """Describe the job's GPUs for people."""
        return name_gpus(self.there, self.uuids)

    def worker_fds(self) -> "list[int]":
        """Return the files that the worker must inherit to hold what the job has."""
        return [lease.fileno() for lease in self._leases()]

    def touch(self) -> None:
        """Show that the job is alive: what it holds must not look old."""
        for lease in self._leases():
            lease.touch()

    def _leases(self) -> "list[Lease]":
        return list(self.held.values()) + ([self._run] if self._run else [])

    def confirm(self) -> None:
        """Remove the ticket of the job, which is claimed now."""
        if self._resumes and self._run is not None:
            from . import restart  # few jobs are requeued

            restart.remember(self.job.root, self._ticket_fields(""))
        self.queue.remove(self.job.id)

    def release(self) -> None:
        """Release all that the job holds."""
        if self._run is None:
            return
        # Before the next holder may record that it has them.
        tickets.record_event(self.job.root, tickets.RELEASED, self.job.id, cards=list(self.held))
        if self._waits_again:
            self._note_ticket(self._waits_again)
        for lease in self.held.values():
            lease.close()
        self.held.clear()
        if self._resumes:
            from . import restart  # as above

            restart.forget(self.job.root, self.job.id)  # before the next attempt can begin and be remembered
        self._run.close()
        self._run = None

    def queue_again(self, reason: str) -> bool:
        """Put the job, whose attempt is over, into the queue again, behind those that wait; false if there is none.

        It holds its name until `release`, so its next attempt does not begin before that.

        Raises:
            OSError: There is no room for its ticket; the claim is as it was.
        """
        if self._run is None:
            return False
        lock = self._lock()
        try:
            self.submitted = machine.now_ns()
            self._write_ticket_for_claim(reason)
            self._waits_again = reason
        finally:
            if lock is not None:
                lock.close()
        return True

    def yield_to_other_users(self, first: "Callable[[], None]") -> bool:
        """Release all and queue again if the job's group has to give way to another user who waits (`plan`).

        Args:
            first: Called before another process may start the job.
        """
        if not (self._run or self.held) or not self._why_yield():
            return False
        lock = self._lock()
        try:
            why = self._why_yield()
            if why:
                first()
                self.submitted = machine.now_ns()  # behind those that wait now
                self._write_ticket_for_claim(why)
                self.release()
                self._note_ticket(why)
            return bool(why)
        finally:
            if lock is not None:
                lock.close()

    def _why_yield(self) -> str:
        seen = self._seen()
        others = any(other.uid != self.uid for other in seen.waiting)
        return plan.must_yield(self._own_ticket(), self._view(seen)) if others else ""

    def wait_again(self, reason: str) -> bool:
        """Release all and queue again, in its old place, for inputs that have not ended; False without a queue."""
        if self._run is None:
            return False
        lock = self._lock()
        try:
            self._write_ticket_for_claim(reason)
            self.release()
            self._note_ticket(reason)
            return True
        finally:
            if lock is not None:
                lock.close()

    def _write_ticket_for_claim(self, reason: str) -> None:
        """Replace the claim of the job, which has begun, by a ticket; keep the claim if there is no room for that."""
        claim, aside = (os.path.join(self.job.folder, name) for name in (CLAIM, "." + CLAIM))
        with contextlib.suppress(FileNotFoundError):  # the function may remove what it likes
            os.rename(claim, aside)  # a ticket counts only where no claim is, and a full disk takes no new one
        try:
            self.queue.write(dict(self._ticket_fields(reason), queue_timeout_s=None))
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.rename(aside, claim)
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)

    def take(self, turn: bool) -> None:
        """Hold what the job asks for. `turn`: the spooler of its user has started it.

        Raises:
            NotNow: As `request_admission`.
            Verdict: nvidia-smi fails.
        """
        if self.ticket and not turn and self._waits_there:
            raise self._keep_waiting()
        if not turn:
            arrivals.wait_for_earlier_submissions(os.getppid(), self._has_come)
        while True:
            try:
                self._take_if_it_may_start()
                return
            except _Again:
                self.look_at_ends()
                time.sleep(_AGAIN_S)

    def lacks_environment(self) -> bool:
        """Return whether the job can wait in the queue until its environment is there."""
        return self._waits_there and not all(map(os.path.exists, self.needs))

    def values(self) -> "Dependencies":
        """Return what has become of the jobs of this user, whose values jobs take."""
        from ..supervisor.dependencies import Dependencies  # few jobs take values of others

        return Dependencies(self.job.root)

    def look_at_ends(self) -> None:
        """Raise NotNow if the job is to end."""
        if self.job.cancelled() or self.signals.told_to_end():
            raise NotNow(_EXIT_LEFT_TO_AFTER, "the job is to end: it waits for GPUs no longer")

    def _has_come(self, other: "arrivals.EarlierJob") -> bool:
        """Return whether a job has asked for admission: it runs, waits, or asks just now."""
        if os.path.exists(os.path.join(other.folder, CLAIM)) or self.queue.of(other.job) is not None:
            return True
        return any((job.uid, job.job) == (self.uid, other.job) for job in self._seen().running)

    def _take_if_it_may_start(self) -> None:
        if self.every and (self.strangers or any(other.asked.gpus for other in self._seen().waiting)):
            self.strangers = gpus.used_by_others(card.uuid for card in self.there)
        held = self._hold_planned()
        if self.every:
            from . import gpu_leases  # as above

            try:
                held = gpu_leases.replace_used_gpus(self.marks, held, self.every)
            except gpu_leases.TooFew as few:
                self.strangers = few.strangers
                why, lock = self._why_no_gpus(), self._lock()
                try:  # a younger job that looks at the queue just now must see that this one waits
                    raise self._queue(*why) from None
                finally:
                    if lock is not None:
                        lock.close()
        facts = {"asked": self.asked, "submitted": self.submitted, "cards": list(held)}
        tickets.record_event(self.job.root, tickets.TAKEN, self.job.id, **facts)
        self.held, self.uuids = held, list(held)

    def _lock(self) -> "Optional[Lease]":
        """Hold the lock of all admissions, unless another process keeps it for ever."""
        lock = admission_lock(self.marks, self._lock_kept)
        if lock is None:
            self._lock_kept = self.marks.keeper(ADMISSION)
            say(
                "%s keeps the lock of the queue: this job does not wait for it" % holder_in_words(self.marks, ADMISSION)
            )
        return lock

    def _note_ticket(self, reason: str) -> None:
        facts = {"asked": self.asked, "submitted": self.submitted, "reason": reason}
        tickets.record_event(self.job.root, tickets.TICKET, self.job.id, **facts)

    def _seen(self) -> lease_names.Seen:
        """Return all names that are held now, without the job's own as one that runs."""
        return lease_names.Seen(self.marks.binders(), machine.now_s(), but=(self.uid, self.job.id))

    def _hold_planned(self) -> "dict[str, Lease]":
        lock = self._lock()
        try:
            # Only another submission wants the job's name, but a process that lists files may hold it for a moment.
            shared = machine.shares_cores(self.limits, machine.cores())
            name = lease_names.run(self.uid, self.job.id, self.asked, shared)
            until = time.monotonic() + _LISTED_S
            self._run = self.marks.hold(name)
            while self._run is None and self.lease == "file" and time.monotonic() <= until:
                self._run = self.marks.hold(name)
            if self._run is None:
                raise NotNow(EXIT_RETURNED, "another submission is at the job: nothing to do")
            # A script that was slow to start must take nothing if its job has begun, or even ended, by another.
            claimed = (publish.read(self.job.folder, CLAIM) or b"").decode("ascii", "replace")
            if claimed not in ("", self.job.submission):
                self.queue.remove(self.job.id)
                raise NotNow(EXIT_RETURNED, "the job is claimed by submission %s: nothing to do" % claimed)
            if self.job.element is not None and os.path.exists(os.path.join(attempt_dir(self.job.home, 1), OUTCOME)):
                self.queue.remove(self.job.id)
                raise NotNow(EXIT_RETURNED, "each item of the group has ended: nothing to do")
            self.submitted = self.submitted or machine.now_ns()
            seen = self._seen()
            waits = self._waits_for_inputs()
            if waits:
                raise self._queue(waits)
            if self.lacks_environment():
                raise self._queue("its environment is not there yet")  # no GPU is reserved for it meanwhile
            if not self.ticket and self._waits_there and self._others_wait():
                raise self._queue("")
            job, made = self.job.id, plan.plan_starts([self._own_ticket()], self._view(seen))
            if job not in made.gpus:
                raise self._queue(made.reasons[job], made.places[job] if made.named else None)
            return self._hold_gpus(made.gpus[job]) if self.asked.gpus else {}
        finally:
            if lock is not None:
                lock.close()

    def _hold_gpus(self, free: "Sequence[str]") -> "dict[str, Lease]":
        from . import gpu_leases  # as above

        try:
            return gpu_leases.hold_gpus(self.marks, free, self.asked.gpus)
        except gpu_leases.TooFew:
            raise self._queue(*self._why_no_gpus()) from None

    def _waits_for_inputs(self) -> str:
        """Say which jobs it waits for; "" for none.

        An element whose items start one by one leaves it to the spooler which of them begins: else all would come for
        the first item that can run.
        """
        if not self.after:
            return ""
        from ..supervisor import item_inputs, takers  # few jobs take values of others
        from .held_back import HeldBack

        if self.ticket is not None or not self._waits_there:
            return HeldBack(self.job.root).reasons([self._own_ticket()]).get(self.job.id, "")
        values = self.values()
        inputs = item_inputs.item_inputs_of(self.job.home, self.job.spec, values)
        waits = values.describe_open(self.after)
        if waits and inputs is not None:
            takers.register(self.job.root, self.job.spec["id"], inputs.producers())
        return waits

    def _others_wait(self) -> bool:
        """Return whether another job in the queue may start. One that waits for an input takes no turn."""
        with_inputs = []
        for job in self.queue.names():
            ticket = self.queue.of(job)
            if ticket is not None and ticket.after:
                with_inputs.append(ticket)
            elif ticket is not None or job in self.queue.damaged():
                return True
        if not with_inputs:
            return False
        from .held_back import HeldBack

        held_back = HeldBack(self.job.root).reasons(with_inputs)
        return any(ticket.job not in held_back for ticket in with_inputs)

    def _own_ticket(self) -> "tickets.Ticket":
        """Return the job's ticket, or the one that it would get."""
        return self.ticket or self.queue.as_ticket(self._ticket_fields(""))

    def _view(self, seen: lease_names.Seen, no_gpus: bool = False) -> plan.QueueView:
        """Return what its admission is decided by; `no_gpus`: as if no GPU were free."""
        every = [card.uuid for card in self.there]  # other kinds may do for older jobs
        free = [card for card in every if not no_gpus and card not in seen.cards and card not in self.strangers]
        there = MachineResources(
            machine.cores(), machine.memory_mb(), machine.available_mb() if self.asked.memory_mb else 0, free
        )
        own_kind = machine.kind_of(self.job.spec["resources"])
        usage, place = self._usage(seen)
        return plan.QueueView(
            there, seen, self.uid,
            lambda kind: self.every if kind == own_kind else machine.gpus_of_kind(kind, self.there),
            seen.holders(self.every), self.strangers, usage=usage, place=place,
        )  # fmt: skip

    def _usage(self, seen: lease_names.Seen) -> "tuple[Optional[Usage], tuple[int, int]]":
        """Return what this user has used, and the place of the job, as its spooler has published it, if it has."""
        named = next((each for each in seen.waiting if (each.uid, each.job) == (self.uid, self.job.id)), None)
        there = len(self.there), machine.cores()
        if named is not None and named.used is not None:
            return Usage(named.used.ms, named.used.ms, *there), (named.used.ms, named.ms)
        if not seen.waiting:  # no other job to compare with
            return None, (0, 0)
        from .usage import UsageAccount, published_usage  # few jobs come while others wait

        running = {each.job: each.asked for each in seen.running if each.uid == self.uid}
        return published_usage(UsageAccount(self.job.root), running, there, time.time()), (0, 0)

    def _why_no_gpus(self) -> "tuple[str, tuple[int, int]]":
        """Say why it waits although GPUs were free, and its place: others took them, or use them without a lease."""
        ticket, seen = self._own_ticket(), self._seen()
        for no_gpus in (False, True):
            made = plan.plan_starts([ticket], self._view(seen, no_gpus))
            if made.reasons:
                break
        return made.reasons.get(self.job.id, ""), made.places[self.job.id]

    def _queue(self, reason: str, place: "Optional[tuple[int, int]]" = None) -> Exception:
        """Write its ticket, release all, and wake or start a spooler.

        Args:
            reason: Why it waits.
            place: Its place in the queue, if jobs of other users must wait for it from now on, before the spooler knows
                it.
        """
        first = None
        if place is not None and self.ticket is None and self._waits_there:
            until_s = machine.now_s() + lease_names.VALID_S - 1  # a spooler's own name for it must be another
            kind = machine.kind_of(self.job.spec["resources"])
            waiting = machine.Waiting(place[1], self.uid, self.job.id, self.asked, kind, machine.Used(place[0], 0, 0))
            name = lease_names.wait(waiting, until_s)
            mark = self.marks.hold(name)
            first = None if mark is None else launch.FirstInLine(self.job.id, until_s, name, mark)
        if self.ticket is None and self._waits_there:
            self.queue.write(self._ticket_fields(reason))
            self._note_ticket(reason)
        if self._run is not None:
            self._run.close()
            self._run = None
        return self._keep_waiting(first) if self._waits_there else _Again()

    def _keep_waiting(self, first: "Optional[launch.FirstInLine]" = None) -> NotNow:
        started = launch.ensure_spooler(self.queue, self.marks, self.lease, self.job.spec["bridge"], first)
        if first is not None:
            until = time.monotonic() + _NAMED_S
            # No job may pass this one before a spooler that runs already has named it too.
            while not started and time.monotonic() < until and self.job.id in self.queue.names():
                names = {lease_names.plain(name) for name in self._seen().waits}
                if any("/%s/" % self.job.id in name for name in names - {lease_names.plain(first.name)}):
                    break
                time.sleep(_POLL_S)
            first.mark.close()
        return NotNow(EXIT_QUEUED, "the job waits in the queue")

    def _ticket_fields(self, reason: str) -> "dict[str, object]":
        spec = self.job.spec
        return {
            "format": 1, "job": self.job.id, "name": spec["name"], "folder": self.job.folder, "home": self.job.home,
            "element": self.job.element, "submitted": self.submitted, "t": time.time(), "reason": reason,
            "asked": self.asked._asdict(), "limits": self.limits._asdict(), "resources": spec["resources"],
            "priority": spec.get("priority") or 0,
            "queue_timeout_s": spec["queue_timeout_s"], "lease": self.lease, "bridge": spec["bridge"],
            "needs": self.needs, "after": spec.get("after"), "env": launch.environment_of(os.getppid()),
        }  # fmt: skip
