"""Several users of one machine, each with a root, an account number and processes of their own. No test in here."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bridge.apart import Apart
from tests.bridge.box import HOLDS, Box
from tests.bridge.host import Bench, Job

# Everybody may run it, as not every Python of a developer's machine.
PYTHON = shutil.which("python3", path="/usr/bin")


def _box(folder: Path, bench: Bench) -> Box:
    """The machine, with the same two cards for all."""
    asked = folder / "state.asked"
    folder.mkdir(exist_ok=True)
    asked.touch()
    asked.chmod(0o666)
    box = Box(folder, bench)
    box.name = folder.parent.name
    box.say()
    smi = folder / "nvidia-smi"
    smi.write_text(smi.read_text().replace(sys.executable, str(PYTHON), 1))
    return box


class Neighbour:
    """One user of the machine.

    Args:
        folder: That every user may enter.
        uid: Nobody else's.
        cores: Which the machine has, for this user's processes.
    """

    def __init__(self, folder: Path, bridge: Path, apart: Apart, uid: int, cores: set[int]) -> None:
        assert PYTHON is not None
        self.uid, self._cores, self._apart = uid, cores, apart
        self.bench = Bench(folder / str(uid), bridge, PYTHON, PYTHON, apart)
        self.box = _box(folder / "bin", self.bench)
        self._give(self.bench.root)

    def _give(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def become(self) -> None:
        """Make the calling process this user's."""
        os.sched_setaffinity(0, self._cores)
        os.setgroups([])
        os.setresgid(self.uid, self.uid, self.uid)
        os.setresuid(self.uid, self.uid, self.uid)

    def _there(self) -> None:
        self._apart.enter()
        self.become()

    def job(self, source: str, *args: object, **spec: object) -> Job:
        """A job of this user's."""
        job = self.bench.job(source, *args, **{"limits": {}, **spec})
        (job.folder / "scheduler.log").touch()
        os.chown(job.folder.parent, self.uid, self.uid)
        self._give(job.folder)
        return job

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        """Its job.sh, as the agent starts it."""
        return job.start(before=self.become, PATH=self.box.path, HOME=str(self.bench.root))

    def running(self, job: Job) -> Job:
        """Start it, and wait until its function runs."""
        self.start(job)
        job.wait_for("running")
        return job

    def queued(self, job: Job) -> None:
        """Start it, and see that it waits."""
        assert self.start(job).wait(150) == 20, job.log()

    def here(self, *words: str) -> str:
        """What a command of the supervisor's prints there for this user."""
        argv = [str(PYTHON), "-I", "-S", str(self.bench.bridge / "supervise.py"), *words]
        env = {**os.environ, "PATH": self.box.path}
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=150, check=True, env=env, preexec_fn=self._there, cwd="/"
        )
        return done.stdout

    @contextlib.contextmanager
    def binds(self, *names: str, again: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this user's that holds these names for the length of a with block.

        `again`: it lets go of them and takes them again, twenty times in a second.
        """
        argv = [str(PYTHON), "-c", HOLDS, "again" if again else "once", *names]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=self._there, cwd="/") as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == b"holds\n"
                yield process
            finally:
                process.kill()
