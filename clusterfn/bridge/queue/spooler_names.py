"""The names that a spooler holds for its jobs, and those of others whose end wakes it."""

import select

from . import launch, lease_names, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container, Optional

    from .lease import Lease, LeaseHolder, Leases
    from .plan import StartPlan
    from .tickets import Queue

_RENEW_S = lease_names.VALID_S * 2 // 3
# A turn takes a second at most, and some tens of them where nvidia-smi hangs; a spooler that is later than this hangs.
_TURN_S = 180


class NamedJobs:
    """A name for each job that is next, and for the promise of the next turn, so that others see that a spooler runs.

    Args:
        leases: How names are held here.
        queue: Its tickets.
        uid: Whose they are.
        most: How many names it may hold.
    """

    def __init__(self, leases: "Leases", queue: "Queue", uid: int, most: int) -> None:
        self._leases = leases
        self._queue = queue
        self._uid = uid
        self._most = most
        # By job: the time until which its name counts, and the lease that holds it.
        self._named: "dict[str, tuple[int, Lease]]" = {}
        self._published: "dict[str, machine.Waiting]" = {}
        self._promise: "Optional[tuple[int, Lease]]" = None

    def jobs(self) -> "set[str]":
        """Return the jobs that have one."""
        return set(self._named)

    def inherit(self, job: str, until_s: int, fd: int) -> None:
        """Take over the name of a job."""
        self._named[job] = until_s, self._leases.inherited(fd)

    def promise_turn(self) -> None:
        """Renew the promise; a spooler that is later than this name says is replaced (`ensure_spooler`)."""
        until_s = machine.now_s() + _TURN_S
        if self._promise is not None and self._promise[0] > until_s - _TURN_S // 3:
            return
        queue = launch.spool_name(self._queue)[len(lease_names.SPOOL) :].partition("/")[2]
        lease = self._leases.hold(lease_names.turn(self._uid, queue, until_s))
        if lease is not None:
            # The new promise is bound before the old one is released, so that at no time there is none.
            before, self._promise = self._promise, (until_s, lease)
            if before is not None:
                before[1].close()

    def name(self, start_plan: "StartPlan") -> None:
        """Hold a name for each job that is next by this plan, and renew it."""
        tickets = start_plan.named[: self._most]
        for job in set(self._named) - {ticket.job for ticket in tickets}:
            self._named.pop(job)[1].close()
            self._published.pop(job, None)
        now_s = machine.now_s()
        for ticket in tickets:
            before, place = self._named.get(ticket.job), start_plan.places[ticket.job]
            used = machine.Used(place[0], *start_plan.further.get(ticket.job, (0, 0)))
            waiting = machine.Waiting(place[1], self._uid, ticket.job, ticket.asked, ticket.kind, used)
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

    def __init__(self, leases: "Leases", uid: int, most: int) -> None:
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
