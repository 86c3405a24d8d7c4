"""SLURM as other sites configure it: each row starts a SLURM with these settings, and calls a function there.

docs/explanation/slurm-sites.md says what clusterfn assumes about each setting. The first rows run with every test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MINOR
from tests.waiting import until

pytestmark = pytest.mark.lab
LONG = pytest.mark.long
SCRIPT = """
import os, time
import clusterfn

def double(x):
    return 2 * x

call = clusterfn.cluster({options})(double)
{body}
"""
VALUE = "print('value', call(21))"
MAP = "print('values', call.map(range(6)).results(60))"
_WRAPPER = '#!/bin/sh\nshift\necho "3 nodes are free"\nPATH=${PATH#*:} sbatch "$@"\nexit 1\n'
_LIMITED = '#!/bin/sh\nulimit -S -t 20\nPATH=${PATH#*:} exec python3 "$@"\n'  # what starts the agent
_COMPLAINS = """\
#!/bin/sh
name=${0##*/}
echo "$name: error: Invalid user for SlurmUser slurm, ignored" >&2
PATH=${PATH#*:} exec "$name" "$@"
"""
_CHAIN = "print('value', call(call.submit(21)))"
_SHAPE = "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1"
_MAIN = "PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=60"
_PREEMPTED = """
def slow(x):
    time.sleep(15)
    return 2 * x

low = clusterfn.cluster(cores=8, slurm={"partition": "low"}, requeue=["preempted"])(slow).submit(4)
while low.state != "RUNNING":
    time.sleep(0.1)
print(clusterfn.cluster(cores=8, slurm={"partition": "high"})(double)(21), end=" ")
print("value", low.result(60)) if low.exception(60) is None else print(type(low.exception()).__name__, low.exception())
"""
_WAITS = """
job = call.submit(21)
try:
    print(job.result(12))
except TimeoutError:
    print(job.state, job.reason)
job.stop()
"""
_UNHEALTHY = """\
#!/bin/sh
export PATH=/usr/bin:/bin SLURM_CONF={folder}/slurm.conf
scontrol update nodename=s1 state=drain reason=disk
"""
_STOPPED = """
job = clusterfn.cluster(cores=1)(time.sleep).submit(60)
while job.state != "RUNNING":
    time.sleep(0.1)
job.stop()
print(job.exception(60))
"""
_LOSES_FILES = """
import shutil
ends = [call.submit(21), call.map([1, 2])]
while not all(end.state == "PENDING" and end.reason for end in ends):
    time.sleep(0.1)
shutil.rmtree(os.environ["SITE_ROOT"])
for end in ends:
    try:
        print((getattr(end, "results", None) or end.result)(60))
    except Exception as error:
        print(type(error).__name__, error)
"""
_CPU_LIMIT = """
import resource
print(clusterfn.cluster(cores=1)(resource.getrlimit)(resource.RLIMIT_CPU))
"""
_FAILS = "clusterfn.cluster(cores=1)(lambda: 1 / 0)()"
_TIERS = {
    "nodes": 1,
    "partitions": [
        "PartitionName=low Default=YES Nodes=ALL PriorityTier=1",
        "PartitionName=high Nodes=ALL PriorityTier=9",
    ],
}
_LUA = """\
function slurm_job_submit(job, part, uid)
    {}
end
function slurm_job_modify(job, rec, part, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@dataclass(frozen=True)
class Row:
    """What a site has set, what is called there, and what must be read afterwards.

    Attributes:
        settings: Keys of slurm.conf.
        options: Of `cluster(...)`.
        says: All of this is in what the program prints: a value on stdout, or an error and sentences on stderr.
        hides: None of this is.
        more: Further arguments of `lab.own_slurm`.
        lines: Further lines of the host in clusterfn.yml.
        meanwhile: What happens at the site before the call.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    options: str = "cores=1"
    says: Sequence[str] = ("value 42",)
    hides: Sequence[str] = ()
    body: str = VALUE
    more: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    meanwhile: Callable[[Any], object] = lambda own: None


def _drained(own: Any) -> None:
    until(lambda: "drain" in own.run("sinfo", "--noheader", "--format=%T").stdout)


def _parameters(more: str) -> str:
    return f"batch_sched_delay=0,sched_min_interval=50000,sched_interval=2,bf_interval=2,{more}"


QUICK: Mapping[str, Row] = {
    "no memory is tracked": Row(
        {"SelectTypeParameters": "CR_Core"},
        more={"nodes": {"s1": "CPUs=8"}},
        says=["Unsatisfiable", "`slurm: {mem: null}`"],
    ),
    "the time that a partition gives, to the minute": Row({"EnforcePartLimits": "ALL"}, "cores=1, time='60min'"),
    "a plugin refuses jobs without a time": Row(
        {"JobSubmitPlugins": "require_timelimit"},
        says=["SubmitError", "Time limit specification required", 'time="1h"'],
    ),
}
ROWS: Mapping[str, Row] = {
    # what nodes give out
    "select/linear": Row({"SelectType": "select/linear", "SelectTypeParameters": None}),
    "select/linear with memory": Row({"SelectType": "select/linear", "SelectTypeParameters": "CR_Memory"}),
    "select/cons_res": Row({"SelectType": "select/cons_res", "SelectTypeParameters": "CR_CPU_Memory"}),
    "CR_Socket_Memory": Row({"SelectTypeParameters": "CR_Socket_Memory"}),
    "one task on each core": Row({"SelectTypeParameters": "CR_Core_Memory,CR_ONE_TASK_PER_CORE"},
        more={"nodes": {"s1": "CPUs=8 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=8000"}}),
    "memory is given out, and no node has any": Row(
        more={"nodes": {"s1": "CPUs=8"}}, says=["Unsatisfiable", "`slurm: {mem: null}`"]),
    "no memory is tracked, and a map": Row({"SelectTypeParameters": "CR_Core"}, more={"nodes": {"s1": "CPUs=8"}},
        lines=["slurm: {mem: null}"], body=MAP, says=["values [0, 2, 4, 6, 8, 10]"]),
    "no memory is tracked, and the host says so": Row({"SelectTypeParameters": "CR_Core"}, "cores=1, memory='8GB'",
        more={"nodes": {"s1": "CPUs=8"}}, lines=["slurm: {mem: null}"], hides=["track"]),
    "nodes with less memory than a call asks for without memory=": Row(
        more={"nodes": {"s1": "CPUs=8 RealMemory=2000"}},
        says=["Unsatisfiable", "a call without memory= asks for 4GB", "defaults: {memory"],
    ),
    "DefMemPerCPU": Row({"DefMemPerCPU": 100}, lines=["slurm: {mem: null}"]),
    "MaxMemPerCPU": Row({"MaxMemPerCPU": 1000}),
    "MaxMemPerNode": Row(
        {"MaxMemPerNode": 2000}, says=["Unsatisfiable", "MaxMemPerLimit", "more memory than this site"]),
    # how many
    "MaxArraySize of 3": Row({"MaxArraySize": 3}, body=MAP, says=["values [0, 2, 4, 6, 8, 10]"]),
    "max_array_tasks of 4": Row({"MaxArraySize": 1000, "SchedulerParameters": _parameters("max_array_tasks=4")},
        body=MAP, says=["values [0, 2, 4, 6, 8, 10]"]),
    "no arrays": Row({"MaxArraySize": 0}, body=MAP, says=["ConfigError", "has no job arrays"]),
    "large job numbers": Row({"FirstJobId": 60_000_000, "MaxJobId": 60_000_100}),
    # how long
    "a partition holds jobs that are too long": Row(
        {"EnforcePartLimits": "NO"}, "cores=1, time='61min'", says=["Unsatisfiable", "PartitionTimeLimit"]),
    "a partition holds jobs that are too long, to the minute": Row(
        {"EnforcePartLimits": "NO"}, "cores=1, time='60min'"),
    "a partition refuses jobs that are too long": Row(
        {"EnforcePartLimits": "ANY"}, "cores=1, time='61min'",
        says=["Unsatisfiable", "Requested time limit is invalid"]),
    "DefaultTime": Row(more={"partitions": [_MAIN + " DefaultTime=1"]}),
    "OverTimeLimit": Row({"OverTimeLimit": 1}, "cores=1, time='1min'"),
    # plugins
    "a plugin wants a time, and a call has one": Row({"JobSubmitPlugins": "require_timelimit"}, "cores=1, time='5min'"),
    "job_submit.lua tells something": Row({"JobSubmitPlugins": "lua"}, body=f"{VALUE}\n{VALUE}",
        more={"files": {"job_submit.lua": _LUA.format('slurm.log_user("scratch is full") return slurm.SUCCESS')}},
        says=["value 42", "SLURM says: scratch is full"]),
    "every command complains of the configuration": Row(
        body=_CHAIN,
        more={
            "env": {"PATH": "{folder}/bin:{path}"},
            "files": {f"bin/{name}": _COMPLAINS for name in ("sbatch", "squeue", "scontrol")},
        },
        says=["value 84"],
        hides=["unreachable", "SLURM says", "ignored"],
    ),
    "a wrapper of sbatch speaks, leaves --parsable out, and fails when the job is submitted": Row(
        more={"env": {"PATH": "{folder}/bin:{path}"}, "files": {"bin/sbatch": _WRAPPER}}, hides=["refused"]),
    "job_submit.lua refuses": Row({"JobSubmitPlugins": "lua"},
        more={"files": {"job_submit.lua": _LUA.format('slurm.log_user("read the wiki") return slurm.ERROR')}},
        says=["SubmitError", "read the wiki", "the rules of the site"]),
    "job_submit/all_partitions": Row({"JobSubmitPlugins": "all_partitions"},
        more={"partitions": ["PartitionName=a Nodes=s1", "PartitionName=b Nodes=s2"]}),
    "cli_filter/lua": Row(
        {"CliFilterPlugins": "lua"},
        more={
            "files": {
                "cli_filter.lua": """\
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset) slurm.log_info("be kind") return slurm.SUCCESS end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
"""
            }
        },
    ),
    "priority/multifactor": Row({"PriorityType": "priority/multifactor"}),
    "topology/tree": Row(
        {"TopologyPlugin": "topology/tree"}, more={"files": {"topology.conf": "SwitchName=top Nodes=s[1-2]\n"}}),
    # partitions
    "no default partition": Row(more={"partitions": ["PartitionName=main Nodes=ALL"]},
        says=["Unsatisfiable", "this site has no default partition"]),
    "no default partition, and the host names one": Row(
        more={"partitions": ["PartitionName=main Nodes=ALL"]}, lines=["slurm: {partition: main}"]),
    "a hidden partition": Row(more={"partitions": [_MAIN + " Hidden=YES"]}),
    "a partition of at least two nodes": Row(more={"partitions": [_MAIN + " MinNodes=2"]}),
    "a partition of at most one node": Row({"EnforcePartLimits": "ALL"}, "cores=1, nodes=2",
        more={"partitions": [_MAIN + " MaxNodes=1"]}, says=["Unsatisfiable", "fewer `nodes=`"]),
    "OverSubscribe=EXCLUSIVE": Row(more={"partitions": [_MAIN + " OverSubscribe=EXCLUSIVE"]}),
    "OverSubscribe=FORCE": Row(more={"partitions": [_MAIN + " OverSubscribe=FORCE:4"]}),
    "ExclusiveUser": Row(more={"partitions": [_MAIN + " ExclusiveUser=YES"]}),
    "MaxCPUsPerNode": Row({"EnforcePartLimits": "ALL"}, "cores=4", more={"partitions": [_MAIN + " MaxCPUsPerNode=2"]},
        says=["Unsatisfiable"]),
    "a partition for others": Row(more={"partitions": [_MAIN + " AllowGroups=root"]},
        says=["group not permitted", "`slurm: partition:` to one that your groups may use"]),
    # resources with names
    "a licence": Row({"Licenses": "matlab:1"}, "cores=1, slurm={'licenses': 'matlab'}"),
    "an unknown licence": Row(
        {"Licenses": "matlab:1"}, "cores=1, slurm={'licenses': 'x'}", says=["Unsatisfiable", "scontrol show licenses"]),
    "a feature": Row(
        more={"nodes": {"s1": f"{_SHAPE} RealMemory=8000", "s2": f"{_SHAPE} RealMemory=8000 Features=zen3"}},
        lines=["slurm: {constraint: zen3}"]),
    "an unknown feature": Row(lines=["slurm: {constraint: zen3}"], says=["Unsatisfiable", "sinfo -o '%N %f'"]),
    "no GPUs": Row({"GresTypes": None}, "gpus=1", says=["Unsatisfiable", "gpu"]),
    # scheduling
    "defer": Row({"SchedulerParameters": _parameters("defer")}),
    "batch_sched_delay": Row({"SchedulerParameters": "batch_sched_delay=3,sched_interval=2,bf_interval=2"}),
    "sched/builtin": Row({"SchedulerType": "sched/builtin"}),
    "JobRequeue=0": Row({"JobRequeue": 0}, "cores=1, retries=1"),
    "MinJobAge": Row({"MinJobAge": 2}),
    "CompleteWait": Row({"CompleteWait": 8}),
    "JobFileAppend": Row({"JobFileAppend": 1}),
    "exit codes that requeue": Row({"RequeueExit": "1-255"}, body=_FAILS, says=["ZeroDivisionError"]),
    "exit codes that hold": Row({"RequeueExitHold": "1-255"}, body=_FAILS, says=["ZeroDivisionError"]),
    # around a job
    "PrologFlags=Alloc": Row(
        {"Prolog": "{folder}/p", "PrologFlags": "Alloc"}, more={"files": {"p": "#!/bin/sh\nsleep 1\n"}}),
    "a task prolog that prints": Row({"TaskProlog": "{folder}/p"},
        more={"files": {"p": "#!/bin/sh\necho print hello\necho export PYTHONPATH=/nowhere\n"}}),
    "an epilog that hangs": Row({"Epilog": "{folder}/p"}, more={"files": {"p": "#!/bin/sh\nsleep 60\n"}}),
    "a prolog that fails": Row({"Prolog": "{folder}/p"}, more={"files": {"p": "#!/bin/sh\nexit 1\n"}},
        says=["NodeFailed", "the site's prolog failed on the node s1"]),
    "UsePAM": Row({"UsePAM": 1}),
    "KillWait and UnkillableStepTimeout": Row(
        {"KillWait": 1, "UnkillableStepTimeout": 5}, body=_STOPPED, says=["stopped on request"]),
    "PrivateData": Row({"PrivateData": "jobs,nodes,partitions,reservations,usage,users"}),
    "limits of the login are passed on": Row({"PropagateResourceLimits": "ALL"}, body=_CPU_LIMIT,
        more={"env": {"PATH": "{folder}/bin:{path}"}, "files": {"bin/python3": _LIMITED}}, says=["(-1, -1)"]),
    "three time zones": Row(
        more={"env": {"TZ": "Asia/Tokyo"}, "daemons_env": {"TZ": "America/New_York"}}, env={"TZ": "Pacific/Auckland"}),
    "clusters without a database": Row(
        lines=["slurm: {clusters: site}"], says=["SubmitError", "change or remove `slurm: clusters:`"]),
    "a health check that drains the nodes": Row({"HealthCheckProgram": "{folder}/p", "HealthCheckInterval": 1},
        body=_WAITS, says=["Nodes required for job are DOWN, DRAINED"], meanwhile=_drained,
        more={"nodes": 1, "files": {"p": _UNHEALTHY}, "takes_jobs": False}),
    "preemption requeues": Row({"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}, body=_PREEMPTED,
        more=_TIERS, says=["42 value 8"]),
    "preemption cancels": Row({"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"}, body=_PREEMPTED,
        more=_TIERS, says=["42 Preempted the scheduler took the resources back"]),
    "preemption suspends": Row({"PreemptType": "preempt/partition_prio", "PreemptMode": "SUSPEND,GANG"},
        body=_PREEMPTED, more=_TIERS, says=["42 value 8"]),
}  # fmt: skip


@contextmanager
def site(lab: Any, tmp_path: Path, row: Row) -> Iterator[tuple[Any, dict[str, str]]]:
    """The SLURM of a row, and the variables of a program that calls functions there."""
    with lab.own_slurm(row.settings, **row.more) as own:
        config = own.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR), *row.lines)
        yield own, {**os.environ, "CLUSTERFN_CONFIG": str(config), **row.env}


def outcome(tmp_path: Path, row: Row, env: Mapping[str, str]) -> str:
    """Run the row's program; what it printed, stderr too."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(options=row.options, body=row.body))
    argv = [sys.executable, str(path)]
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    return done.stdout + done.stderr


def check(lab: Any, tmp_path: Path, row: Row) -> None:
    with site(lab, tmp_path, row) as (own, env):
        row.meanwhile(own)
        said = outcome(tmp_path, row, env)
        for text in row.says:
            assert text in said, f"{said}\n{own.logs()}"
        for text in row.hides:
            assert text not in said, said


@pytest.mark.parametrize("name", QUICK)
def test_a_site_with(lab, tmp_path, name):
    check(lab, tmp_path, QUICK[name])


@LONG
@pytest.mark.parametrize("name", ROWS)
def test_a_site_of_another_kind_with(lab, tmp_path, name):
    check(lab, tmp_path, ROWS[name])


@LONG
def test_check_says_that_no_memory_is_tracked(lab, tmp_path):
    with site(lab, tmp_path, ROWS["no memory is tracked, and the host says so"]) as (_, env):
        argv = [sys.executable, "-m", "clusterfn", "check", "--no-job"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "SLURM does not track memory: clusterfn asks it for none" in done.stdout + done.stderr


@LONG
def test_jobs_whose_files_are_gone_while_they_wait_in_the_queue_end_with_what_takes_them_out_of_it(lab, tmp_path):
    row = Row(options="cores=1, slurm={'begin': 'now+1hour'}", body=_LOSES_FILES)
    with site(lab, tmp_path, row) as (own, env):
        said = outcome(tmp_path, row, {**env, "SITE_ROOT": str(own.root)})
    assert said.count("has lost the job's files: its root was removed") == 2, said
    assert said.count("if it is still in the queue of SLURM, run there: scancel --name double.") == 2
