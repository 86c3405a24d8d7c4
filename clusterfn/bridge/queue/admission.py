"""Admit a job to the machine or put it into the queue: a supervisor's first step where there is no scheduler.

The job has neither claim nor attempt then. `plan` decides whether it may start. Leases hold what it takes, and its
worker inherits them. The machine admits one job at a time, so the first to come is the first to be admitted.
"""

import os
import sys
import time

from ..layout import CLAIM, ENVIRONMENT, EXIT_QUEUED, EXIT_RETURNED, OUTCOME, TURN, attempt_dir
from ..supervisor import publish
from ..supervisor.eligible_gpus import cuda_names, name_gpus
from ..supervisor.job import HeldResources
from ..supervisor.verdict import EXIT_LEFT_TO_AFTER, AttemptEnded
from . import launch, lease_names, machine, plan, tickets
from .lease import AdmissionLock, Leases
from .machine import MachineResources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Container, Iterable, Optional, Sequence

    from ..supervisor.eligible_gpus import GpuInfo
    from ..supervisor.job import JobFolder
    from ..supervisor.watch import Signals
    from .lease import Lease

# Each try asks nvidia-smi, which may occupy the machine for a second.
_AGAIN_S = 2.0


class NotNow(Exception):
    """This process does not admit the job; the supervisor exits with `status`."""

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
    # A supervisor died while it built the environment. Its job is claimed and has no ticket.
    if turn == launch.ENVIRONMENT and not waits:
        turn = None
    request = AdmissionRequest(job, signals, waits)
    admission = request.admission
    if admission.ticket.after and job.element is None:
        # This import is late, because few jobs take values of others.
        from ..supervisor.dependencies import Dependencies

        admission.refusal = Dependencies(job.root).failure(admission.ticket.after)
        if admission.refusal is not None:
            # The job needs no resources to report that its input has failed.
            return admission
    try:
        if turn == launch.ENVIRONMENT:
            # This import is late, because few jobs build an environment.
            from ..supervisor import built

            built.prepare(job, request.look_while_it_waits)
            raise NotNow(EXIT_QUEUED, "the environment is there, and the job waits in the queue")
        if admission.ticket.asked.gpus:
            admission.look.list_gpus()
        if sys.platform.startswith("linux"):
            request.take(turn is not None)
    except AttemptEnded as ended:
        admission.refusal = ended.verdict
    return admission


class _Again(Exception):
    """The job does not fit, and gets no ticket: try again."""


