"""Files and folders that come from the client: whole or not at all."""

import collections
import contextlib
import errno
import os
import time

from .failures import Failure, failure_of
from .files import existing_folder, make_parent, remove_tree, sync_folder, write_all
from .leftovers import aside, sweep_later
from .paths import date, expand
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

    Plan = Tuple[str, int, int, Optional[float]]

FSYNC_ASIDE = 8 * 1024 * 1024
BEAT_S, HEARD_S = 20.0, 60.0  # a client that waits for an answer pings every 15 s


class Upload(Request):
    """Bytes into files aside; subclasses say which, and how they get their name. What fails leaves nothing behind.

    The bytes are taken as they come; only the name waits for what the request comes `after`.
    """

    aside = path = ""
    fd = -1

    def begin(self) -> None:
        self.path = expand(self.header["path"])
        self.left = 0
        self.received = False
        self.synced = False
        self.mtime: "Optional[float]" = None
        self.digest: "Any" = None
        date(self.path, self.agent.root)
        if self.settled():
            return self.end(existed=True)
        self.aside = aside(self.path, self.id)
        self.above = existing_folder(self.path)
        make_parent(self.path)
        sweep_later(self.agent, os.path.dirname(self.path))
        self.files = collections.deque(self.plan())
        self.needed = sum(size for _, size, _, _ in self.files)
        return None

    def settled(self) -> bool:
        raise NotImplementedError

    def plan(self) -> "List[Plan]":
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def safely(self, action: "Callable[[], Any]") -> "Any":
        """As for every request, but the place that is full or forbidden is the one that was asked for."""

        def named() -> "Any":
            try:
                return action()
            except OSError as error:
                raise failure_of(error, self.path, needed=getattr(self, "needed", None)) from error

        return Request.safely(self, named)

    def chunk(self, body: bytes, last: bool) -> None:
        data = memoryview(body)
        if self.digest is not None:
            self.digest.update(data)
        while self.room(len(data)):
            taken = data[: self.left]
            write_all(self.fd, taken)
            self.left -= len(taken)
            data = data[len(taken) :]
        if last or len(data):
            self.complete(len(data))

    def room(self, wanted: int) -> bool:
        """Whether the file at hand takes more; when it is whole, the next one is begun."""
        while self.left == 0 and (self.fd >= 0 or self.files):
            if not self.next_file():
                return False
        return bool(self.left and wanted)

    def next_file(self) -> bool:
        self.close_file()
        if not self.files:
            return False
        place, self.left, mode, self.mtime = self.files.popleft()
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        self.fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.place = place
        os.fchmod(self.fd, mode & 0o7777)
        return True

    def close_file(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                if self.lasts() and self.needed <= FSYNC_ASIDE:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if self.mtime is not None:
                os.utime(self.place, (self.mtime, self.mtime))

    def complete(self, surplus: int) -> None:
        if surplus or self.left or self.files:
            raise Failure("bad", "not as many bytes came as were announced", self.path)
        self.close_file()
        if self.digest is not None and self.digest.hexdigest() != self.header["sha256"]:
            message = "the bytes that came have another SHA-256: did the file change while it was sent?"
            raise Failure("bad", message, self.path)
        self.received = True
        if self.lasts() and self.needed > FSYNC_ASIDE:
            return self.sync_aside()
        if self.lasts():
            for folder, _, _ in os.walk(self.aside):
                sync_folder(folder)
        self.synced = True
        return self.settle()

    def lasts(self) -> bool:
        """Whether it must survive a power cut."""
        return bool(self.header.get("sync", True))

    def sync_aside(self) -> None:
        """A large fsync takes seconds; a child waits for it, so that nobody else does."""
        places = [os.path.join(folder, name) for folder, _, names in os.walk(self.aside) for name in names]
        places = places or [self.aside]
        pid = os.fork()
        if pid:
            self.agent.children[pid] = self.on_synced
            return
        code = errno.EIO
        try:
            os.closerange(0, 2)
            for place in places:
                os.fsync(os.open(place, os.O_RDONLY))
            for folder, _, _ in os.walk(self.aside):
                sync_folder(folder)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)

    def on_synced(self, status: int) -> None:
        self.safely(lambda: self.after_sync(os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO))

    def after_sync(self, code: int) -> None:
        if code:
            raise OSError(code, os.strerror(code))
        self.synced = True
        self.settle()

    def start(self) -> None:
        self.settle()

    def settle(self) -> None:
        if self.started and self.synced and not self.ended:
            self.finish()

    def sync_name(self) -> None:
        """Bring the new name to the disk, and those of the folders that were made for it."""
        folder = os.path.dirname(self.path)
        while self.lasts():
            sync_folder(folder)
            if folder == self.above:
                return
            folder = os.path.dirname(folder)

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.aside and os.path.isdir(self.aside):
            remove_tree(self.aside)
        elif self.aside and os.path.lexists(self.aside):
            os.unlink(self.aside)


class Put(Upload):
    def settled(self) -> bool:
        if not self.header.get("sha256"):
            return False
        import hashlib

        self.digest = hashlib.sha256()
        return os.path.exists(self.path)

    def plan(self) -> "List[Plan]":
        return [(self.aside, self.header["size"], self.header.get("mode", 0o600), None)]

    def finish(self) -> None:
        os.rename(self.aside, self.path)
        self.sync_name()
        self.end()


class PutTree(Upload):
    def settled(self) -> bool:
        return os.path.exists(self.path)

    def plan(self) -> "List[Plan]":
        os.mkdir(self.aside, 0o700)
        self.beat()
        return [self.one(*entry) for entry in self.header["files"]]

    def beat(self) -> None:
        """Show whoever looks for the folder that its client is there, which may be sending something else before it."""
        if self.ended:
            return
        now = time.time()  # not the file server's: the age is taken by this machine's clock too
        if time.monotonic() - self.agent.heard < HEARD_S:
            with contextlib.suppress(FileNotFoundError):  # it has its name by now
                os.utime(self.aside, (now, now))
        self.agent.at(BEAT_S, self.beat)

    def one(self, name: str, size: int, mode: int, mtime: "Optional[float]" = None) -> "Plan":
        parts = name.split("/")
        if not name or name.startswith("/") or ".." in parts or "" in parts or "." in parts or "\0" in name:
            raise Failure("bad", "%r is not a name below the folder" % name, self.path)
        return os.path.join(self.aside, name), size, mode, mtime

    def finish(self) -> None:
        try:
            os.rename(self.aside, self.path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return self.end(existed=True)
        self.sync_name()
        return self.end()
