"""Hold a kernel, or JupyterLab, inside a job: start it, carry its connections, keep its output while no client is
connected, end it.

A proxy names itself by its `incarnation`. The same one resumes; another one with the same key restarts the kernel in
the same job, with the same GPUs. One with another key must know whose place it takes: some clients end a kernel without
a message, and restart it with a new key. The job ends when the client has shut the kernel down, or when no proxy has
come for too long.
"""

import json
import os
import shutil
import signal
import socket

from ..agent.libc import become_subreaper
from ..layout import ATTEMPTS, KERNEL, STDERR, TAG
from ..schedulers.registry import scheduler_named
from ..supervisor import publish
from ..supervisor.limits import clock
from ..supervisor.text import format_duration, last_lines, masked
from ..supervisor.watch import Signals
from . import stream
from .carried import READ, SOCKET, attach_command, make_private_folder
from .far_end import FarEnd
from .process import DaskProcess, KernelProcess, LabProcess, how_it_ended
from .stream import MessageReader, request_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from .carried import CarriedConnection
    from .process import HeldProcess
    from .stream import Facts, Frame

# Beyond this much unacknowledged output, the holder reads no more, and the kernel keeps the rest.
LIMIT_BYTES = 64 * 2**20
# How long the job waits for the next proxy after a restart, a death of the kernel, and the loss of its client.
RESTART_S = 60.0
RESTART_AFTER_DEATH_S = 30.0
ORPHAN_S = 10.0
_GOODBYE_S = 5.0
_TICK_S = 1.0
_LISTENING_LOOK_S = 0.02
_TAIL_BYTES = 4096
_PROGRAMS = {"jupyterlab": LabProcess, "distributed": DaskProcess}


def serve(job: str, spec: "Dict[str, Any]") -> "Facts":
    """Serve a kernel until its job is to end; why that is, and how often the kernel was started.

    Args:
        job: The job's folder. The file `kernel.json` in it tells the client which socket to connect to, and by which
            program from elsewhere.
        spec: The job's.
    """
    become_subreaper()
    folder = make_private_folder()
    secrets = [os.environ[name] for name in spec["secrets"] if name in os.environ]
    holder = KernelHolder(job, spec["kernel"], folder, secrets)
    try:
        way = {
            "socket": holder.address,
            "attach": attach_command(holder.address),
            "submission": scheduler_named(spec["scheduler"]).submission_id(),
        }
        publish.replace(os.path.join(job, KERNEL), json.dumps(way).encode(), sync=False)
        return {"why": holder.serve(), "starts": holder.starts}
    finally:
        holder.close()
        shutil.rmtree(folder, ignore_errors=True)


