"""The spooler: start one user's waiting jobs on one machine, in order, and end when none is left.

It holds the name that elects it, and a name for each job that is next, which other users see. It can be killed at any
moment: a waiting job has a ticket until it is claimed, and one that was started twice finds its name held or its claim
taken.
"""

import os
import resource
import select
import time

from ..layout import CANCELLED, DEPENDENCY, OUTCOME, UNSATISFIABLE, attempt_dir
from ..supervisor.dependencies import Dependencies
from ..supervisor.text import format_duration
from . import gpu_leases, launch, lease_names, machine, plan, report
from .lease import Leases
from .machine import MachineResources
from .scripts import EnvironmentMakers, JobEndings, JobScripts
from .tickets import Queue, has_environment, is_cancelled, is_claimed, waited_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Optional

    from .lease import Lease, LeaseHolder
    from .plan import StartPlan
    from .tickets import Ticket

# Nothing wakes the spooler for a GPU whose user holds no name, a cancelled job, or free memory. It looks at intervals.
_LOOK_AGAIN_S = 5.0
_STARTING_S = 0.1
# Nothing wakes it when an environment is there.
_BUILDS_S = 1.0
# A job releases several names one after another; the spooler waits until it has released them all.
_SETTLE_S = 0.003
# Other users can wake the spooler as often as they like, so it rests after a call that is not its own user's.
_OTHERS_S = 0.05
# The files that a spooler has open in addition to its own names and the connections to other holders.
_OTHER_FILES = 64
_FEWEST = 8


def run_spooler(root: str, fd: int) -> int:
    """Serve until nothing waits; `fd`, which was inherited, is the name that elects the spooler."""
    spooler = Spooler(Queue(root), fd)
    while spooler.elected():
        spooler.serve()
    return 0


