"""The keeper, as its supervisor has it: the process of the environment's Python that forks the supervisor's workers.

The agent's template forks one for a job or an element (`worker/template.py`). An element without one starts its own.
A worker is started by exec instead as long as there is no keeper, if that has gone, or if the worker needs what only a
new interpreter reads. The agent starts its template here, too, for the environment of the last job.
"""

import _socket
import json
import os
import select
import signal
import sys
import time
from collections import deque, namedtuple

from .. import layout
from .environ import DescribedJob, add_script_variables, depends_on_cwd, may_still_get, worker_environment
from .job import JobFolder
from .process_tree import KEEPER, apart, descendants, note_process, send_signal
from .text import native, portable
from .worker_process import Pipes, WorkerSource, launch, send_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Mapping, Optional

    from .worker_process import WorkerProcess

    Ended = tuple[int, int, Any]

# A fork takes milliseconds, unless the machine has no memory.
_ANSWER_S = 3.0
# The first item waits so long for a keeper that was started for it, which would be there before an interpreter of its
# own. On a slow disk it starts one after all.
_START_S = 1.0
# Linux passes on a variable of at most 128 KiB.
_LONGEST_VARIABLE = 128 << 10

# As the kernel says it of a process that has ended.
_Used = namedtuple("_Used", ("ru_utime", "ru_stime", "ru_maxrss"))


