"""A SLURM of a test's own: a slurmctld and some slurmd with the settings of another site, and a login node.

Everything runs in a PID namespace, so that all of it ends with the namespace: daemons, steps, jobs and logins, even if
the test is killed. Munge and the accounts are the lab's. Tests get one with `lab.own_slurm(...)`.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import accounting as slurmdbd
from . import client, hosts, layout
from .layout import HOST_BY_NAME, LOGS, ROOT, SSHD
from .processes import CLEAN_ENV, LabError, runs, stat_fields
from .slurm import SOCKET

ALIAS = "site"
_PATIENCE_S = 60.0
_TAKES_JOBS = frozenset(["idle", "mixed", "allocated"])
# Ports that no outgoing connection takes.
_PORTS = range(24000, 32000)
# Kills all when the test's process ends, whatever ends it.
_APART = (
    "/usr/bin/setpriv", "--pdeathsig=KILL",
    "/usr/bin/unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL",
)  # fmt: skip
# As few as work on any machine; see slurm.py for what is odd.
_DEFAULTS: Mapping[str, object] = {
    "ClusterName": "site", "SlurmctldHost": "localhost(127.0.0.1)", "SlurmUser": "root", "AuthType": "auth/munge",
    "CredType": "cred/munge", "AuthInfo": f"socket={SOCKET},cred_expire=5", "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "JobAcctGatherType": "jobacct_gather/linux",
    "AccountingStorageType": "accounting_storage/none", "MpiDefault": "none", "SwitchType": "switch/none",
    "MailProg": "/bin/true", "ReturnToService": 2, "PropagateResourceLimits": "NONE", "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory", "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=50000,sched_interval=2,bf_interval=2",
    "SlurmdTimeout": 15, "SlurmctldTimeout": 30, "InactiveLimit": 0, "KillWait": 5, "GresTypes": "gpu",
}  # fmt: skip
NODE = "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000"
PARTITION = "PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=60"


@dataclass(frozen=True)
class OwnSlurm:
    """One.

    Attributes:
        folder: Its slurm.conf, logs, spool folders and the files that were given.
        root: Where clusterfn keeps its files there, in the home of its user.
        nodes: Their names.
    """

    folder: Path
    root: Path
    nodes: tuple[str, ...]

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def ssh_config(self) -> Path:
        """Has the one host `ALIAS`: its login node."""
        return self.folder / "ssh_config"

    def run(self, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """One of SLURM's commands as root, say run("scontrol", "suspend", "5"), in the folder of its files."""
        env, cwd = {**os.environ, "SLURM_CONF": str(self.conf)}, self.conf.parent
        return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)

    def ssh(self, line: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command line on the login node."""
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", ALIAS, line]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)

    def clusterfn_yml(self, path: Path, python: Path, *lines: str) -> Path:
        """Write a clusterfn.yml with the one host `ALIAS`, whose root ends with this SLURM; the path.

        Args:
            python: Of the environment of its jobs.
            lines: Further lines of the host, such as `slurm: {partition: main}`.
        """
        own = [
            f"address: {ALIAS}", f"ssh_config: {self.ssh_config}", f"root: ~/{self.root.name}",
            f'environment: "python:{python}"', "scheduler: slurm", 'poll_floor: "1s"',
        ]  # fmt: skip
        path.write_text(f"hosts:\n  {ALIAS}:\n" + "".join(f"    {line}\n" for line in [*own, *lines]))
        return path

    def logs(self) -> str:
        """Return the ends of all its logs, for a failed test."""
        texts = [(path.name, path.read_text(errors="replace")) for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(f"--- {name}\n{text[-3000:]}" for name, text in texts)


def _free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise LabError("no free ports")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write these files, with {folder} as theirs; those that begin with #! can be run."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{folder}", str(folder)))
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def _conf(
    folder: Path, settings: Mapping[str, object], nodes: Mapping[str, str], partitions: Iterable[str], ports: list[int]
) -> str:
    """Return slurm.conf. Partition lines come last, as they name nodes."""
    own = {
        "SlurmctldPort": ports[0], "StateSaveLocation": folder / "state", "SlurmdSpoolDir": folder / "spool-%n",
        "SlurmctldPidFile": folder / "slurmctld.pid", "SlurmdPidFile": folder / "slurmd-%n.pid",
        "SlurmctldLogFile": folder / "slurmctld.log", "SlurmdLogFile": folder / "slurmd-%n.log",
    }  # fmt: skip
    merged = {**_DEFAULTS, **own, **settings}
    lines = [f"{name}={value}" for name, value in merged.items() if value is not None]
    for (name, shape), port in zip(nodes.items(), ports[1:]):
        lines.append(f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} {shape}")
    return "\n".join([*lines, *partitions, ""]).replace("{folder}", str(folder))


def _login(folder: Path, account: str, port: int, env: Mapping[str, str]) -> None:
    """Write the sshd's configuration, and how a client gets there: as to host `slurm`, with its key and programs."""
    like = HOST_BY_NAME["slurm"]
    usual = f"{layout.HOSTS / like.name / 'bin'}:{layout.COMMON_BIN}"
    variables = {"PATH": usual, **{name: text.replace("{path}", usual) for name, text in env.items()}}
    own = {
        "ListenAddress": "127.0.0.1", "Port": port, "HostKey": f"{SSHD / like.name}.key", "PidFile": "none",
        "AuthorizedKeysFile": SSHD / "authorized_keys", "UsePAM": "no", "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no", "PrintMotd": "no", "MaxStartups": "100:30:200", "MaxSessions": 50,
        "UseDNS": "no", "Subsystem": "sftp internal-sftp", "KexAlgorithms": layout.QUICK_KEX,
        "SetEnv": " ".join(f'"{name}={value}"' for name, value in variables.items()),
    }  # fmt: skip
    (folder / "sshd.conf").write_text("".join(f"{name} {value}\n" for name, value in own.items()))
    kind, blob, *_ = client.public(SSHD / f"{like.name}.key").split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {blob}\n")
    there = {
        "HostName": "127.0.0.1", "Port": port, "User": account, "IdentityFile": layout.CLIENT / "id_ed25519",
        "IdentitiesOnly": "yes", "UserKnownHostsFile": folder / "known_hosts", "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
    }  # fmt: skip
    lines = "".join(f"    {name} {value}\n" for name, value in there.items())
    (folder / "ssh_config").write_text(f"Host {ALIAS}\n{lines}")


def _program(
    folder: Path, nodes: Iterable[str], daemons_env: Mapping[str, str], more: Mapping[str, Sequence[str]]
) -> str:
    """Return the shell program that starts all daemons and outlives them; as process 1 it reaps what jobs leave.

    `more` are other daemons, by name, and words that come before slurmctld's.
    """
    conf = ["-D", "-f", str(folder / "slurm.conf")]
    argvs = {
        **more,
        "slurmctld": [*more.get("slurmctld", ()), "/usr/sbin/slurmctld", *conf],
        **{f"slurmd-{name}": ["/usr/sbin/slurmd", *conf, "-N", name] for name in nodes},
        "sshd": ["/usr/sbin/sshd", "-D", "-f", str(folder / "sshd.conf"), "-E", str(folder / "sshd.log")],
    }
    lines = [f"sleep infinity & cd {shlex.quote(str(folder))}"]
    for name, argv in argvs.items():
        words = argv if name == "sshd" else ["env", *(f"{key}={value}" for key, value in daemons_env.items()), *argv]
        lines.append(f"{{ {shlex.join(words)} </dev/null >{name}.out.log 2>&1; : >{name}.ended; }} &")
    return "\n".join([*lines, "wait"])


def _ready(own: OwnSlurm, takes_jobs: bool) -> bool:
    done = own.run("sinfo", "--noheader", "--all", "-N", "--format=%N|%T")
    states = dict(line.strip().split("|") for line in done.stdout.splitlines() if "|" in line)
    return set(own.nodes) <= set(states) and (not takes_jobs or set(states.values()) <= _TAKES_JOBS)


def _remove_what_was_left() -> None:
    """Remove the folders of tests that were killed: the number in the name is that of the test's process."""
    for folder in [ROOT, *(account.home for account in layout.ACCOUNT_LIST)]:
        for left in folder.glob("own-slurm-*"):
            if not runs(int(left.name.split("-")[2])):
                shutil.rmtree(left, ignore_errors=True)


def _end(apart: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of the namespace: it is gone when all others there are, and then its parent ends."""
    numbers = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    first = [pid for pid in numbers if stat_fields(pid)[1:2] == [str(apart.pid)]]
    for pid in first or [apart.pid]:
        os.kill(pid, signal.SIGKILL)
    apart.wait()


@contextlib.contextmanager
def started(
    settings: Mapping[str, object] | None = None,
    *,
    nodes: int | Mapping[str, str] = 2,
    partitions: Iterable[str] = (PARTITION,),
    files: Mapping[str, str] | None = None,
    account: str = "cfbash",
    env: Mapping[str, str] | None = None,
    daemons_env: Mapping[str, str] | None = None,
    takes_jobs: bool = True,
    accounting: bool = False,
) -> Iterator[OwnSlurm]:
    """Start one for the length of a with block; all its processes and files end with it.

    Args:
        settings: Keys of slurm.conf that replace the defaults; None leaves a key out. {folder} is where `files` are.
        nodes: How many, or their names with the rest of their lines.
        partitions: Whole lines.
        files: Name and text, beside slurm.conf: job_submit.lua, gres.conf, a prolog (executable if it begins with #!).
        account: Who logs in on its login node.
        env: Further variables of the sessions on its login node, such as TZ; {folder} as in `settings`, {path}
            is the usual PATH. (A bash that sshd starts reads no BASH_ENV.)
        daemons_env: Those of slurmctld and slurmd.
        takes_jobs: Whether to wait until all nodes do.
        accounting: Whether it has slurmdbd with a database, which enforces limits of accounts and QOS.

    Raises:
        LabError: The daemons did not start; the message has their logs.
    """
    shapes = {f"s{number}": NODE for number in range(1, nodes + 1)} if isinstance(nodes, int) else dict(nodes)
    _remove_what_was_left()
    folder = ROOT / f"own-slurm-{os.getpid()}-{secrets.token_hex(3)}"
    own = OwnSlurm(folder, layout.ACCOUNT_BY_NAME[account].home / folder.name, tuple(shapes))
    folder.mkdir(mode=0o755)
    login, dbd, database, *ports = _free_ports(4 + len(shapes))
    for name in ("state", *(f"spool-{name}" for name in shapes)):
        (folder / name).mkdir(mode=0o755)
    _write(folder, files or {})
    with_database: Mapping[str, object] = {}
    more: Mapping[str, Sequence[str]] = {}
    if accounting:
        slurmdbd.provide()
        with_database, more = slurmdbd.settings(dbd), slurmdbd.daemons(folder, dbd, database, account)
    own.conf.write_text(_conf(folder, {**with_database, **(settings or {})}, shapes, partitions, ports))
    variables = {name: text.replace("{folder}", str(folder)) for name, text in (env or {}).items()}
    _login(folder, account, login, {"SLURM_CONF": str(own.conf), **variables})
    program = _program(folder, shapes, {"SLURM_CONF": str(own.conf), **(daemons_env or {})}, more)
    with (LOGS / "own-slurm.out").open("ab") as log:
        apart = subprocess.Popen(
            [*_APART, "/bin/sh", "-c", program], env=CLEAN_ENV, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (hosts.listens(login) and hosts.listens(ports[0]) and _ready(own, takes_jobs)):
            if time.monotonic() > deadline or apart.poll() is not None or any(folder.glob("*.ended")):
                raise LabError(f"the SLURM of this test does not start:\n{own.logs()}")
            time.sleep(0.05)
        yield own
    finally:
        _end(apart)
        for each in (folder, own.root):
            shutil.rmtree(each, ignore_errors=True)