class Spooler:
    """One spooler of the tickets in `queue`; `fd`, which it inherits, is the name that elects it."""

    def __init__(self, queue: Queue, fd: int) -> None:
        self.queue = queue
        self.uid = os.getuid()
        self.leases = Leases()
        # Other users may create as many names as they like, so half of the files that may be open are reserved for this
        # spooler's own.
        most = max(_FEWEST, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES) // 2)
        self._named = NamedJobs(self.leases, self.uid, most)
        self._elected: "Optional[Lease]" = self.leases.inherited(fd)
        self._holders = FollowedHolders(self.leases, self.uid, most)
        self._scripts = JobScripts(queue)
        self._makers = EnvironmentMakers(self._scripts)
        self._endings = JobEndings(queue)
        self._gpus = gpu_leases.GpuCache()
        self._inputs = Dependencies(queue.root)
        self._reported: "Optional[tuple[list[Ticket], dict[str, str]]]" = None
        self._turn_took_s = 0.0
        # When the first `queue_timeout` ends, by the monotonic clock.
        self._limit_at = float("inf")

    def elected(self) -> bool:
        """Return whether this is the spooler of its queue, and something waits; take its name again if need be."""
        if self._elected is None and (self._tickets() or self._endings.jobs):
            self._elected = self.leases.hold(launch.spool_name(self.queue))
        return self._elected is not None

    def serve(self) -> None:
        """Serve until nothing waits; a job that comes then finds the name free, or is seen by `elected`."""
        while self._turn():
            self._wait()
        if self._elected is not None:
            self._elected.close()
        self._elected = None

    def _tickets(self) -> "list[Ticket]":
        return [ticket for ticket in self.queue.read() if self._still_waits(ticket)]

    def _turn(self) -> bool:
        """Look at the tickets and start what may start; return False if nothing waits."""
        began = time.monotonic()
        self._collect()
        self._inputs.look_again()
        tickets = self._tickets()
        self._scripts.keep_only({ticket.job for ticket in tickets})
        names = lease_names.HeldNames(self.leases.binders(), machine.now_s())
        self._holders.follow(names, {gpu.uuid for gpu in self._gpus.gpus})
        # Jobs that wait for the value of another job reserve nothing, and no environment is made for them yet.
        with_inputs = [ticket for ticket in tickets if ticket.after and self._inputs.still_open(ticket.after)]
        held_back = {ticket.job: self._inputs.describe_open(ticket.after) for ticket in with_inputs}
        complete = [ticket for ticket in tickets if ticket.job not in held_back]
        lacking = [ticket for ticket in complete if not has_environment(ticket)]
        absent = {ticket.job for ticket in lacking}
        start_plan = self._plan([ticket for ticket in complete if ticket.job not in absent], names)
        start_plan.reasons.update(self._makers.make(lacking))
        start_plan.reasons.update(held_back)
        # The names are bound before the scripts start, so that no job of another user passes these jobs in between.
        self._named.name(start_plan)
        for ticket in start_plan.start:
            self._scripts.admit(ticket)
        self._report(tickets, start_plan.reasons)
        self._turn_took_s = time.monotonic() - began
        return bool(tickets or self._endings.jobs)

    def _report(self, tickets: "list[Ticket]", reasons: "dict[str, str]") -> None:
        if (tickets, reasons) != self._reported:
            self._reported = (tickets, reasons)
            report.write_reasons(self.queue.root, tickets, reasons)
        limited = [ticket for ticket in tickets if ticket.timeout_s is not None]
        rest_s: "list[float]" = [ticket.timeout_s - self._waited_s(ticket) for ticket in limited]
        self._limit_at = time.monotonic() + min(rest_s, default=float("inf"))

    def _still_waits(self, ticket: "Ticket") -> bool:
        if ticket.job in self._endings.jobs:
            return False
        group_outcome = os.path.join(attempt_dir(ticket.home, 1), OUTCOME)
        is_over = ticket.element is not None and (is_cancelled(ticket) or os.path.exists(group_outcome))
        if is_claimed(ticket) or is_over:
            self.queue.remove(ticket.job)
            return False
        is_starting = ticket.job in self._scripts.starting
        if is_starting and not (self._scripts.is_overdue(ticket.job) or is_cancelled(ticket)):
            return True
        verdict = self._verdict(ticket)
        if verdict is None or not self._endings.may_end(ticket.job):
            return True
        self._endings.end(ticket.job, ticket.folder, verdict)
        return False

    def _verdict(self, ticket: "Ticket") -> "Optional[dict[str, Any]]":
        if is_cancelled(ticket):
            return {"kind": CANCELLED, "message": "the job was withdrawn before it started", "stage": "queue"}
        if ticket.after and ticket.element is None and self._inputs.failure(ticket.after) is not None:
            # `supervise.py conclude` finds out which input failed, and says so.
            return {"kind": DEPENDENCY, "withdraw": True}
        if ticket.timeout_s is None or self._waited_s(ticket) < ticket.timeout_s or not has_environment(ticket):
            return None
        lacking = "the function did not start" if ticket.job in self._scripts.starting else "its turn did not come"
        why = report.reason_of(self.queue.root, ticket.job)
        return {
            "kind": UNSATISFIABLE,
            "stage": "lease",
            "message": "%s within the %s of queue_timeout: %s" % (lacking, format_duration(ticket.timeout_s), why),
            "hint": "call again later, allow a longer queue_timeout, or choose another host",
        }

    def _waited_s(self, ticket: "Ticket") -> float:
        """Return how long it has waited for its turn, without the time in which it waited for the value of a job."""
        if not ticket.after:
            return waited_s(ticket)
        if self._inputs.still_open(ticket.after):
            return 0.0
        return min(waited_s(ticket), time.time() - self._inputs.ended_at(ticket.after))

    def _collect(self) -> None:
        """Collect the processes that have ended."""
        self._endings.collect()
        self._makers.collect()
        if self._scripts.collect():
            self._gpus.refresh()

    def _plan(self, tickets: "list[Ticket]", names: lease_names.HeldNames) -> "plan.StartPlan":
        memory = any(ticket.asked.memory_mb for ticket in tickets)
        used = self._gpus.unleased(any(ticket.asked.gpus for ticket in tickets), names.gpus)
        every = [gpu.uuid for gpu in self._gpus.gpus]
        free = [gpu for gpu in every if gpu not in names.gpus and gpu not in used]
        resources = MachineResources(
            machine.cores(), machine.memory_mb(), machine.available_mb() if memory else 0, free
        )
        holders = self._holders.of_gpus(names.gpus)
        held = dict(names.holders(every), **{gpu: holder.uid for gpu, holder in holders.items()})
        # The pid is shown only for a user of whom no running job of clusterfn has a GPU: another program must hold it.
        with_jobs = {job.uid for job in names.running if job.asked.gpus}
        pids = {gpu: holder.pid for gpu, holder in holders.items() if held[gpu] not in with_jobs and holder.pid}
        view = plan.QueueView(
            resources,
            names,
            self.uid,
            self._gpus.of,
            held,
            used,
            starting=set(self._scripts.starting),
            late=self._scripts.late(),
            overdue=self._scripts.overdue(),
            pids=pids,
            now_ms=machine.now_ns() // 10**6,
        )
        return plan.plan_starts(tickets, view)

    def _wait(self) -> None:
        """Wait until something changes that may matter, or it is time to look again."""
        if self._scripts.starting or self._endings.jobs or self._scripts.some_rest():
            patience_s = _STARTING_S
        else:
            longest = _BUILDS_S if self._makers.jobs() else _LOOK_AGAIN_S
            patience_s = max(0.01, min(longest, self._limit_at - time.monotonic()))
        gone, is_called = self._holders.wait(patience_s, self._elected)
        if self._elected is not None and not self._elected.answer() and is_called:
            time.sleep(_OTHERS_S)
        for name in gone:
            self._gpus.let_go(name)
        if gone or is_called:
            # A turn that looks at thousands of tickets must not follow on the last one at once.
            time.sleep(max(_SETTLE_S, self._turn_took_s))


