"""Keep one command started on a host, through a held connection, until a program of this user takes it over.

`standby.keep` starts this file by itself, with its plan on stdin. It imports only the standard library, because it
stays for hours. A program connects and sends one byte: `T` takes the command, `R` has it ended because it wants its
session, `P` asks for which connection this keeper works, and whether a command waits. The keeper ends with the held
connection.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NOISE_KEPT = 64 * 1024
NOISE_SENT = 2048
LOOK_S = 60.0
# A program must send its request within this time, because the keeper serves one at a time.
ASK_S = 0.3


class Command:
    """The started command: ours until a program takes it over, and our child as long as it lives."""

    def __init__(self, argv: list[str], first: bytes, end_s: float) -> None:
        self.since, self.end_s = time.monotonic(), end_s
        self.printed = b""
        self.is_ready = False
        pairs = [socket.socketpair() for _ in range(3)]
        self.ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
        stdin, stdout, stderr = (each.fileno() for each in theirs)
        self.process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, cwd="/"
        )
        for each in theirs:
            each.close()
        self.ours[0].settimeout(end_s)
        with contextlib.suppress(OSError):
            # The command may have ended, or may not read. Its output shows that, and is read later.
            self.ours[0].sendall(first)
        self.ours[0].settimeout(None)

    def read(self, marker: bytes) -> bool:
        """Read what it prints up to the marker; return False if it ended or printed something else."""
        piece = self.ours[1].recv(NOISE_KEPT)
        self.printed += piece
        before, separator, after = self.printed.partition(marker)
        if separator:
            self.printed, self.is_ready = before, not after
        return (self.is_ready or not separator) and bool(piece) and len(self.printed) <= NOISE_KEPT

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def release(self) -> None:
        """Close our ends of it; it ends itself unless another process has them too."""
        for each in self.ours:
            each.close()

    def end(self) -> None:
        self.release()
        try:
            self.process.wait(self.end_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Keeper:
    """Holds one command ready, gives it to the first program that asks, and then starts the next."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.argv = plan["argv"]
        self.first, self.marker = base64.b64decode(plan["first"]), plan["marker"].encode() + b"\n"
        self.address, self.master, self.pid = plan["address"], plan["master"], plan["pid"]
        self.idle_s, self.fresh_s = plan["idle_s"], plan["fresh_s"]
        self.start_s, self.end_s = plan["start_s"], plan["end_s"]
        self.pause_s, self.tries = plan["pause_s"], plan["tries"]
        self.standby: Command | None = None
        self.start_at = self.used_at = time.monotonic()
        self.failures = 0
        # Commands that programs have taken over, with the time by which each must have ended (0 for none).
        self.taken: list[tuple[Command, socket.socket, float]] = []
        self.woken, waker = os.pipe()
        for fd in (self.woken, waker):
            os.set_blocking(fd, False)
        # The end of a child must wake `select`. Python writes to the
        # descriptor below only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def bind(self) -> bool:
        """Listen at the address; return False if another keeper of this connection does."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ASK_S)
            line.connect(self.address)
            line.sendall(b"P")
            if line.recv(16).startswith(b"%d " % self.pid):
                return False
        self.listener = socket.socket(socket.AF_UNIX)
        own = f"{self.address}{os.getpid()}"
        self.listener.bind(own)
        self.listener.listen()
        self.listener.setblocking(False)
        self.inode = os.stat(own).st_ino
        # The rename is atomic. The old keeper sees that the address has another inode, and ends.
        os.rename(own, self.address)
        return True

    def is_reachable(self) -> bool:
        """Whether the connection is held, and its programs find this keeper."""
        try:
            os.kill(self.pid, 0)
            return Path(self.master).is_socket() and os.stat(self.address).st_ino == self.inode
        except OSError:
            return False

    def serve(self) -> None:
        try:
            while self.is_reachable() and (self.failures < self.tries or self.taken):
                now = time.monotonic()
                if self.standby is not None and now >= self.ends_at():
                    if now - self.standby.since >= self.fresh_s:
                        self.failures = 0
                    self.drop()
                if self.standby is None and self.start_at <= now < self.used_at + self.idle_s:
                    self.standby = Command(self.argv, self.first, self.end_s)
                self.wait()
        finally:
            self.drop()
            self.listener.close()
            with contextlib.suppress(OSError):
                if os.stat(self.address).st_ino == self.inode:
                    os.unlink(self.address)

    def ends_at(self) -> float:
        """Return when the command is too old, or was kept for long enough in vain."""
        since = self.standby.since if self.standby is not None else math.inf
        return float(min(since + self.fresh_s, self.used_at + self.idle_s))

    def drop(self) -> None:
        if self.standby is not None:
            self.standby.end()
        self.standby = None

    def wait(self) -> None:
        """Wait for a program, the command, the end of a child or the next thing to do."""
        now, command = time.monotonic(), self.standby
        watched = [self.listener.fileno(), self.woken]
        watched += [line.fileno() for _, line, ends_at in self.taken if not ends_at]
        due = [LOOK_S, *(ends_at - now for _, _, ends_at in self.taken if ends_at)]
        if command is not None:
            watched += [each.fileno() for each in command.ours[1:]]
            due.append((self.ends_at() if command.is_ready else command.since + self.start_s) - now)
        elif self.start_at < self.used_at + self.idle_s:
            due.append(self.start_at - now)
        ready = set(select.select(watched, [], [], max(0.0, min(due)))[0])
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 512)
        if command is not None:
            self.look_at(command, ready)
        if self.listener.fileno() in ready:
            with contextlib.suppress(OSError):
                # The program may disconnect before it has sent its request.
                self.answer()
        self.look_at_taken(ready)

    def look_at(self, command: Command, ready: set[int]) -> None:
        """Take note that the command is ready, or has failed; one that prints after its marker has ended too."""
        if command.ours[2].fileno() in ready:
            # Read stderr and drop it, because a full buffer would stop the command.
            command.ours[2].recv(NOISE_KEPT)
        failed = not command.is_ready and time.monotonic() - command.since >= self.start_s
        if command.ours[1].fileno() in ready:
            failed = command.is_ready or not command.read(self.marker)
        if failed:
            self.drop()
            # This counts even if the command was ready before, because then
            # something on the host ends processes that wait.
            self.failures += 1
            late = self.failures >= self.tries
            # Wait longer after each failure, because the host may be out of order for some time.
            self.start_at = math.inf if late else time.monotonic() + self.pause_s * 4**self.failures

    def answer(self) -> None:
        """Do what a program that has connected wants."""
        line, _ = self.listener.accept()
        line.settimeout(ASK_S)
        request = line.recv(1)
        if request == b"P" and self.is_reachable():
            line.sendall(b"%d %d\n" % (self.pid, self.standby is not None and self.standby.is_ready))
        if request == b"R":
            self.drop()
            self.start_at = max(self.start_at, time.monotonic() + LOOK_S)
        if request != b"T" or not self.hand_over(line):
            line.close()

    def hand_over(self, line: socket.socket) -> bool:
        """Give the command to a program; return False if there is none to give."""
        command, now = self.standby, time.monotonic()
        if now >= self.used_at + self.idle_s:
            self.start_at = max(self.start_at, now + self.pause_s)
        self.used_at = now
        if command is None or not command.is_ready or command.is_over():
            return False
        message = json.dumps({"printed": command.printed[:NOISE_SENT].decode("latin-1")}).encode() + b"\n"
        socket.send_fds(line, [message], [each.fileno() for each in command.ours])
        command.release()
        self.standby, self.failures, self.start_at = None, 0, now + self.pause_s
        self.taken.append((command, line, 0.0))
        return True

    def look_at_taken(self, ready: set[int]) -> None:
        """Tell a program how its command ended; end a command whose program has closed it."""
        now, left = time.monotonic(), []
        for command, line, ends_at in self.taken:
            if command.is_over():
                with contextlib.suppress(OSError):
                    line.sendall(b"%d\n" % command.process.returncode)
                line.close()
                self.used_at = now
                continue
            if not ends_at and line.fileno() in ready:
                ends_at = now + self.end_s
            elif ends_at and now >= ends_at:
                command.process.kill()
                ends_at = math.inf
            left.append((command, line, ends_at))
        self.taken = left


def main() -> None:
    """Keep what the plan on stdin names."""
    plan = json.load(sys.stdin)
    os.umask(0o077)
    keeper = Keeper(plan)
    if keeper.bind():
        keeper.serve()


if __name__ == "__main__":
    main()
