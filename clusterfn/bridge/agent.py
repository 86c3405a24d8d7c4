"""The agent: for one client it moves bytes, runs programs and watches files on a host, over stdin and stdout.

The client sends this file over the stream and starts it by `main(marker)`; the wire is drawn in docs/architecture.md.
It is one file for Python 3.6 and up that imports only the standard library. One thread, one poll: nothing may wait,
not even for the fsync of a large file. It knows nothing of schedulers, environments or functions, and writes only where
it is told to.
"""

import collections
import errno
import fcntl
import heapq
import json
import os
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import time
import traceback

MYPY = False
if MYPY:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

    Header = Dict[str, Any]
    Plan = Tuple[str, int, int, Optional[float]]

CHUNK = 256 * 1024
FULL = 1024 * 1024  # bytes of unsent answers above which nothing new is read
FRAME = struct.Struct("!IQ")
OUTPUT_LIMIT = 4 * 1024 * 1024
POLL_FIRST_S, POLL_LAST_S, POLL_EACH_S = 0.01, 0.25, 0.0005
LINGER_S = 0.2  # for output that a finished program's children still hold open
SILENCE_S = 20 * 60.0  # the client pings every few minutes; without a word for so long it is gone
LOCK_PATIENCE_S = 60.0
FSYNC_ASIDE = 8 * 1024 * 1024

KINDS = {
    errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "denied",
    errno.ENOENT: "missing", errno.ENOTDIR: "missing",
}  # fmt: skip


class Failure(Exception):
    """An answer that says no: expected, and therefore data."""

    def __init__(self, kind: str, message: str, path: str = "", number: int = 0, **more: "Any") -> None:
        Exception.__init__(self, message)
        self.data = dict(more, kind=kind, message=message)
        if path:
            self.data["path"] = path
        if number:
            self.data["errno"] = number


def failure_of(error: OSError, path: str, **more: "Any") -> Failure:
    """What the operating system refused, in the words of the wire."""
    number = error.errno or 0
    kind = KINDS.get(number, "io")
    if kind == "full":
        more["free"] = free_bytes(path)
    return Failure(kind, os.strerror(number) if number else str(error), path, number, **more)


def free_bytes(path: str) -> "Optional[int]":
    """What is left on the file system of the nearest folder that exists."""
    try:
        disk = os.statvfs(existing_folder(path))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def existing_folder(path: str) -> str:
    """The nearest folder above `path` that exists."""
    folder = os.path.dirname(path) or "/"
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    return folder


def make_parent(path: str) -> None:
    """The folder of `path`, and those above it."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)


def expand(path: str) -> str:
    """An absolute path: `$VAR` of this host (an unknown one stays), then `~/`."""
    full = os.path.expanduser(os.path.expandvars(path))
    if "\0" in full or not os.path.isabs(full):
        raise Failure("bad", "not an absolute path on this host", path)
    return os.path.normpath(full)


def read_at(path: str, offset: int, size: int = CHUNK) -> bytes:
    """Bytes at an offset, none if there is no such file. Opened anew each time: on NFS only open() asks the server."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def exists(path: str, ask_server: bool) -> bool:
    """Whether `path` is there. NFS remembers for half a minute that a file was missing, unless its folder is listed."""
    if ask_server and not os.path.lexists(path):
        try:
            os.listdir(os.path.dirname(path))
        except OSError:
            return False
    return os.path.lexists(path)


def write_all(fd: int, data: "memoryview") -> None:
    """All of it: a disk that fills takes a part first."""
    while len(data):
        data = data[os.write(fd, data) :]


def remove_tree(path: str) -> None:
    """As `rm -rf`: what cannot be removed is left."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def changed_environment(header: "Header") -> "Dict[str, str]":
    """This process's variables without those of `unset`'s prefixes, and with those of `env`."""
    dropped = tuple(header.get("unset") or ())
    environment = {name: value for name, value in os.environ.items() if not (dropped and name.startswith(dropped))}
    environment.update(header.get("env") or {})
    return environment


def start_time(pid: int) -> "Optional[int]":
    """When the kernel started it, in clock ticks since boot; with the pid it names a process for ever (Linux)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