class Admission(HeldResources):
    """What a job without a scheduler holds of its machine, and how it gives that back.

    Attributes:
        uuids: The GPUs that it holds, in PCI order.
        held: The names by which it holds them.
        run: The name that says that it runs; None while it does not.
        refusal: Why it was admitted although it can have nothing: it ends with that.
    """

    def __init__(self, job: "JobFolder") -> None:
        super().__init__()
        self.job = job
        self.leases = Leases()
        self.ticket = tickets.JobTicket(job)
        self.look = MachineLook(self.ticket, self.leases)
        self.lock = AdmissionLock(self.leases)
        self.held: "dict[str, Lease]" = {}
        self.run: "Optional[Lease]" = None
        # The reason for which the job waits again, once `queue_again` has been called.
        self._waits_again = ""

    def gpu_uuids(self, failed: "Sequence[str]" = ()) -> "list[str]":
        """Return the job's GPUs; exchange those that failed it for others, as far as others are free.

        Raises:
            AttemptEnded: It was admitted only to say why it can have none.
        """
        if self.refusal is not None:
            raise AttemptEnded(self.refusal)
        # This import is late, because many jobs ask for no GPU.
        from . import gpu_leases

        every = self.look.every
        others = [gpu for gpu in every if gpu not in failed]
        for bad in [gpu for gpu in self.uuids if gpu in failed]:
            try:
                better = gpu_leases.replace_used_gpus(self.leases, gpu_leases.hold_gpus(self.leases, others, 1), others)
            except (gpu_leases.TooFew, AttemptEnded):
                # A GPU that failed once is better than none.
                break
            self.ticket.record(tickets.EXCHANGED, cards=list(better), released=[bad])
            self.held.update(better)
            self.held.pop(bad).close()
            self.uuids = [gpu for gpu in every if gpu in self.held]
        return self.uuids

    def cuda_names(self) -> "list[str]":
        return cuda_names(self.look.gpus, self.uuids)

    def refuse(self) -> None:
        """Raise the verdict on a job that was admitted only because its environment cannot be made."""
        if self.refusal is not None and self.refusal.kind == ENVIRONMENT:
            raise AttemptEnded(self.refusal)

    def in_words(self) -> str:
        """Describe the job's GPUs for people."""
        return name_gpus(self.look.gpus, self.uuids)

    def worker_fds(self) -> "list[int]":
        """Return the files that the worker must inherit to hold what the job has."""
        return [lease.fileno() for lease in (*self.held.values(), *([self.run] if self.run else []))]

    def confirm(self) -> None:
        """Remove the ticket of the job, which is claimed now."""
        if self.run is not None:
            self.ticket.keep_for_restart()
        self.ticket.queue.remove(self.job.id)

    def release(self) -> None:
        """Release all that the job holds."""
        if self.run is None:
            return
        # The release is recorded first: the next holder may record the same GPUs as soon as they are free.
        self.ticket.record(tickets.RELEASED, cards=list(self.held))
        if self._waits_again:
            self.ticket.note(self._waits_again)
        for lease in self.held.values():
            lease.close()
        self.held.clear()
        # The kept ticket is removed while the name is still held. The next attempt may begin and keep its own right
        # after.
        self.ticket.forget_for_restart()
        self.run.close()
        self.run = None

    def queue_again(self, reason: str) -> bool:
        """Put the job, whose attempt is over, into the queue again, behind those that wait; false if there is none.

        It holds its name until `release`, so its next attempt does not begin before that.

        Raises:
            OSError: There is no room for its ticket; the claim is as it was.
        """
        if self.run is None:
            return False
        with self.lock:
            self.ticket.replace_claim(reason)
            self._waits_again = reason
        return True

    def yield_to_other_users(self, first: "Callable[[], None]") -> bool:
        """Release all and queue again if the job's group has to give way to another user who waits (`plan`).

        Args:
            first: Called before another process may start the job.
        """
        if not (self.run or self.held) or not self.look.why_yield(self.held):
            return False
        with self.lock:
            # It is decided once more under the lock, because the other user's job may have started meanwhile.
            why = self.look.why_yield(self.held)
            if why:
                first()
                self.ticket.replace_claim(why)
                self.release()
                self.ticket.note(why)
        return bool(why)


