"""Download packages of a lock into this user's cache, for hosts that cannot download them, and check their SHA-256.

Uses the same code as the builder on a host. Sends nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import yaml

from clusterfn.bridge.builder import fetch as builders
from clusterfn.bridge.builder.errors import BuildFailed
from clusterfn.bridge.builder.plan import PlannedPackage
from clusterfn.config import places
from clusterfn.environment import repositories
from clusterfn.environment.lock import LockedPackage, file_name
from clusterfn.environment.package_sources import with_credentials
from clusterfn.environment.project import GIT
from clusterfn.errors import EnvironmentBuildError

AT_ONCE = 4
# Some servers answer 404 for what one may not see.
_DENIED = re.compile(r"HTTP (401|403|404)\b")
_ZSTD_TABLE = Path(__file__).with_name("zstd.yml")

Progress = Callable[[int, int, int], None]
"""Called with how many packages are complete, of how many, and the bytes downloaded so far."""
_Count = Callable[..., None]  # called with the bytes of a block, and True if a package is complete


def download_packages(
    packages: Sequence[LockedPackage], progress: Progress, indexes: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[str, Path]]:
    """Yield each package's SHA-256 and file, in order, as soon as it is in the cache.

    Raise EnvironmentBuildError if one cannot be downloaded, or has another hash than the lock. The `indexes` are
    (name, address) of what the user's file names, for the credentials in it.
    """
    lock, done, moved, is_over = threading.Lock(), 0, 0, False

    def count(size: int, is_complete: bool = False) -> None:
        nonlocal done, moved
        # The downloads of gigabytes that still run must end with a failure of another, or with Ctrl-C.
        if is_over:
            raise CancelledError
        with lock:
            done, moved = done + is_complete, moved + size
            progress(done, len(packages), moved)

    with ThreadPoolExecutor(AT_ONCE, "clusterfn-fetch") as pool:
        paths = pool.map(lambda package: _have(package, count, indexes), packages)
        try:
            yield from ((package.sha256, path) for package, path in zip(packages, paths))
        finally:
            is_over = True
            pool.shutdown(wait=False, cancel_futures=True)


def download_sizes(packages: Sequence[LockedPackage]) -> dict[str, int]:
    """Return the sizes of packages by SHA-256, as far as the cache has them or their servers tell them."""
    folder = places.cache_folder() / "pkgs"
    known = {each.sha256: path.stat().st_size for each in packages if (path := folder / each.sha256).exists()}
    unknown = [_planned(each) for each in packages if each.sha256 not in known]
    return {**known, **(builders.ask_sizes(unknown)[1] if unknown else {})}


def _have(package: LockedPackage, count: _Count, indexes: Sequence[tuple[str, str]]) -> Path:
    path = places.cache_folder() / "pkgs" / package.sha256
    is_commit = package.url.startswith(GIT) and not path.exists()
    if is_commit and repositories.pack(package.url, package.name, indexes) != package.sha256:
        raise EnvironmentBuildError(
            f"{package.name} {package.version} has other files than when it was locked", stage="environment",
            evidence=[package.url], hint="delete the lock, so that it is locked again",
        )  # fmt: skip
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}-{os.getpid()}")
        # A process that died leaves a partial download, which is continued here.
        for left in path.parent.glob(f"{path.name}-*.part"):
            if _is_gone(left.stem.rpartition("-")[2]):
                # Another process may be faster.
                with contextlib.suppress(FileNotFoundError):
                    os.replace(left, f"{beside}.part")
                    break
        try:
            try:
                builders.fetch_archive(_planned(package), str(beside), count)
            except BuildFailed as failed:
                url = with_credentials(package.url, indexes) if _DENIED.search(str(failed)) else ""
                if not url:
                    raise
                builders.fetch_archive(_planned(package)._replace(url=url), str(beside), count)
        except BuildFailed as failed:
            raise EnvironmentBuildError(
                f"{failed}", stage="environment", evidence=failed.evidence,
                hint="check your network, and whether the lock is too old: its packages may have been withdrawn",
            ) from failed  # fmt: skip
        os.replace(beside, path)
    count(0, True)
    return path


def _is_gone(pid: str) -> bool:
    # On Windows, os.kill(pid, 0) would end the process.
    if sys.platform == "win32" or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _planned(package: LockedPackage) -> PlannedPackage:
    return PlannedPackage(
        package.name, package.version, package.build, package.manager, package.file, package.url, package.sha256, 0
    )


def zstandard_wheel(python: tuple[int, ...], machine: str) -> LockedPackage | None:
    """Return the wheel with which a host's old Python reads .conda packages; None if `zstd.yml` has none for it."""
    for address in yaml.safe_load(_ZSTD_TABLE.read_text(encoding="utf-8")):
        url, _, sha256 = address.partition("#sha256=")
        if f"-cp{python[0]}{python[1]}-" in url and url.endswith(f"_{machine}.whl"):
            return LockedPackage("zstandard", file_name(url).split("-")[1], "pip", url, sha256, machine)
    return None