UTF8_NAMES = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def native(value: "Any") -> "Any":
    """The wire's strings as this interpreter names files: in the C locale 3.6 makes surrogates of bytes over 127."""
    return value if UTF8_NAMES else recoded(value, lambda text: os.fsdecode(text.encode("utf-8", "surrogateescape")))


def on_wire(value: "Any") -> "Any":
    """The reverse of `native`."""
    return value if UTF8_NAMES else recoded(value, lambda text: os.fsencode(text).decode("utf-8", "surrogateescape"))


def recoded(value: "Any", code: "Callable[[str], str]") -> "Any":
    if isinstance(value, str):
        return code(value)
    if isinstance(value, dict):
        return {recoded(key, code): recoded(item, code) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [recoded(item, code) for item in value]
    return value


def pack(header: "Header", body: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(on_wire(header)).encode()
    return b"".join((FRAME.pack(len(text), len(body)), text, body))


class Inbox:
    """Frames out of whatever pieces the stream comes in."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, piece: bytes) -> "Iterator[Tuple[Header, bytes]]":
        self.data += piece
        while len(self.data) >= FRAME.size:
            head, body = FRAME.unpack_from(self.data)
            middle, end = FRAME.size + head, FRAME.size + head + body
            if len(self.data) < end:
                return
            with memoryview(self.data) as view:
                text, content = bytes(view[FRAME.size : middle]), bytes(view[middle:end])
            del self.data[:end]
            yield native(json.loads(text.decode("utf-8", "surrogateescape"))), content


class Outbox:
    """What goes to the client: answers, then new output of followed files, then a chunk of each transfer a turn."""

    LINES_IN_A_ROW = 8

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.now = memoryview(b"")
        self.answers = collections.deque()  # type: Any
        self.size = 0
        self.lines = collections.deque()  # type: Any
        self.bodies = collections.deque()  # type: Any
        self.row = 0

    def answer(self, header: "Header", body: bytes = b"") -> None:
        frame = pack(header, body)
        self.answers.append(frame)
        self.size += len(frame)

    def offer(self, sender: "Request") -> None:
        """`sender.frame()` is asked, when there is room, until it has nothing more."""
        if not sender.queued:
            sender.queued = True
            (self.lines if sender.hot() else self.bodies).append(sender)

    def pending(self) -> bool:
        return bool(len(self.now) or self.answers or self.lines or self.bodies)

    def flush(self) -> None:
        """Write what the pipe takes, a few frames at most, so that reading has its turn."""
        for _ in range(2 * self.LINES_IN_A_ROW):
            if not len(self.now) and not self.next_frame():
                return
            try:
                self.now = self.now[os.write(self.fd, self.now) :]
            except BlockingIOError:
                return

    def next_frame(self) -> bool:
        while self.pending():
            frame = self.from_answers() if self.answers else self.from_sender()
            if frame:
                self.now = memoryview(frame)
                return True
        return False

    def from_answers(self) -> bytes:
        frame = self.answers.popleft()  # type: bytes
        self.size -= len(frame)
        return frame

    def from_sender(self) -> bytes:
        waiting_bodies = self.row >= self.LINES_IN_A_ROW and self.bodies
        ring = self.bodies if waiting_bodies or not self.lines else self.lines
        self.row = self.row + 1 if ring is self.lines else 0
        sender = ring.popleft()
        sender.queued = False
        frame = sender.safely(sender.frame) if not sender.ended else None
        if frame is not None and not sender.ended:
            self.offer(sender)
        return frame or b""


class Request:
    """One open request; it ends exactly once, by `end` or `fail`."""

    def __init__(self, agent: "Agent", header: "Header", body: bytes) -> None:
        self.agent = agent
        self.id = header["id"]  # type: int
        self.header = header
        self.body = body
        self.after = set()  # type: Set[int]
        self.started = False
        self.ended = False
        self.queued = False

    def begin(self) -> None:
        """At arrival, before what it comes `after` has ended."""

    def start(self) -> None:
        """What it does."""

    def chunk(self, body: bytes, last: bool) -> None:
        raise Failure("bad", "this request takes no chunks")

    def hot(self) -> bool:
        """Whether its frames go before the bodies of transfers."""
        return False

    def frame(self) -> "Optional[bytes]":
        """The next piece to send; None if there is none now, b"" to be asked again."""
        return None

    def stop(self) -> None:
        """The client wants no more of it."""
        self.fail(Failure("stopped", "stopped on request"))

    def release(self) -> None:
        """Leave nothing behind."""

    def send(self, header: "Header", body: bytes = b"") -> None:
        self.agent.out.answer(dict(header, id=self.id), body)

    def end(self, body: bytes = b"", **more: "Any") -> None:
        self.close(None, dict(more, end=True, ok=True), body)

    def fail(self, failure: Failure, body: bytes = b"", **more: "Any") -> None:
        self.close(failure.data, dict(more, end=True, ok=False, error=failure.data), body)

    def close(self, error: "Optional[Header]", header: "Header", body: bytes) -> None:
        if self.ended:
            return
        self.ended = True
        self.release()
        self.send(header, body)
        self.agent.forget(self, error)

    def safely(self, action: "Callable[[], Any]") -> "Any":
        """Do it; what goes wrong ends this request and nothing else."""
        try:
            return action()
        except Failure as failure:
            self.fail(failure)
        except OSError as error:
            self.fail(failure_of(error, str(error.filename or self.header.get("path") or "")))
        except (KeyError, TypeError, ValueError) as error:
            self.fail(Failure("bad", "%s: %s" % (type(error).__name__, error)))
        except Exception:  # noqa: BLE001 - the agent's outermost frame: other requests must go on; the client gets all of it
            self.fail(Failure("bad", traceback.format_exc()))
        return None


class Hello(Request):
    """Makes the root and says what kind of host this is."""

    def start(self) -> None:
        root = os.path.expanduser(os.path.expandvars(self.header["root"]))
        if "$" in root or not os.path.isabs(root):
            raise Failure("bad", "the root is not an absolute path on this host: is a variable unset?", root)
        self.agent.root = os.path.normpath(root)
        warnings = self.check(self.agent.root)
        self.agent.machine = machine()
        have = [os.path.exists(expand(path)) for path in self.header["have"]]
        self.end(**dict(facts(self.agent), warnings=warnings, have=have))

    def check(self, root: str) -> "List[str]":
        os.makedirs(root, mode=0o700, exist_ok=True)
        found = os.stat(root)
        if found.st_uid != os.geteuid():
            message = "the root belongs to the user with id %d, who could plant code there" % found.st_uid
            raise Failure("refused", message, root)
        if found.st_mode & stat.S_IWOTH:
            raise Failure("refused", "everybody may write to the root and could plant code there; chmod go-w it", root)
        open_to_group = found.st_mode & stat.S_IWGRP
        return ["%s: its group may write there and could plant code; chmod g-w it" % root] if open_to_group else []


def facts(agent: "Agent") -> "Header":
    """What the client may want to know of this host."""
    import pwd

    name = os.uname()
    return {
        "root": agent.root,
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "platform": sys.platform + "-" + name.machine,
        "machine": agent.machine,
        "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
        "hostname": name.nodename,
        "uid": os.geteuid(),
        "user": user_name(pwd),
        "home": os.path.expanduser("~"),
        "pid": os.getpid(),
        "cpus": cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "net_ns": link_text("/proc/self/ns/net"),
    }


def user_name(pwd: "Any") -> str:
    try:
        return str(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return str(os.geteuid())


def cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def link_text(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def machine() -> str:
    """A name for this machine alone: cloned images share a machine-id, a home may be shared by many hosts."""
    number = first_line("/etc/machine-id") or first_line("/var/lib/dbus/machine-id") or "unknown"
    return re.sub(r"[^A-Za-z0-9._-]", "_", "%s-%s" % (number, os.uname().nodename))


class Have(Request):
    def start(self) -> None:
        self.end(have=[os.path.exists(expand(path)) for path in self.header["paths"]])


class Ping(Request):
    def start(self) -> None:
        self.end()


class Stop(Request):
    def start(self) -> None:
        target = self.agent.requests.get(self.header["target"])
        if target is not None:
            target.safely(target.stop)
        self.end()


class Upload(Request):
    """Bytes into files aside; subclasses say which, and how they get their name. What fails leaves nothing behind.

    The bytes are taken as they come; only the name waits for what the request comes `after`.
    """

    def begin(self) -> None:
        self.path = expand(self.header["path"])
        self.aside = ""
        self.fd = -1
        self.left = 0
        self.received = False
        self.synced = False
        self.mtime = None  # type: Optional[float]
        self.digest = None  # type: Any
        if self.settled():
            return self.end(existed=True)
        self.aside = "%s.part-%d-%d" % (self.path, os.getpid(), self.id)
        make_parent(self.path)
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
                if self.header.get("sync", True) and self.needed <= FSYNC_ASIDE:
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
        if self.header.get("sync", True) and self.needed > FSYNC_ASIDE:
            return self.sync_aside()
        self.synced = True
        return self.settle()

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
        self.end()


class PutTree(Upload):
    def settled(self) -> bool:
        return os.path.exists(self.path)

    def plan(self) -> "List[Plan]":
        os.mkdir(self.aside, 0o700)
        return [self.one(*entry) for entry in self.header["files"]]

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
        return self.end()


class Get(Request):
    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        if not exists(self.path, True):
            raise Failure("missing", os.strerror(errno.ENOENT), self.path, errno.ENOENT)
        with open(self.path, "rb"):
            self.agent.out.offer(self)

    def frame(self) -> "Optional[bytes]":
        data = read_at(self.path, self.offset)
        self.offset += len(data)
        if data:
            return pack({"id": self.id}, data)
        self.end(size=self.offset)
        return None


class Follow(Request):
    """A file as it grows; it may not exist yet."""

    offset = 0
    path = ""

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        self.agent.watch.add(self)

    def look(self, ask_server: bool) -> bool:
        """Whether there is more; if so it is sent."""
        if self.queued:
            return False
        more = bool(read_at(self.path, self.offset, 1))
        if not more and ask_server and not os.path.exists(self.path):
            more = exists(self.path, True)
        if more:
            self.agent.out.offer(self)
        return more

    def hot(self) -> bool:
        return True

    def frame(self) -> "Optional[bytes]":
        data = read_at(self.path, self.offset) if self.path else b""
        if not data:
            return None
        frame = pack({"id": self.id, "offset": self.offset}, data)
        self.offset += len(data)
        return frame

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.watch.drop(self)


class Wait(Request):
    """Once a file exists: the rest of the drained follows, the `with` files, then the file itself."""

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.drain = collections.deque(self.header.get("drain") or ())
        places = [expand(path) for path in self.header.get("with") or ()]
        offsets = self.header.get("offsets") or [0] * len(places)
        self.files = collections.deque([i, place, offset] for i, (place, offset) in enumerate(zip(places, offsets)))
        self.agent.watch.add(self)

    def look(self, ask_server: bool) -> bool:
        if self.queued or not exists(self.path, ask_server):
            return False
        self.agent.watch.drop(self)
        self.agent.out.offer(self)
        return True

    def hot(self) -> bool:
        return bool(self.drain)

    def frame(self) -> "Optional[bytes]":
        if self.drain:
            return self.drained()
        if self.files:
            return self.of_files()
        with open(self.path, "rb") as file:
            self.end(file.read())
        return None

    def drained(self) -> bytes:
        follow = self.agent.requests.get(self.drain[0])
        frame = follow.safely(follow.frame) if isinstance(follow, Follow) else None
        if frame is None:
            self.drain.popleft()
            if isinstance(follow, Follow):
                follow.end()
        return frame or b""

    def of_files(self) -> bytes:
        index, place, offset = self.files[0]
        data = read_at(place, offset)
        if not data:
            self.files.popleft()
            return b""
        self.files[0][2] += len(data)
        return pack({"id": self.id, "file": index}, data)

    def release(self) -> None:
        self.agent.watch.drop(self)


class Program:
    """A program with pipes, in a process group of its own; `done` is called once."""

    def __init__(self, agent: "Agent", header: "Header", stdin: bytes, done: "Callable[[Program], None]") -> None:
        self.agent = agent
        self.done = done
        self.input = memoryview(stdin)
        self.output = {}  # type: Dict[int, List[bytes]]
        self.sizes = {}  # type: Dict[int, int]
        self.truncated = self.timed_out = self.finished = False
        self.status = None  # type: Optional[int]
        cwd = header.get("cwd")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            header["argv"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=expand(cwd) if cwd else None,
            env=changed_environment(header), start_new_session=True, close_fds=True,
        )  # fmt: skip
        self.pid = self.process.pid
        agent.children[self.pid] = self.on_exit
        self.connect_pipes()
        agent.at(header.get("timeout_s") or 60, self.on_timeout)

    def connect_pipes(self) -> None:
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self.pipes())
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
            self.output[fd], self.sizes[fd] = [], 0
            self.agent.readers[fd] = self.on_output
        os.set_blocking(self.stdin, False)
        self.agent.writers[self.stdin] = self.on_room

    def pipes(self) -> "List[Any]":
        return [self.process.stdin, self.process.stdout, self.process.stderr]

    def on_room(self, fd: int) -> None:
        try:
            self.input = self.input[os.write(fd, self.input) if len(self.input) else 0 :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.input = memoryview(b"")
        if not len(self.input):
            del self.agent.writers[fd]
            self.pipes()[0].close()

    def on_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        room = OUTPUT_LIMIT - self.sizes[fd]
        self.truncated = self.truncated or len(data) > room
        self.output[fd].append(data[:room])
        self.sizes[fd] += len(data[:room])
        if not data:
            del self.agent.readers[fd]
            self.maybe_done()

    def on_exit(self, status: int) -> None:
        self.status = status
        self.process.returncode = status
        self.maybe_done()
        if not self.finished:
            self.agent.at(LINGER_S, self.finish)

    def on_timeout(self) -> None:
        if self.status is None:
            self.timed_out = True
            self.kill()

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def maybe_done(self) -> None:
        if self.status is not None and not any(fd in self.agent.readers for fd in self.output):
            self.finish()

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        for fd in self.output:
            self.agent.readers.pop(fd, None)
        self.agent.writers.pop(self.stdin, None)
        for pipe in self.pipes():
            pipe.close()
        self.done(self)
        self.output.clear()

    def text(self, fd: int) -> bytes:
        return b"".join(self.output[fd])

    def result(self) -> "Header":
        status = self.status or 0
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return {"rc": None if ended_by else os.WEXITSTATUS(status), "signal": ended_by, "truncated": self.truncated}


class Run(Request):
    program = None  # type: Optional[Program]

    def start(self) -> None:
        self.program = Program(self.agent, self.header, self.body, self.on_done)
        self.body = b""

    def on_done(self, program: Program) -> None:
        out, err = program.text(program.stdout), program.text(program.stderr)
        sizes = dict(program.result(), out=len(out), err=len(err))
        if program.timed_out:
            message = "%s did not end within %g s" % (self.header["argv"][0], self.header.get("timeout_s") or 60)
            return self.fail(Failure("timeout", message), out + err, **sizes)
        return self.end(out + err, **sizes)

    def release(self) -> None:
        if self.program is not None and self.program.status is None:
            self.program.kill()


class Spawn(Request):
    """A detached program: it outlives this agent, which tells its end if it is still there."""

    def start(self) -> None:
        log = expand(self.header["log"])
        make_parent(log)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.process = subprocess.Popen(
                self.header["argv"], stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, cwd=expand(self.header["cwd"]),
                env=changed_environment(self.header), start_new_session=True, close_fds=True,
            )  # fmt: skip
        finally:
            os.close(fd)
        self.agent.children[self.process.pid] = self.on_exit
        self.send({"pid": self.process.pid, "starttime": start_time(self.process.pid)})

    def on_exit(self, status: int) -> None:
        self.process.returncode = status
        self.end(status=status)

    def stop(self) -> None:
        """It is not ours to end."""


class Repeat(Request):
    """A program at intervals; agents of one user on one machine that ask the same share the answer through a file."""

    last = None  # type: Optional[Tuple[Any, bytes, bytes]]
    program = None  # type: Optional[Program]
    lock = -1
    busy_since = None  # type: Optional[float]

    def start(self) -> None:
        self.interval = float(self.header["interval_s"])
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


class Still(Request):
    """Says so each time a file's content has not changed for `silent_s`, by this agent's clock. A file that has never
    been seen is not silent."""

    LOOKS = 4

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.silent = float(self.header["silent_s"])
        self.seen = b""
        self.since = self.told = time.monotonic()
        self.turn()

    def turn(self) -> None:
        if not self.ended:
            self.safely(self.one_look)

    def one_look(self) -> None:
        now = time.monotonic()
        content = read_at(self.path, 0, 4096) or self.seen
        if content != self.seen:
            self.seen, self.since, self.told = content, now, now
        if self.seen and now - self.told >= self.silent:
            self.told = now
            self.send({"silent_s": now - self.since})
        self.agent.at(self.silent / self.LOOKS, self.turn)

    def stop(self) -> None:
        self.end()


class Listing(Request):
    """Files below a folder, a few hundred entries a turn."""

    ENTRIES_A_TURN = 500

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.match = glob_pattern(self.header.get("glob") or "**").match
        self.limit = self.header.get("limit") or 10000
        self.found = []  # type: List[Any]
        os.listdir(self.path)
        self.walk = self.entries(self.path, "")
        self.agent.out.offer(self)

    def entries(self, folder: str, prefix: str) -> "Iterator[Optional[Any]]":
        for name in sorted(os.listdir(folder)):
            place = os.path.join(folder, name)
            try:
                status = os.lstat(place)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                yield None
                yield from self.entries(place, prefix + name + "/")
            elif self.match(prefix + name):
                yield [prefix + name, status.st_size, status.st_mtime, status.st_mode]
            else:
                yield None

    def frame(self) -> "Optional[bytes]":
        for _ in range(self.ENTRIES_A_TURN):
            try:
                entry = next(self.walk)
            except StopIteration:
                self.end(files=self.found, truncated=False)
                return None
            if entry is not None and len(self.found) == self.limit:
                self.end(files=self.found, truncated=True)
                return None
            if entry is not None:
                self.found.append(entry)
        return b""


def glob_pattern(glob: str) -> "Any":
    """As pathlib reads it: `*` stays within one name, `**` is any number of folders."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^]/]+\]|.", glob, re.DOTALL)
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        words.get(t) or (t.replace("[!", "[^") if t[0] == "[" and len(t) > 1 else re.escape(t)) for t in tokens
    )
    return re.compile("(?:%s)\\Z" % text, re.DOTALL)


