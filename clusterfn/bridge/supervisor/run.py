"""One attempt from its start to its published end: start the worker, read its report, end what it leaves behind.

Jobs, the items of a group, the nodes of a job and the calls of a session all run by `AttemptRun`. What a death means is
decided by `classify_exit`, what ends a job from outside by `watch`.
"""

import os
import select
import signal
import time

from ..layout import (
    CANCELLED,
    DISK,
    EXITED,
    RAISED,
    RETURNED,
    SCHEDULER_LOG,
    SIGNAL,
    STACK,
    STDERR,
    STDOUT,
    TIME,
    USAGE,
    VALUE,
    WORK,
    WORKER,
)  # fmt: skip
from ..schedulers import given_gpus
from . import classify_exit, environ, gpus, limits, process_tree, worker_process
from .attempt import UsageFile, restore_owner_permissions
from .job import describe_place
from .limits import clock
from .output import Pump, copy, list_files_left
from .text import duration, last_lines, masked
from .verdict import Verdict, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import RunnableAttempt
    from .job import JobFolder
    from .stacks import Stacks
    from .watch import EndWatch

_TICK_MS, _QUIET_TICK_MS = 100.0, 400.0  # what a job does or prints wakes it up; the rest can be looked at later
_STACKS_EVERY_S, _WAKE_EVERY_S = 0.5, 2.0
_TERM_ECHO_S = 0.5
_STOPS_WITHIN_S = 60.0  # after the announcement; SLURM's `suspend_grace_time` is 2 s where a site does not change it
_SUSPENDED = "the scheduler has suspended the job; this time does not count"
_PUBLISH_FOR_S = 30.0
_LINE_LIMIT = 4 << 20
_NOT_BEGUN = {"start": "its Python was still starting", "load": "the call was still being loaded"}
# Of the bridge, by the worker, before it can say anything.
_WORKER_MODULES = (
    "__init__", "main", "execute", "report", "payload", "children", "descriptors", "devices", "warning",
)  # fmt: skip
_NEEDED = (WORKER, "_clusterfn_wire/container.py", "_clusterfn/bridge/layout.py", *(
    "_clusterfn/bridge/worker/%s.py" % name for name in _WORKER_MODULES
))  # fmt: skip


