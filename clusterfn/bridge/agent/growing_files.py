"""Send files to the client as they grow, until another one exists; also report a file that stopped changing."""

import os
import time
from functools import partial

from .downloads import frame_of, read_piece
from .files import AWAY, CHUNK, exists, is_missing, read_at, size_of
from .frames import pack
from .handler import RequestHandler, expand, failure_of, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

    from .frames import Frame


# How long a file server may be away while the job runs, and once its outcome exists, and how often it is asked again.
AWAY_S = 300.0
AWAY_AT_END_S = 30.0
AGAIN_S = 2.0


class FollowHandler(RequestHandler):
    """Stream files as they grow; they may not exist yet.

    Once the file `until` exists, send the rest of them, then that file, then those that come `with` it. Go on after the
    file server was away for a while.
    """

    # The path of `until`; empty if the request waits for no file.
    path = ""
    is_there = content_sent = has_sent_line = False
    growing: "List[GrowingFile]" = []
    away_since: "Optional[float]" = None

    def start(self) -> None:
        self.path = expand(self.header["until"]) if self.header.get("until") else ""
        files = enumerate(self.header.get("files") or ())
        self.growing = [GrowingFile(self, number, expand(path), offset) for number, (path, offset) in files]
        # The followed files that have more bytes to send.
        self.news: "List[GrowingFile]" = []
        self.results = [[number, expand(path), at] for number, (path, at) in enumerate(self.header.get("with") or ())]
        self.paths = [path for _, path, _ in self.results]
        watched: "List[Any]" = [*self.growing, *([self] if self.path else [])]
        for followed in watched:
            # An error must not keep other files from being added: the file server of a single one may be away.
            if not self.ended:
                followed.safely(partial(self.agent.watcher.add, followed))

    def safely(self, action: "Callable[[], Any]") -> "Any":
        def patiently() -> "Any":
            try:
                return action()
            except OSError as error:
                # The server of `until`, or of what comes with it, may be away, but not for too long.
                self.away_since = self.away_since or time.monotonic()
                if error.errno not in AWAY or time.monotonic() - self.away_since > AWAY_S:
                    raise
                self.try_later()
                return None

        return RequestHandler.safely(self, patiently)

    def try_later(self) -> None:
        self.later(AGAIN_S, lambda: self.agent.out.offer(self))

    def look(self, ask_server: bool) -> bool:
        """Return whether `until` exists; if so, queue the rest."""
        if self.queued:
            return False
        self.is_there = exists(self.path, ask_server)
        if self.is_there:
            self.release()
            self.agent.out.offer(self)
        return self.is_there

    def is_urgent(self) -> bool:
        # One that has just sent its last line is asked again. Behind transfers, it would notice nothing meanwhile.
        return bool(self.news or self.has_sent_line or (self.is_there and self.growing))

    def frame(self) -> "Optional[Frame]":
        waiting = self.growing if self.is_there else self.news
        self.has_sent_line = False
        while waiting:
            frame = waiting[0].frame()
            if frame is not None:
                # What is added from now on is noticed by itself, as long as it is followed.
                if len(frame) < CHUNK and not self.is_there:
                    waiting.pop(0)
                    self.has_sent_line = True
                return frame
            if self.is_there and waiting[0].away_since is not None:
                self.try_later()
                return None
            waiting.pop(0)
        if self.is_there:
            return self.last_frame()
        if self.path:
            # No look was made while this request was queued. If it is there by now, the look queues it again.
            self.look(False)
        return None

    def last_frame(self) -> "Optional[Frame]":
        if not self.results:
            self.end(b"" if self.content_sent else self.content())
            return None
        if not self.content_sent:
            described = pack({"id": self.id, "content": True}, self.content())
            self.content_sent = True
            return described
        frame = self.next_piece()
        if frame is None:
            self.results.pop(0)
        return frame or b""

    def content(self) -> bytes:
        for path in [self.path, *self.paths]:
            self.own(path)
        with open(self.path, "rb") as file:
            content = file.read()
        self.away_since = None
        return content

    def next_piece(self) -> "Optional[Frame]":
        """Return a frame with the next piece of the first file that comes with `until`; None at its end."""
        index, path, offset = self.results[0]
        size = read_piece(path, offset)
        self.away_since = None
        self.results[0][2] += size
        return frame_of(size, {"id": self.id, "file": index, "size": sum(map(size_of, self.paths))}) if size else None

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.watcher.drop(self)
        for file in self.growing:
            self.agent.watcher.drop(file)


