"""All archives of a plan, fetched and unpacked side by side: what is missing in `pkgs/` is there when this is done.

Each archive is fetched and unpacked by one builder, also where several build different environments.
"""

import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from ..agent.trusted import Trusted
from ..layout import BLOBS, MANIFEST, PACKAGE_FILES, PACKAGES, blob, package_dir
from . import fetch, group, manifest, pieces, space, zstd
from .failure import Failed, Stopped
from .lock import Lock
from .plan import CONDA
from .unpack import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Optional

    from .holder import Holder
    from .plan import Package, Plan
    from .progress import Progress

_AT_ONCE = 4
_TURN_S = 0.2
_END_S = 2.0


class Packages:
    """The packages of one plan.

    Attributes:
        fetched: Bytes that came from elsewhere.
        stopping: Set to end all threads at their next block.
    """

    def __init__(self, plan: "Plan", holder: "Holder", progress: "Progress", stopping: threading.Event) -> None:
        self.plan = plan
        self.fetched = 0
        self.stopping = stopping
        self._holder = holder
        self._progress = progress
        self._counting = threading.Lock()
        self._unpacked = 0
        self._done = 0
        self._missing: "list[Package]" = []
        self._zstd: "Optional[zstd.Opener]" = None
        self._trusted = Trusted(plan.owners)

    def provide(self, again: "Iterable[str]" = ()) -> None:
        """Unpack what is missing.

        Args:
            again: SHA-256 of packages that are there, but have lost files.

        Raises:
            Failed: Something cannot be had, or does not fit.
            Stopped: `stopping` was set.
        """
        for sha256 in again:
            _forget(package_dir(self.plan.root, sha256))
        self._all(self._unpack, (each for each in self.plan.packages if not self._is_there(each)))

    def archives(self, take: "Callable[[Package, str, Optional[zstd.Opener]], None]") -> None:
        """Have the archives of all of them, checked, and call `take` for each, several at once; nothing is unpacked."""
        self._all(lambda package: take(package, self._have(package), self._zstd), self.plan.packages)

    def _all(self, work: "Callable[[Package], None]", packages: "Iterable[Package]") -> None:
        self._missing = _unique(packages)
        if not self._missing:
            return
        os.makedirs(os.path.join(self.plan.root, PACKAGES), exist_ok=True)
        os.makedirs(os.path.join(self.plan.root, BLOBS), exist_ok=True)
        self._refuse_what_cannot_be_had()
        space.check(self.plan.root, [space.needed(each, self._archive(each)) for each in self._missing])
        self._zstd = self._choose_zstd()
        self._side_by_side(work, sorted(self._missing, key=lambda each: -each.size))

    def _refuse_what_cannot_be_had(self) -> None:
        lacking = [each for each in self._missing if self._archive(each) is None and not self._may_fetch(each)]
        if lacking:
            names = ", ".join(each.label for each in lacking[:5]) + (", ..." if len(lacking) > 5 else "")
            raise Failed(
                "%d archives are missing on the host: %s" % (len(lacking), names), stage="fetch",
                hint="send them, or let the host fetch (fetch_on: host)", need=[each.sha256 for each in lacking],
            )  # fmt: skip

    def _choose_zstd(self) -> "Optional[zstd.Opener]":
        if not any(each.kind == CONDA for each in self._missing):
            return None
        brought = self.plan.zstd
        if zstd.is_there() or brought is None:
            return zstd.opener()
        if not self._is_there(brought):
            self._one(self._unpack, brought)
        return zstd.opener(os.path.join(package_dir(self.plan.root, brought.sha256), PACKAGE_FILES))

    def _side_by_side(self, work: "Callable[[Package], None]", packages: "list[Package]") -> None:
        """All of them, until one fails; a thread that hangs on the network then is left to the end of the process."""
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

    def _one(self, work: "Callable[[Package], None]", package: "Package") -> None:
        lock = Lock(os.path.join(self.plan.root, PACKAGES, ".lock-" + package.sha256), self._holder)
        lock.wait(lambda _: self._moved(0))
        try:
            work(package)
        finally:
            lock.release()
            lock.forget()
        with self._counting:
            self._done += 1
        self._tell_unpacked()

    def _unpack(self, package: "Package") -> None:
        if self._is_there(package):
            return
        archive = self._have(package)
        unpack(self.plan.root, package, archive, self._zstd, self._holder.token, self._wrote)
        if archive == blob(self.plan.root, package.sha256):
            os.unlink(archive)

    def _have(self, package: "Package") -> str:
        """The path of its archive, whose hash is right."""
        archive = self._archive(package)
        sent = blob(self.plan.root, package.sha256)
        if archive is None:
            fetch.fetch(package, sent, self._came)
            return sent
        self._check(package, archive, archive == sent)
        return archive

    def _check(self, package: "Package", archive: str, ours: bool) -> None:
        try:
            fetch.check(package, archive, self._moved)
        except Failed:
            if ours:  # so that the next one may come
                os.unlink(archive)
            raise

    def _may_fetch(self, package: "Package") -> bool:
        return bool(self.plan.fetch and package.url and not fetch.local_path(package.url))

    def _archive(self, package: "Package") -> "Optional[str]":
        """Where the archive lies on this host, if it does."""
        sent = pieces.join(self.plan.root, package.sha256, self._holder.token, self._moved)
        local = fetch.local_path(package.url) if self.plan.fetch else ""
        return sent or (local if local and os.path.isfile(local) else None)

    def _is_there(self, package: "Package") -> bool:
        folder = package_dir(self.plan.root, package.sha256)
        return all(group.is_ours(self._trusted, path) for path in (folder, os.path.join(folder, MANIFEST)))

    def _moved(self, _: int) -> None:
        if self.stopping.is_set():
            raise Stopped

    def _came(self, count: int) -> None:
        self._moved(0)
        with self._counting:
            self.fetched += count
        of = sum(each.size for each in self._missing)
        self._progress.tell("fetch", self._done, len(self._missing), self.fetched, "of %d bytes" % of if of else None)

    def _wrote(self, count: int) -> None:
        self._moved(0)
        with self._counting:
            self._unpacked += count
        self._tell_unpacked()

    def _tell_unpacked(self) -> None:
        self._progress.tell("unpack", self._done, len(self._missing), self._unpacked)


def _unique(packages: "Iterable[Package]") -> "list[Package]":
    return list({each.sha256: each for each in packages}.values())


def _forget(folder: str) -> None:
    """Let a package that has lost files be unpacked again; environments keep what they have of it."""
    if manifest.read(os.path.join(folder, MANIFEST)) is not None:
        os.unlink(os.path.join(folder, MANIFEST))
