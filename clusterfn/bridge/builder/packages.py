"""Provide all packages of a plan: say which archives are missing, fetch them and unpack them in parallel.

`pkgs/<sha256>` holds the files of a package and their manifest. It is unpacked in a temporary folder that is renamed,
so it is whole or missing. Each archive is fetched and unpacked by one builder, also where several build different
environments.
"""

import os
import shutil
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from ..agent.trusted import Trusted
from ..layout import BLOBS, MANIFEST, PACKAGE_FILES, PACKAGES, blob, package_dir
from . import archives, bytecode, fetch, permissions, space
from .errors import BuildFailed, stopper
from .link import Manifest, PackageDamaged, read_manifest, write_manifest
from .locks import FolderLock
from .package_formats import describe_package
from .plan import CLUSTERFN, CONDA, WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Optional, TypeVar

    from .archives import Opener
    from .locks import LockHolder
    from .plan import BuildPlan, PlannedPackage
    from .progress import ProgressWriter

    T = TypeVar("T")
    Moved = Callable[[int], None]

_AT_ONCE = 4
_TURN_S = 0.2
_END_S = 2.0


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
        self._stop = stopper(stopping)
        self._holder = holder
        self._progress = progress
        self._counting = threading.Lock()
        self._unpacked = 0
        self._done = 0
        self._missing: "list[PlannedPackage]" = []
        self._zstd: "Optional[Opener]" = None
        self._trusted = Trusted(plan.owners)

    def provide(self) -> None:
        """Unpack all packages that are missing.

        Raises:
            BuildFailed: An archive is not available, or does not fit on the disk.
            BuildStopped: `stopping` was set.
        """
        self._all(self._unpack, (each for each in self.plan.packages if not self._is_there(each)))

    def with_whole_packages(self, work: "Callable[[], T]", tries: int, doing: str, hint: str = "") -> "T":
        """Run `work`; each time that it finds a package damaged, unpack that again and retry.

        Raises:
            BuildFailed: As `provide`; or packages are damaged again and again.
        """
        for _ in range(tries):
            try:
                return work()
            except PackageDamaged as damaged:
                manifest = os.path.join(damaged.package, MANIFEST)
                if read_manifest(manifest) is not None:  # without it, it counts as not unpacked
                    os.unlink(manifest)
                self.provide()
        raise BuildFailed("the packages lose their files while they are %s" % doing, stage="link", hint=hint)

    def archives(self, take: "Callable[[PlannedPackage, str, Optional[Opener]], None]") -> None:
        """Provide all archives, checked, and call `take` for each, several in parallel; unpack nothing."""
        self._all(lambda package: take(package, self._provide_archive(package), self._zstd), self.plan.packages)

    def _all(self, work: "Callable[[PlannedPackage], None]", packages: "Iterable[PlannedPackage]") -> None:
        self._missing = list({each.sha256: each for each in packages}.values())
        if not self._missing:
            return
        os.makedirs(os.path.join(self.plan.root, PACKAGES), exist_ok=True)
        os.makedirs(os.path.join(self.plan.root, BLOBS), exist_ok=True)
        lacking = []
        for each in self._missing:
            may_fetch = self.plan.fetch and each.url and not fetch.local_path(each.url)
            if self._find_archive(each) is None and not may_fetch:
                lacking.append(each)
        if lacking:
            names = ", ".join(each.label for each in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            raise BuildFailed(
                "%d archives are missing on the host: %s" % (len(lacking), names), stage="fetch",
                hint="send them, or let the host fetch (fetch_on: host)", need=[each.sha256 for each in lacking],
            )  # fmt: skip
        space.refuse_too_little(
            self.plan.root, [space.space_needed(each, self._find_archive(each)) for each in self._missing]
        )
        self._zstd = self._choose_zstd()
        self._run_in_parallel(work, sorted(self._missing, key=lambda each: -each.size))

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
        except BaseException:  # a signal's exception too: the threads must stop
            self.stopping.set()
            for each in running:
                each.cancel()
            wait(running, _END_S)
            raise
        finally:
            pool.shutdown(wait=False)

    def _one(self, work: "Callable[[PlannedPackage], None]", package: "PlannedPackage") -> None:
        lock = FolderLock(os.path.join(self.plan.root, PACKAGES, ".lock-" + package.sha256), self._holder)
        lock.wait(self._stop)
        try:
            work(package)
        finally:
            lock.release()
            lock.forget()
        with self._counting:
            self._done += 1
        self._show_unpacked()

    def _unpack(self, package: "PlannedPackage") -> None:
        if self._is_there(package):
            return
        archive = self._provide_archive(package)
        _unpack_package(self.plan.root, package, archive, self._zstd, self._holder.token, self._count_unpacked)
        if archive == blob(self.plan.root, package.sha256):
            os.unlink(archive)

    def _provide_archive(self, package: "PlannedPackage") -> str:
        archive = self._find_archive(package)
        sent = blob(self.plan.root, package.sha256)
        if archive is None:
            fetch.fetch_archive(package, sent, self._count_fetched)
            return sent
        try:
            fetch.check_archive(package, archive, self._stop)
        except BuildFailed:
            if archive == sent:  # so that it can be sent again
                os.unlink(archive)
            raise
        return archive

    def _find_archive(self, package: "PlannedPackage") -> "Optional[str]":
        """Return the path of the archive on this host, if it is there."""
        sent = fetch.join_pieces(self.plan.root, package.sha256, self._holder.token, self._stop)
        local = fetch.local_path(package.url) if self.plan.fetch else ""
        return sent or (local if local and os.path.isfile(local) else None)

    def _is_there(self, package: "PlannedPackage") -> bool:
        folder = package_dir(self.plan.root, package.sha256)
        return all(permissions.check_trusted(self._trusted, path) for path in (folder, os.path.join(folder, MANIFEST)))

    def _count_fetched(self, count: int) -> None:
        self._stop()
        with self._counting:
            self.fetched += count
        of = sum(each.size for each in self._missing)
        self._progress.report("fetch", self._done, len(self._missing), self.fetched, "of %d bytes" % of if of else None)

    def _count_unpacked(self, count: int) -> None:
        self._stop()
        with self._counting:
            self._unpacked += count
        self._show_unpacked()

    def _show_unpacked(self) -> None:
        self._progress.report("unpack", self._done, len(self._missing), self._unpacked)


def _unpack_package(
    root: str, package: "PlannedPackage", archive: str, zstd: "Optional[Opener]", token: str, moved: "Moved"
) -> None:
    final = package_dir(root, package.sha256)
    aside = os.path.join(os.path.dirname(final), ".%s-%s" % (package.sha256, token))
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(os.path.join(aside, PACKAGE_FILES))
    try:
        write_manifest(_extract(package, archive, zstd, aside, moved), os.path.join(aside, MANIFEST))
        try:
            os.rename(aside, final)
        except OSError:
            if read_manifest(os.path.join(final, MANIFEST)) is None:
                os.rename(final, aside + ".old")  # what a purging file system left of it
                os.rename(aside, final)
                shutil.rmtree(aside + ".old", ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract(package: "PlannedPackage", archive: str, zstd: "Optional[Opener]", aside: str, moved: "Moved") -> Manifest:
    folder = os.path.join(aside, PACKAGE_FILES)
    try:
        found = archives.extract_archive(archive, package.kind, zstd, folder, moved)
        for path in bytecode.remove_dates(folder, found):
            os.unlink(os.path.join(folder, path))
            del found[path]
        return describe_package(package, folder, found)
    except BuildFailed as error:
        error.args = ("%s cannot be unpacked: %s" % (package.label, error),)
        raise
    except archives.DAMAGED as error:
        message = "%s cannot be unpacked: %s: %s" % (package.label, type(error).__name__, error)
        raise BuildFailed(message, stage="unpack", evidence=[package.file]) from error


def find_missing_archives(plan: "BuildPlan") -> "dict[str, Any]":
    """Return the SHA-256 of missing archives, of the unreachable among them, and sizes of the others.

    Where the host may not download, all missing archives count as unreachable.
    """
    wanted = {each.sha256: each for each in plan.packages}
    if plan.zstd is not None and any(each.kind == CONDA for each in plan.packages) and not archives.can_read_zstd():
        wanted[plan.zstd.sha256] = plan.zstd
    missing = []
    for each in wanted.values():
        unpacked = os.path.join(package_dir(plan.root, each.sha256), MANIFEST)
        ours = plan.installer == CLUSTERFN or each.kind == WHEEL  # conda wants the archive
        if not (ours and os.path.exists(unpacked)) and not os.path.exists(blob(plan.root, each.sha256)):
            missing.append(each)
    reached: "dict[str, bool]" = {}
    sizes: "dict[str, int]" = {}
    if plan.fetch:
        reached, sizes = fetch.ask_sizes(missing)
    return {
        "missing": [each.sha256 for each in missing],
        "unreachable": [each.sha256 for each in missing if not reached.get(fetch.origin(each))],
        "sizes": sizes,
    }
