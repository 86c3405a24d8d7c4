"""Reads zstd, which Python has had only since 3.14: by its own module, by `zstandard`, or by the program `zstd`.

Chooses once; streams, never a whole file in memory.
"""

import importlib
import importlib.machinery
import io
import shutil
import subprocess
import sys
import threading

from .failure import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Optional

    Opener = Callable[[IO[bytes]], IO[bytes]]

_BLOCK = 1 << 20


def opener(wheel: "Optional[str]" = None) -> "Opener":
    """What turns a compressed stream into a readable one.

    Args:
        wheel: The unpacked `zstandard` wheel, if the client sent one.
    """
    program = shutil.which("zstd") or shutil.which("unzstd")
    module = _own() or _zstandard(_site_packages()) or (_zstandard([wheel]) if wheel else None)
    if module is not None:
        return module
    if program:
        return lambda stream: io.BufferedReader(_Piped([program, "-dcq", "--long=31"], stream), _BLOCK)
    raise Failed(
        "this host cannot read zstd: no module compression.zstd or zstandard, no program zstd", stage="unpack",
        hint="the lock's zstandard wheel for Python %d.%d must come with the plan" % sys.version_info[:2],
    )  # fmt: skip


def is_there() -> bool:
    """Whether the host can read zstd by itself."""
    try:
        return bool(opener())
    except Failed:
        return False


def _own() -> "Optional[Opener]":
    try:
        module: "Any" = importlib.import_module("compression.zstd")
    except ImportError:
        return None
    return lambda stream: module.ZstdFile(stream)


def _zstandard(folders: "list[str]") -> "Optional[Opener]":
    """The module zstandard from one of these folders, which are on no path: the builder runs isolated."""
    if importlib.machinery.PathFinder.find_spec("zstandard", folders) is None:
        return None
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        module: "Any" = importlib.import_module("zstandard")
    except ImportError:  # built for another interpreter
        return None
    finally:
        sys.path[:] = before
    return lambda stream: io.BufferedReader(
        module.ZstdDecompressor(max_window_size=1 << 31).stream_reader(stream, read_size=_BLOCK), _BLOCK
    )


def _site_packages() -> "list[str]":
    import site

    return list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []


class _Piped(io.RawIOBase):
    """The output of a program that is fed by a thread."""

    def __init__(self, argv: "list[str]", source: "IO[bytes]") -> None:
        super().__init__()
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._feeder = threading.Thread(target=self._feed, args=(source,), daemon=True)
        self._feeder.start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Any") -> int:
        assert self._process.stdout is not None
        count = self._process.stdout.readinto(buffer)  # type: ignore[attr-defined]
        if not count and self._process.wait():
            assert self._process.stderr is not None
            raise ValueError("zstd: %s" % self._process.stderr.read().decode("utf-8", "replace").strip())
        return int(count)

    def close(self) -> None:
        if not self.closed:
            self._process.kill()
            self._feeder.join()
            self._process.wait()
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        super().close()

    def _feed(self, source: "IO[bytes]") -> None:
        assert self._process.stdin is not None
        try:
            shutil.copyfileobj(source, self._process.stdin, _BLOCK)
            self._process.stdin.close()
        except (OSError, ValueError):  # the program has ended, and says why
            return