class Keeper(WorkerSource):
    """The keeper of this process.

    Args:
        folder: Of the job or element.
        fd: Of its socket, if the agent's template forks it; -1 if it is started once it is needed.
    """

    def __init__(self, folder: str, fd: int = -1) -> None:
        self._folder = folder
        self._control: "Optional[_socket.socket]" = None
        self._own: "Optional[WorkerProcess]" = None
        # With which its interpreter has started: none until it is ready, and as asked for if this has started it.
        self._env: "Optional[Mapping[str, str]]" = None
        self._started_with: "Optional[Mapping[str, str]]" = None
        self._cwd = "/"
        self._pid = 0
        self._patience_s = _ANSWER_S
        self._unread = b""
        self._said: "Deque[dict[str, Any]]" = deque()
        self._living: "set[int]" = set()
        self._ended: "list[Ended]" = []
        # Only Linux has processes that adopt orphans.
        self._has_failed = not sys.platform.startswith("linux")
        if fd >= 0:
            self._control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)

    @property
    def fd(self) -> int:
        return -1 if self._control is None else self._control.fileno()

    def roots(self) -> "list[int]":
        return [self._pid] if self._pid and not self.is_alone else []

    def launch(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> "WorkerProcess":
        if self._control is None and not self._has_failed:
            self._start(argv, env, cwd, spec)
        worker = self._fork(argv, env, spec) if self._suits(env, cwd) else None
        self.is_alone = False
        return worker or launch(argv, env, cwd, spec)

    def collected(self) -> "list[Ended]":
        self._listen()
        ended, self._ended = self._ended, []
        self._living.difference_update(pid for pid, _, _ in ended)
        return ended

    def close(self) -> None:
        """End it, with its workers, and with what its container has beside it."""
        if self._control is not None:
            self._control.close()
        self._control = None
        self._has_failed = True
        # What ends with it has not said so.
        self._ended += [(pid, int(signal.SIGKILL), _Used(0.0, 0.0, 0)) for pid in self._living]
        self._living.clear()
        if self._own is not None:
            send_signal(descendants(self._own.pid), signal.SIGKILL)
            self._own.dismiss()
            self._own = None
        self._pid = 0

    def _start(self, argv: "list[str]", env: "dict[str, str]", cwd: str, spec: "Mapping[str, Any]") -> None:
        try:
            self._own = launch([*argv[:2], layout.TEMPLATE], env, cwd, spec)
        except OSError:
            # There is no room for a process or a pipe. The items start their own workers, and report it.
            self._has_failed = True
            return
        apart.add(self._own.pid)
        self._control = self._own.detach_control()
        self._cwd = cwd
        self._patience_s = _START_S
        self._started_with = env

    def _suits(self, env: "dict[str, str]", cwd: str) -> bool:
        """Whether a worker may be forked: the keeper is ready, and has read no other variables or folders."""
        if self._env is None and self._control is not None:
            self._await_ready()
        if self._env is None or self._control is None or not may_still_get(self._env, env):
            return False
        return cwd == self._cwd or not depends_on_cwd(env)

    def _await_ready(self) -> None:
        said = self._next(self._patience_s)
        # A keeper that the agent has promised comes now or never.
        if said is None and self._own is not None:
            self._patience_s = 0.0
            return
        facts = said or {}
        pid = facts.get("ready", 0)
        # What its start has printed belongs into the output of each item.
        if not pid or self._own is not None and any(_is_readable(fd, 0.0) for fd in (self._own.out, self._own.err)):
            self.close()
            return
        self._pid = pid
        self._env = facts["given"] if self._own is None else self._started_with
        if self._own is None:
            note_process(os.path.join(self._folder, layout.PROCESSES), KEEPER, pid)

    def _fork(self, argv: "list[str]", env: "dict[str, str]", spec: "Mapping[str, Any]") -> "Optional[WorkerProcess]":
        order = {"argv": portable(argv[2:]), "umask": spec.get("umask", 0o077)}
        with Pipes() as pipes:
            assert self._control is not None
            if send_line(self._control, (json.dumps(order) + "\n").encode(), pipes.theirs):
                pid = (self._next(_ANSWER_S) or {}).get("pid", 0)
                if pid:
                    self._living.add(pid)
                    # The worker gets its other variables with `begin`.
                    worker = pipes.worker(dict(self._env or {}), pid)
                    worker.is_loaded = True
                    return worker
        self.close()
        return None

    def _next(self, limit_s: float) -> "Optional[dict[str, Any]]":
        """Return what it says next; None if it says nothing in this time, and nothing of use if it has ended."""
        until = time.monotonic() + limit_s
        while True:
            self._listen()
            if self._said:
                return self._said.popleft()
            if self._control is None:
                return {}
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            _is_readable(self.fd, left_s)

    def _listen(self) -> None:
        """Take what it has said so far."""
        while self._control is not None:
            try:
                data = self._control.recv(65536, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.close()
                return
            lines = (self._unread + data).split(b"\n")
            self._unread = lines.pop()
            for said in (json.loads(line.decode()) for line in lines):
                if "ended" in said:
                    self._ended += [(pid, status, _Used(*used)) for pid, status, used in said["ended"]]
                    self.is_alone = said["alone"]
                else:
                    self._said.append(said)


def _is_readable(fd: int, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


def start_template(folder: str) -> int:
    """Become the template for the environment of a job that was sent to this folder; return only if there is none yet.

    The descriptors 0, 1 and 2 are the socket of its orders, what its interpreter prints, and its report.
    """
    control, report = os.dup(0), os.dup(2)
    os.dup2(1, 2)
    job = JobFolder(folder)
    spec = job.spec
    if spec.get("building") and not _has_environment(job):
        return 1
    host = {name: value for name, value in os.environ.items() if name != layout.TURN}
    # It outlives this job, and has none of its secrets.
    env = worker_environment(DescribedJob(job.id, folder, spec), 1, host, [])
    for name in (layout.TAG, layout.CHECKPOINT_VARIABLE):
        del env[name]
    for fd in (control, report):
        os.set_inheritable(fd, True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")
    given = json.dumps(env)
    if len(given) + len(layout.GIVEN_VARIABLE) + 2 < _LONGEST_VARIABLE:
        env[layout.GIVEN_VARIABLE] = given
    words = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), layout.TEMPLATE, layout.JOBS]
    return os.execve(words[0], [*words, str(report), str(control)], env)


def _has_environment(job: JobFolder) -> bool:
    """Whether the environment that the builder makes is there, and stays; learn what its own scripts set."""
    # These imports are late, because few jobs have an environment that is built.
    from ..builder import leases
    from ..builder.progress import BuildFailed

    wanted: "Any" = job.spec["building"]
    if wanted["purged"]:
        return False
    try:
        leases.refuse_untrusted(wanted["root"], wanted.get("owners") or (), wanted["id"])
        # The lease comes before the look, because an environment with a lease is not removed.
        leases.add_lease(wanted["root"], wanted["id"], job.folder)
        with open(os.path.join(layout.environment_dir(wanted["root"], wanted["id"]), layout.READY)) as file:
            add_script_variables(job.spec["activation"], native(json.load(file)))
    except (BuildFailed, OSError, ValueError):
        # The supervisor says what is wrong.
        return False
    return True
