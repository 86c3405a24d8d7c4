"""The table: every way to end that was thought of, and what the caller must see. Data, and small extra checks.

`fault` refers to shared faults.md, 3c, and to the eleven functions with which the predecessor failed (2.1 to 2.11).
"""

from __future__ import annotations

import concurrent.futures
import signal
import types
from pathlib import Path
from typing import Any

from clusterfn import errors
from tests.faults import actions as do
from tests.faults import sending
from tests.faults.case import Case, Row


def load_calls() -> types.SimpleNamespace:
    """The user's script, its functions and classes those of `__main__`."""
    path = Path(__file__).parent / "calls.py"
    scope: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return types.SimpleNamespace(**scope)


calls = load_calls()
_20_MB = b"xy" * (10 << 20)


def chain_is_intact(case: Case) -> None:
    """The user's own cause comes first, the remote traceback stands at the end."""
    cause = case.error.__cause__
    assert type(cause) is KeyError and cause.args == ("missing",)
    assert type(cause.__cause__).__name__ == "RemoteTraceback"
    assert "raises_chain" in str(cause.__cause__)


def remote_traceback_is_cause(case: Case) -> None:
    assert type(case.error.__cause__).__name__ == "RemoteTraceback"


def own_facts(case: Case) -> None:
    assert (case.error.code, str(case.error)) == (7, "7: too odd")
    assert type(case.error).__name__ == "NeedsTwo"
    remote_traceback_is_cause(case)


def names_the_foreign_type(case: Case) -> None:
    assert case.error.type_name.endswith("OnlyThere")
    assert "raises_foreign" in case.error.traceback


def code_is(code: int) -> Any:
    def check(case: Case) -> None:
        assert case.error.code == code

    return check


def signal_is(name: str) -> Any:
    def check(case: Case) -> None:
        assert case.error.signal == name

    return check


def notes_children(case: Case) -> None:
    notes = " ".join(case.job.notes)
    assert notes.count("sleep") >= 2 and "left behind by the function" in notes, notes


def notes_script(case: Case) -> None:
    assert any("job.sh was killed" in event.get("message", "") for event in case.events()), case.describe()


def cut_output(case: Case) -> None:
    assert any("were not kept" in note for note in case.job.notes), case.job.notes
    assert (case.attempts()[0] / "stdout").stat().st_size < 65 << 20


def one_run(case: Case) -> None:
    assert len(case.attempts()) == 1


def used_so_far(case: Case) -> None:
    """Nobody was left to say it but what lies there."""
    assert case.job is not None and case.job.usage["last_known"], case.job
    assert case.job.usage["wall_s"] > 0 and case.job.usage["peak_memory_bytes"] > 1 << 20


def second_attempt(case: Case) -> None:
    assert [b'"final": true' in data for _, data in sorted(case.outcomes().items())] == [False, True]


def nothing_was_sent(case: Case) -> None:
    assert case.job is None


def folder_is_gone(case: Case) -> None:
    """What sbatch refused leaves nothing behind."""
    case.until(lambda: not case.folder.exists(), what="the job's folder to go")


def is_point(case: Case) -> None:
    assert type(case.value).__name__ == "Point" and case.value.x == 7


def is_all_ab(megabytes: int) -> Any:
    def check(case: Case) -> None:
        assert len(case.value) == megabytes << 20
        assert case.value[:10] == case.value[-10:] == b"ab" * 5

    return check


def left_the_queue(case: Case) -> None:
    """What can never start does not wait for ever either."""
    case.until(lambda: do.squeue(case) in ("", "CANCELLED"), what="SLURM to forget the job")


def is_sent_again(case: Case) -> None:
    assert not case.notes["blob"].exists()
    assert case.function.submit(*case.row.args).result(150) == len(case.row.args[0])


def stays_until_removed(case: Case) -> None:
    case.notes["blob"].unlink()
    assert case.function.submit(*case.row.args).result(150) == len(case.row.args[0])


ODD = "ü 日本 %j $HOME 'q' \"d\" \\ !"

