"""Packages of a lock brought to this machine: into this user's cache, each named by its SHA-256, which is checked.

For hosts that cannot fetch by themselves. The way a host does it is the way it is done here: the builder's own
`fetch`. Sends nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterfn.bridge.builder import fetch as builders
from clusterfn.bridge.builder.failure import Failed
from clusterfn.bridge.builder.plan import Package
from clusterfn.config import places
from clusterfn.environment import lock
from clusterfn.errors import EnvironmentBuildError

AT_ONCE = 4

Progress = Callable[[int, int, int], None]
"""Told: packages that are here, of how many, and the bytes that came by now."""


def fetch(packages: Sequence[lock.Package], progress: Progress) -> Iterator[tuple[str, Path]]:
    """Have each package here; its SHA-256 and its file, each as soon as those before it are here too.

    Raises:
        EnvironmentBuildError: One cannot be fetched, or is another than the lock names.
    """
    count = _Count(len(packages), progress)
    with ThreadPoolExecutor(AT_ONCE, "clusterfn-fetch") as pool:
        paths = pool.map(lambda package: _have(package, count), packages)
        yield from ((package.sha256, path) for package, path in zip(packages, paths))


class _Count:
    """What several threads have fetched, told together."""

    def __init__(self, packages: int, progress: Progress) -> None:
        self._lock = threading.Lock()
        self._of, self._progress = packages, progress
        self._done = self._bytes = 0

    def add(self, size: int, package: bool = False) -> None:
        with self._lock:
            self._bytes += size
            self._done += package
            self._progress(self._done, self._of, self._bytes)


def cached(sha256: str) -> Path:
    """Where a package lies in the cache, or would."""
    return places.cache_folder() / "pkgs" / sha256


def _have(package: lock.Package, count: _Count) -> Path:
    path = cached(package.sha256)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with _ours(path) as beside:
            _fetch(package, beside, count)
            os.replace(beside, path)
    count.add(0, package=True)
    return path


@contextlib.contextmanager
def _ours(path: Path) -> Iterator[Path]:
    """A name aside for this process, with what a dead one had fetched of it by then."""
    beside = path.with_name(f"{path.name}-{os.getpid()}")
    for left in path.parent.glob(f"{path.name}-*.part"):
        if _is_gone(left.stem.rpartition("-")[2]):
            with contextlib.suppress(FileNotFoundError):  # another was quicker
                os.replace(left, f"{beside}.part")
                break
    yield beside


def _is_gone(pid: str) -> bool:
    if sys.platform == "win32" or not pid.isdigit():  # there os.kill(pid, 0) would end it
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _fetch(package: lock.Package, target: Path, count: _Count) -> None:
    wanted = Package(
        package.name, package.version, package.build, package.manager, package.file, package.url, package.sha256, 0
    )
    try:
        builders.fetch(wanted, str(target), count.add)
    except Failed as failed:
        raise EnvironmentBuildError(
            f"{failed}", stage="environment", evidence=failed.evidence,
            hint="check the network here, and whether the lock is too old: its packages may have been withdrawn",
        ) from failed  # fmt: skip