_RENEW_S = lease_names.VALID_S * 2 // 3


class NamedJobs:
    """A name for each job that is next, which others see.

    Args:
        leases: How names are held here.
        uid: Whose jobs they are.
        most: How many names it may hold.
    """

    def __init__(self, leases: Leases, uid: int, most: int) -> None:
        self._leases = leases
        self._uid = uid
        self._most = most
        # By job: the time until which its name counts, and the lease that holds it.
        self._named: "dict[str, tuple[int, Lease]]" = {}
        self._published: "dict[str, machine.Waiting]" = {}

    def name(self, start_plan: "StartPlan") -> None:
        """Hold a name for each job that is next by this plan, and renew it."""
        tickets = start_plan.named[: self._most]
        for job in set(self._named) - {ticket.job for ticket in tickets}:
            self._named.pop(job)[1].close()
            self._published.pop(job, None)
        now_s = machine.now_s()
        for ticket in tickets:
            before = self._named.get(ticket.job)
            more = start_plan.further.get(ticket.job, 0)
            since_ms = start_plan.since_ms[ticket.job]
            waiting = machine.Waiting(since_ms, self._uid, ticket.job, ticket.asked, ticket.kind, more)
            if before is None or before[0] < now_s + _RENEW_S or self._published.get(ticket.job, waiting) != waiting:
                lease = self._leases.hold(lease_names.wait(waiting, now_s + lease_names.VALID_S))
                if lease is not None:
                    self._named[ticket.job] = (now_s + lease_names.VALID_S, lease)
                    self._published[ticket.job] = waiting
                    if before is not None:
                        before[1].close()


class FollowedHolders:
    """Connections to processes that hold names: each ends with its holder.

    Args:
        leases: How names are held here.
        uid: Whose spooler it is.
        most: How many there may be.
    """

    def __init__(self, leases: Leases, uid: int, most: int) -> None:
        self._leases = leases
        self._uid = uid
        self._most = most
        self._holders: "dict[str, LeaseHolder]" = {}

    def follow(self, names: lease_names.HeldNames, gpus: "Container[str]") -> None:
        """Follow each holder, and the arrival of jobs for which something is reserved.

        If there are more than can be followed, the holders of this machine's GPUs come first; the next look sees the
        others.

        Args:
            gpus: The machine's GPUs.
        """
        first = {lease_names.gpu(gpu) for gpu in names.gpus if gpu in gpus}
        own = {name for name, job in names.jobs.items() if job.uid == self._uid}
        every = {lease_names.gpu(gpu) for gpu in names.gpus} | set(names.jobs)
        every |= {name for name, uid in names.waits.items() if uid != self._uid}
        held = set(sorted(every, key=lambda name: (name not in first, name not in own, name))[: self._most])
        for name in set(self._holders) - held:
            self._holders.pop(name).close()
        for name in held - set(self._holders):
            holder = self._leases.holder(name)
            if holder is not None:
                self._holders[name] = holder

    def of_gpus(self, gpus: "set[str]") -> "dict[str, LeaseHolder]":
        """Return the holders of GPUs, as far as they are followed."""
        holders = {gpu: self._holders.get(lease_names.gpu(gpu)) for gpu in gpus}
        return {gpu: holder for gpu, holder in holders.items() if holder is not None}

    def wait(self, patience_s: float, own: "Optional[Lease]") -> "tuple[list[str], bool]":
        """Wait until a holder ends, or another process calls the spooler by its own name.

        Returns:
            The names that ended, and whether it was called.
        """
        poll = select.poll()
        for holder in self._holders.values():
            poll.register(holder.fileno(), select.POLLHUP)
        if own is not None:
            poll.register(own.fileno(), select.POLLIN)
        woken = {fd for fd, _ in poll.poll(patience_s * 1000)}
        gone = [name for name, holder in self._holders.items() if holder.fileno() in woken]
        for name in gone:
            self._holders.pop(name).close()
        return gone, own is not None and own.fileno() in woken
