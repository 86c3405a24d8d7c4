"""One attempt from its start to its published end: start the worker, read its report, end what it leaves behind.

Jobs, the items of a group, the nodes of a job and the calls of a session all run by `AttemptRun`. What a death means is
decided by `classify_exit`, what ends a job from outside by `watch`. Imports within functions are of what a plain job
does without, such as subprocess.
"""

import os
import select
import signal
import time

from .. import layout
from ..schedulers.registry import given_gpus
from . import classify_exit, environ, limits, process_tree, worker_process
from .attempt import UsageFile, restore_owner_permissions
from .job import describe_place
from .limits import clock
from .output import Pump, StreamOrder, copy, list_files_left
from .process_tree import RunProcesses
from .publish import last_bytes, once_there_is_room
from .text import last_lines, masked
from .verdict import AttemptEnded, Verdict, log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import RunnableAttempt
    from .gpus import GpuUsageMonitor
    from .job import JobFolder
    from .stacks import Stacks
    from .watch import EndWatch

# What a job does or prints wakes the supervisor, and it may look at the rest later.
_TICK_MS = 100.0
_QUIET_TICK_MS = 400.0
_REQUESTS_EVERY_S = 0.5
_TERM_ECHO_S = 0.5
# A command says so that SIGTERM has ended it.
_TERMINATED = 143
# The shortest calls have ended by then, and their end says what they used.
_FIRST_SAMPLE_S = 0.05
_LINE_LIMIT = 4 << 20
_LOG_BYTES = 1 << 16
_NOT_BEGUN = {"start": "its Python was still starting", "load": "the call was still being loaded"}
# Of the bridge, by the worker, before it can say anything.
_WORKER_MODULES = ("__init__", "main", "execute", "report", "payload", "descriptors", "devices", "warning", "finish")
_NEEDED = (
    layout.WORKER,
    "_clusterfn_wire/container.py",
    "_clusterfn/bridge/layout.py",
    *("_clusterfn/bridge/worker/%s.py" % name for name in _WORKER_MODULES),
)


