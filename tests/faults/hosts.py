"""The hosts of the fault suite: names for clusterfn.yml, all accounts of the lab, and stubs of SLURM's programs.

Every host has a root of its own session, so that nothing is shared with other tests.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab import Lab, layout
from tests.processes import named, tagged

PYTHON = layout.PYTHONS / "3.11" / "bin" / "python"
CGROUPS = Path("/sys/fs/cgroup/memory")
MEMORY_BYTES = 160 << 20

# What stands in for a program of SLURM on the login node. `@real` is the program itself, `@folder` where its stub lies.
STUBS = {
    "squeue-empty": {"squeue": "exit 0"},
    "squeue-garbage": {"squeue": "echo 'slurm_load_jobs error: something || | |odd'; printf '\\377\\376|x'; exit 0"},
    "squeue-fails": {"squeue": "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1"},
    "sbatch-late": {
        "sbatch": '@real "$@" >/dev/null; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'
    },
    "held": {"squeue": '@real "$@" | sed "s/PENDING|[^|]*|/PENDING|launch failed requeued held|/"'},
    "purged": {
        "squeue": '[ -e @folder/forgets ] || exec @real "$@"',
        "scontrol": """[ -e @folder/forgets ] || exec @real "$@"
echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1""",
    },
}


@dataclass(frozen=True)
class Kind:
    """One host: the lab's alias that it leads to, and lines of clusterfn.yml; @name is filled with a path."""

    alias: str
    lines: str = ""
    stub: str = ""

    @property
    def slurm(self) -> bool:
        return self.alias.startswith("slurm")


_ODD = "a b 'q' !x ü"
HOSTS = {
    "bare": Kind("tensor01-second"),
    "slurm": Kind("slurm-second"),
    "never": Kind("slurm-second"),  # as "slurm", with looks of its own: the many jobs there use up those that come soon
    "tiny": Kind("py36-second", 'root: "@disk"'),
    "readonly": Kind("py36-ro"),
    "odd-home": Kind("tensor01-space"),
    "odd-home-slurm": Kind("slurm-space"),
    "odd-root-slurm": Kind("slurm-second", f'root: "@home/@session {_ODD}"'),
    "tcsh": Kind("tensor01-tcsh"),
    "fish": Kind("tensor01-fish"),
    "tcsh-slurm": Kind("slurm-tcsh"),
    "fish-slurm": Kind("slurm-fish"),
    "nologin": Kind("tensor01-nologin"),
    "noisy": Kind("tensor01-noisy"),
    "noisy-slurm": Kind("slurm-noisy"),
    "exits": Kind("tensor01-exit"),
    "cgroup": Kind("tensor01-second", 'setup: ["echo $$ > @cgroup/cgroup.procs"]'),
    "bad-setup": Kind("tensor01-second", 'setup: ["exit 3"]'),
    "bad-setup-slurm": Kind("slurm-second", 'setup: ["exit 3"]'),
    "later": Kind("slurm-second", "slurm: {begin: now+1hour}"),
    "low": Kind("slurm-second", "slurm: {partition: low}"),
    "slurm-memory": Kind("slurm-second", "slurm: {mem: null}"),
    "bad-partition": Kind("slurm-second", "slurm: {partition: nowhere}"),
    **{name: Kind("slurm-second", "python: @stubs/@name/python", stub=name) for name in STUBS},
    "held": Kind("slurm-second", "python: @stubs/@name/python\n    slurm: {begin: now+1hour}", stub="held"),
}


class World:
    """The clusterfn.yml of one session, as `config`, and the folders that it needs on the hosts."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.session = f"faults-{secrets.token_hex(4)}"
        self.home = lab.home("second")
        self.stubs = self.home / f"{self.session}-stubs"
        self.cgroup = CGROUPS / self.session
        self.config = folder / "clusterfn.yml"
        self.disk = self.home / f"{self.session}-disk"
        self._mounted = contextlib.ExitStack()

    def build(self) -> None:
        """Stubs, the memory group and the configuration; roots that agents made again at the end of old runs go."""
        for path in self.home.glob("faults-*"):
            with contextlib.suppress(FileNotFoundError):  # its run goes on beside this one, and has just ended
                if time.time() - path.stat().st_mtime > 3600:
                    if path.is_mount():  # its session was killed
                        subprocess.run(["umount", "--lazy", str(path)], check=True)
                    shutil.rmtree(path, ignore_errors=True)
        for name, programs in STUBS.items():
            self._stub(self.stubs / name, programs)
        self._own(self.stubs)
        self.disk.mkdir()
        self._mounted.enter_context(self.lab.disk(self.disk, "cfsecond", "8m"))
        with contextlib.suppress(OSError):  # where there is no such cgroup the row is skipped
            self.cgroup.mkdir()
            (self.cgroup / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
            self._own(self.cgroup)
        self.config.write_text("hosts:\n" + "".join(self._block(name, kind) for name, kind in HOSTS.items()))

    def _own(self, folder: Path) -> None:
        owner = pwd.getpwnam("cfsecond")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)

    def _stub(self, folder: Path, programs: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        old = layout.HOSTS / "slurm" / "bin" / "python3"
        texts = {"python": f'PATH={folder}:$PATH exec {old} "$@"'}
        for name, text in programs.items():
            texts[name] = text.replace("@real", f"/usr/bin/{name}").replace("@folder", str(folder))
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    def _block(self, name: str, kind: Kind) -> str:
        lines = [
            f"address: {kind.alias}",
            f"ssh_config: {layout.SSH_CONFIG}",
            "scheduler: slurm" if kind.slurm else "scheduler: bare\n    limits: {cores: 64}",
            f"environment: python:{PYTHON}",
        ]
        if "root:" not in kind.lines:
            lines.append(f"root: ~/{self.session}{'-' + name if kind.stub else ''}")
        if "mem: null" not in kind.lines:
            lines.append("defaults: {memory: 400MB}")
        if kind.slurm and "slurm:" not in kind.lines:
            lines.append("slurm: {partition: {cpu: short, gpu: gpu}}")
        filled = kind.lines
        names = {"session": self.session, "stubs": self.stubs, "name": name, "cgroup": self.cgroup, "home": self.home}
        names["disk"] = self.disk
        for word, value in names.items():
            filled = filled.replace(f"@{word}", str(value))
        lines += [filled] if filled else []
        return f"  {name}:\n" + "".join(f"    {line}\n" for line in lines)

    def home_of(self, name: str) -> Path:
        """The home of a host's account."""
        return self.lab.home(self.lab.host(HOSTS[name].alias).user)

    def end(self, name: str, job_id: str) -> None:
        """End what a failed case has left running, by SLURM and by hand."""
        self.lab.slurm.run("scancel", f"--name={name}.{job_id}")
        for pid in {*named(job_id), *tagged(job_id)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Everything that this session has left on the hosts."""
        self._mounted.close()
        for name in HOSTS:
            for path in self.home_of(name).glob(f"{self.session}*"):
                _make_removable(path)
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.cgroup.rmdir()


def _make_removable(path: Path) -> None:
    for folder in _folders(path):
        folder.chmod(folder.stat().st_mode | stat.S_IRWXU)


def _folders(path: Path) -> Iterator[Path]:
    yield from (Path(folder) for folder, _, _ in os.walk(path))