class GrowingFile:
    """One of the files that a request follows.

    One that cannot be read ends the request. If that waits for another file, it goes on without this one.
    """

    __slots__ = ("away_since", "follow", "number", "offset", "path")

    def __init__(self, follow: FollowHandler, number: int, path: str, offset: int) -> None:
        self.follow = follow
        self.number = number
        self.path = path
        self.offset = offset
        self.away_since: "Optional[float]" = None

    def look(self, ask_server: bool) -> bool:
        """Return whether there is more; if so, have the request send it."""
        if self in self.follow.news:
            return False
        more = bool(self.read(1))
        if not more and ask_server and not os.path.exists(self.path):
            more = exists(self.path, True)
        if more:
            self.follow.news.append(self)
            self.follow.agent.out.offer(self.follow)
        return more

    def frame(self) -> "Optional[Frame]":
        self.follow.own(self.path)
        data = self.read(CHUNK)
        if not data:
            return None
        frame = pack({"id": self.follow.id, "file": self.number, "offset": self.offset}, data)
        self.offset += len(data)
        return frame

    def read(self, size: int) -> bytes:
        try:
            data = read_at(self.path, self.offset, size)
        except OSError as error:
            now = time.monotonic()
            since = self.away_since or now
            if error.errno in AWAY and now - since <= (AWAY_AT_END_S if self.follow.is_there else AWAY_S):
                self.away_since = since
                return b""
            if not self.follow.path:
                raise failure_of(error, self.path) from error
            self.follow.agent.watcher.drop(self)
            data = b""
        self.away_since = None
        return data

    def safely(self, action: "Callable[[], Any]") -> "Any":
        return self.follow.safely(action)


class StillHandler(RequestHandler):
    """Report each time that a file's content has not changed for `silent_s`, by this agent's clock.

    A file that was never seen is not silent: it may yet be made. Nor is one next to which there is what explains its
    silence (`unless`). Report it as gone if the folder `within` was missing at each look in that time.
    """

    LOOKS = 4

    def start(self) -> None:
        still = self.header["still"]
        self.path = expand(still["path"])
        self.unless, self.within = (expand(still[name]) if still.get(name) else "" for name in ("unless", "within"))
        self.silent = seconds(still, "silent_s", 60.0)
        self.last_content = b""
        self.since = self.reported = self.present_at = time.monotonic()
        self.agent.stills.add(self.look, self.silent / self.LOOKS)

    def look(self) -> None:
        # The round may have begun before the request ended.
        if not self.ended:
            self.safely(self.check_content)

    def check_content(self) -> None:
        now = time.monotonic()
        try:
            content = read_at(self.path, 0, 4096)
        except OSError:
            # The file server hangs, or the job has changed the mode of the file. Neither says anything new about the
            # job.
            content = b""
        if content or not (self.within and is_missing(self.within)):
            self.present_at = now
        if content and content != self.last_content:
            self.last_content = content
            self.since = self.reported = now
        if now - self.present_at >= self.silent:
            self.present_at = self.reported = now
            self.send({"silent_s": now - self.since, "gone": True})
        elif self.last_content and self.present_at == now and now - self.reported >= self.silent:
            self.reported = now
            if not (self.unless and os.path.lexists(self.unless)):
                self.send({"silent_s": now - self.since})

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.stills.drop(self.look)
