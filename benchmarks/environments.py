"""What an environment of PyTorch's size costs: `python -m benchmarks.environments [SHARE]`; `make bench` does it too.

Wheels of real sizes (`wheels`) and a Python of the lab's channel, on the lab's host with Python 3.6 and no scheduler:
once it fetches from a server on this machine, once it is sent everything over ssh. It needs 30 GB of disk for some
minutes; SHARE, a number below 1, takes smaller wheels. The report goes to benchmarks/results.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import wheels
from benchmarks.place import MINOR, SCRIPTS
from benchmarks.report import keep
from benchmarks.wheels import Wheel
from tests.lab import Lab
from tests.lab.channel import provide

NEEDED_BYTES = 30 * 10**9
HEADERS = ("what", "seconds", "sent by ssh", "fetched there", "unpack", "link", "compile", "client's peak memory")
WAYS = {"fetches": "the host fetches", "sent": "everything is sent"}


class _Server(http.server.ThreadingHTTPServer):
    """Archives over http on 127.0.0.1; `served` counts the bytes."""

    served = 0


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def copyfile(self, source: Any, outputfile: Any) -> None:
        assert isinstance(self.server, _Server)
        self.server.served += os.fstat(source.fileno()).st_size
        super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: bytes are counted."""


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@dataclass(frozen=True)
class There:
    """The host, once for each way, and the locks of two environments that have all but one wheel in common."""

    folder: Path
    root: Path
    server: _Server
    first: Path
    second: Path

    def call(self, way: str, lock: Path) -> dict[str, Any]:
        """One call by a process of its own."""
        before = self.server.served
        env = {key: value for key, value in os.environ.items() if not key.startswith(("CLUSTERFN_", "PYTHON"))}
        env.update(CLUSTERFN_CONFIG=str(self.folder / "clusterfn.yml"), XDG_STATE_HOME=str(self.folder / "state"),
                   XDG_CACHE_HOME=str(self.folder / "cache"), PYTHONPATH=str(Path(__file__).parents[1]))  # fmt: skip
        argv = [sys.executable, str(SCRIPTS / "environment.py"), way, str(lock)]
        ran = subprocess.run(
            argv, env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
        )
        return {**json.loads(ran.stdout.splitlines()[-1]), "fetched_mb": (self.server.served - before) / 1e6}

    def environments(self, way: str) -> list[Path]:
        """Prefixes, the newest last."""
        return sorted((self.root / way / "envs").glob("*"), key=lambda path: (path / "READY").stat().st_mtime)

    def ready(self, way: str) -> dict[str, Any]:
        """What the last build says of itself."""
        found: dict[str, Any] = json.loads((self.environments(way)[-1] / "READY").read_text(encoding="utf-8"))
        return found


