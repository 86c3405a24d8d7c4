"""The lab's SLURM: munged, slurmctld and two slurmd on this machine, apart from any other SLURM or munge.

The daemons find each other through slurm/slurm.conf and a munge socket of their own; users of host "slurm" get
SLURM_CONF from its sshd.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import hosts
from .layout import DEVICES, LOGS, MUNGE, NODES, SLURM, SLURM_CONF, SLURMCTLD_PORT
from .processes import LabError, Record, State, is_alive, start

GPUS_PER_NODE = 4
TYPES = {"n2": "a6000"}  # the cards of n1 have none, as at many sites
NVIDIA_MAJOR = 195
SOCKET = MUNGE / "run" / "munge.socket"

# What is odd here, and why:
# - cred_expire: a requeued job waits that long before it may start again; the default is 120 s.
# - config_overrides: eight configured CPUs on a machine that has two.
# - linuxproc, task/none: no cgroup is needed; CUDA_VISIBLE_DEVICES is set, but nothing bars a job from the other cards.
# - OverMemoryKill sampled each second: the only memory limit without cgroups.
# - SlurmdTimeout: a killed slurmd is noticed in half a minute instead of five.
CONFIG = f"""\
ClusterName=clusterfn-lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={SLURMCTLD_PORT}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={SOCKET},cred_expire=10
StateSaveLocation={SLURM}/state
SlurmdSpoolDir={SLURM}/spool-%n
SlurmctldPidFile={SLURM}/slurmctld.pid
SlurmdPidFile={SLURM}/slurmd-%n.pid
SlurmctldLogFile={LOGS}/slurmctld.log
SlurmdLogFile={LOGS}/slurmd-%n.log
SlurmctldParameters=idle_on_node_suspend
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=50000,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MaxArraySize=1001
MinJobAge=300
KillWait=5
SlurmdTimeout=15
SlurmctldTimeout=30
MessageTimeout=10
InactiveLimit=0
DefMemPerCPU=500
GresTypes=gpu
"""
PARTITIONS = """\
PartitionName=DEFAULT Nodes=ALL State=UP MaxTime=60 PreemptMode=OFF PriorityTier=10
PartitionName=short Default=YES
PartitionName=gpu
PartitionName=tiny MaxTime=2
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high PriorityTier=100
PartitionName=closed State=DOWN
"""


def node_lines() -> str:
    """Two nodes of eight cores, 8000 MB and four cards."""
    shape = "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000"
    lines = [
        f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} {shape} Gres={gres(node)}\n"
        for node, port in NODES.items()
    ]
    return "".join(lines)


def gres(node: str) -> str:
    """The node's cards, as slurm.conf counts them."""
    return ":".join(filter(None, ["gpu", TYPES.get(node), str(GPUS_PER_NODE)]))


def gres_lines() -> str:
    """The same cards as gres.conf has them."""
    devices = f"{DEVICES}/nvidia[0-{GPUS_PER_NODE - 1}]"
    kinds = {node: f"Type={TYPES[node]} " if node in TYPES else "" for node in NODES}
    return "".join(f"NodeName={node} Name=gpu {kind}File={devices}\n" for node, kind in kinds.items())


def write_config() -> None:
    """slurm.conf and gres.conf."""
    for folder in (SLURM, SLURM / "state", *(SLURM / f"spool-{node}" for node in NODES)):
        folder.mkdir(mode=0o755, exist_ok=True)
    SLURM_CONF.write_text(CONFIG + node_lines() + PARTITIONS)
    (SLURM / "gres.conf").write_text(gres_lines())


def make_devices() -> None:
    """Device files to count; a plain file where the kernel allows no device node."""
    DEVICES.mkdir(exist_ok=True)
    for index in range(GPUS_PER_NODE):
        place = DEVICES / f"nvidia{index}"
        if place.exists():
            continue
        try:
            os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, index))
        except PermissionError:
            place.touch()


def munged(state: State) -> None:
    """A munged with its own key and socket; it insists on folders that only it may write to."""
    for folder in (MUNGE, MUNGE / "run", MUNGE / "log"):
        folder.mkdir(mode=0o755, exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    key = MUNGE / "munge.key"
    if not key.exists():
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
    argv = ["/usr/sbin/munged", "--foreground", "--force", f"--socket={SOCKET}", f"--key-file={key}"]
    argv += [
        f"--pid-file={MUNGE}/run/munged.pid",
        f"--log-file={MUNGE}/log/munged.log",
        f"--seed-file={MUNGE}/munged.seed",
    ]
    ensure(Record("munged", argv, user="munge"), state)
    wait_until(SOCKET.exists, "munged makes no socket")


def ensure(record: Record, state: State) -> None:
    """Start the daemon unless it runs."""
    known = state.daemons.get(record.name)
    if known is None or not is_alive(known):
        state.remember(start(record))


def wait_until(condition: Callable[[], bool], complaint: str, *, timeout_s: float = 150) -> None:
    """Until it is true; LabError with the complaint otherwise."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{complaint} after {timeout_s} s: see {LOGS}")
        time.sleep(0.05)


def nodes_ready() -> bool:
    """Every node takes jobs."""
    argv = ["sinfo", "-h", "-N", "-p", "short", "-o", "%T"]
    done = subprocess.run(
        argv, env={**os.environ, "SLURM_CONF": str(SLURM_CONF)}, capture_output=True, text=True, check=False
    )
    states = done.stdout.split()
    return len(states) == len(NODES) and set(states) <= {"idle", "mixed", "allocated"}


def build(state: State) -> None:
    """Configuration, munged, slurmctld, one slurmd per node; returns when the nodes take jobs."""
    if not Path("/usr/sbin/slurmctld").exists():
        raise LabError("slurmctld is not installed")
    write_config()
    make_devices()
    munged(state)
    env = {"SLURM_CONF": str(SLURM_CONF)}
    ensure(Record("slurmctld", ["/usr/sbin/slurmctld", "-D", "-f", str(SLURM_CONF)], env=env), state)
    wait_until(lambda: hosts.listens(SLURMCTLD_PORT), "slurmctld does not listen")
    for node in NODES:
        argv = ["/usr/sbin/slurmd", "-D", "-N", node, "-f", str(SLURM_CONF)]
        ensure(Record(f"slurmd-{node}", argv, env=env), state)
    wait_until(nodes_ready, "the nodes take no jobs", timeout_s=150)
