"""Runs the program that finds a scheduler's commands, in a home of its own. No test in here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import clusterfn
from clusterfn.hosts import scheduler_commands
from clusterfn.scheduler import kind_of_site

PROGRAM = (Path(clusterfn.__file__).parent / "bridge" / "login_shell.py").read_text(encoding="utf-8")
PROGRAM = PROGRAM.replace("_PROBE_S = 5\n", "_PROBE_S = 60\n")  # as long as a busy machine may take
PROGRAMS = ("site-sbatch", "site-sinfo")  # names that no machine has
ANSWERS = (
    "#!/bin/sh\n[ -n \"$SLURM_CONF\" ] && echo main && exit\necho 'fatal: Could not establish a configuration source'\n"
)


class Place:
    """A machine: `slurm` has the commands, and `home` is its user's. Nothing of this machine's PATH shows."""

    def __init__(self, folder: Path) -> None:
        self.home, self.slurm, self.bin = folder / "home", folder / "slurm", folder / "bin"
        for each in (self.home, self.slurm, self.bin):
            each.mkdir()
        for name in PROGRAMS:
            self.program(self.slurm / name, ANSWERS)
        self.variables = f"export PATH={self.slurm}:$PATH SLURM_CONF=/etc/a.conf\n"

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def look(
        self,
        shell: str = "/bin/bash",
        usual: tuple[str, ...] = (),
        patience_s: float = 60.0,
        folders: tuple[str, ...] = (),
        **environ: str,
    ) -> scheduler_commands.LoginShellAnswer:
        """What the program finds of SLURM, and its signs."""
        kind = kind_of_site("slurm")
        assert kind is not None
        own = {"programs": PROGRAMS, "probe": [PROGRAMS[1]], "usual": usual}
        wanted = {"slurm": {**kind.commands._asdict(), **own}}
        asked = {
            "wanted": wanted,
            "patience_s": patience_s,
            "folders": folders,
            "signs": {**scheduler_commands.questions(), "files": [], "motd": []},
        }
        env = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin", "SHELL": shell, **environ}
        argv = [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(asked)]
        ran = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=150)
        return scheduler_commands.read(ran.stdout)
