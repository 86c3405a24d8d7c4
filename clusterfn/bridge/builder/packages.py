"""Provide all packages of a plan: say which archives are missing, fetch them and unpack them in parallel.

`pkgs/<sha256>` holds the files of a package and their manifest. It is unpacked in a temporary folder that is renamed,
so it is whole or missing. Each archive is fetched and unpacked by one builder, also where several build different
environments.
"""

import contextlib
import os
import shutil
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Callable, Iterable, Optional, TypeVar

from ..agent.trusted import Trusted
from ..layout import BLOBS, MANIFEST, PACKAGE_FILES, PACKAGES, blob, package_dir
from ..supervisor.text import format_size
from . import archives, fetch, leases, programs
from .link import FORMAT, Manifest, PackageDamaged, PackageFile
from .locks import FolderLock, LockHolder
from .package_formats import describe_package
from .plan import CONDA, BuildPlan, PlannedPackage, local_path, write_document
from .progress import ROOM, BuildFailed, ProgressWriter
from .wheel_builds import build_wheel

T = TypeVar("T")

_AT_ONCE = 4
# A purging file system may take files away between the tries.
_SPARE_TRIES = 3
_END_S = 2.0


class Packages:
    """The packages of one plan."""

    def __init__(self, plan: "BuildPlan", holder: "LockHolder", progress: "ProgressWriter") -> None:
        self.plan = plan
        self.moved = {"fetch": 0, "unpack": 0}  # bytes, by the stage
        self._failed = threading.Event()
        self._holder = holder
        self._progress = progress
        self._counting = threading.Lock()
        self._done = 0
        self._missing: "list[PlannedPackage]" = []
        self._zstd: "Optional[archives.Opener]" = None
        self._trusted = Trusted(plan.owners)

    def provide(self) -> None:
        """Unpack all packages that are missing.

        Raises:
            BuildFailed: An archive is not available, or does not fit on the disk.
            BuildStopped: The builder was asked to end.
        """
        missing = [package for package in self.plan.packages if not self._is_there(package)]
        built = [package for package in missing if package.source is not None]
        self._unpack_all(package for package in missing if package.source is None)
        for number, package in enumerate(built):
            self._progress.report("build", number, len(built), text="a wheel of %s" % package.label)
            self._build(package)

    def _build(self, package: "PlannedPackage") -> None:
        """Build a wheel that is missing, and unpack it as others are."""
        source = package.archives[0]
        self._unpack_all(archive for archive in package.archives if not self._is_there(archive))
        kept = package_dir(self.plan.root, source.sha256)
        sdist = os.path.join(kept, PACKAGE_FILES, source.file)

        def work(package: "PlannedPackage") -> None:
            if not os.path.exists(sdist):
                raise PackageDamaged(kept)
            build_wheel(self.plan, package, sdist, self._holder.token, lambda wheel: self._place(package, wheel))

        self.retry_on_damage(lambda: self._one(work, package))

    def retry_on_damage(self, work: "Callable[[], T]") -> "T":
        """Run `work`; each time that it finds a package damaged, unpack that again and retry.

        Raises:
            BuildFailed: As `provide`; or packages are damaged again and again.
        """
        # Each try may find another package damaged.
        for _ in range(len(self.plan.packages) + _SPARE_TRIES):
            try:
                return work()
            except PackageDamaged as damaged:
                # A package without its manifest counts as not unpacked.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(damaged.args[0], MANIFEST))
                self.provide()
        message = "the packages lose their files again while an environment is made of them"
        raise BuildFailed(message, stage="link", hint="is %s on a file system that is purged?" % self.plan.root)

    def _unpack_all(self, packages: "Iterable[PlannedPackage]") -> None:
        self._missing = list({package.sha256: package for package in packages}.values())
        if not self._missing:
            return
        os.makedirs(os.path.join(self.plan.root, PACKAGES), exist_ok=True)
        os.makedirs(os.path.join(self.plan.root, BLOBS), exist_ok=True)
        self._check_archives()
        if any(package.kind == CONDA for package in self._missing):
            self._find_zstd()
        self._unpack_in_threads()

    def _check_archives(self) -> None:
        """Raise if an archive is neither here nor to be fetched, or if the disk has no room for those to be fetched."""
        absent = [package for package in self._missing if self._find_archive(package) is None]
        remote = []
        if self.plan.fetch:
            remote = [package for package in absent if package.url and not local_path(package.url)]
        lacking = [package for package in absent if package not in remote]
        if lacking:
            names = ", ".join(package.label for package in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            raise BuildFailed(
                "%d archives are missing on the host: %s" % (len(lacking), names),
                stage="fetch",
                hint="send them, or let the host fetch (fetch_on: host)",
                need=[package.sha256 for package in lacking],
            )
        # What is unpacked takes more. A disk that fills up all the same, or a quota, is reported where that happens.
        wanted = sum(package.size for package in remote)
        disk = os.statvfs(self.plan.root)
        room = disk.f_bavail * disk.f_frsize
        if wanted > room:
            lack = "too little room: it needs more than %s, and %s are free" % (format_size(wanted), format_size(room))
            raise BuildFailed("%s has %s" % (self.plan.root, lack), stage="space", hint=ROOM)

    def _find_zstd(self) -> None:
        """Find what reads zstd on this host, or unpack the wheel that came for it."""
        self._zstd = archives.find_zstd()
        brought = self.plan.zstd
        if self._zstd is None and brought is not None:
            if not self._is_there(brought):
                self._one(self._unpack, brought)
            wheel = os.path.join(package_dir(self.plan.root, brought.sha256), PACKAGE_FILES)
            self._zstd = archives.find_zstd(wheel)
        if self._zstd is None:
            hint = "the lock's zstandard wheel for Python %d.%d must come with the plan" % sys.version_info[:2]
            message = "this host cannot read zstd: no module compression.zstd, no program zstd"
            raise BuildFailed(message, stage="unpack", hint=hint)

    def _unpack_in_threads(self) -> None:
        pool = ThreadPoolExecutor(_AT_ONCE)
        # The largest packages come first, so that none of them is left alone at the end.
        by_size = sorted(self._missing, key=lambda package: -package.size)
        running = [pool.submit(self._one, self._unpack, package) for package in by_size]
        try:
            # A thread that hangs on the network is abandoned once another fails.
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            # The threads must stop after an exception of a signal, too.
            self._failed.set()
            for future in running:
                future.cancel()
            wait(running, _END_S)
            raise
        finally:
            pool.shutdown(wait=False)

    def _one(self, work: "Callable[[PlannedPackage], object]", package: "PlannedPackage") -> None:
        """Do the work on a package that is missing, while other builders leave it alone."""
        folder = os.path.join(self.plan.root, PACKAGES, ".lock-" + package.sha256)
        lock = FolderLock(folder, self._holder, is_kept=False)
        is_done = False
        while not is_done:
            with lock.held(self._stop):
                try:
                    if not self._is_there(package):
                        work(package)
                    is_done = True
                except (OSError, BuildFailed):
                    if lock.is_mine():
                        raise
                    # A signal had stopped this builder, and another one has taken the lock and made the package.
        with self._counting:
            self._done += 1
        self._count(0)

    def _unpack(self, package: "PlannedPackage") -> None:
        archive = self._find_archive(package)
        sent = blob(self.plan.root, package.sha256)
        if archive is None:
            archive = sent
            fetch.fetch_archive(package, sent, lambda count: self._count(count, "fetch"))
        else:
            try:
                fetch.check_archive(package, archive, self._stop)
            except BuildFailed:
                # The damaged archive must go, so that it can be sent again.
                if archive == sent:
                    os.unlink(archive)
                raise
        self._place(package, archive)
        if archive == sent:
            os.unlink(archive)

    def _place(self, package: "PlannedPackage", archive: str) -> None:
        """Extract the files of a package into a folder aside, and rename that: it is whole or missing."""
        final = package_dir(self.plan.root, package.sha256)
        name = "%s-%s" % (package.sha256, self._holder.token)
        aside, purged = (os.path.join(os.path.dirname(final), start + name) for start in (".", ".purged-"))
        files = os.path.join(aside, PACKAGE_FILES)
        shutil.rmtree(aside, ignore_errors=True)
        os.makedirs(files)
        try:
            manifest = self._extract(package, archive, files)
            write_document(os.path.join(aside, MANIFEST), dict(manifest._asdict(), format=FORMAT))
            if not os.path.exists(os.path.join(final, MANIFEST)):
                # Mostly there is nothing to move away.
                with contextlib.suppress(FileNotFoundError):
                    os.rename(final, purged)
                os.rename(aside, final)
        finally:
            for folder in (aside, purged):
                shutil.rmtree(folder, ignore_errors=True)

    def _extract(self, package: "PlannedPackage", archive: str, folder: str) -> Manifest:
        # A source distribution stays packed, as other environments may be built from it.
        if package.is_source:
            shutil.copyfile(archive, os.path.join(folder, package.file))
            only = PackageFile(package.file, os.path.getsize(archive))
            return Manifest(package.name, package.version, "source", {}, None, [], [only])
        try:
            found = archives.extract_archive(archive, package.kind, self._zstd, folder, self._count)
            return describe_package(package, folder, found)
        except BuildFailed as error:
            error.args = ("%s cannot be unpacked: %s" % (package.label, error),)
            raise
        except archives.DAMAGED as error:
            message = "%s cannot be unpacked: %s: %s" % (package.label, type(error).__name__, error)
            raise BuildFailed(message, stage="unpack", evidence=[package.file]) from error

    def _find_archive(self, package: "PlannedPackage") -> "Optional[str]":
        """Return the path of the archive on this host, if it is there."""
        places = [blob(self.plan.root, package.sha256), local_path(package.url) if self.plan.fetch else ""]
        return next(filter(os.path.isfile, places), None)

    def _is_there(self, package: "PlannedPackage") -> bool:
        folder = package_dir(self.plan.root, package.sha256)
        return all(leases.check_trusted(self._trusted, path) for path in (folder, os.path.join(folder, MANIFEST)))

    def _stop(self, *_: object) -> None:
        """End this thread if the builder is to end, or another thread has failed."""
        programs.check_stopped()
        if self._failed.is_set():
            raise programs.BuildStopped

    def _count(self, count: int, stage: str = "unpack") -> None:
        self._stop()
        with self._counting:
            self.moved[stage] += count
        size = sum(package.size for package in self._missing) if stage == "fetch" else 0
        self._progress.report(stage, self._done, len(self._missing), self.moved[stage], size or None)


def find_missing_archives(plan: "BuildPlan") -> "dict[str, Any]":
    """Return the SHA-256 of missing archives, of the unreachable among them, and sizes of the others.

    Where the host may not download, all missing archives count as unreachable.
    """

    def is_unpacked(package: "PlannedPackage") -> bool:
        return os.path.exists(os.path.join(package_dir(plan.root, package.sha256), MANIFEST))

    packages = list(plan.packages)
    has_conda = any(package.kind == CONDA for package in packages)
    if plan.zstd is not None and has_conda and archives.find_zstd() is None:
        packages.append(plan.zstd)
    unbuilt = [package for package in packages if package.source is None or not is_unpacked(package)]
    needed = {archive.sha256: archive for package in unbuilt for archive in package.archives}
    missing = [
        package
        for sha256, package in needed.items()
        if not os.path.exists(blob(plan.root, sha256)) and not is_unpacked(package)
    ]
    reached, sizes = fetch.ask_sizes(missing) if plan.fetch else ({}, {})
    unreachable = [package.sha256 for package in missing if not reached.get(fetch.origin(package))]
    return {"missing": [package.sha256 for package in missing], "unreachable": unreachable, "sizes": sizes}
