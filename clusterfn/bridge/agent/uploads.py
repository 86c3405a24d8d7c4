"""Write files and folders that the client sends: completely or not at all.

The bytes are written to a `.part` file next to the final name, which is then renamed. If the connection breaks, the
next agent continues a large one. A later agent removes what was left of these, once it is a day old.
"""

import collections
import contextlib
import errno
import os
import time
import zlib

from .files import (
    MANIFEST,
    existing_folder,
    is_whole,
    make_parent,
    record_use,
    remove_damaged,
    remove_tree,
    write_all,
)
from .handler import Failure, RequestHandler, failure_of
from .parts import PartWriter, boot_id, remove_old_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

    from .frames import Frame, Header

    # Place, size, mode and CRC-32 of a file.
    Plan = Tuple[str, int, int, Optional[int]]

SWEEP_DELAY_S = 1.0
# An fsync of more bytes than this would stop the loop for too long.
FSYNC_IN_CHILD = 8 * 1024 * 1024
FSYNCS_IN_LOOP = 16
# A client that waits for an answer pings every 15 s, so one that is still connected was heard within a minute.
TOUCH_S = 20.0
RECENT_S = 60.0


class PutHandler(PartWriter):
    """Writes received bytes to `.part` files and renames them; removes them on failure.

    The bytes are taken as they come; only the rename waits for the requests named by `after`, and for what a folder
    `needs` beside it.
    """

    # The folder of the file that was opened last.
    folder = ""
    is_tree = False
    # Whether the client has been asked for what is missing beside the folder. It is asked only once.
    has_asked = False

    def begin(self) -> None:
        self.path = self.own(self.header["path"])
        self.is_tree = "files" in self.header
        self.synced = False
        record_use(self.path, self.agent.root)
        # A request that this one waits for may remove the file that exists now; the rename notices that in the end.
        is_final = not self.header.get("after") and (self.is_tree or self.header.get("crc") is not None)
        if is_final and os.path.exists(self.path) and self.is_kept():
            return self.end(existed=True)
        self.boot = boot_id() if self.header.get("resume") else ""
        self.resumable = bool(self.boot)
        self.part = self.part_of(self.header.get("resumed") or 0)
        self.above = existing_folder(self.path)
        make_parent(self.path)
        self.sweep(os.path.dirname(self.path))
        # The bridge's folder is swept too, because the next upload into it may not come before the next version.
        if self.agent.root:
            self.sweep(os.path.join(self.agent.root, "bridge"))
        self.take_over()
        self.files = collections.deque(self.plan())
        self.needed = sum(size for _, size, _, _ in self.files)
        # An fsync of many bytes or of many files takes long, and the loop must not block.
        is_much = self.needed > FSYNC_IN_CHILD or len(self.files) > FSYNCS_IN_LOOP
        self.in_child = self.is_durable() and (is_much or self.agent.disk_sync.is_slow)
        if self.header.get("resumed"):
            self.resume(self.read_back())
        return None

    def sweep(self, folder: str) -> None:
        """Remove old parts from a folder: once per agent, and when idle, as it may hold thousands of blobs."""
        if folder not in self.agent.swept:
            self.agent.swept.add(folder)
            self.agent.at(SWEEP_DELAY_S, lambda: remove_old_parts(folder))

    def plan(self) -> "List[Plan]":
        if not self.is_tree:
            return [(self.part, self.header["size"], self.header.get("mode", 0o600), self.header.get("crc"))]
        if not os.path.isdir(self.part):
            os.mkdir(self.part, 0o700)
        self.touch()
        return [self.plan_file(*entry) for entry in self.header["files"]]

    def plan_file(self, name: str, size: int, mode: int, crc: "Optional[int]" = None) -> "Plan":
        parts = name.split("/")
        if not name or name.startswith("/") or ".." in parts or "" in parts or "." in parts or "\0" in name:
            raise Failure("bad", "%r is not a name below the folder" % name, self.path)
        return os.path.join(self.part, name), size, mode, crc

    def touch(self) -> None:
        """Keep the folder's time recent while the client is connected: it may be sending something else first."""
        # The time of this machine's clock, not the file server's: `remove_old_parts` measures ages by the same clock.
        now = time.time()
        if time.monotonic() - self.agent.last_received < RECENT_S:
            with contextlib.suppress(FileNotFoundError):
                # The part has its final name already.
                os.utime(self.part, (now, now))
        self.later(TOUCH_S, self.touch)

    def safely(self, action: "Callable[[], Any]") -> "Any":
        """As for every request, but an error names the path that was requested, not the `.part` file."""

        def named() -> "Any":
            try:
                return action()
            except OSError as error:
                raise failure_of(error, self.path, needed=getattr(self, "needed", None)) from error

        return RequestHandler.safely(self, named)

    def chunk(self, body: "Frame", header: "Header") -> None:
        if self.has_asked:
            return self.look_again(header.get("failed"))
        data = memoryview(body)
        while self.has_room(len(data)):
            write_all(self.fd, data[: self.left])
            size = min(self.left, len(data))
            if self.expected_crc is not None:
                self.crc = zlib.crc32(data[:size], self.crc)
            self.left -= size
            data = data[size:]
        if header.get("last") or len(data):
            self.complete(len(data))
        return None

    def has_room(self, size: int) -> bool:
        """Whether the current file takes more; when it is complete, open the next one."""
        while self.left == 0 and (self.fd >= 0 or self.files):
            if not self.next_file():
                return False
        return bool(self.left and size)

    def next_file(self) -> bool:
        self.close_file()
        if not self.files:
            return False
        place, self.left, mode, self.expected_crc = self.files.popleft()
        folder = os.path.dirname(place)
        # Thousands of files may be in the same folder, which is checked and made only once.
        if folder != self.folder:
            # A missing part means that another agent has taken it over to continue it. A second one must not be made.
            if place != self.part and not os.path.isdir(self.part):
                raise Failure("missing", "the folder is gone that it was written to", self.path)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.folder = folder
        # The file stays private until it has its mode. `open` cannot set that mode, because the umask would change it.
        self.fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.place = place
        self.crc = 0
        os.fchmod(self.fd, mode & 0o7777)
        return True

    def close_file(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                if self.is_durable() and not self.in_child:
                    self.agent.disk_sync.file(fd)
            finally:
                os.close(fd)
            if self.expected_crc is not None and not self.left and self.crc != self.expected_crc:
                file = "" if self.place == self.part else " of " + os.path.relpath(self.place, self.part)
                message = "the bytes%s that came have another checksum: did the file change while it was sent?"
                raise Failure("bad", message % file, self.path)

    def complete(self, surplus: int) -> None:
        # The next file is opened as soon as one is whole.
        if surplus or self.left:
            raise Failure("bad", "not as many bytes came as were announced", self.path)
        self.close_file()
        for name in self.header.get("folders") or ():
            os.makedirs(self.plan_file(name, 0, 0)[0], mode=0o700, exist_ok=True)
        for name, target in self.header.get("links") or ():
            place = self.plan_file(name, 0, 0)[0]
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            # The agent that began this upload may have made it.
            with contextlib.suppress(FileExistsError):
                os.symlink(target, place)
        if self.in_child:
            return self.sync_in_child()
        if self.is_durable():
            self.agent.disk_sync.folders([folder for folder, _, _ in os.walk(self.part)])
        return self.on_synced()

    def is_durable(self) -> bool:
        """Whether it must survive a power failure once this request has ended."""
        return bool(self.header.get("sync", True))

    def sync_in_child(self) -> None:
        """Flush what takes seconds in a child process: the loop must not block."""
        tree = list(os.walk(self.part))
        paths = (os.path.join(folder, name) for folder, _, names in tree for name in names)
        places = [path for path in paths if not os.path.islink(path)]
        self.sync_later(places or [self.part], [folder for folder, _, _ in tree], self.on_synced)

    def sync_later(self, files: "List[str]", folders: "List[str]", then: "Callable[[], None]") -> None:
        """Flush them in a child process, then do this."""

        def check(code: int) -> None:
            if code:
                raise OSError(code, os.strerror(code))
            then()

        self.agent.disk_sync.later(files, folders, lambda code: self.safely(lambda: check(code)))

    def on_synced(self) -> None:
        self.synced = True
        self.maybe_finish()

    def start(self) -> None:
        self.maybe_finish()

    def maybe_finish(self) -> None:
        if self.started and self.synced and not self.ended:
            self.finish()

    def finish(self) -> None:
        """Give the part its name. Ask the client once for what is lacking beside a folder."""
        lacking = self.agent.needs.lacking(self.header)
        if lacking and not self.has_asked:
            self.has_asked = True
            return self.send({"lacking": lacking})
        if lacking:
            raise Failure("missing", "it is gone, and was not sent again", lacking[0])
        try:
            os.rename(self.part, self.path)
        except OSError as error:
            if not self.is_tree or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if self.is_kept():
                return self.end(existed=True)
            remove_damaged(self.path)
            os.rename(self.part, self.path)
        return self.end_when_named()

    def is_kept(self) -> bool:
        """Whether what has the name already stays: a folder with a list of its files only if all of them are there."""
        has_list = self.is_tree and any(entry[0] == MANIFEST for entry in self.header["files"])
        return not has_list or is_whole(self.path)

    def look_again(self, failed: "Optional[Header]") -> None:
        """Look again for what was lacking, or fail with the error for which the client did not send it."""
        if failed:
            raise Failure(failed["kind"], failed["message"])
        self.maybe_finish()

    def end_when_named(self) -> None:
        """Flush the new name to the disk, and those of the folders that were made for it; then end."""
        folders = [os.path.dirname(self.path)]
        while folders[-1] != self.above:
            folders.append(os.path.dirname(folders[-1]))
        if self.is_durable() and self.agent.disk_sync.is_slow:
            self.sync_later([], folders, self.end)
            return
        if self.is_durable():
            self.agent.disk_sync.folders(folders)
        self.end()

    def release(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                # A file server may report only now what it could not write. The upload is given up anyway.
                os.close(fd)
        if self.resumable and not self.ended:
            # The connection was lost before the request ended, and the next agent may continue this part.
            return
        if self.part and os.path.isdir(self.part):
            remove_tree(self.part)
        elif self.part:
            with contextlib.suppress(OSError):
                # The part has its final name already, or the disk accepts no changes any more.
                os.unlink(self.part)