class Inotify:
    """The kernel's word that a folder changed. On network file systems it hears of this machine's changes only."""

    MASK = 0x2 | 0x8 | 0x80 | 0x100  # MODIFY, CLOSE_WRITE, MOVED_TO, CREATE
    EVENT = struct.Struct("iIII")

    def __init__(self) -> None:
        import ctypes

        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def add(self, folder: str) -> int:
        """A number for the folder, the same each time; -1 if the kernel refuses."""
        return int(self.libc.inotify_add_watch(self.fd, os.fsencode(folder), self.MASK))

    def remove(self, number: int) -> None:
        self.libc.inotify_rm_watch(self.fd, number)

    def events(self) -> "Set[int]":
        """The folders in which something happened."""
        try:
            data = os.read(self.fd, 64 * 1024)
        except BlockingIOError:
            return set()
        found, at = set(), 0
        while at < len(data):
            number, _, _, size = self.EVENT.unpack_from(data, at)
            found.add(number)
            at += self.EVENT.size + size
        return found


def new_inotify() -> "Optional[Inotify]":
    try:
        return Inotify() if sys.platform.startswith("linux") else None
    except (ImportError, OSError, AttributeError):
        return None


class Watch:
    """Follows and waits, looked at when the kernel says so, and by a poll that slows down to `POLL_LAST_S`."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.open = {}  # type: Dict[Any, int]
        self.folders = collections.defaultdict(set)  # type: Dict[int, Set[Any]]
        self.inotify = None  # type: Optional[Inotify]
        self.tried = False
        self.pause = POLL_FIRST_S
        self.next = 0.0

    def add(self, request: "Any") -> None:
        if not self.tried:
            self.tried = True
            self.inotify = new_inotify()
            if self.inotify:
                self.agent.readers[self.inotify.fd] = self.on_events
        self.open[request] = -1
        self.arm(request)
        self.hurry()
        request.look(True)

    def arm(self, request: "Any") -> None:
        """Watch the nearest folder that exists, again if a nearer one appeared meanwhile."""
        folder = ""
        while self.inotify and folder != existing_folder(request.path):
            folder = existing_folder(request.path)
            number = self.inotify.add(folder)
            if number != self.open[request]:
                self.disarm(request)
                self.open[request] = number
                self.folders[number].add(request)

    def disarm(self, request: "Any") -> None:
        number = self.open[request]
        self.folders[number].discard(request)
        if not self.folders[number]:
            del self.folders[number]
            if self.inotify and number >= 0:
                self.inotify.remove(number)

    def drop(self, request: "Any") -> None:
        if request in self.open:
            self.disarm(request)
            del self.open[request]

    def hurry(self) -> None:
        self.pause = POLL_FIRST_S
        self.next = time.monotonic() + self.pause

    def on_events(self, _fd: int) -> None:
        assert self.inotify is not None
        for number in self.inotify.events():
            for request in list(self.folders.get(number, ())):
                self.check(request, False)

    def check(self, request: "Any", ask_server: bool) -> bool:
        if request not in self.open:
            return False
        if not os.path.isdir(os.path.dirname(request.path)) or self.open[request] < 0 or ask_server:
            self.arm(request)
        return bool(request.safely(lambda: request.look(ask_server)))

    def poll(self, now: float) -> None:
        if not self.open or now < self.next:
            return
        news = [self.check(request, True) for request in list(self.open)]
        slower = min(self.pause * 1.5, POLL_LAST_S)
        self.pause = max(POLL_FIRST_S if any(news) else slower, POLL_EACH_S * len(self.open))
        self.next = time.monotonic() + self.pause


VERBS = {
    "hello": Hello, "have": Have, "ping": Ping, "stop": Stop, "put": Put, "put_tree": PutTree, "get": Get,
    "list": Listing, "follow": Follow, "wait": Wait, "still": Still, "run": Run, "spawn": Spawn, "repeat": Repeat,
}  # fmt: skip


class Agent:
    """The loop: reads requests, lets each do its part, sends what they have to say."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.out = Outbox(sink)
        self.inbox = Inbox()
        self.requests = {}  # type: Dict[int, Request]
        self.failed = {}  # type: Dict[int, str]
        self.children = {}  # type: Dict[int, Callable[[int], None]]
        self.readers = {}  # type: Dict[int, Callable[[int], None]]
        self.writers = {}  # type: Dict[int, Callable[[int], None]]
        self.timers = []  # type: List[Tuple[float, int, Callable[[], None]]]
        self.counter = 0
        self.watch = Watch(self)
        self.root = self.machine = ""
        self.heard = time.monotonic()
        self.open = True

    def at(self, seconds: float, action: "Callable[[], None]") -> None:
        self.counter += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.counter, action))

    def take(self, header: "Header", body: bytes) -> None:
        """One frame from the client."""
        request = self.requests.get(header["id"])
        if header.get("do") == "chunk":
            if request is not None:
                upload = request
                upload.safely(lambda: upload.chunk(body, bool(header.get("last"))))
            return
        new = VERBS.get(header.get("do", ""), Unknown)(self, header, body)
        self.requests[new.id] = new
        new.safely(new.begin)
        for number in header.get("after") or ():
            if number in self.failed:
                new.fail(Failure("skipped", self.failed[number]))
            elif number in self.requests:
                new.after.add(number)
        self.maybe_start(new)

    def maybe_start(self, request: Request) -> None:
        if not request.after and not request.started and not request.ended:
            request.started = True
            request.safely(request.start)

    def forget(self, request: Request, error: "Optional[Header]") -> None:
        """It has ended: those that come after it start, or are skipped."""
        self.requests.pop(request.id, None)
        if error:
            self.failed[request.id] = str(error["message"])
        for other in list(self.requests.values()):
            if request.id not in other.after:
                continue
            other.after.discard(request.id)
            if error:
                other.fail(Failure("skipped", str(error["message"])))
            self.maybe_start(other)

    def reap(self, _fd: int = -1) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.children.pop(pid)(status)

    def read(self, _fd: int) -> None:
        try:
            piece = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        self.open = bool(piece)
        self.heard = time.monotonic()
        for header, body in self.inbox.feed(piece):
            self.take(header, body)

    def due(self) -> float:
        """Seconds until something is to be done without being asked."""
        soon = [self.heard + SILENCE_S]
        if self.timers:
            soon.append(self.timers[0][0])
        if self.watch.open:
            soon.append(self.watch.next)
        return max(0.0, min(soon) - time.monotonic())

    def turn(self) -> None:
        poll = select.poll()
        for fd in self.readers:
            if fd != self.source or self.out.size < FULL:
                poll.register(fd, select.POLLIN)
        for fd in self.writers:
            poll.register(fd, select.POLLOUT)
        if self.out.pending():
            poll.register(self.out.fd, select.POLLOUT)
        for fd, _ in poll.poll(int(self.due() * 1000) + 1):
            handler = self.readers.get(fd) or self.writers.get(fd)
            if handler:
                handler(fd)
        self.on_time()
        self.out.flush()

    def on_time(self) -> None:
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            heapq.heappop(self.timers)[2]()
        self.watch.poll(now)
        self.open = self.open and now - self.heard < SILENCE_S

    def serve(self, woken: int) -> None:
        """Until the client is gone; what it left open is undone, what it spawned goes on."""
        self.readers[self.source] = self.read
        self.readers[woken] = self.woken
        try:
            while self.open:
                self.turn()
        except (BrokenPipeError, ConnectionResetError):
            self.open = False
        finally:
            for request in list(self.requests.values()):
                request.release()

    def woken(self, fd: int) -> None:
        """A signal came: a child ended, or somebody wants us to go."""
        signals = os.read(fd, 512)
        self.open = self.open and not any(number in (signal.SIGHUP, signal.SIGTERM) for number in signals)
        self.reap()


class Unknown(Request):
    def start(self) -> None:
        raise Failure("bad", "this agent has no %r" % self.header.get("do"))


def wake_on_signals() -> int:
    """An fd that becomes readable when a child ends or when we are asked to go."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker)
    return woken


def main(marker: str) -> None:
    """Serve stdin and stdout until the client is gone. The marker ends whatever the login shell has printed."""
    os.umask(0o077)
    os.chdir("/")
    woken = wake_on_signals()
    os.write(1, marker.encode() + b"\n")
    os.set_blocking(1, False)
    Agent(0, 1).serve(woken)
    sys.stdout = sys.stderr = None
    os._exit(0)