ROWS: list[Row] = [
    # The eleven functions of requirements, section 2.
    Row("returns", "2.1", calls.returns, value=42),
    Row(
        "ValueError", "2.2 3c 1", calls.raises, expect=ValueError, text=("boom",), check=remote_traceback_is_cause,
        long_on=("bare",),
    ),
    Row("helper", "2.3", calls.uses_helper, (4,), value=9, long_on=("bare",)),
    Row("globals", "2.4", calls.uses_globals, value="[3]", long_on=("bare",)),
    Row("inner lru_cache", "2.5", calls.inner_cache, value=(832040, 31), long_on=("slurm",)),
    Row("walrus", "2.6", calls.walrus, value=3, long_on=("slurm",)),
    Row(
        "os._exit(3)", "2.7 3c 3", calls.exits, expect=errors.ExitedEarly, stage="function",
        text=("exit code 3",), seen=("last words",), check=code_is(3),
    ),
    Row(
        "SIGSEGV", "2.8 3c 5", calls.crashes, expect=errors.KilledBySignal, stage="function",
        text=("SIGSEGV", "compiled library"), seen=("Segmentation fault", "in crashes"), check=signal_is("SIGSEGV"),
        long_on=("bare",),
    ),
    Row(
        "numpy array", "2.9", calls.returns_numpy, expect=errors.ResultError, stage="result",
        text=("needs the module numpy", "not installed on this machine"),
        options={"environment": "python:/opt/clusterfn-lab/envs/torch/bin/python"}, long_on=("bare",),
    ),
    Row("local class", "2.10", calls.returns_local_class, check=is_point, long_on=("slurm",)),
    # 1-12: what the function itself does.
    Row(
        "chained cause", "3c 1", calls.raises_chain, expect=ValueError, text=("no such key",), check=chain_is_intact,
        long_on=("bare",),
    ),
    Row(
        "odd constructor", "3c 1", calls.raises_own, expect=calls.NeedsTwo, text=("too odd",), check=own_facts,
        long_on=("slurm",),
    ),
    Row(
        "foreign exception", "3c 2", calls.raises_foreign, expect=errors.FunctionError, stage="function",
        text=("OnlyThere", "nobody here knows me"), seen=("raises_foreign",), check=names_the_foreign_type,
        long_on=("bare",),
    ),
    Row(
        "os._exit(0)", "3c 3", calls.exits, (0,), errors.ExitedEarly, text=("exit code 0",), stage="function",
        long_on=("slurm",),
    ),
    Row(
        "sys.exit(2)", "3c 4", calls.sys_exit, (2,), errors.FunctionError, text=("SystemExit: 2",),
        seen=("in sys_exit",), stage="function", long_on=("bare",),
    ),
    Row(
        "KeyboardInterrupt", "3c 6", calls.interrupts, expect=errors.FunctionError, text=("KeyboardInterrupt",),
        stage="function", long_on=("slurm",),
    ),
    Row(
        "StopIteration", "3c 6", calls.stops_iteration, expect=errors.FunctionError, text=("StopIteration",),
        stage="function", long_on=("slurm",),
    ),
    Row("70 MB of noise", "3c 7", calls.floods, value="intact", check=cut_output, takes_s=6, long_on=("slurm",)),
    Row("closes its output", "3c 8", calls.closes_output, value="intact", long_on=("bare",)),
    Row("removes its folder", "3c 9", calls.removes_its_folder, value="intact", long_on=("bare",)),
    Row("leaves children", "3c 10", calls.leaves_children, value="intact", check=notes_children, long_on=("bare",)),
    Row("leaves a thread", "3c 11", calls.leaves_thread, value="intact", left_s=60, takes_s=16, long_on=("slurm",)),
    Row("recursion", "3c 12", calls.recurses, expect=RecursionError, text=("maximum recursion",), long_on=("slurm",)),
    Row(
        "MemoryError", "3c 12", calls.memory_error, expect=MemoryError, check=remote_traceback_is_cause,
        long_on=("slurm",),
    ),
    # 13-16: limits and requests.
    Row(
        "kernel OOM", "3c 13", calls.hogs_memory, (300,), errors.OutOfMemory, stage="function", hosts=("cgroup",),
        text=("killed for memory", "out-of-memory", "ask for more: memory="), seen=("up",),
    ),
    Row(
        "memory of the tree", "3c 13", calls.children_hog_memory, expect=errors.OutOfMemory, stage="function",
        text=("asked for 150 MB", "ask for more"), options={"memory": "150MB"}, seen=("up",), long_on=("bare",),
        hosts=("bare", "slurm-memory"),  # asks SLURM for 500 MB, or SLURM's own sampling might come first
    ),
    Row(
        "SLURM's memory limit", "3c 14", calls.hogs_memory, (900,), errors.OutOfMemory, hosts=("slurm-memory",),
        stage=("scheduler", "supervisor"),  # job.sh may live long enough to conclude
        text=("memory limit",), takes_s=20,
    ),
    Row(
        "time limit", "3c 15", calls.sleeps_with_children, expect=errors.TimeLimit, stage="function",
        text=("longer than the 20 s", "time="), seen=("up",), options={"time": "20s"}, takes_s=23, long_on=("bare",),
    ),
    Row(
        "SLURM's time limit", "3c 15", calls.sleeps, (300,), errors.TimeLimit, stage="scheduler", hosts=("slurm",),
        text=("time limit",), act=do.shorten_limit, takes_s=140, long=True,
    ),
    Row(
        "scancel", "3c 16", calls.sleeps_with_children, expect=errors.Cancelled, stage="scheduler", hosts=("slurm",),
        text=("cancelled in the scheduler",), act=do.scancel_as_user,
    ),
    Row(
        "scancel, waiting", "3c 16", calls.sleeps, expect=errors.Cancelled, stage="scheduler", hosts=("later",),
        text=("cancelled",), act=do.scancel_waiting, takes_s=15,
    ),
    Row(
        "Job.stop()", "3c 16", calls.sleeps_with_children, expect=errors.Cancelled, stage="function",
        text=("stopped on request",), act=do.stop, long_on=("bare",),
    ),
    Row(
        "Job.stop(), waiting", "3c 16", calls.sleeps, expect=errors.Cancelled, stage="queue", hosts=("later",),
        text=("withdrawn before it started",), act=do.stop_waiting,
    ),
    Row(
        "Job.cancel(), waiting", "3c 16", calls.sleeps, expect=concurrent.futures.CancelledError, hosts=("later",),
        act=do.withdraw,
    ),
    # 17-23: the scheduler.
    Row("requeued", "3c 17", calls.attempt, (60,), value=2, hosts=("slurm",), act=do.requeue, check=second_attempt,
        options={"requeue": ["preempted"]}, takes_s=25),
    Row(
        "preempted", "3c 17", calls.attempt, (60,), value=2, hosts=("low",), act=do.preempt, check=second_attempt,
        options={"cores": 8, "requeue": ["preempted"]}, takes_s=60, long=True, alone="nodes",
    ),
    Row(
        "node lost", "3c 18", calls.sleeps, (300,), errors.NodeFailed, stage="scheduler", hosts=("slurm",),
        text=("went down",), act=do.lose_node, check=used_so_far, takes_s=60, long=True, alone="nodes",
    ),
    Row(
        "slurmd killed", "3c 18", calls.attempt, (120,), value=2, hosts=("slurm",), act=do.kill_slurmd,
        options={"requeue": ["node"]}, check=second_attempt, takes_s=90, long=True, alone="nodes",
    ),
    Row(
        "slurmctld dead for a while", "3c 19", calls.sleeps, (35,), value="slept", hosts=("slurm",),
        act=do.controller_dies(33), check=one_run, takes_s=60, long=True, alone="nodes",
    ),
    Row("squeue fails", "3c 19", calls.sleeps, (24,), value="slept", hosts=("squeue-fails",), check=one_run,
        takes_s=26),
    Row("squeue says rubbish", "3c 20", calls.sleeps, (24,), value="slept", hosts=("squeue-garbage",), takes_s=26),
    Row("sbatch timed out", "3c 21", calls.sleeps, (1,), value="slept", hosts=("sbatch-late",), check=one_run),
    Row("left squeue, and lives", "3c 22", calls.sleeps, (24,), value="slept", hosts=("squeue-empty",), takes_s=26),
    Row(
        # Without a scheduler, a supervisor that was stopped continues by itself.
        "silent, and lives", "3c 22", calls.sleeps, (58,), value="slept", act=do.pause("supervisor", seconds=56),
        takes_s=62, hosts=("slurm",), long=True,
    ),
    Row(
        "purged and dead", "3c 22", calls.sleeps, (300,), errors.WorkerLost, stage="scheduler", hosts=("purged",),
        text=("no longer knows",), seen=("Invalid job id",), act=do.kill_everything_and_forget, check=used_so_far,
        takes_s=20,
    ),
    Row(
        "too many cores", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("never",), stage="queue",
        text=("the partition cannot give one node what it asks for",), options={"cores": 99}, seen=("PartitionConfig",),
        check=left_the_queue,
    ),
    Row(
        "too much time", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("never",), stage="queue",
        text=("more time than the partition gives", "never start"), options={"time": "3h"},
        seen=("PartitionTimeLimit",),
        check=left_the_queue,
    ),
    Row(
        "held after a failed launch", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("held",),
        stage="queue", text=("its node could not start it",), seen=("launch failed requeued held",),
        check=left_the_queue,
    ),
    Row(
        "too many GPUs", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("slurm",), stage="submit",
        text=("sbatch refused",), options={"gpus": 9}, check=folder_is_gone,
    ),
    Row(
        "too many GPUs, bare", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("bare",), stage="submit",
        text=("gpus=9 is more than bare has: ",), options={"gpus": 9}, check=nothing_was_sent,
    ),
    Row(
        "too much memory", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("slurm",), stage="submit",
        text=("sbatch refused",), options={"memory": "500GB"}, check=folder_is_gone,
    ),
    Row(
        "no such partition", "3c 23", calls.returns, expect=errors.Unsatisfiable, hosts=("bad-partition",),
        stage="submit", text=("sbatch refused", "partition"), seen=("invalid partition",), check=folder_is_gone,
    ),
    # 24, 25: our own processes.
    Row(
        "worker killed", "3c 24", calls.sleeps_with_children, expect=errors.KilledBySignal, stage="function",
        text=("SIGKILL", "clusterfn did not send it"),
        seen=("up",), act=do.kill("worker"), check=signal_is("SIGKILL"), long_on=("bare",),
    ),
    Row(
        "worker told to end", "3c 24", calls.sleeps_with_children, expect=errors.KilledBySignal, stage="function",
        text=("SIGTERM",), act=do.kill("worker", number=signal.SIGTERM), check=signal_is("SIGTERM"), long_on=("slurm",),
    ),
    Row(
        "supervisor killed", "3c 25", calls.sleeps_with_children, expect=errors.WorkerLost, stage="supervisor",
        text=("supervisor", "SIGKILL"), seen=("up",), act=do.kill("supervisor"), long_on=("bare",),
    ),
    Row(
        "supervisor told to end", "3c 25", calls.sleeps_with_children, expect=errors.WorkerLost, stage="supervisor",
        text=("supervisor",), act=do.kill("supervisor", number=signal.SIGTERM), check=used_so_far, long_on=("bare",),
    ),
    Row(
        "job.sh killed", "3c 25", calls.sleeps, (20,), value="slept", hosts=("bare",), act=do.kill("script"),
        check=notes_script, takes_s=22,
    ),
    Row(
        "job.sh killed, SLURM", "3c 25", calls.sleeps_with_children, expect=errors.WorkerLost, stage="scheduler",
        hosts=("slurm",), text=("ended by signal 9",), act=do.kill("script"), takes_s=20,
    ),
    Row(
        "supervisor and job.sh killed", "3c 25", calls.sleeps, expect=errors.WorkerLost, stage="scheduler",
        text=("left no result",), act=do.kill("supervisor", "script"), takes_s=20, long_on=("slurm",),
    ),
    Row(
        "all killed together", "3c 25", calls.sleeps_with_children, expect=errors.WorkerLost, stage="scheduler",
        text=("left no result",), act=do.kill_everything, check=used_so_far, takes_s=20, long_on=("bare",),
    ),
    Row(
        "worker and job.sh killed", "3c 25", calls.sleeps, expect=errors.KilledBySignal, stage="function",
        hosts=("bare",), text=("SIGKILL",), act=do.kill("worker", "script"), check=signal_is("SIGKILL"),
    ),
    Row(
        "host restarted", "3c 30", calls.sleeps, expect=errors.NodeFailed, stage="scheduler", hosts=("bare",),
        text=("restarted",), act=do.restarted_host, options={"retries": 2}, check=one_run, takes_s=20,
    ),
    # 31-37: disks and environments.
    Row(
        "disk full at upload", "3c 31", calls.size_of, (_20_MB,), errors.HostDiskFull, hosts=("tiny",),
        stage="submit", text=("No space is left on tiny", "root:"), send=do.on_tiny, alone="tiny",
    ),
    Row(
        "disk full in the function", "3c 31", calls.fills_disk, ("raise",), errors.DiskFull, hosts=("tiny",),
        text=("No space left", "df -h"), stage="function", send=do.on_tiny, alone="tiny", long=True,
    ),
    Row(
        "disk full, then dies", "3c 31", calls.fills_disk, ("die",), errors.DiskFull, hosts=("tiny",),
        stage="function", text=("the disk is full",), send=do.on_tiny, alone="tiny",
    ),
    Row(
        "value does not fit", "3c 31", calls.large, (20,), errors.DiskFull, hosts=("tiny",), stage="result",
        text=("the value could not be written", "No space left"), send=do.on_tiny, alone="tiny", long=True,
    ),
    Row(
        "read-only home", "3c 34", calls.returns, expect=errors.HostError, hosts=("readonly",),
        text=("Read-only file system", "root:"), check=nothing_was_sent,
    ),
    Row(
        "environment went away", "3c 37", calls.returns, expect=errors.EnvironmentBuildError, stage="environment",
        text=("cannot be started", "No such file"), send=sending.interpreter(do.stays_away), long_on=("bare",),
    ),
    Row(
        "environment changed", "3c 37", calls.returns, expect=errors.EnvironmentBuildError, stage="environment",
        text=("Python 3.8", "expected 3.11"), send=sending.interpreter(do.becomes_38), long_on=("slurm",),
    ),
    Row(
        "other Python", "3c 37", calls.returns, expect=errors.EnvironmentBuildError, stage="environment",
        text=("Python 3.8", "needs Python 3.9"), check=nothing_was_sent,
        options={"environment": "python:/opt/clusterfn-lab/python/3.8/bin/python"}, long_on=("slurm",),
    ),
    Row(
        "setup: fails", "-", calls.returns, expect=errors.EnvironmentBuildError, stage="environment",
        hosts=("bad-setup", "bad-setup-slurm"), text=("setup: of the host failed with exit code 3", "line `exit 3`"),
    ),
    Row(
        "no such module", "-", calls.returns, expect=errors.EnvironmentBuildError, stage="environment",
        options={"modules": ["cuda/99"]}, text=("module cuda/99 could not be loaded",), long_on=("slurm",),
    ),
    # 38-40: bytes.
    Row(
        "payload: a bit flipped", "3c 38", calls.raises, ("x" * 99,), errors.PayloadError, stage="load",
        text=("checksum", "call again"), send=sending.damaged_payload(do.flipped),
    ),
    Row(
        "payload: cut", "3c 38", calls.raises, ("x" * 99,), errors.PayloadError, stage="load", text=("checksum",),
        send=sending.damaged_payload(do.cut), long_on=("slurm",),
    ),
    Row(
        "blob: a bit flipped", "3c 38", calls.size_of, (bytes(range(256)) * 8192,), errors.PayloadError, stage="load",
        text=("was altered", "call again"), send=do.blob_altered, check=is_sent_again, hosts=("bare",),
    ),
    Row(
        "blob on a cluster: a bit flipped", "3c 38", calls.size_of, (bytes(range(255)) * 8192,), errors.PayloadError,
        stage="load", text=("was altered: remove it", "call again"), send=do.blob_altered, check=stays_until_removed,
        hosts=("slurm",),
    ),
    Row(
        "value: a bit flipped", "3c 38", calls.large, (1,), errors.ResultError, stage="result",
        text=("damaged", "checksum"), act=do.damage_value(do.flipped), long_on=("bare",),
    ),
    Row(
        "value: cut", "3c 38", calls.large, (1,), errors.ResultError, stage="result",
        text=("damaged", "bytes arrived"), act=do.damage_value(do.cut), long_on=("slurm",),
    ),
    Row("20 MB there", "3c 39", calls.size_of, (_20_MB,), value=20 << 20, takes_s=4, long_on=("bare",)),
    Row("20 MB back", "3c 39", calls.large, (20,), check=is_all_ab(20), takes_s=4, long_on=("slurm",)),
    Row(
        "unpicklable", "3c 40", calls.returns_lock, expect=errors.ResultError, stage="result",
        text=("result['model'][0]", "lock"), long_on=("bare",),
    ),
    Row(
        "generator", "3c 40", calls.returns_generator, expect=errors.ResultError, stage="result",
        text=("generator", "return a list"), long_on=("slurm",),
    ),
    Row(
        "exits when loaded", "3c 40", calls.returns_trap, expect=errors.ResultError, stage="result",
        text=("cannot be loaded on this machine: SystemExit: 3",), long_on=("slurm",),
    ),
    Row(
        "outcome.json damaged", "3c 38", calls.returns, expect=errors.JobError, stage="result",
        text=("outcome.json is damaged",), act=do.damage_outcome, long_on=("bare",),
    ),
    Row(  # here is a folder of that name
        "outputs find no place", "3c 32", calls.leaves_file, ("tests",), value=1, options={"outputs": ["tests"]},
        long_on=("slurm",),
    ),
    # 44-46: names and shells.
    Row(
        "odd values", "3c 44", calls.echo, (ODD, {ODD: [ODD]}, "\udcff", "a\nb", "-n"),
        value=((ODD, {ODD: [ODD]}, "\udcff", "a\nb", "-n"), {}), long_on=("bare",),
    ),
    Row(
        "odd names", "3c 44", calls.environment_and_folder, (ODD,), value=(ODD, ODD, [ODD]),
        options={"env": {"ODD": ODD}, "name": "a.b-c_d"}, long_on=("slurm",),
    ),
    Row("odd home", "3c 44", calls.environment_and_folder, (ODD,), value=(ODD, ODD, [ODD]), hosts=("odd-home",),
        options={"env": {"ODD": ODD}}),
    Row(
        "odd home, SLURM", "3c 44", calls.returns, expect=errors.ConfigError, hosts=("odd-home-slurm",),
        text=("SLURM expands %", "root:"),
    ),
    Row("odd root, SLURM", "3c 44", calls.environment_and_folder, (ODD,), value=(ODD, ODD, [ODD]),
        hosts=("odd-root-slurm",), options={"env": {"ODD": ODD}}),
    Row("tcsh and fish", "3c 45", calls.returns, value=42, hosts=("tcsh", "fish", "tcsh-slurm", "fish-slurm"),
        takes_s=4, long_on=("tcsh-slurm", "fish")),
    Row(
        "nologin", "3c 45", calls.returns, expect=errors.HostError, hosts=("nologin",),
        text=("login shell",), seen=("not available",), check=nothing_was_sent,
    ),
    Row(
        "noisy .bashrc", "3c 46", calls.returns, value=42, hosts=("noisy", "noisy-slurm"), takes_s=4,
        long_on=("noisy",),
    ),
    Row(
        "exit in .bashrc", "3c 46", calls.returns, expect=errors.HostError, hosts=("exits",),
        text=("did not start the agent", "rc file must not exit"), check=nothing_was_sent,
    ),
    # The words of the function are no evidence.
    Row(
        "prints a scheduler's words", "-", calls.prints_the_old_lie, expect=errors.ExitedEarly, stage="function",
        text=("exit code 9",), seen=("DUE TO TIME LIMIT",), check=code_is(9),
    ),
]  # fmt: skip
