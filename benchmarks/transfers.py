"""200 MB and 10,000 files by both transports, against ssh: `make bench ROWS=transfers`.

Delays are 0, 50 and 150 ms. Each ratio is of times in the same round: ssh into a synced
file, and tar through ssh, through the same proxy. There is none without delay: it would use as much CPU time as ssh.
Each ssh makes a connection of its own; our process has one. It does not wait until the host's disk has an argument, so
there is also a ratio to ssh without sync.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Series, seconds, use_free_memory
from benchmarks.place import MINOR, Place
from benchmarks.report import aligned
from tests.lab import DelayProxy, Lab

DELAYS_MS = (0, 50, 150)
TRANSPORTS = ("paramiko", "openssh")
MEGABYTES, FILES = 200, 10_000
TITLE = f"{MEGABYTES} MB and {FILES:,} files"
# What we measure, and with what of ssh it is compared.
LARGE = {
    "argument": ("argument", "up"), "argument, ssh without sync": ("argument", "up without sync"),
    "again": ("again", "up"), "result": ("result", "down"),
}  # fmt: skip
SMALL = {"files there": ("files there", "files up"), "files back": ("files back", "files down")}
LIMITS = {"argument": 1.1, "result": 1.25}
_MB = 2**20
_ON_HOST = "bench-transfers"
_MOST_S = 900.0  # of one transfer


@contextlib.contextmanager
def behind(place: Place, lab: Lab, delay_ms: int, transport: str) -> Iterator[Place]:
    """The place with a host `large` so far away, by this transport."""
    to = lab.host("py36-bash").port
    with contextlib.ExitStack() as opened:
        port = opened.enter_context(DelayProxy(0, to, delay_ms / 2000)).port if delay_ms else to
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        key = f"[127.0.0.1]:{to}"
        ssh_config, config = Path(folder, "ssh_config"), Path(folder, "clusterfn.yml")
        ours = f"Host py36-bash\n    Port {port}\n    HostKeyAlias {key}\n    Ciphers aes128-gcm@openssh.com\n\n"
        ssh_config.write_text(ours + lab.ssh_config.read_text())
        config.write_text(
            f"hosts:\n  large:\n    address: py36-bash\n    ssh_config: {ssh_config}\n"
            f"    scheduler: bare\n    limits: {{cores: 64}}\n"
            f'    root: ~/{place.root.name}\n    environment: "python:{lab.python(MINOR)}"\n'
            f"    transport: {transport}\n"
        )
        yield replace(place, env={**place.env, "CLUSTERFN_CONFIG": str(config), "SSH_CONFIG": str(ssh_config)})


def by_ssh(there: Place, folder: Path, megabytes: int, files: int) -> dict[str, float]:
    """Seconds of the same by ssh, each with its own connection. Its files stay until the last round, as ours do."""
    small = folder / "small"
    _make_data(folder, megabytes)
    small.mkdir()
    for each in range(files):
        small.joinpath(f"{each}.txt").write_bytes(os.urandom(170))
    if files:
        commands = {
            "files up": "tar c small | SSH 'ON_HOST && tar x && sync -f small'",
            "files down": "SSH 'ON_HOST && tar c small' | tar x -C back",
        }
    else:
        commands = {
            "up without sync": "SSH 'ON_HOST && cat > unsynced' < data",
            "up": "SSH 'ON_HOST && cat > synced && sync synced' < data",
            "down": "SSH 'ON_HOST && cat synced' > back/data && sync back/data",
        }
    return {way: timed(there, folder, command) for way, command in commands.items()}


def _make_data(folder: Path, megabytes: int) -> None:
    """Make a file of that size to send, and a folder for what comes back."""
    with Path(folder, "data").open("wb") as file:
        piece = os.urandom(_MB)
        for _ in range(megabytes):
            file.write(piece)
    Path(folder, "back").mkdir()


def timed(there: Place, folder: Path, command: str) -> float:
    """Seconds of a shell command in a folder, in which ON_HOST goes to a folder of the same name on the host."""
    on_host = f"{_ON_HOST}/{folder.name}"
    command = command.replace("ON_HOST", f"mkdir -p {on_host} && cd {on_host}")
    use_free_memory()
    return seconds(lambda: _in_shell(there, command, folder))


def tidy(there: Place, folder: Path) -> None:
    """Remove what the commands left on the host."""
    _in_shell(there, f"SSH rm -rf {_ON_HOST}", folder)


def ours(there: Place, megabytes: int, files: int, folder: str) -> dict[str, float]:
    """Seconds of what we do, by `scripts/transfers.py`."""
    ran = there.run(there.script("transfers.py", "large", str(megabytes), str(files), folder), timeout=_MOST_S)
    took: dict[str, float] = json.loads(ran.stdout)
    return took


def _in_shell(there: Place, command: str, folder: Path) -> None:
    """Run a shell command, in which SSH is the command that reaches the host."""
    subprocess.run(["/bin/sh", "-c", command.replace("SSH", _ssh(there))], check=True, capture_output=True, cwd=folder,
                   timeout=_MOST_S)  # fmt: skip


def _ssh(there: Place) -> str:
    return f"ssh -F {there.env['SSH_CONFIG']} -o BatchMode=yes py36-bash"


def measured(there: Place, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Of each way the seconds and the ratio of each round."""
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in (*LARGE, *SMALL)}
    # Nothing is removed between two rounds, which would slow the disk for minutes.
    with tempfile.TemporaryDirectory() as folder:
        for ways, megabytes, files in ((LARGE, MEGABYTES, 0), (SMALL, 0, FILES)):
            for number in range(rounds):
                here = Path(folder, f"{megabytes}-{number}")
                here.mkdir()
                limits = by_ssh(there, here, megabytes, files)
                all_ours = ours(there, megabytes, files, folder)
                for way, (mine, theirs) in ways.items():
                    took[way].append((all_ours[mine], all_ours[mine] / limits[theirs]))
        tidy(there, Path(folder))
    return took


def table(place: Place, lab: Lab) -> str:
    """Every way at each delay by each transport, in Markdown; each is printed when it has been measured."""
    lines = []
    for delay in DELAYS_MS:
        for transport in TRANSPORTS:
            with behind(place, lab, delay, transport) as there:
                # without delay, each takes about a second, of which what else runs here may take a third
                for way, each in measured(there, rounds=2 if delay else 5).items():
                    took, ratios = map(Series, zip(*each))
                    limit = f"{LIMITS[way]:g} ×" if way in LIMITS else ""
                    ratio = f"{ratios.median:.2f} × ({ratios.low:.2f}–{ratios.high:.2f})"
                    lines.append([way, f"{delay} ms", transport, f"{took.median:.2f} s", ratio, limit])
            print(*map(" ".join, lines[-len(LARGE) - len(SMALL) :]), sep="\n", flush=True)
    return aligned(["what", "delay", "transport", "seconds", "ratio to ssh", "limit"], lines) + "\n"
