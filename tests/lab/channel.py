"""The lab's conda channel: `python -m tests.lab.channel` makes it, tests read it from a folder or over http.

    main/   every package as .conda, many as .tar.bz2 too, one as .tar.bz2 alone

It needs a folder it may write and PyPI, not the rest of the lab. Made once for each version of its sources, under 30 s.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.server
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import channelcontent, condapackage
from .layout import ROOT
from .processes import LabError, run

CHANNEL = ROOT / "channel"
WHEELS = ROOT / "channel-wheels"
TOOLS = ROOT / "channel-tools"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Channel:
    """The finished channel."""

    root: Path = CHANNEL

    @property
    def url(self) -> str:
        return (self.root / "main").as_uri()

    @property
    def build_tools(self) -> list[Path]:
        """The wheels of pip, setuptools, wheel, and zstandard for Python 3.6."""
        return channelcontent.build_tools(WHEELS)

    def archives(self, pattern: str) -> list[Path]:
        """Archives of the channel by their name, such as "numpy-*py311*.conda"; empty if there is none."""
        return sorted((self.root / "main").glob(f"*/{pattern}"))

    @contextlib.contextmanager
    def served(self) -> Iterator[Served]:
        """The channel over http on 127.0.0.1, with what was asked for."""
        served = Served()
        handler = functools.partial(_Handler, served=served, directory=str(self.root))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            served.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield served
            finally:
                server.shutdown()
                thread.join()


@dataclass
class Served:
    """A running server of the channel, and the paths that it was asked for, in their order."""

    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/main"


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, served: Served, directory: str) -> None:
        self.served = served
        super().__init__(*arguments, directory=directory)

    def do_GET(self) -> None:
        self.served.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test reads `asked`."""


def version() -> str:
    """A hash of the sources that make the channel."""
    digest = hashlib.sha256()
    for module in (channelcontent, condapackage):
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


def is_ready() -> bool:
    mark = CHANNEL / "version"
    return mark.exists() and mark.read_text() == version()


def provide() -> Channel:
    """The channel, made first if it is missing or of other sources; raise LabError if it cannot be."""
    if is_ready():
        return Channel()
    with _exclusive():
        if not is_ready():
            _make_tools()
            run(["env", "-C", str(_REPOSITORY), str(TOOLS / "bin" / "python"), "-m", "tests.lab.channel", "make"])
    return Channel()


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    """One maker at a time."""
    try:
        ROOT.mkdir(mode=0o755, exist_ok=True)
        handle = os.open(ROOT / "channel.lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise LabError(f"the channel needs a folder to write: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_tools() -> None:
    if (TOOLS / "complete").exists():
        return
    run([sys.executable, "-m", "venv", "--clear", str(TOOLS)])
    run([str(TOOLS / "bin" / "python"), "-m", "pip", "install", "-q", "zstandard"])
    (TOOLS / "complete").touch()


def make() -> None:
    """Make it aside, then put it in the place of the one before."""
    began = time.monotonic()
    channelcontent.build_tools(WHEELS)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".channel-") as scratch:
        beside = Path(scratch) / "channel"
        lines = _written(beside, Path(scratch))
        condapackage.write_index(beside / "main", lines)
        (beside / "version").write_text(version())
        os.chmod(scratch, 0o755)
        if CHANNEL.exists():
            CHANNEL.rename(Path(scratch) / "before")
        beside.rename(CHANNEL)
    size = sum(path.stat().st_size for path in CHANNEL.glob("main/*/*"))
    print(f"The channel: {len(lines)} archives, {size / 2**20:.0f} MB, {time.monotonic() - began:.1f} s, {CHANNEL}")


def _written(channel: Path, scratch: Path) -> list[dict[str, Any]]:
    """All archives; compressing lets other threads run."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        write = functools.partial(condapackage.write, channel=channel / "main")
        return [line for lines in pool.map(write, channelcontent.packages(WHEELS, scratch)) for line in lines]


def main() -> int:
    if sys.argv[1:] == ["make"]:
        make()
        return 0
    if sys.argv[1:] == ["again"]:
        shutil.rmtree(CHANNEL, ignore_errors=True)
    try:
        print(provide().url)
    except LabError as error:
        print(f"channel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
