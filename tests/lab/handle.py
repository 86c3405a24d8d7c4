"""What a test holds of the lab: `Lab`, read from lab.json. It builds nothing; it asks, runs ssh, and breaks things."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import tagged

from . import accounts, cable, grid_engine, layout, newcomer, own_slurm, ownbox
from .cable import Cable
from .gpubox import GpuBox
from .newcomer import Newcomer
from .ownbox import OwnBox
from .processes import LabError, Record, State, is_alive, send, start, stat_fields, stop
from .totp import Totp


class LabMissing(LabError):
    """There is no lab on this machine, or not a whole one; the message says what to run."""


@dataclass(frozen=True)
class LabHost:
    """Where an alias of the lab's ssh_config leads."""

    alias: str
    name: str
    port: int
    user: str


class Daemon:
    """One daemon of the lab by its name in lab.json, looked up at every call: others may have restarted it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def record(self) -> Record:
        return State.load().daemons[self.name]

    @property
    def pid(self) -> int:
        return self.record.pid

    def is_alive(self) -> bool:
        return is_alive(self.record)

    def kill(self) -> None:
        """kill -9 (and wait until it is gone). Its children live on."""
        stop(self.record, number=signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM and wait."""
        stop(self.record)

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets and says nothing."""
        send(self.record, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        send(self.record, signal.SIGCONT)

    def start(self) -> None:
        """Start it if it does not run; its new pid goes to lab.json."""
        state = State.load()
        record = state.daemons[self.name]
        if not is_alive(record):
            state.remember(start(record))

    def children(self) -> list[int]:
        """Pids of its direct children: for an sshd, the open sessions."""
        parent = str(self.pid)
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if stat_fields(pid)[1:2] == [parent]]


class SlurmControls:
    """SLURM's own commands as root on this machine, and waiting for a node's state."""

    def run(self, *argv: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        """A SLURM command, say run("scontrol", "show", "job", "5")."""
        env = {**os.environ, "SLURM_CONF": str(layout.SLURM_CONF)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)

    def node_state(self, node: str) -> str:
        """idle, mixed, allocated, down*, ... as sinfo says; empty if the controller does not answer."""
        return self.run("sinfo", "-h", "-N", "-n", node, "-p", "short", "-o", "%T").stdout.strip()

    def wait_node(self, node: str, *states: str, timeout_s: float = 150) -> str:
        """Until the node is in one of these states; the state. Raises: LabError after timeout_s."""
        return _wait_for(f"node {node}", lambda: self.node_state(node), states, timeout_s)

    def job_state(self, job_id: str) -> str:
        """PENDING, RUNNING, ... from scontrol; empty when the job is unknown."""
        words = self.run("scontrol", "-o", "show", "job", job_id).stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def wait_job(self, job_id: str, *states: str, timeout_s: float = 150) -> str:
        """Until the job is in one of these states; the state. Raises: LabError after timeout_s."""
        return _wait_for(f"job {job_id}", lambda: self.job_state(job_id), states, timeout_s)

    def heal(self, timeout_s: float = 150) -> None:
        """Every daemon runs and every node takes jobs: to be called after a test that broke something."""
        for name in ("munged", "slurmctld", *(f"slurmd-{node}" for node in layout.NODES)):
            Daemon(name).resume()
            Daemon(name).start()
        for node in layout.NODES:
            if self.node_state(node) not in ("idle", "mixed", "allocated", "completing"):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
            self.wait_node(node, "idle", "mixed", "allocated", "completing", timeout_s=timeout_s)


class GridEngineControls:
    """Grid Engine's own commands as root on its login host, and what its accounting says."""

    def run(self, program: str, *args: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        """One of its commands, say run("qstat", "-u", "*")."""
        argv = grid_engine.command(program, *args)
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)

    def job_state(self, job_id: str) -> str:
        """qw, r, Eqw, ...; empty when the job waits and runs no more."""
        rows = [line.split() for line in self.run("qstat", "-u", "*").stdout.splitlines()[2:]]
        return next((row[4] for row in rows if row[0] == job_id), "")

    def wait_ended(self, job_id: str, timeout_s: float = 150) -> dict[str, str]:
        """Until the job is in the accounting; its facts there. Raises: LabError after timeout_s."""
        deadline = time.monotonic() + timeout_s
        while (done := self.run("qacct", "-j", job_id)).returncode:
            if time.monotonic() > deadline:
                raise LabError(f"job {job_id} has not ended after {timeout_s} s: {self.job_state(job_id)!r}")
            time.sleep(0.1)
        words = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        return {pair[0]: pair[1].strip() for pair in words if len(pair) == 2}