class AdmissionRequest:
    """One process that asks for the admission of a job.

    Args:
        waits: Whether the job may be left to the queue.

    Attributes:
        admission: What the job holds then.
    """

    def __init__(self, job: "JobFolder", signals: "Signals", waits: bool) -> None:
        self.admission = Admission(job)
        self._job = job
        self._signals = signals
        self._may_queue = waits
        self._leases = self.admission.leases
        self._ticket = self.admission.ticket
        self._look = self.admission.look

    def take(self, turn: bool) -> None:
        """Hold what the job asks for. `turn`: the spooler of its user has started it.

        Raises:
            NotNow: As `request_admission`.
            AttemptEnded: nvidia-smi fails.
        """
        if self._ticket.standing and not turn and self._may_queue:
            raise self._keep_waiting()
        while True:
            try:
                self._take_if_it_may_start()
                return
            except _Again:
                self._look_at_ends()
                time.sleep(_AGAIN_S)

    def _look_at_ends(self) -> None:
        if self._job.cancelled() or self._signals.asked_to_end():
            raise NotNow(EXIT_LEFT_TO_AFTER, "the job is to end: it waits for GPUs no longer")

    def look_while_it_waits(self) -> None:
        """Raise NotNow if the job is to end, or was withdrawn: then it is claimed, and has an outcome."""
        self._look_at_ends()
        if os.path.exists(os.path.join(self._job.folder, CLAIM)):
            raise NotNow(EXIT_RETURNED, "the job is claimed: it waits for its environment no longer")

    def _take_if_it_may_start(self) -> None:
        self._look.find_unleased()
        held = self._hold_planned({})
        while self._look.every and self._meets_unleased(held):
            held = self._hold_planned(held)
        ticket = self._ticket
        ticket.record(tickets.TAKEN, asked=ticket.asked, submitted=ticket.submitted, cards=list(held))
        self.admission.held = held
        self.admission.uuids = [gpu for gpu in self._look.every if gpu in held]

    def _meets_unleased(self, held: "dict[str, Lease]") -> bool:
        """Look for processes without a lease on GPUs that are held: one may have come at any time before."""
        try:
            users = self._look.used_by_others(held)
        except BaseException:  # no other process releases these leases when a signal handler raises here
            for lease in held.values():
                lease.close()
            raise
        self._look.unleased.update(users)
        return bool(users)

    def _hold_planned(self, before: "dict[str, Lease]") -> "dict[str, Lease]":
        """Hold what the plan gives to the job.

        Args:
            before: GPUs that it holds, and releases: a process without a lease uses some of them. Other GPUs may be
                kept for jobs that come earlier, and a younger job must see that this one waits.
        """
        job = self._job.id
        ticket = self._ticket
        with self.admission.lock:
            for lease in before.values():
                lease.close()
            self._hold_name()
            ticket.submitted = ticket.submitted or machine.started_ns(os.getppid())
            names = self._look.held_names()
            waits = self._waits_for_inputs()
            if waits:
                raise self._queue(waits)
            if self._may_queue and not all(map(os.path.exists, ticket.needs)):
                # No GPU is reserved for the job while its environment is being built.
                raise self._queue("its environment is not there yet")
            if not ticket.standing and self._may_queue and self._others_wait():
                raise self._queue("")
            start_plan = self._look.decide(names)
            if job not in start_plan.gpus:
                raise self._queue(start_plan.reasons[job])
            return self._hold_gpus(start_plan.gpus[job]) if ticket.asked.gpus else {}

    def _hold_name(self) -> None:
        """Hold the name of the job, which no other process has begun."""
        job, admission = self._job, self.admission
        shared = machine.shares_cores(self._ticket.limits, machine.cores())
        name = lease_names.run(self._look.uid, job.id, self._ticket.asked, shared)
        admission.run = admission.run or self._leases.hold(name)
        if admission.run is None:
            raise NotNow(EXIT_RETURNED, "another submission is at the job: nothing to do")
        # A script that was slow to start must take nothing if its job has begun, or even ended, by another.
        claimed = (publish.read(job.folder, CLAIM) or b"").decode("ascii", "replace")
        if claimed not in ("", job.submission):
            self._ticket.queue.remove(job.id)
            raise NotNow(EXIT_RETURNED, "the job is claimed by submission %s: nothing to do" % claimed)
        if job.element is not None and os.path.exists(os.path.join(attempt_dir(job.home, 1), OUTCOME)):
            self._ticket.queue.remove(job.id)
            raise NotNow(EXIT_RETURNED, "each item of the group has ended: nothing to do")

    def _hold_gpus(self, free: "Sequence[str]") -> "dict[str, Lease]":
        # This import is late, because many jobs ask for no GPU.
        from . import gpu_leases

        try:
            return gpu_leases.hold_gpus(self._leases, free, self._ticket.asked.gpus)
        except gpu_leases.TooFew:
            raise self._queue(self._look.why_no_gpus()) from None

    def _waits_for_inputs(self) -> str:
        """Say which jobs it waits for; "" for none."""
        if not self._ticket.after:
            return ""
        # This import is late, because few jobs take values of others.
        from ..supervisor.dependencies import Dependencies

        return Dependencies(self._job.root).describe_open(self._ticket.after)

    def _others_wait(self) -> bool:
        """Return whether another job in the queue may start. One that waits for an input takes no turn."""
        queue = self._ticket.queue
        with_inputs = []
        for job in queue.each_name():
            ticket = queue.of(job)
            if ticket is not None and ticket.after:
                with_inputs.append(ticket)
            elif ticket is not None:
                return True
        if not with_inputs:
            return False
        # This import is late, because few jobs take values of others.
        from ..supervisor.dependencies import Dependencies

        values = Dependencies(self._job.root)
        return any(not values.still_open(ticket.after) for ticket in with_inputs)

    def _queue(self, reason: str) -> Exception:
        """Write its ticket, release all, and wake or start a spooler."""
        if self._ticket.standing is None and self._may_queue:
            self._ticket.write(reason)
        if self.admission.run is not None:
            self.admission.run.close()
            self.admission.run = None
        return self._keep_waiting() if self._may_queue else _Again()

    def _keep_waiting(self) -> NotNow:
        launch.ensure_spooler(self._ticket.queue, self._job.spec["bridge"])
        return NotNow(EXIT_QUEUED, tickets.WAITS)