@contextlib.contextmanager
def there(lab: Lab, share: float) -> Iterator[There]:
    """Make the wheels, the locks and the configuration; all of it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-bench-"))
    root = lab.home("bash") / f"bench-{secrets.token_hex(4)}"
    try:
        shelf = folder / "shelf"
        shelf.mkdir()
        made = wheels.made(shelf, share)
        *_, last = wheels.TORCH
        other = wheels.make(shelf, last[0], "12.8.91", *last[2:], share=share)
        with _serving(shelf) as server:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            first, second = (_lock(folder, name, url, chosen) for name, chosen in
                             (("first", made), ("second", [*made[:-1], other])))  # fmt: skip
            _configure(folder / "clusterfn.yml", lab, root)
            yield There(folder, root, server, first, second)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)


def _configure(path: Path, lab: Lab, root: Path) -> None:
    blocks = [
        f"  {way}:\n    address: py36-bash\n    ssh_config: {lab.ssh_config}\n    scheduler: bare\n"
        f"    root: ~/{root.name}/{way}\n    fetch_on: {'host' if way == 'fetches' else 'client'}\n"
        for way in WAYS
    ]
    path.write_text("hosts:\n" + "".join(blocks), encoding="utf-8")


def _lock(folder: Path, name: str, url: str, chosen: Sequence[Wheel]) -> Path:
    """A lock as conda-lock would write it, of a Python and these wheels."""
    packages = [_entry(each.name.replace("_", "-"), each.version, "pip", f"{url}/{each.path.name}", each.sha256)
                for each in chosen]  # fmt: skip
    packages += [_of_channel(pattern, folder / "shelf", url) for pattern in (f"python-{MINOR}.*.conda",)]
    metadata = {"content_hash": {"linux-64": "0"}, "channels": [], "platforms": ["linux-64"], "sources": []}
    path = folder / f"{name}.conda-lock.yml"
    path.write_text(json.dumps({"version": 1, "metadata": metadata, "package": packages}), encoding="utf-8")
    return path


def _of_channel(pattern: str, shelf: Path, url: str) -> dict[str, Any]:
    archive = provide().archives(pattern)[0]
    copy = shelf / archive.name
    if not copy.exists():
        shutil.copy(archive, copy)
    name, version, _ = archive.name.rsplit("-", 2)
    return _entry(name, version, "conda", f"{url}/{archive.name}", wheels.sha256(copy))


def _entry(name: str, version: str, manager: str, url: str, sha256: str) -> dict[str, Any]:
    return {
        "name": name, "version": version, "manager": manager, "platform": "linux-64", "dependencies": {}, "url": url,
        "hash": {"md5": "0" * 32, "sha256": sha256}, "category": "main", "optional": False,
    }  # fmt: skip


def measured(place: There, way: str) -> Iterator[list[str]]:
    """The rows of one way."""
    for what, lock in (("nothing is there", place.first), ("15 of 16 wheels are there", place.second)):
        yield _row(f"{WAYS[way]}: {what}", place.call(way, lock), place.ready(way)["seconds"])
    shutil.rmtree(place.environments(way)[-1])
    told = place.call(way, place.second)
    yield _row(f"{WAYS[way]}: all packages are there", told, place.ready(way)["seconds"])
    yield _row(f"{WAYS[way]}: the environment is there", place.call(way, place.second), {})


def _row(what: str, told: Mapping[str, float], seconds: Mapping[str, float]) -> list[str]:
    cells = [what, f"{told['seconds']:.1f}", f"{told['sent_mb']:.1f} MB", f"{told['fetched_mb']:.0f} MB"]
    cells += [f"{seconds[name]:.1f}" if name in seconds else "" for name in ("packages", "link", "compile")]
    return [*cells, f"{told['peak_mb']:.0f} MB"]


def table(lab: Lab, share: float = 1.0) -> str:
    """Return every row in Markdown, after what the columns are and a sentence about the environment.

    Raises:
        RuntimeError: The disk is too small for it.
    """
    if shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES * share:
        raise RuntimeError(f"that takes {NEEDED_BYTES * share / 1e9:.0f} GB of disk")
    with there(lab, share) as place:
        lines = [HEADERS, ["---"] * len(HEADERS), *(row for way in WAYS for row in measured(place, way))]
        ready = place.ready("fetches")
        archives = sum(path.stat().st_size for path in (place.folder / "shelf").iterdir()) / 1e9
        disk = _disk_bytes(place.root / "fetches") / 1e9
    said = (
        f"{len(ready['packages'])} packages, archives of {archives:.1f} GB; the environment has {ready['files']} files "
        f"in {ready['bytes'] / 1e9:.1f} GB, two such environments and their packages take {disk:.1f} GB of disk."
    )
    columns = (
        "Seconds of a whole script whose only work is one call; of these the builder's own: unpack, link, compile."
    )
    return f"{columns} {said}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _disk_bytes(folder: Path) -> int:
    told = subprocess.run(["du", "-s", "--block-size=1", str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return int(told.stdout.split()[0])


def main() -> None:
    """Measure and print; write what is of full size."""
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    text = table(Lab(), share)
    print(text)
    if share == 1.0:
        print(f"\n{keep('environments-', 'Environments', text)}")


if __name__ == "__main__":
    main()
