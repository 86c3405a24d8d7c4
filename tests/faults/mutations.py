"""For each row of the table a change to the library that removes what the row proves. `test_mutations` applies it.

An edit is (file below clusterfn/, text that stands there exactly once, text in its place). The file may be one that
travels: the mutated copy is what is sent to the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Edit = tuple[str, str, str]

WORKER = "bridge/worker/execute.py"
WORKER_MAIN = "bridge/worker/main.py"
CONTAINER = "bridge/serialization/container.py"
_S = "bridge/supervisor/"
WATCH, EXIT, RUN, AFTER = (f"{_S}{name}.py" for name in ("watch", "classify_exit", "run", "conclude"))
ENDS = "bridge/schedulers/slurm.py"
BASE, WORDS, BARE = "scheduler/base.py", "scheduler/slurm/states.py", "scheduler/bare.py"
OUTCOME, FAILURE, SEND, WITNESS, CAPACITY, BOOT = (
    "calls/outcome.py",
    "calls/outcome_errors.py",
    "calls/sending.py",
    "calls/liveness.py",
    "hosts/host_capacity.py",
    "hosts/rpc/boot.py",
)

BELIEVES_ANY_WITNESS: Sequence[Edit] = (
    ("hosts/scheduler_watch.py", "        if trouble:\n", "        if False:\n"),
    (WITNESS, "if await _has_begun(run) is False:\n", "if await _has_begun(run) is not None:\n"),
    (WORDS, 'if PHASES.get(facts["JobState"]) != FINAL:', "if False:"),
    (
        WORDS,
        "return _forgotten(evidence) if re.search(_FORGOTTEN, evidence.answer, re.IGNORECASE) else None",
        "return _forgotten(evidence)",
    ),
)


@dataclass(frozen=True)
class Mutation:
    """A change, named by what it takes away, and the cases (row-host) that must then fail."""

    name: str
    edits: Sequence[Edit]
    rows: Sequence[str]


def _one(name: str, file: str, old: str, new: str, *rows: str) -> Mutation:
    return Mutation(name, ((file, old, new),), rows)


MUTATIONS: list[Mutation] = [
    # the worker
    _one("the value is not kept", WORKER, "return RETURNED, value", "return RETURNED, None",
         "returns-bare", "inner lru_cache-bare", "walrus-bare", "local class-bare", "odd values-bare"),
    _one("the function loses its globals", WORKER, "value = function(*args, **kwargs)",
         "value = type(function)(function.__code__, {})(*args, **kwargs)", "helper-bare", "globals-bare"),
    _one("an exception ends the worker", WORKER, "        return RAISED, error\n", "        os._exit(1)\n",
         "ValueError-bare", "odd constructor-bare", "recursion-bare", "MemoryError-bare", "foreign exception-bare",
         "sys.exit(2)-bare"),
    _one("only Exception is caught", WORKER, "except BaseException as error:\n        # Whatever the function raises",
         "except Exception as error:\n        # Whatever the function raises",
         "KeyboardInterrupt-bare", "sys.exit(2)-bare"),
    _one("no stack of a crash", WORKER_MAIN,
         "    faulthandler.enable(file=out_of_reach(os.dup(2)))\n", "", "SIGSEGV-bare"),
    _one("descriptors stay low", "bridge/worker/descriptors.py", "_HIGH = 900", "_HIGH = 3",
         "closes its output-bare"),
    _one("the version is not looked at", WORKER_MAIN, "if wanted != here:", "if False:", "environment changed-bare"),
    _one("an exception that finds no room is lost", WORKER,
         "except BaseException:  # noqa: BLE001 - an odd exception may refuse", "except KeyError:  #",
         "disk full in the function-tiny"),
    _one("a full disk is not told from a bad value", WORKER, "    if number in DISK_ERRORS:", "    if False:",
         "value does not fit-tiny"),
    _one("what cannot be pickled is not named", WORKER, 'path, part = unpicklable.find(value, "result", caller)',
         'path, part = "result", value', "unpicklable-bare"),
    _one("loading is trusted", OUTCOME, "except BaseException as error:  # unpickling",
         "except ZeroDivisionError as error:  # x",
         "exits when loaded-bare"),
    _one("outcome.json is trusted", "calls/following.py", "    except ValueError as unreadable:",
         "    except ZeroDivisionError as unreadable:", "outcome.json damaged-bare"),
    Mutation(
        "a local file that cannot be written ends all",
        (
            ("calls/settling.py", "except (ClusterfnError, OSError) as failed:", "except ClusterfnError as failed:"),
            ("hosts/transfer.py", "except OSError as error:", "except ZeroDivisionError as error:"),
        ),
        ("outputs find no place-bare",),
    ),
    _one("no word about generators", "bridge/serialization/unpicklable.py",
         'if hasattr(type(part), "__next__") and', "if False and", "generator-bare"),
    # bytes
    _one("no checksum", CONTAINER, "if sealed is not None and line != sealed:", "if False:",
         "payload: a bit flipped-bare", "payload: cut-bare", "value: a bit flipped-bare"),
    _one("blobs are believed", CONTAINER,
         "actual_size == size and _checksum_of_file(file, size) == crc", "actual_size == size",
         "blob: a bit flipped-bare"),
    _one("damaged blobs stay", WORKER, 'removes=spec.get("scheduler") == "bare"', "removes=False",
         "blob: a bit flipped-bare"),
    _one("a node removes what others read", WORKER, 'removes=spec.get("scheduler") == "bare"', "removes=True",
         "blob on a cluster: a bit flipped-slurm"),
    _one("the size is believed", OUTCOME, "if value is None or len(value) != size:", "if value is None:",
         "value: cut-bare"),
    _one("large arguments are not sent", SEND, "what) for path, what in contents.items()}",
         "what) for path, what in ()}", "20 MB there-bare"),
    _one("the value does not come along", "calls/following.py",
         "value = [(at.path(layout.VALUE), arriving.write)]", "value = []", "20 MB back-bare"),
    # the client
    _one("the remote traceback takes the cause's place", FAILURE, "object.__setattr__(_end_of_chain(error),",
         "object.__setattr__(error,", "chained cause-bare"),
    _one("StopIteration is raised here", FAILURE, "    StopIteration,\n", "", "StopIteration-bare"),
    _one("SystemExit is raised here", FAILURE, "    SystemExit,\n", "", "sys.exit(2)-bare"),
    _one("a foreign exception has no error", FAILURE, "        return _function_error(what, facts)\n    _, broken",
         "        return RuntimeError()\n    _, broken", "foreign exception-bare"),
    _one("no exit code", FAILURE, 'error.code = outcome.get("code")', "pass", "os._exit(3)-bare"),
    _one("no signal", FAILURE, 'error.signal = outcome.get("signal") or ""', "pass", "worker killed-bare",
         "worker and job.sh killed-bare"),
    _one("a missing module is not named", OUTCOME, "except ModuleNotFoundError as error:",
         "except ZeroDivisionError as error:",
         "numpy array-bare"),
    # the supervisor
    _one("exit 0 is taken for an error's", EXIT, "code = os.WEXITSTATUS(status)\n",
         "code = os.WEXITSTATUS(status) or 1\n", "os._exit(0)-bare"),
    _one("no last lines", RUN, "for pump in reversed(self.pumps))", "for pump in ())",
         "prints a scheduler's words-bare"),
    _one("output has no limit", f"{_S}output.py", "wanted = data[: max(0, self._limit - self._kept)]", "wanted = data",
         "70 MB of noise-bare"),
    _one("a removed folder stays away", RUN, "if os.path.exists(self.attempt.path(layout.VALUE)):", "if True:",
         "removes its folder-bare"),
    _one("nothing is ended", f"{_S}process_tree.py", "    deadline = time.monotonic() + limit_s\n    empty = 0\n",
         "    return []\n",
         "leaves children-bare"),
    _one("a thread may go on for ever", RUN, "self.processes.status is None and time.monotonic() < until",
         "self.processes.status is None", "leaves a thread-bare"),
    _one("the kernel's killer is not seen", f"{_S}limits.py", "            if _oom_kills(path) > before:\n",
         "            return None\n            if _oom_kills(path) > before:\n", "kernel OOM-cgroup"),
    _one("memory is not limited", RUN,
         "raise AttemptEnded(classify_exit.too_much_memory(self._sampler.peak, self._limit or 0))", "pass",
         "memory of the tree-bare"),
    _one("time is not limited", WATCH, "            raise AttemptEnded(self._too_long())\n", "            pass\n",
         "time limit-bare"),
    _one("the file `cancel` is not seen", f"{_S}job.py", "return os.path.exists(self.path(layout.CANCEL))",
         "return False", "Job.stop()-bare", "Job.stop()-slurm"),
    _one("a full disk is no reason", RUN, "if verdict.kind in (layout.EXITED, layout.SIGNAL):", "if False:",
         "disk full, then dies-tiny"),
    _one("a SIGTERM is always for all", RUN,
         "        if self.watch.is_ending():\n            raise AttemptEnded(self.watch.terminated())",
         "        raise AttemptEnded(self.watch.terminated())", "worker told to end-bare"),
    _one("a terminated supervisor leaves nothing to do", f"{_S}verdict.py", "LEFT_TO_AFTER = 143", "LEFT_TO_AFTER = 10",
         "supervisor told to end-bare"),
    _one("job.sh does not conclude", "templates/job.sh", "    @@python -I -S @@supervise after @@job",
         "    : after @@job",
         "supervisor killed-bare", "supervisor killed-slurm"),
    _one("the death of job.sh ends the job", WATCH,
         "([signal.SIGUSR1] if self._job.scheduler.has_nodes else [])", "[signal.SIGUSR1]",
         "job.sh killed-bare"),
    _one("a failed setup is a lost supervisor", AFTER, "    if not status.isdecimal():", '    if status == "x":',
         "setup: fails-bad-setup"),
    _one("a module is a setup line", AFTER, '    if what == "module":', "    if False:", "no such module-bare"),
    _one("an interpreter that is away says nothing", f"{_S}worker_process.py", "    os.write(report, (json.dumps(",
         "    bytes((json.dumps(", "environment went away-bare"),
    _one("strings stay as they are", f"{_S}text.py",
         '        return os.fsdecode(value.encode("utf-8", "surrogateescape"))',
         "        return value", "odd names-bare", "odd home-odd-home"),
    # SLURM, as the supervisor sees it
    _one("a cancelled job is a lost one", ENDS, '_STATES = {b"": "CANCELLED"', '_STATES = {b"": ""',
         "scancel-slurm"),
    _one("SLURM's time limit is not known", ENDS, 'b"TIME LIMIT": "TIMEOUT"', 'b"TIME LIMIT": ""',
         "SLURM's time limit-slurm"),
    _one("a requeue is an end", ENDS, 'int(facts.get("Restarts") or 0) >', "0 >",
         "requeued-slurm", "preempted-low"),
    _one("earlier attempts are not fenced", f"{_S}attempt.py",
         "        for number in self.job.attempts():\n            if number >=",
         "        for number in ():\n            if number >=", "slurmd killed-slurm"),
    # SLURM, as the client sees it
    _one("a lost node is a lost job", WORDS, '"NODE_FAIL": (layout.NODE,', '"NODE_FAIL": (layout.LOST,',
         "node lost-slurm"),
    Mutation("the words about memory are not read",
             ((WORDS, "if _MEMORY_TEXT.search(log) and", "if False and"),
              (ENDS, '        for line in log.split(b"\\n"):', "        for line in ():")),
             ["SLURM's memory limit-slurm-memory"]),
    _one("what SLURM calls over is not looked at", "hosts/scheduler_watch.py", "        self.gone = self.gone + 1 if",
         "        self.gone = 0 if",
         "scancel, waiting-later"),
    _one("a withdrawn job counts as started", "calls/job_run.py",
         "won = conclusion.parse_conclusion(answer, self.at.host.settings, self.folder).get(\"won\") is True",
         "won = False", "Job.cancel(), waiting-later"),
    _one("a waiting job is stopped like a running one", "calls/job_run.py",
         "        if not self.withdraw():", "        if True:",
         "Job.stop(), waiting-later"),
    Mutation("any witness is believed", BELIEVES_ANY_WITNESS,
             ["squeue fails-squeue-fails", "squeue says rubbish-squeue-garbage",
              "left squeue, and lives-squeue-empty"]),
    Mutation("a silent scheduler is an end", (
        ("hosts/scheduler_watch.py", "_RUNNING_S = 300.0", "_RUNNING_S = 5.0"),
        ("calls/job_tracker.py", "        if isinstance(seen, Silent):\n",
         "        if isinstance(seen, Silent):\n            run.fail(HostError('it is silent'))\n"),
    ), ["slurmctld dead for a while-slurm"]),
    Mutation("a silent job is a dead one", (
        ("calls/liveness.py", "if was_silent and (seen is None or seen.phase != RUNNING):", "if was_silent:"),
        (WORDS, 'if PHASES.get(facts["JobState"]) != FINAL:', "if False:"),
    ), ["silent, and lives-slurm"]),
    _one("sbatch's silence is a refusal", BASE,
         "self.rc is None or failed_after or bool(silent.search(self.err))", "self.rc is None",
         "sbatch timed out-sbatch-late"),
    _one("a forgotten job is not concluded", WORDS,
         "return _forgotten(evidence) if re.search(_FORGOTTEN, evidence.answer, re.IGNORECASE) else None",
         "return None", "purged and dead-purged"),
    _one("reasons are read as scontrol has them", WORDS, 'table.get(state.reason.replace(" ", "_"), ',
         "table.get(state.reason, ", "held after a failed launch-held"),
    _one("a large request is waited for", WORDS, '    "PartitionConfig": (', '    "x": (', "too many cores-never"),
    _one("a long request is waited for", WORDS, '    "PartitionTimeLimit": (', '    "x": (', "too much time-never"),
    _one("what was refused stays there", "calls/job_tracker.py",
         "            queue.remove_folder()\n",
         "            pass\n",
         "too many GPUs-slurm", "too much memory-slurm", "no such partition-bad-partition"),
    _one("cards are not counted", CAPACITY, "self.gpus if request.gpus", "self.gpus if False",
         "too many GPUs, bare-bare"),
    _one("nobody concludes from outside, SLURM", WORDS, 'if PHASES.get(facts["JobState"]) != FINAL:', "if True:",
         "job.sh killed, SLURM-slurm", "supervisor and job.sh killed-slurm", "all killed together-slurm"),
    _one("nobody concludes from outside", BARE, "return None if _lives(stats, process) else _gone(evidence)",
         "return None", "supervisor and job.sh killed-bare", "all killed together-bare"),
    _one("another boot is the same", BARE, "if boot != submitted_boot:", "if False:", "host restarted-bare"),
    # before the job
    _one("the last error counts", "hosts/rpc/link_stream.py",
         "failed = self._requests.failed_before(request) or failed", "pass", "disk full at upload-tiny"),
    _one("no advice about a root", "hosts/rpc/frames.py", 'elif kind == "denied":', "elif False:",
         "read-only home-readonly"),
    _one("any Python will do", "environment/existing.py", "if (major, minor) < OLDEST:", "if False:",
         "other Python-bare"),
    _one("% is sent to SLURM", "scheduler/slurm/sbatch.py", 'if "%" in folder or', "if False and",
         "odd home, SLURM-odd-home-slurm"),
    _one("nothing is quoted", "scheduler/job_script.py", "    return shlex.quote(value)", "    return value",
         "odd root, SLURM-odd-root-slurm"),
    _one("bash is taken for granted", BOOT, '    "exec /bin/sh -c \'"', '    "x=$(true); exec /bin/sh -c \'"',
         "tcsh and fish-tcsh"),
    _one("an agent that never was", BOOT, "raise _no_agent(host, stream, printed)", 'rest = b""',
         "nologin-nologin", "exit in .bashrc-exits"),
    _one("no empty lines before the agent", BOOT, 'b"\\n" * 8 + ', "", "noisy .bashrc-noisy"),
]  # fmt: skip
