"""Keep one command started on a host, through a held connection, until a program of this user takes it over.

`standby.keep` starts this file by itself, with its plan on stdin. It imports only the standard library, because it
stays for hours. It ends with the held connection, and ends that connection once nothing has used it for its time.
"""

from __future__ import annotations

import base64
import contextlib
import json
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


class Command:
    """The started command: ours until a program takes it over, and our child as long as it lives."""

    def __init__(self, argv: list[str], first: bytes, start_s: float, end_s: float) -> None:
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
        self.ours[0].settimeout(start_s)
        with contextlib.suppress(OSError):  # it has ended already, or does not read: its output says so
            self.ours[0].sendall(first)
        self.ours[0].settimeout(None)

    def read(self, marker: bytes) -> bool:
        """Read what it prints up to the marker; return False if it ended or printed something else."""
        piece = self.ours[1].recv(NOISE_KEPT)
        self.printed += piece
        before, found, after = self.printed.partition(marker)
        if found:
            self.printed, self.is_ready = before, not after
        return (self.is_ready or not found) and bool(piece) and len(self.printed) <= NOISE_KEPT

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
    """Holds one command ready, gives it to the first program that connects, and then starts the next."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.argv, self.stop = plan["argv"], plan["stop"]
        self.first, self.marker = base64.b64decode(plan["first"]), plan["marker"].encode() + b"\n"
        self.address, self.master, self.pid = plan["address"], plan["master"], plan["pid"]
        self.ttl_s, self.fresh_s = plan["ttl_s"], plan["fresh_s"]
        self.start_s, self.end_s = plan["start_s"], plan["end_s"]
        self.pause_s, self.tries = plan["pause_s"], plan["tries"]
        self.standby: Command | None = None
        self.start_at = self.used_at = time.monotonic()
        self.failures = 0
        self.taken: list[tuple[Command, socket.socket, float]] = []  # with the time by which it must have ended
        self.woken, waker = os.pipe()
        for fd in (self.woken, waker):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def bind(self) -> bool:
        """Listen at the address; return False if another keeper does."""
        self.listener = socket.socket(socket.AF_UNIX)
        for _ in range(2):
            try:
                self.listener.bind(self.address)
            except OSError:
                with socket.socket(socket.AF_UNIX) as line:
                    if line.connect_ex(self.address) == 0:
                        return False
                Path(self.address).unlink(missing_ok=True)
                continue
            self.listener.listen()
            self.inode = os.stat(self.address).st_ino
            return True
        return False

    def is_wanted(self) -> bool:
        """Whether the connection is held, and its programs find this keeper."""
        try:
            os.kill(self.pid, 0)
            return Path(self.master).is_socket() and os.stat(self.address).st_ino == self.inode
        except OSError:
            return False

    def serve(self) -> None:
        try:
            while self.is_wanted() and (self.failures < self.tries or self.taken):
                now = time.monotonic()
                if not self.taken and now - self.used_at >= self.ttl_s:
                    self.drop()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        subprocess.run(self.stop, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.end_s)
                    break
                if self.standby is not None and now - self.standby.since >= self.fresh_s:
                    self.drop()
                if self.standby is None and now >= self.start_at and self.failures < self.tries:
                    self.standby = Command(self.argv, self.first, self.start_s, self.end_s)
                self.wait(now)
        finally:
            self.drop()
            self.listener.close()
            with contextlib.suppress(OSError):
                if os.stat(self.address).st_ino == self.inode:
                    os.unlink(self.address)

    def drop(self) -> None:
        if self.standby is not None:
            self.standby.end()
        self.standby = None

    def wait(self, now: float) -> None:
        """Wait for a program, the command, the end of a child or the next thing to do."""
        watched = [self.listener.fileno(), self.woken]
        watched += [line.fileno() for _, line, ends_at in self.taken if not ends_at]
        due = [LOOK_S, *([] if self.taken else [self.used_at + self.ttl_s - now])]
        starting = self.standby
        if starting is None:
            due += [self.start_at - now] if self.failures < self.tries else []
        else:
            due.append(starting.since + (self.fresh_s if starting.is_ready else self.start_s) - now)
            watched.append(starting.ours[1].fileno())
        due += [ends_at - now for _, _, ends_at in self.taken if ends_at]
        ready = set(select.select(watched, [], [], max(0.0, min(due)))[0])
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 512)
        if starting is not None:
            self.look_at(starting, starting.ours[1].fileno() in ready)
        if self.listener.fileno() in ready:
            self.hand_over()
        self.look_at_taken(ready)

    def look_at(self, command: Command, has_output: bool) -> None:
        """Take note that the command is ready, or has failed; one that prints after its marker has ended too."""
        was_ready = command.is_ready
        late = not was_ready and time.monotonic() - command.since >= self.start_s
        failed = (has_output and (was_ready or not command.read(self.marker))) or late
        if failed:
            self.drop()
            self.failures += 1
            self.start_at = time.monotonic() + self.pause_s * 4**self.failures
        elif command.is_ready and not was_ready:
            self.failures = 0

    def hand_over(self) -> None:
        """Give the command to the program that has connected; without one, close the line at once."""
        line, _ = self.listener.accept()
        command = self.standby
        if command is None or not command.is_ready or command.is_over():
            line.close()
            return
        message = json.dumps({"printed": command.printed[:NOISE_SENT].decode("latin-1")}).encode() + b"\n"
        try:
            socket.send_fds(line, [message], [each.fileno() for each in command.ours])
        except OSError:  # it left; the command waits for the next one
            line.close()
            return
        command.release()
        self.standby = None
        self.taken.append((command, line, 0.0))
        self.start_at = self.used_at = time.monotonic() + self.pause_s

    def look_at_taken(self, ready: set[int]) -> None:
        """Tell a program how its command ended; end a command whose program has closed it."""
        now, left = time.monotonic(), []
        for command, line, ends_at in self.taken:
            if command.is_over():
                with contextlib.suppress(OSError):
                    line.sendall(b"%d\n" % command.process.returncode)
                line.close()
                self.used_at = max(self.used_at, now)
                continue
            if not ends_at and line.fileno() in ready:
                ends_at = now + self.end_s
            elif ends_at and now >= ends_at:
                command.process.kill()
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
