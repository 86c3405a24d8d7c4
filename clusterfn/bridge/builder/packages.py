"""Provide all packages of a plan: say which archives are missing, fetch them and unpack them in parallel into `pkgs/`.

Each archive is fetched and unpacked by one builder, also where several build different environments.
"""

import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from ..agent.trusted import Trusted
from ..layout import BLOBS, MANIFEST, PACKAGE_FILES, PACKAGES, blob, package_dir
from . import archives, fetch, layouts, permissions, space
from .errors import BuildFailed, BuildStopped
from .locks import FolderLock
from .plan import CLUSTERFN, CONDA, WHEEL
from .unpack import unpack_package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Optional

    from .archives import Opener
    from .locks import LockHolder
    from .plan import BuildPlan, PlannedPackage
    from .progress import ProgressWriter

_AT_ONCE = 4
_TURN_S = 0.2
_END_S = 2.0
_PATIENCE_S = 8.0
_ASKED_AT_ONCE = 8


class Packages:
    """The packages of one plan.

    Attributes:
        fetched: How many bytes were downloaded.
        stopping: Set to end all threads at their next block.
    """

    def __init__(
        self, plan: "BuildPlan", holder: "LockHolder", progress: "ProgressWriter", stopping: threading.Event
    ) -> None:
        self.plan = plan
        self.fetched = 0
        self.stopping = stopping
        self._holder = holder
        self._progress = progress
        self._counting = threading.Lock()
        self._unpacked = 0
        self._done = 0
        self._missing: "list[PlannedPackage]" = []
        self._zstd: "Optional[Opener]" = None
        self._trusted = Trusted(plan.owners)

    def provide(self, again: "Iterable[str]" = ()) -> None:
        """Unpack all packages that are missing.

        Args:
            again: SHA-256 of packages that are there, but have lost files.

        Raises:
            BuildFailed: An archive is not available, or does not fit on the disk.
            BuildStopped: `stopping` was set.
        """
        for sha256 in again:
            _forget(package_dir(self.plan.root, sha256))
        self._all(self._unpack, (each for each in self.plan.packages if not self._is_there(each)))

    def archives(self, take: "Callable[[PlannedPackage, str, Optional[Opener]], None]") -> None:
        """Provide all archives, checked, and call `take` for each, several in parallel; unpack nothing."""
        self._all(lambda package: take(package, self._provide_archive(package), self._zstd), self.plan.packages)

    def _all(self, work: "Callable[[PlannedPackage], None]", packages: "Iterable[PlannedPackage]") -> None:
        self._missing = _unique(packages)
        if not self._missing:
            return
        os.makedirs(os.path.join(self.plan.root, PACKAGES), exist_ok=True)
        os.makedirs(os.path.join(self.plan.root, BLOBS), exist_ok=True)
        self._refuse_what_cannot_be_had()
        space.refuse_too_little(
            self.plan.root, [space.space_needed(each, self._find_archive(each)) for each in self._missing]
        )
        self._zstd = self._choose_zstd()
        self._run_in_parallel(work, sorted(self._missing, key=lambda each: -each.size))

    def _refuse_what_cannot_be_had(self) -> None:
        lacking = [each for each in self._missing if self._find_archive(each) is None and not self._may_fetch(each)]
        if lacking:
            names = ", ".join(each.label for each in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            raise BuildFailed(
                "%d archives are missing on the host: %s" % (len(lacking), names), stage="fetch",
                hint="send them, or let the host fetch (fetch_on: host)", need=[each.sha256 for each in lacking],
            )  # fmt: skip

    def _choose_zstd(self) -> "Optional[Opener]":
        if not any(each.kind == CONDA for each in self._missing):
            return None
        brought = self.plan.zstd
        if archives.can_read_zstd() or brought is None:
            return archives.open_zstd()
        if not self._is_there(brought):
            self._one(self._unpack, brought)
        return archives.open_zstd(os.path.join(package_dir(self.plan.root, brought.sha256), PACKAGE_FILES))

    def _run_in_parallel(self, work: "Callable[[PlannedPackage], None]", packages: "list[PlannedPackage]") -> None:
        """Process all packages, until one fails; a thread that hangs on the network then is abandoned."""
        pool = ThreadPoolExecutor(_AT_ONCE)
        running = {pool.submit(self._one, work, each) for each in packages}
        try:
            while running:
                done, running = wait(running, _TURN_S, FIRST_EXCEPTION)
                for each in done:
                    each.result()
        except BaseException:  # a signal's exception too: the threads must not go on
            self.stopping.set()
            for each in running:
                each.cancel()
            wait(running, _END_S)
            raise
        finally:
            pool.shutdown(wait=False)

    def _one(self, work: "Callable[[PlannedPackage], None]", package: "PlannedPackage") -> None:
        lock = FolderLock(os.path.join(self.plan.root, PACKAGES, ".lock-" + package.sha256), self._holder)
        lock.wait(lambda _: self._moved(0))
        try:
            work(package)
        finally:
            lock.release()
            lock.forget()
        with self._counting:
            self._done += 1
        self._tell_unpacked()

    def _unpack(self, package: "PlannedPackage") -> None:
        if self._is_there(package):
            return
        archive = self._provide_archive(package)
        unpack_package(self.plan.root, package, archive, self._zstd, self._holder.token, self._count_unpacked)
        if archive == blob(self.plan.root, package.sha256):
            os.unlink(archive)

    def _provide_archive(self, package: "PlannedPackage") -> str:
        """Return the path of the archive, once its hash is checked."""
        archive = self._find_archive(package)
        sent = blob(self.plan.root, package.sha256)
        if archive is None:
            fetch.fetch_archive(package, sent, self._count_fetched)
            return sent
        self._check(package, archive, archive == sent)
        return archive

    def _check(self, package: "PlannedPackage", archive: str, ours: bool) -> None:
        try:
            fetch.check_archive(package, archive, self._moved)
        except BuildFailed:
            if ours:  # so that it can be sent again
                os.unlink(archive)
            raise

    def _may_fetch(self, package: "PlannedPackage") -> bool:
        return bool(self.plan.fetch and package.url and not fetch.local_path(package.url))

    def _find_archive(self, package: "PlannedPackage") -> "Optional[str]":
        """Return the path of the archive on this host, if it is there."""
        sent = fetch.join_pieces(self.plan.root, package.sha256, self._holder.token, self._moved)
        local = fetch.local_path(package.url) if self.plan.fetch else ""
        return sent or (local if local and os.path.isfile(local) else None)

    def _is_there(self, package: "PlannedPackage") -> bool:
        folder = package_dir(self.plan.root, package.sha256)
        return all(permissions.check_trusted(self._trusted, path) for path in (folder, os.path.join(folder, MANIFEST)))

    def _moved(self, _: int) -> None:
        if self.stopping.is_set():
            raise BuildStopped

    def _count_fetched(self, count: int) -> None:
        self._moved(0)
        with self._counting:
            self.fetched += count
        of = sum(each.size for each in self._missing)
        self._progress.tell("fetch", self._done, len(self._missing), self.fetched, "of %d bytes" % of if of else None)

    def _count_unpacked(self, count: int) -> None:
        self._moved(0)
        with self._counting:
            self._unpacked += count
        self._tell_unpacked()

    def _tell_unpacked(self) -> None:
        self._progress.tell("unpack", self._done, len(self._missing), self._unpacked)


def _unique(packages: "Iterable[PlannedPackage]") -> "list[PlannedPackage]":
    return list({each.sha256: each for each in packages}.values())


def _forget(folder: str) -> None:
    """Remove the manifest of a package that has lost files: it is unpacked again, and environments keep their links."""
    if layouts.read_manifest(os.path.join(folder, MANIFEST)) is not None:
        os.unlink(os.path.join(folder, MANIFEST))


def find_missing_archives(plan: "BuildPlan") -> "dict[str, Any]":
    """Return the SHA-256 of missing archives, of the unreachable among them, and sizes of the others.

    Where the host may not download, all missing archives count as unreachable.
    """
    missing = [each for each in _wanted_archives(plan) if not _has_archive(plan, each)]
    reached, sizes = _ask_servers(missing) if plan.fetch else ({}, {})
    return {
        "missing": [each.sha256 for each in missing],
        "unreachable": [each.sha256 for each in missing if not reached.get(_origin(each))],
        "sizes": sizes,
    }


def _ask_servers(missing: "list[PlannedPackage]") -> "tuple[dict[str, bool], dict[str, int]]":
    """Ask each server for one package; return which servers answer, and the sizes of the other packages on these."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        origins = _origins(missing)
        reached = dict(zip(origins, (size is not None for size in pool.map(_ask_size, origins.values()))))
        reachable = [each for each in missing if reached[_origin(each)]]
        sizes = zip(reachable, pool.map(_ask_size, reachable))
        return reached, {each.sha256: size for each, size in sizes if size}


def _wanted_archives(plan: "BuildPlan") -> "list[PlannedPackage]":
    wanted = {each.sha256: each for each in plan.packages}
    if plan.zstd is not None and any(each.kind == CONDA for each in plan.packages) and not archives.can_read_zstd():
        wanted[plan.zstd.sha256] = plan.zstd
    return list(wanted.values())


def _has_archive(plan: "BuildPlan", package: "PlannedPackage") -> bool:
    unpacked = os.path.join(package_dir(plan.root, package.sha256), MANIFEST)
    ours = plan.installer == CLUSTERFN or package.kind == WHEEL  # conda wants the archive
    return (ours and os.path.exists(unpacked)) or os.path.exists(blob(plan.root, package.sha256))


def _origin(package: "PlannedPackage") -> str:
    """Return the server of a package; of a local file its address."""
    parts = urllib.parse.urlsplit(package.url)
    return package.url if parts.scheme == "file" else "%s://%s" % (parts.scheme, parts.netloc)


def _origins(packages: "list[PlannedPackage]") -> "dict[str, PlannedPackage]":
    return {_origin(each): each for each in packages}


def _ask_size(package: "PlannedPackage") -> "Optional[int]":
    """Return the size of the archive, 0 if its server does not say; None if it cannot be downloaded."""
    path = fetch.local_path(package.url)
    if path or not package.url:
        return os.stat(path).st_size if os.path.isfile(path) else None
    request = fetch.make_request(package.url, 0)
    request.get_method = lambda: "HEAD"  # type: ignore[method-assign]
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return None