class MachineLook:
    """Looks at the machine for one job.

    Attributes:
        gpus: All GPUs of the machine, if the job asks for some.
        every: Those that are of its kind.
        unleased: Who uses a GPU without a lease.
    """

    def __init__(self, ticket: "tickets.JobTicket", leases: Leases) -> None:
        self.uid = os.getuid()
        self.gpus: "list[GpuInfo]" = []
        self.every: "list[str]" = []
        self.unleased: "dict[str, str]" = {}
        self._ticket = ticket
        self._leases = leases

    def list_gpus(self) -> None:
        """Ask which GPUs there are; raise AttemptEnded if nvidia-smi fails."""
        # These imports are late here and below, because many jobs ask for no GPU.
        from ..supervisor import gpus
        from . import gpu_leases

        self.gpus = gpu_leases.take_seen(self._ticket.queue.root) or gpus.list_gpus()
        self.every = gpus.candidates(self.gpus, self._ticket.job.spec["resources"])

    def find_unleased(self) -> None:
        """Ask who uses GPUs without a lease, if others wait for some, or such a process was met before."""
        if self.every and (self.unleased or any(other.asked.gpus for other in self.held_names().waiting)):
            self.unleased = self.used_by_others(gpu.uuid for gpu in self.gpus)

    def used_by_others(self, uuids: "Iterable[str]") -> "dict[str, str]":
        """Return who uses each of these GPUs without a lease."""
        from ..supervisor import gpus

        return gpus.used_by_others(uuids)

    def held_names(self) -> lease_names.HeldNames:
        """Return all names that are held now, without the job's own as one that runs."""
        return lease_names.HeldNames(self._leases.binders(), machine.now_s(), but=(self.uid, self._ticket.job.id))

    def decide(self, names: lease_names.HeldNames, no_gpus: bool = False) -> plan.StartPlan:
        """Decide whether the job may start; `no_gpus`: as if no GPU were free."""
        return plan.plan_starts([self._ticket.own()], self._view(names, no_gpus))

    def why_no_gpus(self) -> str:
        """Say why it waits although GPUs were free: others took them, or use them."""
        names = self.held_names()
        job = self._ticket.job.id
        start_plan = self.decide(names)
        if not start_plan.reasons:
            start_plan = self.decide(names, no_gpus=True)
        return start_plan.reasons.get(job, "")

    def why_yield(self, own: "Container[str]") -> str:
        """Return why the job, which has these GPUs, has to give way to another user who waits; "" if it need not."""
        names = self.held_names()
        others = any(other.uid != self.uid for other in names.waiting)
        return plan.must_yield(self._ticket.own(), self._view(names, own=own)) if others else ""

    def _view(self, names: lease_names.HeldNames, no_gpus: bool = False, own: "Container[str]" = ()) -> plan.QueueView:
        # All GPUs of the machine count, because older jobs may accept another kind.
        every = [] if no_gpus else [gpu.uuid for gpu in self.gpus]
        free = [gpu for gpu in every if gpu in own or gpu not in names.gpus and gpu not in self.unleased]
        available_mb = machine.available_mb() if self._ticket.asked.memory_mb else 0
        resources = MachineResources(machine.cores(), machine.memory_mb(), available_mb, free)
        own_kind = machine.kind_of(self._ticket.job.spec["resources"])
        return plan.QueueView(
            resources,
            names,
            self.uid,
            lambda kind: self.every if kind == own_kind else machine.gpus_of_kind(kind, self.gpus),
            names.holders(self.every),
            self.unleased,
            now_ms=machine.now_ns() // 10**6,
        )