class KernelHolder(FarEnd):
    """The kernel of one job, and its proxy: the socket for proxies, and how often the kernel started."""

    def __init__(self, job: str, settings: "Dict[str, Any]", folder: str, secrets: "List[str]") -> None:
        FarEnd.__init__(self, LIMIT_BYTES)
        self.starts = 0
        self._secrets = secrets
        self.address = os.path.join(folder, SOCKET)
        self._job = job
        self._folder = folder
        self._reconnect_s: float = settings["reconnect_s"]
        self._idle_s: float = settings["idle_s"]
        self._program = _PROGRAMS.get(settings["program"], KernelProcess)
        self._signals = Signals([signal.SIGCHLD])
        self._watcher.watch(self._signals.fd, READ, lambda _: self._signals.swallow())
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(8)
        self._listener.setblocking(False)
        self._watcher.watch(self._listener, READ, lambda _: self._accept(self._listener))
        self._kernel: "Optional[HeldProcess]" = None
        self._connecting: "List[Tuple[CarriedConnection, int]]" = []
        self._readers: "Dict[int, MessageReader]" = {}
        self._incarnation = self._key = self._scheme = ""
        self._past: "Set[str]" = set()
        self._goodbye_s = _GOODBYE_S
        # Why the kernel ends: "restart", "end" or "orphan" for its client, "idle" for its time limit.
        self._shutdown = ""
        self._why = ""
        self._ends_at = 0.0
        self._end_after(self._reconnect_s, "no client came")

    def serve(self) -> str:
        """Serve until the job is to end; return why."""
        while not self._is_over():
            # A kernel gives no sign when it begins to listen, so the holder tries often while a channel waits for it.
            waits = _LISTENING_LOOK_S if self._connecting else _TICK_S
            self._watcher.wait(max(0.0, min(waits, self._ends_at - clock.now()) if self._why else waits))
            self._connect_to_kernel()
            if self._kernel is not None and self._kernel.idle_s() >= self._idle_s:
                self._shutdown = self._shutdown or "idle"
                self._kernel.end()
            if self._kernel is not None and self._kernel.has_ended():
                self._on_kernel_end(self._kernel)
            self._send()
        return self._why

    def close(self) -> None:
        """End the kernel, and close all sockets."""
        if self._kernel is not None:
            self._kernel.end()
        self._carried.close()
        self._drop_link()
        self._listener.close()
        self._watcher.close()

    def _is_over(self) -> bool:
        said_goodbye = self._shutdown in ("end", "idle") and self._kernel is None and not self._stream.kept_bytes
        return bool(self._why) and (said_goodbye or clock.now() >= self._ends_at)

    def _end_after(self, seconds: float, why: str) -> None:
        """End the job after so long, unless something happens before."""
        self._ends_at, self._why = clock.now() + seconds, why

    def _greet(self, facts: "Facts") -> "Facts":
        """Take the proxy that has connected: it resumes, or begins with another kernel."""
        incarnation = str(facts["incarnation"])
        received = int(facts["received"])
        fresh = False
        is_heir = facts.get("adopts") == stream.key_name(self._key)
        if incarnation in self._past:
            return {"refused": "another program has connected to this kernel since"}
        if self._key and facts["key"] != self._key and not is_heir:
            return {"refused": "this is the kernel of another notebook"}
        if incarnation != self._incarnation and received:
            return {"refused": "the kernel that this proxy served has ended"}
        if incarnation != self._incarnation:
            self._begin(incarnation, str(facts["key"]), str(facts["signature_scheme"]))
            fresh = True
        if self._kernel is not None:
            self._why = ""
        return {"fresh": fresh}

    def _begin(self, incarnation: str, key: str, scheme: str) -> None:
        """Start a kernel for a new proxy, instead of the one that may be running."""
        self._drop_link()
        if self._kernel is not None:
            self._kernel.end()
        self._carried.close()
        # A proxy that was replaced may try to resume, and is refused then.
        self._past.add(self._incarnation)
        self._incarnation, self._key, self._scheme = incarnation, key, scheme
        self._shutdown = self._why = ""
        self._goodbye_s = _GOODBYE_S
        self._begin_stream()
        self._connecting = []
        self._readers = {}
        self._kernel = self._program(self._folder, key, scheme)
        self.starts += 1

    def _on_lost_link(self) -> None:
        if self._kernel is not None:
            self._end_after(self._reconnect_s, "no client came back")

    # What the proxy sends

    def _deliver(self, frame: "Frame") -> None:
        reader = self._readers.get(frame.connection)
        if frame.kind == stream.DATA and reader is not None:
            reader.passed(frame.body)
        self._carried.take(frame)

    def _open(self, number: int, channel: int) -> None:
        if channel in (stream.SHELL, stream.CONTROL):
            self._readers[number] = MessageReader(self._note_request)
        sees = None
        if channel == stream.IOPUB and self._kernel is not None:
            sees = MessageReader(self._kernel.note_output).passed
        self._connecting.append((self._carried.add(number, None, sees), channel))
        self._connect_to_kernel()

    def _connect_to_kernel(self) -> None:
        """Connect what waits for the kernel to listen."""
        for connection, channel in list(self._connecting):
            sock = self._kernel.connect(channel) if self._kernel is not None else None
            if sock is not None:
                self._connecting.remove((connection, channel))
                self._carried.attach(connection, sock)

    def _note_request(self, parts: "List[bytes]") -> None:
        """Act on the request that concerns the job, too; the kernel also gets it."""
        kind, content = request_of(parts)
        if kind == "shutdown_request":
            self._shutdown = "restart" if content.get("restart") else "end"

    def _on_facts(self, facts: "Facts") -> None:
        if facts.get("do") == "interrupt" and self._kernel is not None:
            self._kernel.interrupt()
        elif facts.get("do") in ("orphan", "end"):
            # No client listens any more, so there is no reason to wait for an answer.
            self._shutdown = self._shutdown or facts["do"]
            self._goodbye_s = 0.0
            if self._kernel is not None:
                self._kernel.end()

    # The end of the kernel

    def _on_kernel_end(self, kernel: "HeldProcess") -> None:
        """Send the rest of its output, say how it ended, and decide how long the job waits for another proxy."""
        # The kernel may have started programs that still run.
        kernel.end()
        self._kernel = None
        self._connecting = []
        self._carried.drain()
        if kernel.was_shut_down():
            self._shutdown = self._shutdown or "end"
        if self._shutdown == "end":
            self._stream.say(ended="end")
            self._end_after(self._goodbye_s, "%s was shut down" % kernel.title)
        elif self._shutdown == "orphan":
            self._end_after(ORPHAN_S, "the client of %s has ended" % kernel.title)
        elif self._shutdown == "idle":
            self._stream.say(ended="idle", idle_s=self._idle_s)
            self._end_after(_GOODBYE_S, "%s was idle for %s" % (kernel.title, format_duration(self._idle_s)))
        elif self._shutdown == "restart":
            self._stream.say(ended="keep")
            self._end_after(RESTART_S, "the kernel was not started again")
        else:
            how = how_it_ended(kernel.status or 0)
            attempt = os.environ.get(TAG, "").rpartition("/")[2]
            stderr = publish.last_bytes(os.path.join(self._job, ATTEMPTS, attempt, STDERR), _TAIL_BYTES)
            self._stream.say(ended="died", how=how, lines=masked(last_lines(stderr), self._secrets))
            self._end_after(RESTART_AFTER_DEATH_S, "%s died (%s) and was not started again" % (kernel.title, how))
