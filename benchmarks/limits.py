"""The limits that no program can beat: to start an interpreter, to connect, to ask a scheduler."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import Sample, seconds
from benchmarks.place import MINOR, Asked, Place
from clusterfn.hosts.rpc import boot
from tests.lab.handle import Lab


def interpreters(place: Place) -> dict[str, Sample]:
    """Starts of the host's old and the environment's new Python, bare and with what the bridge imports.

    The imports are what the modules themselves import, from the byte code that is on the host.
    """
    first = f"import sys; sys.path.insert(0, {str(place.bridge)!r}); "
    programs = {
        f"Python {'3.6' if place.lab else MINOR}, bare": [place.old, "-c", "pass"],
        f"Python {MINOR}, bare": [place.new, "-c", "pass"],
        "supervisor": [
            place.old,
            "-I",
            "-S",
            "-c",
            first + "from _clusterfn.bridge.supervisor import main, run, worker_process",
        ],
        "worker": [place.new, "-c", first + "from _clusterfn.bridge.worker import main"],
    }
    samples = {name: _timed(lambda argv=argv: place.run(argv)) for name, argv in programs.items()}  # type: ignore[misc]
    return samples | {"agent": _timed(lambda: _start_agent(place))}


def _start_agent(place: Place) -> None:
    """The agent as it comes over a stream, which ends at once."""
    sent = boot.preface(place.old, "0" * 32)
    subprocess.run(["/bin/sh", "-c", boot.COMMAND], input=sent, check=True, capture_output=True, env=dict(place.env))


def login(lab: Lab) -> list[str]:
    """Host, port, user, key and known_hosts, as the scripts here take them."""
    host = lab.host("py36-bash")
    return ["127.0.0.1", str(host.port), host.user, str(lab.client / "id_ed25519"), str(lab.client / "known_hosts")]


def connections(place: Place, lab: Lab) -> dict[str, Sample]:
    """A fresh ssh, and the least that Python needs with paramiko."""
    ssh: list[str | Path] = ["ssh", "-F", lab.ssh_config, "-o", "BatchMode=yes", "py36-bash", "true"]
    return {
        "ssh, a fresh connection, true": _timed(lambda: place.run(ssh)),
        "python, import paramiko, connect, true": lambda: place.until_first_line(
            place.script("connect.py", *login(lab))
        ),
    }


def held_line(place: Place, lab: Lab) -> tuple[Sample, Callable[[], None]]:
    """One line there and back over a held channel; and what ends it."""
    asked = Asked(place, [*place.script("line.py"), *login(lab)])
    return lambda: float(asked.ask()), asked.close


def slurm(place: Place, lab: Lab) -> dict[str, Sample]:
    """srun of a Python, sbatch of one until it has written a file, and the call of sbatch alone."""
    mark = lab.home("bash") / f"{place.root.name}-mark"

    def submit(line: str) -> None:
        _ask_slurm(place, lab, "sbatch", "-p", "short", "-o", "/dev/null", "--wrap", line)

    def until_written() -> None:
        submit(f'{place.new} -c \'open("{mark}", "w")\'')
        while not mark.exists():
            time.sleep(0.002)
        mark.unlink()

    return {
        "srun of python": _timed(lambda: _ask_slurm(place, lab, "srun", "-p", "short", str(place.new), "-c", "pass")),
        "sbatch of python until it has run": _timed(until_written),
    }


def as_user(place: Place, argv: Sequence[str | Path]) -> Sample:
    """A program as the user of the lab's hosts starts it there."""
    return _timed(
        lambda: place.run(["setpriv", "--reuid=cfbash", "--regid=cfbash", "--init-groups", "env", "USER=cfbash", *argv])
    )


def _ask_slurm(place: Place, lab: Lab, *argv: str) -> None:
    subprocess.run(
        ["setpriv", "--reuid=cfbash", "--regid=cfbash", "--init-groups", *argv], check=True, cwd=lab.home("bash"),
        env={**place.env, "SLURM_CONF": str(lab.slurm_conf)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _timed(work: Callable[[], object]) -> Sample:
    return lambda: seconds(work)