class AttemptRun:
    """One attempt.

    Attributes:
        stage: How far it came.
    """

    def __init__(self, job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch") -> None:
        self.job = job
        self.attempt = attempt
        self.watch = watch
        self.stage = "start"
        self.notes: "list[str]" = []
        self._done: "Optional[dict[str, Any]]" = None
        self._status: "Optional[int]" = None
        self._ended: "Optional[Any]" = None  # what the worker's own process used, once it has ended
        self._own_signals: "dict[int, str]" = {}
        self._cpu_s = 0.0
        self._partial_line = b""
        self._limit: "Optional[int]" = job.spec["resources"]["memory_bytes"]
        self._sampler = limits.MemorySampler(self._limit)
        self._tick_ms = _TICK_MS
        self._oom = self._oom_detector()
        self._stall = limits.Stall(job.spec.get("stall_s"))
        self._quiet, self._is_quiet = limits.Stall(job.spec.get("quiet_s")), False
        self._next_stacks = self._next_wake = 0.0
        self._secrets = list(job.secrets().values())
        self._gpus = gpus.GpuUsageMonitor([], self.notes)
        self._cores: "Optional[worker_process.Cores]" = None
        self.notes += self._stall.note()
        self._child: "Optional[worker_process.WorkerProcess]" = None
        self._pumps: "list[Pump]" = []
        self._value = os.open(attempt.path(VALUE), os.O_RDWR | os.O_CREAT, 0o600)
        self._started = clock.now()
        self._alive = time.monotonic()  # when a wait ended last
        self._announced: "Optional[float]" = None  # when the scheduler announced that it stops the job
        self._stopped_s = 0.0
        self._usage_file = UsageFile(attempt.path(USAGE))

    def _oom_detector(self) -> limits.OomDetector:
        return limits.OomDetector()

    def start(self) -> None:
        """Acquire what it needs and start the worker."""
        self.stage = "queue"
        if self.job.spec.get("after") and self.job.element is None:
            from . import awaiting  # few jobs take values of others

            awaiting.await_values(self.job, self.attempt, self.watch)
        self.stage = "environment"
        ensure_environment(self.job, self.attempt, self.watch)
        self.stage = "start"
        if self.job.spec.get("resume"):
            from . import checkpoint  # few jobs need it, and it imports shutil

            self.notes += checkpoint.resume(self.job, self.watch.look)
        cards = self._take_cards()
        cpus: "Optional[set[int]]" = None
        if not self.job.scheduler.has_nodes:
            self._cores = worker_process.Cores(self.job.spec["resources"]["cores"])
            cpus = self._cores.chosen
        spec = self.job.spec
        env = environ.worker_environment(self.job, self.attempt.number, os.environ, cards)
        env.update(self.attempt.variables())
        self.notes += environ.redirect_caches(self.job, env)
        self._check_gpu_kernel(env)
        monitored = gpus.monitored_gpus(cards, spec["resources"]["gpus"], given_gpus(env))
        self._gpus = gpus.GpuUsageMonitor(monitored, self.notes)
        self.watch.look()
        if not self.attempt.begin():
            raise Verdict(CANCELLED, "the job was withdrawn before it started", stage="lease")
        argv = [spec["python"], os.path.join(spec["bridge"], WORKER), *self.attempt.call()]
        cwd = environ.expand_cwd(spec) or self.attempt.path(WORK)
        keep = self.job.held.worker_fds() if self.job.held else []
        self._started = clock.now()
        worker = self._worker(argv, env, cwd)
        self._attach(worker)  # first: a function may lock or remove the folder of these files at once
        late = worker.begin(cwd, env, cpus, keep)
        self.watch.start_clock(self._started)
        self.attempt.event("starting", pid=worker.pid, gpus=cards or [], late=late, **describe_place(self.job))
        for note in limits.kernel_limits(self._limit):
            self.notes.append(note)
            self.attempt.event("limited", reason=note)
        self.attempt.beat()  # only now: it waits for the disk, while the worker starts

    def _worker(self, argv: "list[str]", env: "dict[str, str]", cwd: str) -> "worker_process.WaitingWorker":
        """Return the worker that was started ahead, or a new one if that has ended, or has other variables."""
        early, self.job.early = self.job.early, None
        if early is not None and early.fits(argv, env):
            return early
        if early is not None:
            early.dismiss()
        return worker_process.launch(argv, env, cwd, self.job.spec)

    def _attach(self, child: "worker_process.WorkerProcess") -> None:
        """Read from a worker that was started, and keep what it prints."""
        self._child, self._alive = child, time.monotonic()
        self._pumps = [self._make_pump(fd, name) for fd, name in ((child.out, STDOUT), (child.err, STDERR))]

    def _make_pump(self, fd: int, name: str) -> Pump:
        return Pump(fd, self.attempt.path(name), self.job.spec["log_limit_bytes"])

    def _check_gpu_kernel(self, env: "dict[str, str]") -> None:
        building = self.job.spec.get("building")
        if building and building["cuda"] and self.job.spec["resources"]["gpus"]:
            from . import cuda  # it imports subprocess

            self.stage = cuda.STAGE
            cuda.check(self.job, env)
            self.stage = "start"

    def _take_cards(self) -> "Optional[list[str]]":
        wanted: "int" = self.job.spec["resources"]["gpus"]
        if not wanted:
            return None
        if self.job.scheduler.has_nodes:
            return self.job.scheduler.find_gpus(wanted, lambda: len(gpus.list_gpus()))
        self.stage = "lease"
        cards = self.job.held.cards(self.job.failed_cards) if self.job.held else []
        self.stage = "start"
        return cards

    def cards(self) -> "list[str]":
        return self.job.held.uuids if self.job.held else []

    def where(self) -> str:
        """Describe the GPUs that it has, or else name the node."""
        return self.job.held.in_words() if self.job.held and self.job.held.uuids else self.job.node

    def result(self) -> Verdict:
        """Wait until the worker has reported its end, or is gone.

        Raises:
            Verdict: Something else ended the job.
        """
        while self._done is None:
            self._turn()
            self.watch.look()
            self._warn()
            if self._status is not None:
                self._read_report()
                break
        self._drain()
        if self._done is None:
            return self._judge_silence()
        heeded = self.watch.heeded() if self._done.get("heeded") else None
        return heeded or classify_exit.classify_report(self._done)

    def _warn(self) -> None:
        """Warn the function, once, if its end is near: by SIGTERM, which a scheduler sends for the same reason."""
        why = self.watch.warning() if self.stage == "function" and self._status is None else ""
        if why and self._child is not None:
            self.attempt.event("warned", reason=why)
            os.kill(self._child.pid, signal.SIGTERM)  # not reaped yet, so no other process has its pid

    def _turn(self) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        live = {pump.fd: pump for pump in self._pumps if pump.fd >= 0}
        for fd in live:
            poll.register(fd, select.POLLIN)
        poll.register(self.watch.signals.fd, select.POLLIN)
        if self._done is None and self._child is not None and self._child.report >= 0:
            poll.register(self._child.report, select.POLLIN)
        began = time.monotonic()
        events = poll.poll(int(self._tick_ms))
        self._look_for_stop(began)
        for fd, _ in events:
            if fd in live:
                live[fd].move()
        self._read_report()
        self._reap()
        self._sample()
        self._gpus.look()
        # Ten looks a second for hours would take a noticeable part of a core for each job of a machine.
        is_busy = bool(events) or self._sampler.is_changing
        self._tick_ms = _TICK_MS if is_busy else min(self._tick_ms * 1.5, _QUIET_TICK_MS)

    def _look_for_stop(self, began: float) -> None:
        """Leave the time out for which all of the job was stopped, and tell of that; `began`: of the wait that is over.

        A stop by signals ends with SIGCONT. Without one the kernel has frozen the job's control group. Signals count
        only where a scheduler may have sent them: it has a time limit of its own. Elsewhere the function could send
        them, and run for ever.
        """
        came, by_scheduler = self.watch.signals.came, self.job.scheduler.has_nodes
        continued = came.pop(signal.SIGCONT, None)
        late = clock.overrun(began, self._tick_ms / 1000) if continued is None else clock.overrun(self._alive, 0.0)
        self._alive = time.monotonic()
        if came.pop(signal.SIGTSTP, None) is not None and by_scheduler:  # SLURM sends it two seconds before the stop
            self._announced = self._alive
            self.attempt.event("suspended", reason=_SUSPENDED)
        stops = by_scheduler and (self._announced is not None or self._worker_was_stopped())
        if late and (continued is None or stops):
            clock.leave_out(late)
            self._stopped_s += late
            self._announced = None
            self.attempt.event("resumed", reason="it was suspended for %s" % duration(late), stopped_s=round(late, 3))
        elif self._announced is not None and self._alive > self._announced + _STOPS_WITHIN_S:
            self._announced = None
            self.attempt.event("resumed", reason="", stopped_s=0.0)

    def _worker_was_stopped(self) -> bool:
        """Whether the worker was stopped as well, and not the supervisor alone, which watches its time."""
        if self._child is None or not hasattr(os, "waitid"):  # macOS
            return True
        try:
            changed = os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:  # it has ended
            return True
        return changed is not None

    def _read_report(self) -> None:
        while self._child is not None and self._child.report >= 0:
            try:
                data = os.read(self._child.report, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(self._child.report)
                self._child.report = -1
            lines = (self._partial_line + data).split(b"\n")
            self._partial_line = lines.pop()[-_LINE_LIMIT:]  # no line of the worker's is as long
            for line in lines:
                self._take_line(classify_exit.parse_report_line(line))

    def _take_line(self, said: "dict[str, Any]") -> None:
        if "done" in said and self._done is None:
            self._done = said
        elif "note" in said:
            self.notes.append(said["note"])
            self.attempt.event("note", message=said["note"])
        elif "own_signal" in said:
            self._own_signals[said["own_signal"]] = said.get("sender", "")
        elif "stage" in said:
            self.stage = said["stage"]
            self.attempt.event("running" if self.stage == "function" else "stage", stage=self.stage)

    def _reap(self) -> None:
        """Reap the worker, and orphans that became ours."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if gpus.is_asker(pid):
                continue
            self._cpu_s += usage.ru_utime + usage.ru_stime
            if self._child is not None and pid == self._child.pid:
                self._status, self._ended = status, usage

    def _sample(self) -> None:
        if self._child is None or not self._sampler.due():
            return
        self._wake_session()
        self._oom.look()
        began = time.process_time()
        pids = self._tree()
        if self._sampler.over(pids, began) and self._done is None:
            raise classify_exit.too_much_memory(self._sampler.peak, self._limit or 0)
        if time.monotonic() >= self._next_stacks:
            self._next_stacks = time.monotonic() + _STACKS_EVERY_S
            if os.path.exists(self.job.path(STACK)):
                self._answer_stack_request(pids)
        printed = sum(pump.seen for pump in self._pumps)
        if self._done is None and self._stall.over(pids, self._cpu_s, printed):
            raise self._stall.verdict(self._stack_lines(pids))
        self._note_quiet(pids, printed)
        if self._done is None and self._usage_file.due():
            self._usage_file.keep(self._usage(pids))

    def _wake_session(self) -> None:
        """Wake the programs of a session that a call has stopped: the server, and what runs its calls.

        This process runs, so that no scheduler suspends the job. Other functions may have a reason to be stopped.
        """
        if self._child is not None and self.job.spec.get("session") and time.monotonic() >= self._next_wake:
            self._next_wake = time.monotonic() + _WAKE_EVERY_S
            for pid in [self._child.pid, *process_tree.children_of(self._child.pid)]:
                if process_tree.wake(pid):
                    self.attempt.event("note", message="%s was stopped, and was woken" % process_tree.name_of(pid))

    def _answer_stack_request(self, pids: "list[int]") -> None:
        try:
            self._stacks().answer(pids)
        except ImportError as error:  # the host's Python was replaced since the start: no reason to end the job
            say("no stacks: %s" % error)

    def _stack_lines(self, pids: "list[int]") -> "list[str]":
        try:
            return self._stacks().lines(pids)
        except ImportError as error:  # as above: the job has stalled, with or without them
            return ["no stacks: %s" % error]

    def _stacks(self) -> "Stacks":
        from .stacks import Stacks  # few jobs are asked for them, and linecache takes as long as the worker's fork

        return Stacks(self.job, self.attempt, self._secrets)

    def _note_quiet(self, pids: "list[int]", printed: int) -> None:
        """Add an event when it has done nothing for long, and when it does something again."""
        self._quiet.over(pids, self._cpu_s, printed)
        quiet = self._quiet.is_over and self._done is None
        if quiet != self._is_quiet:
            self._is_quiet = quiet
            self.attempt.event("quiet" if quiet else "active", reason=self._quiet.in_words() if quiet else "")

    def _drain(self) -> None:
        for pump in self._pumps:
            pump.drain()

    def _judge_silence(self) -> Verdict:
        status = self._status or 0
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM:
            self._await_own_sigterm()
            heeded = self.watch.heeded()  # the function has given SIGTERM its usual effect back
            if heeded is not None:
                return heeded
        if self.stage == "start" and os.WIFEXITED(status):
            look_at_bridge(self.job)
        oom = self._oom.seen() or self.job.scheduler.find_oom(self._scheduler_log())
        verdict = classify_exit.classify_silence(
            status, self.stage, self._sampler.peak, self.job.asked_memory, oom, self._own_signals,
            self._limit_hit(status),
        )  # fmt: skip
        if verdict.kind in (EXITED, SIGNAL):
            full = any(pump.full for pump in self._pumps) or classify_exit.disk_is_full(self.job.folder)
            if full or classify_exit.quota_is_used_up(self.attempt.folder):
                verdict.facts["message"] += ", and the disk is full" if full else ", and the disk quota is used up"
                verdict.kind = DISK
        return verdict

    def _limit_hit(self, status: int) -> str:
        """Name the limit of the kernel's that ended the worker; "" if none did."""
        used = 0.0 if self._ended is None else self._ended.ru_utime + self._ended.ru_stime
        return limits.describe_kernel_limit(os.WTERMSIG(status), used) if os.WIFSIGNALED(status) else ""

    def _await_own_sigterm(self) -> None:
        """Wait for a SIGTERM of our own: the worker had one, perhaps the whole job has."""
        until = time.monotonic() + _TERM_ECHO_S
        while time.monotonic() < until:
            self._turn()
            self.watch.look()
        if self.watch.is_ending():
            raise self.watch.terminated()

    def _scheduler_log(self) -> bytes:
        try:
            with open(self.job.path(SCHEDULER_LOG), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
                return file.read()
        except OSError:
            return b""

    def end_tree(self) -> None:
        """Kill every descendant, and note what could not be killed."""
        if self.job.early is not None:  # before it is collected with the others
            self.job.early.dismiss()
            self.job.early = None
        left = process_tree.end(self._living, self._reap)
        self._reap()
        self._drain()
        if self._done is None and self._child is not None:
            self._usage_file.keep(self._usage([]))
        self.notes += ["could not be ended: %s" % name for name in left]

    def _tree(self) -> "list[int]":
        return gpus.without_askers(process_tree.descendants(os.getpid()))

    def _living(self) -> "list[int]":
        found = self._tree()
        if self._child is not None and self._status is None and self._child.pid not in found:
            found.append(self._child.pid)
        return found

    def publish(self, verdict: Verdict) -> bool:
        """Publish; False if another outcome is there. Tries for half a minute where the disk refuses."""
        restore_owner_permissions(self.job.folder)
        facts = self._facts(verdict)
        self._restore()
        until = time.monotonic() + _PUBLISH_FOR_S
        while True:
            try:
                return self.attempt.publish(verdict.kind or "", facts)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def _facts(self, verdict: Verdict) -> "dict[str, Any]":
        closing = [pump.close() for pump in self._pumps]
        daemons = self._daemons() if verdict.kind == RETURNED else []
        facts = dict(verdict.facts, node=self.job.node, by="supervisor")
        facts["stage"] = facts.get("stage") or self.stage
        if verdict.kind == TIME and facts["stage"] in _NOT_BEGUN:
            facts["message"] += "; the function had not begun, because %s" % _NOT_BEGUN[facts["stage"]]
        rank = classify_exit.failed_rank(self.attempt.folder)
        if verdict.kind in (RAISED, SIGNAL, EXITED):
            facts["hint"] = rank or facts.get("hint")
        facts["evidence"] = facts.get("evidence") or ([] if "value" in facts else self._last_output())
        if verdict.kind == RETURNED and not self.job.spec["outputs"] and not self.job.spec["cwd"]:
            facts["left"] = list_files_left(self.attempt.path(WORK))
        facts["usage"] = self._usage([])  # nvidia-smi may add a note
        stops = ["it was suspended for %s, which its time limit does not count" % duration(self._stopped_s)]
        facts["notes"] = self.notes + (stops if self._stopped_s else []) + [line for line in closing if line] + daemons
        return facts

    def _usage(self, living: "list[int]") -> "dict[str, Any]":
        """Return the usage so far; `living`: processes whose time counts though they have not ended."""
        cpu_s = self._cpu_s + sum(map(process_tree.cpu_s, living))
        said = (self._done or {}).get("usage") or {}
        return {
            "wall_s": round(clock.now() - self._started, 3),
            "cpu_s": round(said.get("cpu_s", cpu_s), 3),
            "peak_memory_bytes": max(self._sampler.peak, self._own_peak()),
            "gpus": self._gpus.usage(),
        }

    def _own_peak(self) -> int:
        """Return the most memory that the worker's own process has had."""
        if self._ended is not None:
            return int(self._ended.ru_maxrss) * 1024
        return limits.peak_of(self._child.pid if self._child else 0)

    def _daemons(self) -> "list[str]":
        """Processes that made themselves independent of the worker: they end with the job."""
        own = os.getpid()
        worker = self._child.pid if self._child else 0
        left = [pid for pid in self._tree() if pid != worker and process_tree.parent_of(pid) == own]
        return ["left behind by the function, ended with the job: %s" % process_tree.name_of(pid) for pid in left]

    def _last_output(self) -> "list[str]":
        """Return the last lines of stderr, or of stdout where there are none."""
        for pump in reversed(self._pumps):
            lines = masked(last_lines(pump.tail), self._secrets)
            if lines:
                return lines
        return []

    def _restore(self) -> None:
        """Write again what the function removed from the attempt's folder."""
        if os.path.exists(self.attempt.path(VALUE)):
            return
        os.makedirs(self.attempt.folder, mode=0o700, exist_ok=True)
        copy(self._value, self.attempt.path(VALUE))
        for pump, name in zip(self._pumps, (STDOUT, STDERR)):
            pump.restore(self.attempt.path(name))
        self.notes.append("the function removed the job's folder; it was written again")

    def finish(self) -> None:
        """Once the outcome is published: give threads and atexit their time, then end what is left, and report it."""
        self._await_exit()
        left = [process_tree.name_of(pid) for pid in self._tree()]
        if left:
            self.attempt.event("note", message="still there after the function's end, ended now: %s" % ", ".join(left))
        self.end_tree()

    def _await_exit(self) -> None:
        until = time.monotonic() + self.job.spec["grace_s"]
        while self._status is None and time.monotonic() < until and not self._asked_to_stop():
            self._reap()  # the signal of its end may just have been swallowed
            if self._status is None:
                self._turn()

    def _asked_to_stop(self) -> bool:
        self.watch.signals.swallow()
        self.watch.stay_awake()
        return self.job.cancelled() or self.watch.is_ending()

    def close(self) -> None:
        """Close its files: the process starts another attempt."""
        os.close(self._value)
        if self._child is not None and self._child.report >= 0:
            os.close(self._child.report)
        for pump in self._pumps:
            pump.forget()

    def release(self) -> None:
        """Release what only the worker used."""
        self._gpus.close()
        if self._cores is not None:
            self._cores.release()


def ensure_environment(job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch") -> None:
    """Have the job's environment built if it is one that the builder makes and does not exist yet."""
    if job.spec.get("building"):
        from . import built  # few jobs need it, and it imports subprocess

        if job.held is not None:
            job.held.refuse()
        built.ready(job, attempt, watch)


def look_at_bridge(job: "JobFolder") -> None:
    """Raise a Verdict if no worker can start, as files of clusterfn's own are gone."""
    bridge: "str" = job.spec["bridge"]
    gone = [name for name in _NEEDED if not os.path.exists(os.path.join(bridge, name))]
    if gone:
        raise classify_exit.damaged_bridge(bridge, gone[0])


def run_through(work: "AttemptRun") -> "tuple[Verdict, bool]":
    """The verdict, and whether it is the worker's own report; after any other its processes have been ended."""
    try:
        work.start()
        return work.result(), True
    except Verdict as found:
        work.end_tree()
        return found, False
    finally:
        work.watch.has_ended()
