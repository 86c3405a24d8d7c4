"""Many calls submitted in a loop by programs of their own to a host of the lab, and what that took.

The host may be far away, slow to take bytes, or have a disk that syncs slowly; its agent may be stopped for a while.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.conftest import MINOR
from tests.lab import DelayProxy
from tests.lab.own_slurm import ALIAS as SITE
from tests.lab.own_slurm import OwnSlurm

_SCRIPT = Path(__file__).parents[1] / "fixtures" / "many_submits.py"
_SCHEDULERS = {
    "py36-bash": "scheduler: bare",
    "slurm-bash": 'scheduler: slurm\nslurm: {partition: {cpu: short}}\ndefaults: {time: "10min"}\npoll_floor: "1s"',
    SITE: 'scheduler: slurm\npoll_floor: "1s"\ndefaults: {memory: 100MB, time: "10min"}',
    "gridengine-bash": 'scheduler: grid_engine\npoll_floor: "1s"\ndefaults: {memory: 500MB, time: 10min}',
}
# The agent's interpreter, whose forks are counted in a file, and whose disk may be slow.
_COUNTS = """#!/bin/sh
exec {python} -E -s -c 'import os, subprocess, time
def counted(real):
    def count(*args, **more):
        with open("{log}", "ab") as log:
            log.write(b".")
        return real(*args, **more)
    return count
os.fork, subprocess.Popen.__init__ = counted(os.fork), counted(subprocess.Popen.__init__)
def slow(fd, real=os.fsync):
    time.sleep({sync_s})
    real(fd)
os.fsync = slow
'"$4"
"""


@dataclass(frozen=True)
class Submitted:
    """What so many calls took.

    Attributes:
        submit_s, took_s: Until all were submitted, and until all results were known, or the rest was withdrawn.
        ran: How many ran; the others were canceled.
        cancel_s: From then until the last of them had ended.
        late_s: The longest time from the end of a call on the host until the client knew of it.
        late: For how many calls it was more than 5 s.
        agent_mb, client_mb: The most memory of each.
        requests, forks: Of the client to the host, and by the agent, for each call.
        up_kb: What went to the host, for each call.
    """

    submit_s: float
    took_s: float
    ran: float
    cancel_s: float
    late_s: float
    late: float
    agent_mb: float
    client_mb: float
    requests: float
    forks: float
    up_kb: float


class ManySubmits:
    """A new root on a host of the lab."""

    def __init__(self, root: Path, env: dict[str, str], log: Path, proxy: DelayProxy) -> None:
        self.root, self._env, self._log, self._proxy = root, env, log, proxy

    def submit(self, count: int, programs: int = 1, stopped_s: float = 0.0, most_s: float = 7200.0) -> Submitted:
        """Submit so many calls from each of so many programs at once; wait for all results, or cancel the rest.

        The programs are in sessions of their own, as those of so many people are: the kernel shares the cores between
        sessions first.
        """
        forks, up = self._forks(), self._proxy.bytes_up
        argv = [sys.executable, _SCRIPT, str(count), str(self.root), str(stopped_s), str(most_s)]
        started = [
            subprocess.Popen(
                argv, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            for _ in range(programs)
        ]
        try:
            told = [self._read(each) for each in started]
        finally:
            for each in started:
                each.kill()
        most: dict[str, float] = {name: max(each[name] for each in told) for name in told[0]}
        calls = count * programs
        return Submitted(
            **{**most, "requests": sum(each["requests"] for each in told) / calls},
            forks=(self._forks() - forks) / calls, up_kb=(self._proxy.bytes_up - up) / 1024 / calls,
        )  # fmt: skip

    @staticmethod
    def _read(program: subprocess.Popen[str]) -> dict[str, float]:
        out, err = program.communicate()
        if program.returncode:
            raise RuntimeError(err[-3000:])
        told: dict[str, float] = json.loads(out.splitlines()[-1])
        return told

    def _forks(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0


@contextlib.contextmanager
def many_submits(
    lab: Any, folder: Path, alias: str = "py36-bash", *, one_way_s: float = 0.0, bytes_per_s: float = math.inf,
    sync_s: float = 0.0, site: OwnSlurm | None = None,
) -> Iterator[ManySubmits]:  # fmt: skip
    """Make a new root on this host, or on the login node of this site; its files, and the client's, go with the block.

    Without a scheduler, as many jobs run at once as the machine has cores. More would take them from the agents.
    """
    if site:
        ssh_config = site.ssh_config.read_text()
        alias, port = SITE, int(ssh_config.split("Port ")[1].split()[0])
    else:
        ssh_config, port = lab.ssh_config.read_text(), lab.host(alias).port
    name = f"submits-{secrets.token_hex(4)}"
    home: Path = lab.home("bash")
    python, log = home / f"{name}-python", home / f"{name}-forks"
    python.write_text(_COUNTS.format(python=lab.python("3.6"), log=log, sync_s=sync_s), encoding="ascii")
    python.chmod(0o755)
    with DelayProxy(0, port, one_way_s, bytes_per_s) as proxy:
        through = f"Host {alias}\n    Port {proxy.port}\n    HostKeyAlias [127.0.0.1]:{port}\n\n"
        (folder / "ssh_config").write_text(through + ssh_config, encoding="utf-8")
        lines = [
            f"address: {alias}", f"ssh_config: {folder / 'ssh_config'}", f"root: ~/{name}", f"python: {python}",
            f'environment: "python:{lab.python(MINOR)}"', *_SCHEDULERS[alias].splitlines(),
        ]  # fmt: skip
        config = folder / "clusterfn.yml"
        config.write_text("hosts:\n  there:\n" + "".join(f"    {line}\n" for line in lines), encoding="utf-8")
        env = {**os.environ, "CLUSTERFN_CONFIG": str(config), "XDG_STATE_HOME": str(folder / "state")}
        try:
            yield ManySubmits(home / name, env, log, proxy)
        finally:
            for path in (python, log):
                path.unlink(missing_ok=True)
            for _ in range(3):  # a supervisor may write into it at its end
                shutil.rmtree(home / name, ignore_errors=True)
