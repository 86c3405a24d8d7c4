"""The hosts of the chaos tests in one clusterfn.yml: an account and a root of their own, and stand-ins for programs.

The lab's hosts lie on this machine, so the tests look at jobs' folders and processes themselves, as root.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab import Lab, layout

ACCOUNT = "cfsecond"
MINOR = f"3.{sys.version_info[1]}"
BARE, GPU, SLURM = "py36-second", "tensor01-second", "slurm-second"
LINGER_S = 0.7

_CARD = "GPU-@session"
_SMI = """case "$*" in
*query-gpu=pci*) echo "00000000:01:00.0, 0, @card, 49140, [N/A], NVIDIA RTX A6000" ;;
*query-gpu=uuid*) echo "@card, 3" ;;
esac"""
_TIMED_OUT = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'

# Stand-ins: host -> program -> shell lines; @real is the program itself, @folder where the stand-ins lie.
STUBS = {
    "gpu": {"nvidia-smi": _SMI},
    "slow-sbatch": {"sbatch": 'sleep 0.4; /usr/bin/sbatch "$@"; r=$?; sleep 0.4; exit $r'},
    "no-sbatch": {"sbatch": _TIMED_OUT},
    "busy-sbatch": {"sbatch": 'echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1'},
}


@dataclass(frozen=True)
class Kind:
    """A host: the lab's alias, further lines of clusterfn.yml, how many cores its jobs may have without SLURM, and what
    the name of its root ends in."""

    alias: str
    lines: tuple[str, ...] = ()
    cores: int = 64
    root: str = ""


HOSTS = {
    "bare": Kind(BARE), "bare-setup": Kind(BARE, (f'setup: ["sleep {LINGER_S}"]',)),
    "bare-stuck": Kind(BARE, ('setup: ["sleep 60"]',)),
    "gpu": Kind(GPU, ('setup: ["export PATH=@stubs/gpu:$PATH"]',)), "storm": Kind(BARE, cores=2),
    "storm-other": Kind(GPU, cores=2, root="-other"), "slurm": Kind(SLURM),
    "storm-slurm": Kind(SLURM, ("slurm: {partition: short, no-requeue: true}",)),
    "slurm-setup": Kind(SLURM, (f'setup: ["sleep {LINGER_S}"]',)),
    "slurm-held": Kind(SLURM, ("slurm: {partition: short, hold: true}",)),
    **{name: Kind(SLURM) for name in STUBS if name != "gpu"},
}  # fmt: skip

# A list of hosts that has a name, too.
LISTS = {"storm-any": ("storm", "storm-other", "storm-slurm")}


class World:
    """One session's hosts.

    Attributes:
        config: clusterfn.yml.
        root: Where all jobs lie, on this machine.
        runs: A folder with one file per job, a line for each run of its function.
        card: The only card of host `gpu`.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.session = f"chaos-{secrets.token_hex(4)}"
        self.home = lab.home(ACCOUNT)
        self.root = self.home / self.session
        self.runs = self.home / f"{self.session}-runs"
        self.stubs = self.home / f"{self.session}-stubs"
        self.card = _CARD.replace("@session", self.session)
        self.config = folder / "clusterfn.yml"

    def build(self) -> None:
        """Lay it out."""
        self.runs.mkdir()
        for name, programs in STUBS.items():
            folder = self.stubs / name
            folder.mkdir(parents=True)
            texts = {"python": f'PATH={folder}:$PATH exec {layout.HOSTS}/slurm/bin/python3 "$@"', **programs}
            for program, text in texts.items():
                filled = text.replace("@folder", str(folder)).replace("@card", self.card)
                (folder / program).write_text(f"#!/bin/sh\n{filled}\n")
                (folder / program).chmod(0o755)
        self.config.write_text("hosts:\n" + "".join(self.block(name) for name in HOSTS))
        self.own(self.runs)
        self.own(self.stubs)

    def own(self, folder: Path) -> None:
        """Give a folder to the account."""
        owner = pwd.getpwnam(ACCOUNT)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)

    def block(self, name: str, ssh_config: Path = layout.SSH_CONFIG) -> str:
        """One host's lines."""
        kind = HOSTS[name]
        slurm = kind.alias == SLURM
        lines = [
            f"address: {kind.alias}", f"ssh_config: {ssh_config}",
            "scheduler: slurm" if slurm else f"scheduler: bare\n    limits: {{cores: {kind.cores}}}",
            f"root: ~/{self.session}{kind.root}", f'environment: "python:{self.lab.python(MINOR)}"',
            "defaults: {memory: 200MB}", *(line.replace("@stubs", str(self.stubs)) for line in kind.lines),
        ]  # fmt: skip
        if slurm:
            lines += ['poll_floor: "1s"']
        if slurm and not any(line.startswith("slurm:") for line in lines):
            lines += ["slurm: {partition: short}"]
        if slurm and name in STUBS:
            lines += [f"python: {self.stubs / name / 'python'}"]
        return f"  {name}:\n" + "".join(f"    {line}\n" for line in lines)

    def roots(self) -> list[Path]:
        """Where jobs may lie."""
        return [self.root, *(self.home / f"{self.session}{kind.root}" for kind in HOSTS.values() if kind.root)]

    def behind(self, folder: Path, port: int | Mapping[str, int], *names: str) -> Path:
        """Another clusterfn.yml, whose hosts are reached through a proxy at that port, or at that of each; its path."""
        ssh_config = folder / "ssh_config"
        blocks = []
        for name in names:
            alias = HOSTS[name].alias
            real, near = self.lab.host(alias), port if isinstance(port, int) else port[name]
            blocks.append(
                f"Host {alias}\n HostName 127.0.0.1\n Port {near}\n User {real.user}\n IdentitiesOnly yes\n"
                f" IdentityFile {layout.CLIENT}/id_ed25519\n UserKnownHostsFile {layout.CLIENT}/known_hosts\n"
                f" GlobalKnownHostsFile /dev/null\n HostKeyAlias [127.0.0.1]:{real.port}\n"
            )
        ssh_config.write_text("".join(blocks))
        config = folder / "clusterfn.yml"
        lists = {name: hosts for name, hosts in LISTS.items() if set(hosts) <= set(names)}
        config.write_text(
            "hosts:\n"
            + "".join(self.block(name, ssh_config) for name in names)
            + "".join(f"  {name}: {{any: [{', '.join(hosts)}]}}\n" for name, hosts in lists.items())
        )
        return config

    def remove(self) -> None:
        """Everything that this session has left there."""
        for path in self.home.glob(f"{self.session}*"):
            for folder, _, _ in os.walk(path):
                os.chmod(folder, os.stat(folder).st_mode | stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
