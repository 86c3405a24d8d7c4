"""Programs that run at intervals, and the answer that agents share."""

import fcntl
import json
import os
import time

from .failures import Failure
from .files import CHUNK, make_parent, write_all
from .outbox import FULL
from .program import Program
from .request import Request, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

LOCK_PATIENCE_S = 60.0


class Repeat(Request):
    """A program at intervals; agents of one user on one machine that ask the same share the answer through a file."""

    last: "Optional[Tuple[Any, bytes, bytes]]" = None
    program: "Optional[Program]" = None
    lock = -1
    busy_since: "Optional[float]" = None

    def start(self) -> None:
        self.interval = seconds(self.header, "interval_s", 60.0)
        self.place = self.shared_place() if self.header.get("share") else ""
        self.turn()

    def shared_place(self) -> str:
        import hashlib

        if not self.agent.root:
            raise Failure("bad", "share needs a root: say hello first")
        key = json.dumps([self.header["share"], self.header["argv"]]).encode("utf-8", "surrogateescape")
        return os.path.join(self.agent.root, "machines", self.agent.machine, "looks", hashlib.sha256(key).hexdigest())

    def turn(self) -> None:
        if not self.ended:
            self.safely(self.one_look)

    def one_look(self) -> None:
        if self.agent.out.size > FULL:
            return self.agent.at(1.0, self.turn)
        if self.place and not self.take_lock():
            return self.agent.at(min(0.1, self.interval), self.turn)
        known = self.cached() if self.lock >= 0 else None
        if known is not None:
            self.unlock()
            return self.tell(*known)
        self.program = Program(self.agent, self.header, b"", lambda program: self.safely(lambda: self.on_done(program)))
        return None

    def take_lock(self) -> bool:
        """False: another agent is looking just now. True without a lock: nobody can share here."""
        make_parent(self.place)
        fd = os.open(self.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            self.busy_since = self.busy_since or time.monotonic()
            return time.monotonic() - self.busy_since > LOCK_PATIENCE_S
        except OSError:
            os.close(fd)
            return True
        self.lock, self.busy_since = fd, None
        return True

    def unlock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def cached(self) -> "Optional[Tuple[Any, bytes, bytes, float]]":
        data = b"".join(iter(lambda: os.read(self.lock, CHUNK), b""))
        line, _, body = data.partition(b"\n")
        try:
            head = json.loads(line.decode())
            age = time.time() - head["t"]
            whole = len(body) == head["out"] + head["err"]
        except (ValueError, KeyError, TypeError):
            return None
        fresh = whole and 0 <= age < self.interval
        return (head["rc"], body[: head["out"]], body[head["out"] :], age) if fresh else None

    def on_done(self, program: Program) -> None:
        result = program.result()
        rc = None if program.timed_out else result["rc"] if result["rc"] is not None else -result["signal"]
        out, err = program.text(program.stdout), program.text(program.stderr)
        if program.truncated:  # what a list lacks would be taken for gone
            rc, out, err = None, b"", b"it printed more than the 4 MB that clusterfn reads\n"
        if self.lock >= 0:
            head = json.dumps({"t": time.time(), "rc": rc, "out": len(out), "err": len(err)}).encode()
            os.ftruncate(self.lock, 0)
            os.lseek(self.lock, 0, os.SEEK_SET)
            write_all(self.lock, memoryview(head + b"\n" + out + err))
            self.unlock()
        self.tell(rc, out, err, 0.0)

    def tell(self, rc: "Optional[int]", out: bytes, err: bytes, age: float) -> None:
        if self.ended:
            return
        same = self.last == (rc, out, err)
        self.last = (rc, out, err)
        self.send({"rc": rc, "out": len(out), "err": len(err), "same": same, "age_s": age}, b"" if same else out + err)
        self.agent.at(max(self.interval - age, 0.0), self.turn)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()
        self.unlock()