class AttemptRun:
    """One attempt.

    Attributes:
        stage: How far it came.
        pumps: Of stdout and stderr; empty before the worker is started.
        lists_files: Whether to say which files its function has left in the folder where it ran.
        ends_processes: Whether what its function leaves running ends with it.
    """

    lists_files = ends_processes = True

    def __init__(
        self, job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch", late_output: bool = False
    ) -> None:
        self.job, self.attempt, self.watch = job, attempt, watch
        self.processes = RunProcesses(job.workers)
        self.pumps: "list[Pump]" = []
        self._late_output = late_output
        self.stage = "start"
        self.notes: "list[str]" = []
        self._done: "Optional[dict[str, Any]]" = None
        self._partial_line = b""
        self._limit: "Optional[int]" = job.spec["resources"]["memory_bytes"]
        self._sampler = limits.MemorySampler(self._limit)
        self._tick_ms = _TICK_MS
        self._oom = limits.OomDetector()
        self._stall = limits.Stall(job.spec.get("stall_s"))
        self._quiet = limits.Stall(job.spec.get("quiet_s"))
        self._is_quiet = False
        self._secrets = list(job.secrets().values())
        self._next_request = 0.0
        self._suspension = limits.Suspension(watch.signals.came, job.scheduler.has_nodes, attempt.event)
        # None as long as there are no GPUs to look at.
        self._gpus: "Optional[GpuUsageMonitor]" = None
        self._cores: "Optional[worker_process.Cores]" = None
        self.notes += self._stall.note()
        self._value = os.open(attempt.path(layout.VALUE), os.O_RDWR | os.O_CREAT, 0o600)
        self._started = clock.now()
        self._usage_file = UsageFile(attempt.path(layout.USAGE))

    def start(self) -> None:
        """Acquire what it needs and start the worker."""
        self.stage = "queue"
        if self.job.spec.get("after") and self.job.element is None:
            from . import awaiting

            awaiting.await_values(self.job, self.attempt, self.watch)
        self.stage = "environment"
        ensure_environment(self.job, self.attempt, self.watch)
        self.stage = "start"
        if self.job.spec.get("resume"):
            from . import checkpoint

            self.notes += checkpoint.resume(self.job, self.watch.look)
        uuids = self._find_gpus()
        cpus: "Optional[set[int]]" = None
        if not self.job.scheduler.has_nodes:
            self._cores = worker_process.Cores(self.job.spec["resources"]["cores"])
            cpus = self._cores.chosen
        env = self._environment(uuids)
        self.watch.look()
        if not self.attempt.begin():
            raise AttemptEnded(Verdict(layout.CANCELLED, "the job was withdrawn before it started", stage="lease"))
        spec = self.job.spec
        argv = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), *self.attempt.call()]
        cwd = environ.expand_cwd(spec) or self.attempt.path(layout.WORK)
        self._started = clock.now()
        worker = self.job.workers.launch(argv, env, cwd, spec)
        # This comes first, because a function may lock or remove the folder of these files at once.
        self._attach(worker)
        late = worker.begin(cwd, env, cpus, self.job.held.worker_fds())
        self.watch.start_clock(self._started)
        self.attempt.event("starting", pid=worker.pid, gpus=uuids or [], late=late, **describe_place(self.job))
        if worker.is_loaded:
            # Each line of the report wakes this process, so the worker does not say what is known.
            self._on_line({"stage": "load"})
        for note in limits.kernel_limits(self._limit):
            self.notes.append(note)
            self.attempt.event("limited", reason=note)
        # The heartbeat comes last, because it waits for the disk while the worker starts.
        self.attempt.beat()

    def _environment(self, uuids: "Optional[list[str]]") -> "dict[str, str]":
        """Return the worker's variables, once its PyTorch runs on these GPUs, whose use is measured from now on."""
        spec = self.job.spec
        # In another order than nvidia-smi's, CUDA's numbers are others.
        in_order = spec["env"].get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID"
        names = self.job.held.cuda_names() if uuids and in_order else uuids
        env = environ.worker_environment(self.job, self.attempt.number, os.environ, names)
        env.update(self.attempt.variables())
        self.notes += environ.redirect_caches(spec, env)
        wanted = spec["resources"]["gpus"]
        building = spec.get("building")
        if wanted and building and building["cuda"]:
            from . import built

            built.check_torch(self.job, env)
        if wanted:
            from . import gpus

            self._gpus = gpus.GpuUsageMonitor(gpus.monitored_gpus(uuids, wanted, given_gpus(env)), self.notes)
        return env

    def _attach(self, child: "worker_process.WorkerProcess") -> None:
        """Read from a worker that was started, and keep what it prints."""
        self.processes.worker = child
        self._suspension.begin()
        limit = self.job.spec["log_limit_bytes"]
        streams = ((child.out, layout.STDOUT), (child.err, layout.STDERR))
        order = StreamOrder(self.attempt.path(layout.STREAM_ORDER))
        self.pumps = [
            Pump(fd, self.attempt.path(name), limit, self._late_output, order, which)
            for which, (fd, name) in enumerate(streams)
        ]

    def _find_gpus(self) -> "Optional[list[str]]":
        wanted: "int" = self.job.spec["resources"]["gpus"]
        if not wanted:
            return None
        if self.job.scheduler.has_nodes:
            from . import gpus

            return self.job.scheduler.find_gpus(wanted, lambda: len(gpus.list_gpus()))
        self.stage = "lease"
        uuids = self.job.held.gpu_uuids(self.job.failed_gpus)
        self.stage = "start"
        return uuids

    def result(self) -> Verdict:
        """Wait until the worker has reported its end, or is gone; may raise AttemptEnded for another end of the job."""
        while self._done is None:
            self._turn()
            self.watch.look()
            self._warn()
            if self.processes.status is not None:
                self._read_report()
                break
        self._drain()
        if self._done is None:
            return self._judge_silence()
        heeded = self.watch.heeded() if self._done.get("heeded") else None
        verdict = heeded or classify_exit.classify_report(self._done)
        if verdict.kind == layout.COMMAND and verdict.code == _TERMINATED and self.watch.is_ending():
            ended = self.watch.terminated()
            return ended if ended.kind else verdict
        if verdict.kind != layout.COMMAND or verdict.signal != "SIGKILL":
            return verdict
        # The command may have been killed for memory.
        peak, asked = self._sampler.peak, self.job.asked_memory
        killed = classify_exit.classify_silence(signal.SIGKILL, self.stage, peak, asked, self._find_oom())
        return killed if killed.kind == layout.MEMORY else verdict

    def _drain(self) -> None:
        for pump in self.pumps:
            pump.drain()

    def _find_oom(self) -> "Optional[str]":
        """Return what points to the out-of-memory killer, in words; None for nothing."""
        log = last_bytes(self.job.path(layout.SCHEDULER_LOG), _LOG_BYTES)
        return self._oom.seen() or self.job.scheduler.find_oom(log)

    def _warn(self) -> None:
        """Warn the function, once, if its end is near: by SIGTERM, which a scheduler sends for the same reason."""
        worker = self.processes.worker if self.stage == "function" and self.processes.status is None else None
        why = self.watch.warning() if worker is not None else ""
        if why and worker is not None:
            self.attempt.event("warned", reason=why)
            # It may have ended at this moment.
            process_tree.send_signal([worker.pid], signal.SIGTERM)

    def _turn(self) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        worker = self.processes.worker
        for fd in (*(pump.fd for pump in self.pumps), self.watch.signals.fd, self.job.workers.fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        if self._done is None and worker is not None and worker.report >= 0:
            poll.register(worker.report, select.POLLIN)
        began = time.monotonic()
        events = poll.poll(int(self._tick_ms))
        self._suspension.look(began, self._tick_ms / 1000, worker.pid if worker is not None else 0)
        ready = {fd for fd, _ in events}
        for pump in self.pumps:
            if pump.fd in ready:
                pump.move()
        self._read_report()
        self.processes.reap()
        self._sample()
        if self._gpus is not None:
            self._gpus.look()
        # Ten looks a second for hours would take a noticeable part of a core for each job of a machine.
        is_busy = bool(events) or self._sampler.is_changing
        self._tick_ms = _TICK_MS if is_busy else min(self._tick_ms * 1.5, _QUIET_TICK_MS)

    def _read_report(self) -> None:
        worker = self.processes.worker
        while worker is not None and worker.report >= 0:
            try:
                data = os.read(worker.report, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(worker.report)
                worker.report = -1
            lines = (self._partial_line + data).split(b"\n")
            # No line that the worker writes is as long.
            self._partial_line = lines.pop()[-_LINE_LIMIT:]
            for line in lines:
                self._on_line(classify_exit.parse_report_line(line))

    def _on_line(self, said: "dict[str, Any]") -> None:
        if "peak" in said:
            # Only its own process can say it while it exits: without an exec, wait4 does not.
            self.processes.reported_peak = said["peak"] or 0
        if "done" in said and self._done is None:
            self._done = said
        elif "note" in said:
            self.notes.append(said["note"])
            self.attempt.event("note", message=said["note"])
        elif "stage" in said:
            self.stage = said["stage"]
            self.attempt.event("running" if self.stage == "function" else "stage", stage=self.stage)

    def _sample(self) -> None:
        is_early = clock.now() < self._started + _FIRST_SAMPLE_S
        if self.processes.worker is None or is_early or not self._sampler.due():
            return
        self._oom.look()
        began = time.process_time()
        pids = self.processes.all()
        if self._sampler.over(pids, began) and self._done is None:
            raise AttemptEnded(classify_exit.too_much_memory(self._sampler.peak, self._limit or 0))
        if time.monotonic() >= self._next_request:
            self._next_request = time.monotonic() + _REQUESTS_EVERY_S
            stacks = self._load_stacks() if os.path.exists(self.job.path(layout.STACK)) else None
            if stacks is not None:
                stacks.answer(pids)
        printed, cpu_s = sum(pump.seen for pump in self.pumps), self.processes.cpu_s
        if self._done is None and self._stall.over(pids, cpu_s, printed):
            stacks = self._load_stacks()
            raise AttemptEnded(self._stall.verdict(stacks.lines(pids) if stacks is not None else []))
        self._quiet.over(pids, cpu_s, printed)
        # A function that has ended is not quiet.
        is_quiet = self._quiet.is_over and self._done is None
        if is_quiet != self._is_quiet:
            self._is_quiet = is_quiet
            self.attempt.event("quiet" if is_quiet else "active", reason=self._quiet.in_words() if is_quiet else "")
        if self._done is None and self._usage_file.due():
            now = {"memory_bytes": self._sampler.used, "gpus": [] if self._gpus is None else self._gpus.load()}
            self._usage_file.keep(self._usage(pids), now)

    def _load_stacks(self) -> "Optional[Stacks]":
        """Return what describes the stacks of the job's processes; None if it cannot be loaded."""
        try:
            from .stacks import Stacks
        except ImportError as error:
            # The bridge or the host's Python was replaced since the start, which is no reason to end the job.
            log_line("no stacks: %s" % error)
            return None
        return Stacks(self.job, self.attempt, self._secrets)

    def _judge_silence(self) -> Verdict:
        status = self.processes.status or 0
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM:
            self._await_own_sigterm()
            # The function may have restored the default action of SIGTERM.
            heeded = self.watch.heeded()
            if heeded is not None:
                return heeded
        if self.stage == "start" and os.WIFEXITED(status):
            look_at_bridge(self.job)
        peak, asked = self._sampler.peak, self.job.asked_memory
        limit_hit = limits.describe_kernel_limit(status, self.processes.ended)
        verdict = classify_exit.classify_silence(status, self.stage, peak, asked, self._find_oom(), limit_hit)
        if verdict.kind in (layout.EXITED, layout.SIGNAL):
            full = any(pump.full for pump in self.pumps) or classify_exit.disk_is_full(self.job.folder)
            if full or classify_exit.quota_is_used_up(self.attempt.folder):
                cause = ", and the disk is full" if full else ", and the disk quota is used up"
                return verdict.replace(kind=layout.DISK, message=verdict.message + cause)
        return verdict

    def _await_own_sigterm(self) -> None:
        """Wait for a SIGTERM of our own: the worker had one, perhaps the whole job has."""
        until = time.monotonic() + _TERM_ECHO_S
        while time.monotonic() < until:
            self._turn()
            self.watch.look()
        if self.watch.is_ending():
            raise AttemptEnded(self.watch.terminated())

    def end_tree(self) -> None:
        """Kill every descendant, and note what could not be killed."""
        left = self.processes.end()
        self._drain()
        if self._done is None and self.processes.worker is not None:
            self._usage_file.keep(self._usage([]))
        self.notes += ["could not be ended: %s" % name for name in left]

    def publish(self, verdict: Verdict) -> bool:
        """Publish; False if another outcome is there. Tries for a minute where the disk refuses."""
        restore_owner_permissions(self.job.folder)
        complete = self._completed(verdict)
        self._restore()
        return once_there_is_room(lambda: self.attempt.publish(complete), always=True)

    def _completed(self, verdict: Verdict) -> Verdict:
        """Return the verdict with all that this run knows besides."""
        closing = list(filter(None, [pump.close() for pump in self.pumps]))
        has_returned = verdict.kind == layout.RETURNED
        independent = self.processes.independent() if has_returned and self.ends_processes else []
        daemons = ["left behind by the function, ended with the job: %s" % name for name in independent]
        stage, message = verdict.stage or self.stage, verdict.message
        if verdict.kind == layout.TIME and stage in _NOT_BEGUN:
            message += "; the function had not begun, because %s" % _NOT_BEGUN[stage]
        evidence = verdict.evidence
        if evidence is None:
            # These are the last lines of stderr, or of stdout where there are none.
            printed = (masked(last_lines(pump.tail), self._secrets) for pump in reversed(self.pumps))
            evidence = next(filter(None, printed), []) if verdict.value is None else []
        left = verdict.left
        if has_returned and self.lists_files and not self.job.spec["outputs"] and not self.job.spec["cwd"]:
            left = list_files_left(self.attempt.path(layout.WORK))
        # The usage comes before the notes, because nvidia-smi may add one.
        usage = self._usage([])
        notes = self.notes + self._suspension.notes() + closing + daemons
        # What came from another node of the job names that.
        node = verdict.node or self.job.node
        return verdict.replace(
            node=node,
            by="supervisor",
            stage=stage,
            message=message,
            evidence=evidence,
            left=left,
            usage=usage,
            notes=notes,
        )

    def _usage(self, living: "list[int]") -> "dict[str, Any]":
        """Return the usage so far; `living`: processes whose time counts though they have not ended."""
        said = (self._done or {}).get("usage") or {}
        return {
            "wall_s": round(clock.now() - self._started, 3),
            "cpu_s": round(said.get("cpu_s", self.processes.cpu_s + sum(map(process_tree.cpu_s, living))), 3),
            "peak_memory_bytes": max(self._sampler.peak, self.processes.peak()),
            "gpus": [] if self._gpus is None else self._gpus.usage(),
        }

    def _restore(self) -> None:
        """Write again what the function removed from the attempt's folder."""
        if os.path.exists(self.attempt.path(layout.VALUE)):
            return
        os.makedirs(self.attempt.folder, mode=0o700, exist_ok=True)
        copy(self._value, self.attempt.path(layout.VALUE))
        for pump in self.pumps:
            pump.restore()
        self.notes.append("the function removed the job's folder; it was written again")

    def finish(self) -> None:
        """Once the outcome is published: give threads and atexit their time, then end what is left, and report it."""
        self._await_exit()
        left = [process_tree.name_of(pid) for pid in self.processes.all()]
        if left:
            self.attempt.event("note", message="still there after the function's end, ended now: %s" % ", ".join(left))
        if left or not self.job.workers.is_alone:
            self.end_tree()
        self._drain()

    def _await_exit(self) -> None:
        until = time.monotonic() + self.job.spec["grace_s"]
        while self.processes.status is None and time.monotonic() < until:
            self.watch.signals.swallow()
            if self.job.cancelled() or self.watch.is_ending():
                return
            # The signal of its end may just have been swallowed.
            self.processes.reap()
            if self.processes.status is None:
                self._turn()

    def close(self) -> None:
        """Close its files: the process starts another attempt."""
        os.close(self._value)
        worker = self.processes.worker
        if worker is not None and worker.report >= 0:
            os.close(worker.report)
        for pump in self.pumps:
            pump.forget()

    def release(self) -> None:
        """Release what only the worker used."""
        if self._gpus is not None:
            self._gpus.close()
        if self._cores is not None:
            self._cores.release()


def ensure_environment(job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch") -> None:
    """Have the job's environment built if it is one that the builder makes and does not exist yet."""
    if job.spec.get("building"):
        from . import built

        job.held.refuse()
        built.ready(job, attempt, watch)


def look_at_bridge(job: "JobFolder") -> None:
    """Raise AttemptEnded if no worker can start, as files of clusterfn's own are gone."""
    bridge: "str" = job.spec["bridge"]
    gone = [name for name in _NEEDED if not os.path.exists(os.path.join(bridge, name))]
    if gone:
        message = "the bridge on the host is damaged: %s is missing in %s" % (gone[0], bridge)
        hint = "call again: it will be installed again"
        raise AttemptEnded(Verdict(layout.ENVIRONMENT, message, stage="start", hint=hint))


def run_through(work: "AttemptRun") -> "tuple[Verdict, bool]":
    """The verdict, and whether it is the worker's own report; after any other its processes have been ended."""
    try:
        work.start()
        return work.result(), True
    except AttemptEnded as ended:
        work.end_tree()
        return ended.verdict, False
