"""Where is measured: hosts with a root of their own, and Python processes as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import DelayProxy, Lab, LabMissing, apptainer

SCRIPTS = Path(__file__).parent / "scripts"
MINOR = f"3.{sys.version_info[1]}"
ROUND_TRIP_S = 0.05
_BARE = "scheduler: bare\nlimits: {cores: 64}"  # many calls at once on a machine of two cores
_SET_HERE = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH")


@dataclass(frozen=True)
class Place:
    """The hosts `here`, and with the lab `bare`, `near` and `far` (through a proxy of 0 and 50 ms) and `slurm`.

    `pair` is `bare` and one on which items take twice as long. `prepared` is `bare` with Apptainer in PATH,
    where no call is forked from a template because of that.

    Attributes:
        lab: None if there is none.
        env: Variables of every process that is measured.
        old, new: Interpreters of the host and of the environment.
        root: The root of all hosts of the lab.
    """

    lab: Lab | None
    env: Mapping[str, str]
    old: Path
    new: Path
    root: Path

    @property
    def bridge(self) -> Path:
        """What is on the host, its byte code included, once a call has been made."""
        return max((self.root / "bridge").iterdir(), key=lambda path: path.stat().st_mtime)

    def run(self, argv: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end and throw away what it prints."""
        return subprocess.run(
            [str(word) for word in argv], env=dict(self.env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=True, **more,
        )  # fmt: skip

    def until_first_line(self, argv: Sequence[str | Path]) -> float:
        """Seconds from the start of a program to its first line; its end is waited for, but not counted."""
        began = time.monotonic()
        with subprocess.Popen(
            [str(word) for word in argv], env=dict(self.env), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{argv} printed nothing")
            return time.monotonic() - began

    def script(self, name: str, *argv: str) -> list[str | Path]:
        """The command that runs one of benchmarks/scripts as a user would."""
        return [sys.executable, SCRIPTS / name, *argv]


class Asked:
    """A process of ours that answers each line it gets by one of JSON."""

    def __init__(self, place: Place, argv: Sequence[str | Path]) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in argv], env=dict(place.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip

    def ask(self, word: str = "") -> Any:
        """Its answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(word + "\n")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@contextlib.contextmanager
def made() -> Iterator[Place]:
    """A place to measure in; what it leaves on the hosts is removed."""
    lab = _lab(patience_s=60.0)
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-bench-"))
    name = f"bench-{secrets.token_hex(4)}"
    root = lab.home("bash") / name if lab else folder / "root"
    env = {key: value for key, value in os.environ.items() if key not in _SET_HERE and not key.startswith("CLUSTERFN_")}
    env.update(CLUSTERFN_CONFIG=str(folder / "clusterfn.yml"), XDG_STATE_HOME=str(folder / "state"))
    old, new = (lab.python("3.6"), lab.python(MINOR)) if lab else (Path(sys.executable), Path(sys.executable))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        _spread_folders(root.parent)
        blocks = {"here": f"scheduler: local\nroot: {folder / 'root'}"}
        if lab:
            near, far = (stack.enter_context(_proxy(lab, delay)) for delay in (0.0, ROUND_TRIP_S / 2))
            configs = {"near": _through(lab, folder / "near", near), "far": _through(lab, folder / "far", far)}
            for host in ("bare", "near", "far"):
                blocks[host] = _block(name, "py36-bash", configs.get(host, lab.ssh_config), new) + _BARE
            path = f"setup: ['export PATH=\"$PATH:{apptainer.PLACE}/usr/bin\"']\n"
            blocks["prepared"] = _block(name, "py36-bash", lab.ssh_config, new) + path + _BARE
            blocks["slower"] = (
                _block(f"{name}/slower", "py36-bash", lab.ssh_config, new) + _BARE + "\nenv: {SLOWER: '2'}"
            )
            blocks["pair"] = "any: [bare, slower]"
            blocks["slurm"] = _block(name, "slurm-bash", lab.ssh_config, new) + (
                "scheduler: slurm\nslurm: {partition: {cpu: short}}\ndefaults: {time: 10min}\npoll_floor: 1s"
            )
        _write_config(folder / "clusterfn.yml", blocks)
        yield Place(lab, env, old, new, root)


def _spread_folders(home: Path) -> None:
    """Have ext4 put each folder made here far from the others.

    For minutes it looks again at each inode that was freed nearby whenever it makes a file, and the roots of earlier
    measurements had thousands: a new file took 0.6 ms instead of 0.01.
    """
    with contextlib.suppress(OSError):  # no ext4, or no chattr: the first rows may take longer
        subprocess.run(["chattr", "+T", str(home)], check=False, capture_output=True)


def _lab(patience_s: float) -> Lab | None:
    """The lab; one that is not whole is waited for: a test may have killed a daemon of it, and will start it again."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return Lab()
        except LabMissing as missing:
            if "not whole" not in str(missing) or time.monotonic() > until:
                print(f"Only this machine is measured: {missing}", file=sys.stderr)
                return None
        time.sleep(1.0)


def _proxy(lab: Lab, one_way_s: float) -> DelayProxy:
    return DelayProxy(0, lab.host("py36-bash").port, one_way_s)


def _through(lab: Lab, path: Path, proxy: DelayProxy) -> Path:
    """An ssh_config that leads to the host through the proxy."""
    key = f"[127.0.0.1]:{lab.host('py36-bash').port}"
    ours = f"Host py36-bash\n    Port {proxy.port}\n    HostKeyAlias {key}\n\n"
    path.write_text(ours + lab.ssh_config.read_text())
    return path


def _block(root: str, address: str, ssh_config: Path, python: Path) -> str:
    return f'root: ~/{root}\nenvironment: "python:{python}"\naddress: {address}\nssh_config: {ssh_config}\n'


def _write_config(path: Path, blocks: Mapping[str, str]) -> None:
    hosts = (f"  {name}:\n" + "".join(f"    {line}\n" for line in text.splitlines()) for name, text in blocks.items())
    path.write_text("hosts:\n" + "".join(hosts))
