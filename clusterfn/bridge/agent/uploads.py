"""Write files and folders that the client sends: completely or not at all.

The bytes are written to a `.part` file next to the final name, which is then renamed. If the connection breaks, the
next agent continues a large one. A later agent removes what was left of these, once it is a day old.
"""

import contextlib
import errno
import os
import time

from .files import MANIFEST, existing_folder, is_whole, make_parent, record_use, remove_damaged
from .handler import Failure, RequestHandler, failure_of
from .parts import Part, boot_id, place_for, remove_old_parts, take_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional

    from .frames import Frame, Header
    from .parts import Plan

SWEEP_DELAY_S = 1.0
# An fsync of more bytes than this would stop the loop for too long.
FSYNC_IN_CHILD = 8 * 1024 * 1024
FSYNCS_IN_LOOP = 16
# A client that waits for an answer pings every 15 s, so one that is still connected was heard within a minute.
TOUCH_S = 20.0
RECENT_S = 60.0


class PutHandler(RequestHandler):
    """Writes received bytes to `.part` files and renames them; removes them on failure.

    The bytes are taken as they come; only the rename waits for the requests named by `after`, and for what a folder
    `needs` beside it.
    """

    part: "Optional[Part]" = None
    # Whether the next agent may continue the part.
    resumable = False
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
        boot = boot_id() if self.header.get("resume") else ""
        self.resumable = bool(boot)
        sending = self.header.get("resumed") or 0
        part = self.part = Part(self.path, place_for(self.path, self.header, boot, sending))
        self.above = existing_folder(self.path)
        make_parent(self.path)
        self.sweep(os.path.dirname(self.path))
        # The bridge's folder is swept too, because the next upload into it may not come before the next version.
        if self.agent.root:
            self.sweep(os.path.join(self.agent.root, "bridge"))
        take_over(self.path, self.header, boot)
        part.files.extend(self.plan(part))
        self.needed = sum(size for _, size, _, _ in part.files)
        # An fsync of many bytes or of many files takes long, and the loop must not block.
        is_much = self.needed > FSYNC_IN_CHILD or len(part.files) > FSYNCS_IN_LOOP
        self.in_child = self.is_durable() and (is_much or self.agent.disk_sync.is_slow)
        if self.is_durable() and not self.in_child:
            part.flush = self.agent.disk_sync.file
        if sending:
            self.resume(part.read_back())
        return None

    def sweep(self, folder: str) -> None:
        """Remove old parts from a folder: once per agent, and when idle, as it may hold thousands of blobs."""
        if folder not in self.agent.swept:
            self.agent.swept.add(folder)
            self.agent.at(SWEEP_DELAY_S, lambda: remove_old_parts(folder))

    def plan(self, part: Part) -> "List[Plan]":
        if not self.is_tree:
            return [(part.place, self.header["size"], self.header.get("mode", 0o600), self.header.get("crc"))]
        if not os.path.isdir(part.place):
            os.mkdir(part.place, 0o700)
        self.touch(part)
        return [part.plan_file(*entry) for entry in self.header["files"]]

    def resume(self, reading: "Iterator[Optional[int]]") -> None:
        """Read what is there, some MB a turn; then say from which byte on the rest is to come."""
        if self.ended:
            return
        at = next(reading)
        if at is None:
            self.agent.at(0.0, lambda: self.safely(lambda: self.resume(reading)))
        else:
            self.send({"at": at})

    def touch(self, part: Part) -> None:
        """Keep the folder's time recent while the client is connected: it may be sending something else first."""
        # The time of this machine's clock, not the file server's: `remove_old_parts` measures ages by the same clock.
        now = time.time()
        if time.monotonic() - self.agent.last_received < RECENT_S:
            with contextlib.suppress(FileNotFoundError):
                # The part has its final name already.
                os.utime(part.place, (now, now))
        self.later(TOUCH_S, lambda: self.touch(part))

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
        assert self.part is not None
        surplus = self.part.write(body)
        if header.get("last") or surplus:
            self.complete(self.part, surplus)
        return None

    def complete(self, part: Part, surplus: int) -> None:
        # The next file is opened as soon as one is whole.
        if surplus or part.left:
            raise Failure("bad", "not as many bytes came as were announced", self.path)
        part.close_file()
        part.add(self.header.get("folders") or (), self.header.get("links") or ())
        if self.in_child:
            return self.sync_in_child(part)
        if self.is_durable():
            self.agent.disk_sync.folders([folder for folder, _, _ in os.walk(part.place)])
        return self.on_synced()

    def is_durable(self) -> bool:
        """Whether it must survive a power failure once this request has ended."""
        return bool(self.header.get("sync", True))

    def sync_in_child(self, part: Part) -> None:
        """Flush what takes seconds in a child process: the loop must not block."""
        tree = list(os.walk(part.place))
        paths = (os.path.join(folder, name) for folder, _, names in tree for name in names)
        places = [path for path in paths if not os.path.islink(path)]
        self.sync_later(places or [part.place], [folder for folder, _, _ in tree], self.on_synced)

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
        assert self.part is not None
        try:
            os.rename(self.part.place, self.path)
        except OSError as error:
            if not self.is_tree or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if self.is_kept():
                return self.end(existed=True)
            remove_damaged(self.path)
            os.rename(self.part.place, self.path)
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
        if self.part is None:
            return
        self.part.give_up()
        # A request that has not ended has lost its connection, and the next agent may continue the part.
        if self.ended or not self.resumable:
            self.part.remove()