class Lab:
    """The lab that is up. Raises at creation: LabMissing if there is none, or if part of it is dead."""

    def __init__(self) -> None:
        try:
            self.state = State.load()
        except PermissionError as error:
            raise LabMissing("the lab can be used by root only") from error
        if not self.state.version or os.geteuid() != 0:
            raise LabMissing("the lab is not up: run `make lab` as root on Debian")
        dead = [name for name, record in self.state.daemons.items() if not is_alive(record)]
        if dead:
            raise LabMissing(f"the lab is not whole ({', '.join(dead)} dead): run `make lab` as root on Debian")
        self.root = layout.ROOT
        self.ssh_config = layout.SSH_CONFIG
        self.client = layout.CLIENT
        self.gpubox = GpuBox()
        self.slurm = SlurmControls()
        self.totp = Totp()
        self.slurm_conf = layout.SLURM_CONF

    @property
    def grid_engine(self) -> GridEngineControls:
        """Grid Engine's commands. Raises: LabMissing if its packages could not be downloaded."""
        if "sge_qmaster" not in self.state.daemons:
            raise LabMissing("the lab has no Grid Engine: its packages could not be downloaded; run `make lab` again")
        return GridEngineControls()

    @property
    def pythons(self) -> dict[str, Path]:
        """Every interpreter of the lab, by "3.X"."""
        return {name: Path(found["path"]) for name, found in self.state.pythons.items()}

    def python(self, minor: str) -> Path:
        """The lab's Python, by "3.11". Raises: LabMissing if this machine has no such Python."""
        if minor not in self.pythons:
            raise LabMissing(f"this machine has no Python {minor}: the lab has {', '.join(self.pythons)}")
        return self.pythons[minor]

    @property
    def torch_python(self) -> Path:
        """The interpreter of the environment with PyTorch. Raises: LabMissing if it was not made yet."""
        if not (layout.ENVS / "torch" / "complete").exists():
            raise LabMissing("the torch environment is not there: run `python -m tests.lab torch`")
        return layout.ENVS / "torch" / "bin" / "python"

    def home(self, account: str) -> Path:
        """An account's home; "bash" and "cfbash" are the same account."""
        return layout.ACCOUNT_BY_NAME[account if account.startswith("cf") else f"cf{account}"].home

    def host(self, alias: str) -> LabHost:
        """Where an alias leads."""
        found = next(each for each in layout.aliases() if each.name == alias)
        port = found.port or layout.HOST_BY_NAME[found.host].port
        return LabHost(alias, found.host, port, found.account)

    def ssh(
        self, alias: str, command: str | Sequence[str] = (), *, stdin: bytes = b"", timeout_s: float = 150
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command over the system's ssh, for evidence. The login shell gets a string as it is, a list quoted."""
        line = command if isinstance(command, str) else shlex.join(command)
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", alias, *([line] if line else [])]
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout_s, check=False)

    def processes(self, tag: str) -> list[int]:
        """Live processes of any account whose environment holds CLUSTERFN_JOB=tag."""
        return sorted(tagged(tag))

    def wipe(self, account: str) -> None:
        """Kill every process of an account and empty its home (but .bashrc), for tests that need a clean host."""
        found = layout.ACCOUNT_BY_NAME[account if account.startswith("cf") else f"cf{account}"]
        accounts.end_processes({pwd.getpwnam(found.name).pw_uid})
        for entry in found.home.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=entry.name == ".clusterfn")  # an agent of another test may fill it
            elif entry.name != ".bashrc":
                entry.unlink()

    @contextlib.contextmanager
    def disk(self, place: Path, account: str, size: str, options: str = "") -> Iterator[Path]:
        """An empty file system (size: "8m") at a folder, the account's own, for the length of a with block.

        The hosts see it below the accounts' homes alone.
        """
        assert layout.HOMES in place.parents, place
        owner = pwd.getpwnam(account)
        wanted = f"size={size},mode=700,uid={owner.pw_uid},gid={owner.pw_gid}{options and ','}{options}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", wanted, "clusterfn-lab", str(place)], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)

    def cable(self) -> AbstractContextManager[Cable]:
        """A host of one's own whose cable can be pulled, for the length of a with block."""
        return cable.laid()

    def own_gpubox(self) -> AbstractContextManager[OwnBox]:
        """A machine with eight cards of one's own, for the length of a with block."""
        return ownbox.provided()

    def newcomer(self) -> AbstractContextManager[Newcomer]:
        """An account with a password that nobody has used yet, for the length of a with block."""
        return newcomer.arrived()

    # A SLURM of one's own with other settings, for the length of a with block.
    own_slurm = staticmethod(own_slurm.started)

    def sshd(self, host: str) -> Daemon:
        """The sshd of a host: stop it, pause it, kill its sessions (children)."""
        return Daemon(f"sshd-{host}")

    def slurmd(self, node: str) -> Daemon:
        """The slurmd of n1 or n2."""
        return Daemon(f"slurmd-{node}")

    @property
    def slurmctld(self) -> Daemon:
        return Daemon("slurmctld")

    @property
    def munged(self) -> Daemon:
        return Daemon("munged")

    def clusterfn_yml(self, path: Path, *aliases: str) -> Path:
        """Write a clusterfn configuration with these aliases as hosts (default: tensor01 and slurm); the path."""
        blocks = [self._yml_host(alias) for alias in aliases or ("tensor01", "slurm")]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hosts:\n" + "".join(blocks))
        return path

    def _yml_host(self, alias: str) -> str:
        lines = [f"  {alias}:", f"    address: {alias}", f"    ssh_config: {self.ssh_config}"]
        if layout.HOST_BY_NAME[self.host(alias).name].slurm:
            lines += ["    scheduler: slurm", "    slurm: {partition: {cpu: short, gpu: gpu}}"]
            lines += ["    defaults: {time: 10min}"]
        elif layout.HOST_BY_NAME[self.host(alias).name].grid_engine:
            lines += ["    scheduler: grid_engine", "    defaults: {time: 10min}"]
        else:
            lines += ["    scheduler: bare", "    limits: {cores: 64}"]
        return "\n".join(lines) + "\n"


def _wait_for(what: str, look: Callable[[], str], states: Sequence[str], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while (state := look()) not in states:
        if time.monotonic() > deadline:
            raise LabError(f"{what} is {state!r} after {timeout_s} s, not {' or '.join(states)}")
        time.sleep(0.1)
    return state
