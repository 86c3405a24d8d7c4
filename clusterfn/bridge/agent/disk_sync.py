"""Flush files to a slow disk in a child process: one at a time, which takes all that has come while the last one ran.

So a disk that needs seconds for each flush stops no other request, and many small files cost few flushes.
"""

import errno
import os
import time

from .files import sync_all, sync_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Sequence, Tuple

    Done = Callable[[int], None]

# The loop serves all requests of the client, so a disk that once needed longer than this is flushed in a child.
SLOW_S = 0.1


class DiskSync:
    """The flushes of one agent.

    Args:
        children: As the agent's.

    Attributes:
        is_slow: Whether one of them has taken long.
    """

    def __init__(self, children: "Dict[int, Callable[[int], None]]") -> None:
        self.children = children
        self.is_slow = False
        self.waiting: "List[Tuple[Sequence[str], Sequence[str], Done]]" = []
        self.runs = False

    def file(self, fd: int) -> None:
        """Flush an open file in this process, and see how long that takes."""
        began = time.monotonic()
        os.fsync(fd)
        self.is_slow = self.is_slow or time.monotonic() - began > SLOW_S

    def folders(self, paths: "Sequence[str]") -> None:
        """Flush the names in these folders, in the same way."""
        began = time.monotonic()
        for path in paths:
            sync_path(path)
        self.is_slow = self.is_slow or time.monotonic() - began > SLOW_S

    def later(self, files: "Sequence[str]", folders: "Sequence[str]", done: "Done") -> None:
        """Flush these with what else waits; call `done` with the number of the error, 0 if there was none."""
        self.waiting.append((files, folders, done))
        if not self.runs:
            self.start()

    def start(self) -> None:
        batch, self.waiting = self.waiting, []
        self.runs = bool(batch)
        if not batch:
            return
        pid = os.fork()
        if pid:
            self.children[pid] = lambda status: self.on_exit(batch, status)
            return
        code = errno.EIO
        try:
            # The child must not hold the agent's pipes open: the client would not see that the agent has ended.
            os.closerange(0, 3)
            sync_all([path for files, _, _ in batch for path in files])
            sync_all([path for _, folders, _ in batch for path in folders])
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)

    def on_exit(self, batch: "List[Tuple[Sequence[str], Sequence[str], Done]]", status: int) -> None:
        # The status does not name the file. A disk that refuses one of them would refuse the others, too.
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO
        for _, _, done in batch:
            done(code)
        self.start()
