"""The spooler: start one user's waiting jobs on one machine, in order, and end when none is left.

It holds the name that elects it, and a name for each job that is next, which other users see. It can be killed at any
moment: a waiting job has a ticket until it is claimed, and one that was started twice finds its name held or its claim
taken.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

from ..builder import progress
from ..layout import (
    BUILDER_LOG,
    CANCELLED,
    CLAIM,
    DEPENDENCY,
    EXIT_PUBLISHED,
    EXIT_RETURNED,
    LOST,
    OUTCOME,
    SCRIPT,
    TURN,
    UNSATISFIABLE,
    attempt_dir,
    element_log,
)  # fmt: skip
from ..supervisor.text import duration
from ..supervisor.verdict import say
from . import gpu_leases, launch, lease_names, machine, plan, report
from .held_back import HeldBack
from .lease import KEPT_S, leases_of_kind
from .machine import MachineResources
from .tickets import Queue, has_environment, is_cancelled, is_claimed, waited_s
from .usage import UsageAccount, published_usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .lease import Lease, LeaseHolder
    from .machine import Usage
    from .tickets import Ticket

_LOOK_AGAIN_S = 5.0  # for GPUs whose users hold nothing that could wake us, for cancelled jobs, for memory
_STARTING_S = 0.1
_COMES_S = 5.0  # a script's own setup lines may take for ever
# So long its turn is kept for such a script, and twice as long each time: one that is only slow comes in the end.
_KEPT_S, _KEPT_MOST_S = lease_names.VALID_S, 3600
_UNHEARD_S = 1.0  # where no process can wake it
_RENEW_S = lease_names.VALID_S * 2 // 3
_SETTLE_S = 0.003  # a job releases several names one after another
_OTHERS_S = 0.05  # other users can wake it as often as they like
_AGAIN_S, _AGAIN_MOST_S = 0.2, 5.0
_MOST_HUNG = 3  # scripts, of those that were to make one environment
_CONCLUDES_S = 30.0
_CONCLUDES_AT_ONCE = 8  # processes; a failed job may have hundreds that wait for its value
# A turn takes a second at most, and some tens of them where nvidia-smi hangs; a spooler that is later than this hangs.
_TURN_S = 180
_OTHER_FILES = 64  # that a spooler has open in addition to its own names and the connections to others
_FEWEST = 8


def run_spooler(root: str, lease: str, fd: int, *first: str) -> int:
    """Serve until nothing waits.

    Args:
        root: Of the queue.
        lease: How names are held here.
        fd: The name that elects it, inherited.
        first: A job that has its name already, until when that counts, and its fd, inherited too.
    """
    spooler = Spooler(Queue(root), lease, fd)
    if first:
        spooler.named[first[0]] = (int(first[1]), spooler.marks.inherited(int(first[2])))
    while spooler.elected():
        spooler.serve()
    return 0


class EnvironmentMaker:
    """The script of a waiting job that makes its environment.

    Args:
        logged: How long the log of its builder was before.
    """

    def __init__(self, ticket: "Ticket", process: "subprocess.Popen[Any]", logged: int) -> None:
        self.ticket = ticket
        self.process = process
        self._logged = logged

    def builds(self) -> bool:
        """Whether its builder has begun."""
        return _size_of(os.path.join(self.ticket.folder, BUILDER_LOG)) > self._logged

    def end(self) -> None:
        """Kill its processes."""
        if self.process.poll() is None:  # not reaped yet, so no other process has its pid
            os.killpg(self.process.pid, signal.SIGKILL)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # it is not there yet
        return 0


class Spooler:
    """One spooler.

    Args:
        queue: Its tickets.
        lease: How names are held here; tickets of the other kind are another's.
        fd: The name that elects it, inherited.

    Attributes:
        named: By job, until when its name counts, and the name.
    """

    def __init__(self, queue: Queue, lease: str, fd: int) -> None:
        self.queue = queue
        self.lease = lease
        self.uid = os.getuid()
        self.marks = leases_of_kind(lease)
        self._elected: "Optional[Lease]" = self.marks.inherited(fd)
        self.named: "dict[str, tuple[int, Lease]]" = {}
        self._starting: "dict[str, subprocess.Popen[Any]]" = {}
        self._concluding: "dict[str, tuple[subprocess.Popen[Any], float, str]]" = {}
        self._given_up: "set[str]" = set()
        self._not_concluded: "dict[str, float]" = {}
        self._makers: "dict[str, EnvironmentMaker]" = {}
        self._promise: "Optional[tuple[int, Lease]]" = None
        # Names are made by others, as many as they like: half of the files that may be open is for them.
        self._most = max(_FEWEST, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES) // 2)
        self._children: "list[subprocess.Popen[Any]]" = []
        self._tries: "dict[str, tuple[int, float]]" = {}
        self._slow: "dict[str, set[int]]" = {}  # by job, those of its tries that took too long
        self._holders: "dict[str, LeaseHolder]" = {}
        self._cards = gpu_leases.GpuCache()
        self._inputs = HeldBack(queue.root)
        self._account = UsageAccount(queue.root)
        self._usage: "Optional[Usage]" = None
        self._told: "dict[str, machine.Waiting]" = {}
        self._lock_holder, self._locked_since = "", 0.0
        self._reported: "Optional[tuple[list[Ticket], dict[str, str]]]" = None

    def elected(self) -> bool:
        """Return whether this is the spooler of its queue, and something waits; take its name again if need be."""
        if self._elected is None and (self._tickets() or self._concluding):
            self._elected = self.marks.hold(launch.spool_name(self.queue))
        return self._elected is not None

    def serve(self) -> None:
        """Serve until nothing waits; a job that comes then finds the name free, or is seen by `elected`."""
        while self._turn():
            self._wait()
        if self._elected is not None:
            self._elected.close()
        self._elected = None

    def _tickets(self) -> "list[Ticket]":
        read = self.queue.read()
        for job, why in self.queue.damaged().items():
            self._give_up(job, why)
        return [ticket for ticket in read if ticket.lease == self.lease and self._still_waits(ticket)]

    def _turn(self) -> bool:
        """Look at all tickets and start what may start; return False if nothing waits."""
        self._promise_turn()
        self._reap()
        self._inputs.look_again()
        tickets = self._tickets()
        waiting = {ticket.job for ticket in tickets}
        for job in set(self._starting) - waiting:
            del self._starting[job]
        for kept in (self._tries, self._slow):
            for job in set(kept) - waiting:
                del kept[job]
        seen = lease_names.Seen(self.marks.binders(), machine.now_s())
        self._follow(seen)
        self._look_at_lock()
        # Those that wait for the value of a job reserve nothing, and nothing is made for them.
        held_back = self._inputs.reasons(tickets)
        complete = [ticket for ticket in tickets if ticket.job not in held_back]
        ready = [ticket for ticket in complete if has_environment(ticket)]
        made = self._plan(ready, seen)
        made.reasons.update(self._make([ticket for ticket in complete if ticket not in ready]))
        made.reasons.update(held_back)
        self._name(made)
        for ticket in made.start:
            process = self._script(ticket) if self._may_try(ticket) else None
            if process is not None:
                self._starting[ticket.job] = process
                self._children.append(process)
        if (tickets, made.reasons) != self._reported:
            self._reported = (tickets, made.reasons)
            report.write_reasons(self.queue.root, tickets, made.reasons)
        return bool(tickets or self._concluding)

    def _promise_turn(self) -> None:
        # A spooler that is later than this name says is replaced (`ensure_spooler`).
        now_s = machine.now_s()
        if self.lease == "file" or self._promise is not None and self._promise[0] > now_s + _TURN_S * 2 // 3:
            return  # the holder of a locked file is unknown
        queue = launch.spool_name(self.queue)[len(lease_names.SPOOL) :].partition("/")[2]
        mark = self.marks.hold(lease_names.turn(self.uid, queue, now_s + _TURN_S))
        if mark is not None:
            before, self._promise = self._promise, (now_s + _TURN_S, mark)
            if before is not None:
                before[1].close()

    def _give_up(self, job: str, why: str) -> None:
        """A ticket that cannot be read ends its job, which learns why; the others keep waiting."""
        if job in self._given_up:
            return
        self._given_up.add(job)
        path = os.path.join(self.queue.folder, job)
        say("the ticket %s is damaged, and is set aside: %s" % (path, why))
        if job in self._starting or not os.path.isdir(self.queue.folder_of(job)):
            self._set_aside(job)
            return
        message = "the job's ticket in the queue of this machine is damaged, so the job cannot start: %s" % path
        verdict = {"kind": LOST, "message": message, "stage": "queue", "evidence": [why], "hint": "call again"}
        self._conclude(job, self.queue.folder_of(job), verdict)

    def _set_aside(self, job: str) -> None:
        try:
            self.queue.set_aside(job)
        except OSError as error:  # the disk is read-only: it is not looked at again by this spooler
            say("the ticket of %s could not be set aside: %s" % (job, error))

    def _still_waits(self, ticket: "Ticket") -> bool:
        if ticket.job in self._concluding:
            return False
        group_outcome = os.path.join(attempt_dir(ticket.home, 1), OUTCOME)
        is_over = ticket.element is not None and (is_cancelled(ticket) or os.path.exists(group_outcome))
        if is_claimed(ticket) or is_over:
            self.queue.remove(ticket.job)
            return False
        if ticket.job in self._starting and not (self._is_overdue(ticket.job) or is_cancelled(ticket)):
            return True
        verdict = self._verdict(ticket)
        if verdict is None or time.monotonic() < self._not_concluded.get(ticket.job, 0.0):
            return True
        if len(self._concluding) < _CONCLUDES_AT_ONCE:
            self._conclude(ticket.job, ticket.folder, verdict)
        return False

    def _verdict(self, ticket: "Ticket") -> "Optional[dict[str, Any]]":
        if is_cancelled(ticket):
            return {"kind": CANCELLED, "message": "the job was withdrawn before it started", "stage": "queue"}
        if ticket.after and ticket.element is None and self._inputs.values.failure(ticket.after) is not None:
            return {"kind": DEPENDENCY, "withdraw": True}  # `conclude` says why
        if ticket.timeout_s is None or self._waited_s(ticket) < ticket.timeout_s or not has_environment(ticket):
            return None
        lacking = "no GPUs became free" if ticket.asked.gpus else "its turn did not come"
        if ticket.job in self._starting:
            lacking = "the function did not start"
        why = report.reason_of(self.queue.root, ticket.job)
        return {
            "kind": UNSATISFIABLE, "stage": "lease",
            "message": "%s within the %s of queue_timeout: %s" % (lacking, duration(ticket.timeout_s), why),
            "hint": "call again later, allow a longer queue_timeout, or choose another host",
        }  # fmt: skip

    def _waited_s(self, ticket: "Ticket") -> float:
        """Return how long it has waited for its turn, without the time in which it waited for the value of a job."""
        if not ticket.after:
            return waited_s(ticket)
        if self._inputs.values.still_open(ticket.after):
            return 0.0
        return min(waited_s(ticket), time.time() - self._inputs.values.ended_at(ticket.after))

    def _conclude(self, job: str, folder: str, verdict: "dict[str, Any]") -> None:
        """Publish the end of a job by `supervise.py conclude`, which does nothing if the job has begun.

        It is not awaited: what the function has left in the job's folder may keep it for ever.
        """
        import tempfile  # costs as much as all the rest, and few jobs end here

        argv = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "conclude", folder]
        try:
            with open(os.devnull, "wb") as null, tempfile.TemporaryFile() as asked:
                asked.write(json.dumps(dict(verdict, withdraw=True)).encode())
                asked.seek(0)
                process = subprocess.Popen(argv, stdin=asked, stdout=null, cwd="/", start_new_session=True)
        except OSError as error:  # no more processes, or no more room: at its next turn
            say("the end of %s could not be published now: %s" % (job, error))
            self._given_up.discard(job)
            return
        self._concluding[job] = process, time.monotonic() + _CONCLUDES_S, verdict["kind"]

    def _make(self, waiting: "list[Ticket]") -> "dict[str, str]":
        """Have the environments made that jobs wait for; return how far each job's environment is.

        The script of the oldest job of each makes it, and that job then waits for its turn as before. Nothing is
        reserved for these jobs meanwhile.
        """
        wanted = {ticket.needs for ticket in waiting}
        building: "dict[tuple[str, ...], Ticket]" = {}
        hung: "dict[tuple[str, ...], list[str]]" = {}
        for job, maker in list(self._makers.items()):
            needs = maker.ticket.needs
            # Its job was withdrawn while its own setup ran, or another script has made the environment meanwhile.
            is_useless = not maker.builds() and (job not in self._tries or needs not in wanted)
            if is_useless:
                maker.end()
            if is_useless or needs not in wanted:
                self._children.append(self._makers.pop(job).process)
            elif maker.builds() or not self._is_overdue(job):
                building[needs] = maker.ticket
            else:  # its own setup hangs: another job's script is tried
                hung.setdefault(needs, []).append(job)
        reasons = {}
        for ticket in sorted(waiting, key=lambda ticket: len(self._slow.get(ticket.job, ()))):
            may_make = ticket.needs not in building and ticket.job not in self._makers
            others = hung.get(ticket.needs, [])
            if may_make and len(others) < _MOST_HUNG and self._may_try(ticket):
                logged = _size_of(os.path.join(ticket.folder, BUILDER_LOG))
                process = self._script(ticket, launch.ENVIRONMENT)
                if process is not None:
                    self._makers[ticket.job] = EnvironmentMaker(ticket, process, logged)
                    building[ticket.needs] = ticket
            folder = building.get(ticket.needs, ticket).folder
            said = progress.in_words(progress.last_line(os.path.join(folder, BUILDER_LOG)))
            if may_make and len(others) >= _MOST_HUNG:
                said = "the setup of %s does not end" % ", ".join(job[:4] for job in others)
            reasons[ticket.job] = "environment: " + (said or "waiting for its builder")
        return reasons

    def _is_overdue(self, job: str) -> bool:
        """Return whether the script of a job whose turn has come takes so long that others go first."""
        tries, not_before = self._tries.get(job, (0, 0.0))
        slow = self._slow.setdefault(job, set())
        if time.monotonic() <= not_before + min(_KEPT_S << len(slow - {tries}), _KEPT_MOST_S):
            return False
        slow.add(tries)
        return True

    def _may_try(self, ticket: "Ticket") -> bool:
        return time.monotonic() >= self._tries.get(ticket.job, (0, 0.0))[1]

    def _turn_of_script(self) -> str:
        """Return what tells a script that its turn has come, and who keeps the lock that it would wait for."""
        kept = self._lock_holder and time.monotonic() > self._locked_since + KEPT_S
        return launch.KEPT + (self._lock_holder if kept else "")

    def _look_at_lock(self) -> None:
        holder = self.marks.keeper(lease_names.ADMISSION)
        if holder != self._lock_holder:
            self._lock_holder, self._locked_since = holder, time.monotonic()

    def _script(self, ticket: "Ticket", turn: str = "") -> "Optional[subprocess.Popen[Any]]":
        tries = self._tries.get(ticket.job, (0, 0.0))[0]
        rest_s = min(_AGAIN_S * (1 << min(tries, 9)), _AGAIN_MOST_S)  # a thousand tries make no float any more
        self._tries[ticket.job] = (tries + 1, time.monotonic() + rest_s)
        log_path = os.path.join(ticket.home, "scheduler.log" if ticket.element is None else element_log(ticket.element))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # a FIFO without a reader refuses to block
        try:
            fields = self.queue.fields(ticket.job)
            if fields is None:  # it has no ticket any more
                return None
            with open(os.open(log_path, flags, 0o600), "ab") as log:
                os.set_blocking(log.fileno(), True)
                return subprocess.Popen(
                    ["/bin/sh", os.path.join(ticket.home, SCRIPT)]
                    + ([] if ticket.element is None else [str(ticket.element)]),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ticket.home,
                    env=dict(fields["env"], **{TURN: turn or self._turn_of_script()}), start_new_session=True,
                )  # fmt: skip
        except OSError as error:  # no more processes now, or its file system is away: the others start
            say("the script of %s could not be started: %s" % (ticket.job, error))
            return None

    def _reap(self) -> None:
        """Collect the processes that have ended; a script that is not admitted by then has lost its turn."""
        for job, (process, until, kind) in list(self._concluding.items()):
            if process.poll() is None and time.monotonic() < until:
                continue
            if process.returncode is None:
                process.kill()
                self._children.append(process)
            if process.returncode not in (EXIT_RETURNED, EXIT_PUBLISHED):
                say("the end of %s could not be published: look at %s" % (job, self.queue.folder_of(job)))
            del self._concluding[job]
            if job in self._given_up:
                self._set_aside(job)
            elif kind != DEPENDENCY or os.path.exists(os.path.join(self.queue.folder_of(job), CLAIM)):
                self.queue.withdraw(job)
            else:  # its input may have a value after all, or the disk is full: its own supervisor sees
                self._not_concluded[job] = time.monotonic() + _LOOK_AGAIN_S
        self._children = [child for child in self._children if child.poll() is None]
        for job, maker in list(self._makers.items()):
            if maker.process.poll() is not None:
                del self._makers[job]
        for job, child in list(self._starting.items()):
            if child.returncode is not None:
                del self._starting[job]
                self._cards.look_anew()

    def _plan(self, tickets: "list[Ticket]", seen: lease_names.Seen) -> "plan.StartPlan":
        memory = any(ticket.asked.memory_mb for ticket in tickets)
        used = self._cards.strangers(any(ticket.asked.gpus for ticket in tickets), seen.cards)
        every = [card.uuid for card in self._cards.there]
        free = [card for card in every if card not in seen.cards and card not in used]
        there = MachineResources(machine.cores(), machine.memory_mb(), machine.available_mb() if memory else 0, free)
        holders = {card: self._holders.get(lease_names.gpu(card)) for card in seen.cards}
        held = dict(seen.holders(every), **{card: each.uid for card, each in holders.items() if each is not None})
        now = time.monotonic()
        late = {
            job
            for job, (_, not_before) in self._tries.items()
            if (now > not_before + _COMES_S if job in self._starting else now < not_before)
        }
        running = {job.job: job.asked for job in seen.running if job.uid == self.uid}
        size = len(every), machine.cores()
        self._usage = published_usage(self._account, running, size, time.time(), self._usage)
        view = plan.QueueView(
            there, seen, self.uid, self._cards.of, held, used, starting=set(self._starting), late=late,
            overdue=set(filter(self._is_overdue, self._starting)), usage=self._usage, pids=self._pids(seen, held),
        )  # fmt: skip
        return plan.plan_starts(tickets, view)

    def _pids(self, seen: lease_names.Seen, held: "dict[str, int]") -> "dict[str, int]":
        """Return the process that holds a GPU, for users of whose jobs none runs with one."""
        with_jobs = {job.uid for job in seen.running if job.asked.gpus}
        holders = {card: self._holders.get(lease_names.gpu(card)) for card, uid in held.items() if uid not in with_jobs}
        return {card: holder.pid for card, holder in holders.items() if holder is not None and holder.pid}

    def _name(self, made: "plan.StartPlan") -> None:
        """Hold a name for each job that is next, and renew it, so that other users see that a spooler runs."""
        wanted = made.named[: self._most]
        for job in set(self.named) - {ticket.job for ticket in wanted}:
            self.named.pop(job)[1].close()
            self._told.pop(job, None)
        now_s = machine.now_s()
        for ticket in wanted:
            before, place = self.named.get(ticket.job), made.places[ticket.job]
            used = machine.Used(place[0], *made.further.get(ticket.job, (0, 0)))
            told = machine.Waiting(place[1], self.uid, ticket.job, ticket.asked, ticket.kind, used)
            if before is None or before[0] < now_s + _RENEW_S or self._told.get(ticket.job, told) != told:
                mark = self.marks.hold(lease_names.wait(told, now_s + lease_names.VALID_S))
                if mark is not None:
                    self.named[ticket.job] = (now_s + lease_names.VALID_S, mark)
                    self._told[ticket.job] = told
                    if before is not None:
                        before[1].close()

    def _follow(self, seen: lease_names.Seen) -> None:
        """Let the end of each holder wake us, and the arrival of jobs for which something is reserved.

        If there are more than can be followed, the holders of this machine's GPUs come first; the next look sees the
        others.
        """
        cards = {lease_names.gpu(card.uuid) for card in self._cards.there}
        own = {name for name, job in seen.jobs.items() if job.uid == self.uid}
        every = {lease_names.gpu(card) for card in seen.cards} | set(seen.jobs)
        every |= {name for name, uid in seen.waits.items() if uid != self.uid}
        held = set(sorted(every, key=lambda name: (name not in cards, name not in own, name))[: self._most])
        for name in set(self._holders) - held:
            self._holders.pop(name).close()
        for name in held - set(self._holders):
            holder = self.marks.holder(name)
            if holder is not None:
                self._holders[name] = holder

    def _wait(self) -> None:
        """Wait until something changes that may matter, or it is time to look again."""
        now = time.monotonic()
        if self._starting or self._concluding or any(not_before > now for _, not_before in self._tries.values()):
            patience_s = _STARTING_S
        else:
            tickets = self._reported[0] if self._reported else []
            limited = [ticket for ticket in tickets if ticket.timeout_s is not None]
            limits: "list[float]" = [ticket.timeout_s - self._waited_s(ticket) for ticket in limited]
            longest = _UNHEARD_S if self.lease == "file" or self._makers else _LOOK_AGAIN_S
            patience_s = max(0.01, min([longest] + limits))
        poll = select.poll()
        for holder in self._holders.values():
            poll.register(holder.fileno(), select.POLLHUP)
        if self._elected is not None:
            poll.register(self._elected.fileno(), select.POLLIN)
        woken = poll.poll(patience_s * 1000)
        if self._elected is not None and not self._elected.answer() and self._elected.fileno() in dict(woken):
            time.sleep(_OTHERS_S)
        gone = {fd for fd, _ in woken}
        for name, holder in list(self._holders.items()):
            if holder.fileno() in gone:
                self._holders.pop(name).close()
                self._cards.let_go(name)
        if gone:
            time.sleep(_SETTLE_S)
