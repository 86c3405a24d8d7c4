"""Serve the calls of a session in their order, until it is closed or no call has come for `idle_s`.

A call comes as a whole folder, `calls/<n>`, by one rename: the agent makes it, or this process, of what a client sends
through the door. New folders are noticed by inotify, and on network file systems by looking less and less often.
Runners run the calls; this process loads nothing that calls use, and never waits for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ..agent.inotify import new_inotify
from ..kernel import attach
from ..kernel.carried import READ, SocketWatcher, receive
from ..layout import ATTEMPTS, CALL, CALLS, CLOSE, DOOR, LOST, OUTCOME, PAYLOAD, VALUE
from ..schedulers import scheduler_named
from ..supervisor import process_tree, publish
from ..supervisor.classify_exit import describe_signal
from ..supervisor.verdict import Verdict, document
from ..supervisor.worker_process import become_subreaper
from ..worker.execute import CallRejected
from .call import CallAttempt, CallJob
from .door import ClientConnection, Door, Listener
from .flush import Flusher
from .runner import RunnerProcess, Share, start_runner

if TYPE_CHECKING:
    from ..agent.frames import Header

_DEATHS = 5  # of runners in a row, none of which has run a call


def serve(job: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Serve until there is an end; how many calls it served, and why it ended: "closed" or "idle"."""
    folder = os.path.join(job, CALLS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    become_subreaper()
    server = SessionServer(folder, spec)
    try:
        if server.address:
            way = {
                "socket": server.address,
                "attach": [sys.executable, "-I", "-S", os.path.abspath(attach.__file__), server.address],
                "submission": scheduler_named(spec["scheduler"]).submission_id(),
            }
            publish.replace(os.path.join(job, DOOR), json.dumps(way).encode(), sync=False)
        why = server.serve()
    except BaseException:  # a signal, too: no client would hear how the calls end, and they would hold the GPUs
        server.end_calls()
        raise
    finally:
        with contextlib.suppress(OSError):  # there is none
            os.unlink(os.path.join(job, DOOR))  # before its address is free for others
        server.close()
    return {"calls": server.served, "why": why, "loaded beforehand": server.loaded}


class SessionServer:
    """The calls of one session.

    Attributes:
        served: How many ran.
        loaded: Modules that calls find loaded.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.served = 0
        self.loaded: list[str] = []
        self._folder = folder
        self._spec = spec
        self._last = 0  # the number of the last call that was given to a runner
        self._known: set[int] = set()  # calls after it whose folders are there
        self._listeners: dict[int, Listener] = {}
        self._deaths = 0
        shares = shares_of(spec)
        self._watcher = SocketWatcher()
        self._calls = FolderWatch(folder, self._watcher)
        self._door = Door(self._watcher, self._on_frame)
        self._flusher = Flusher()
        self._runners: list[RunnerProcess] = []
        for share in shares:
            self._start(share)

    @property
    def address(self) -> str:
        """The path of the socket that takes calls; "" without one."""
        return self._door.address

    def serve(self) -> str:
        """Serve call after call; return why it ended."""
        while True:
            if self._calls.is_due():
                self._look()
            self._hand_over()
            why = self._why_over()
            if why:
                return why
            self._watcher.wait(self._pause_s())
            self._door.flush(time.monotonic())

    def end_calls(self) -> None:
        """Kill the runners that run a call, and with them the calls."""
        for runner in self._runners:
            if runner.call:
                os.kill(runner.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the runners, and wait until all is on the disk."""
        self._door.close()
        for runner in self._runners:
            runner.sock.close()
        for runner in self._runners:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(runner.pid, 0)
        self._flusher.close()

    def _look(self) -> None:
        """List the folders of calls. A network file system shows a new one to those who list."""
        began = time.monotonic()
        names = os.listdir(self._folder)
        self._known.update(int(name) for name in names if name.isdecimal() and int(name) > self._last)
        self._calls.looked(time.monotonic() - began)

    def _has_next(self) -> bool:
        """Whether the folder of the next call is there."""
        number = self._last + 1
        if number not in self._known and self._calls.has_changed:
            if os.path.isdir(os.path.join(self._folder, str(number))):
                self._known.add(number)
            else:
                self._calls.has_changed = False
        return number in self._known

    def _hand_over(self) -> None:
        """Give the next calls to runners that are ready, in their order."""
        for runner in self._runners:
            if runner.is_ready and self._has_next():
                self._last += 1
                self._known.discard(self._last)
                self._calls.busy()
                listener = self._listeners.get(self._last)
                runner.give(self._last, listener is not None and listener.is_live)

    def _why_over(self) -> str:
        if any(runner.call for runner in self._runners) or self._has_next():
            return ""
        if os.path.exists(os.path.join(self._folder, CLOSE)):
            self._look()  # it came after the calls before it, of which the last look may not have known
            return "" if self._has_next() else "closed"
        return "idle" if self._calls.silent_s >= self._spec["session"]["idle_s"] else ""

    def _pause_s(self) -> float:
        pause = self._calls.pause_s()
        due = self._door.due()
        return max(0.0, min(pause, min(due) - time.monotonic())) if due else pause

    # the client

    def _on_frame(self, client: ClientConnection, header: Header, body: bytes) -> None:
        if header["what"] == "hello":
            client.say("welcome")
        elif header["what"] == "call":
            self._take(client, int(header["n"]), header, body)

    def _take(self, client: ClientConnection, number: int, header: Header, payload: bytes) -> None:
        """Lay out a call's folder as the agent would, unless it is there. A client that hears "again" sends it so."""
        self._calls.busy()
        self._listeners[number] = Listener(client, number, bool(header["live"]))
        try:
            lay_out_call(self._folder, number, payload, {"sys_path": header["sys_path"]})
        except OSError:  # the client asks the agent to try, which says why it cannot
            del self._listeners[number]
            client.say("again", n=number)
            return
        client.has_taken(number)
        if number > self._last:
            self._known.add(number)

    # the runners

    def _start(self, share: Share) -> None:
        foreign = [*self._door.fds(), self._flusher.fd, *(each.sock.fileno() for each in self._runners)]
        runner = start_runner(self._folder, share, foreign)
        self._runners.append(runner)
        self._watcher.watch(runner.sock, READ, lambda _: self._on_runner(runner))

    def _on_runner(self, runner: RunnerProcess) -> None:
        data = receive(runner.sock)
        if not data:
            self._on_death(runner)
            return
        for header, body in runner.inbox.feed(data):
            if header["what"] == "ready":
                if runner.call in self._listeners:  # another process has published its end, or the disk is full
                    self._tell_end(runner.call, "the disk took no outcome of the call")
                runner.is_ready, runner.call, self._deaths = True, 0, 0
                self.served += bool(header["ran"])
                self.loaded += [name for name in header["loaded"] if name not in self.loaded]
                self._calls.busy()
            else:
                events = header["events"]
                self._tell(header["n"], header["what"], body[events:], header.get("size", 0), body[:events])

    def _tell(self, number: int, what: str, data: bytes, size: int = 0, events: bytes = b"") -> None:
        """Pass on what was written to a call's files; have what has ended brought to the disk."""
        attempt = self._attempt_of(number)
        listener = self._listeners.get(number)
        if listener is not None:
            listener.take(what, data, events, os.path.join(attempt, VALUE), size)
        if what == "end":
            self._listeners.pop(number, None)
            self._flusher.add(attempt)

    def _attempt_of(self, number: int) -> str:
        return os.path.join(self._folder, str(number), ATTEMPTS, "1")

    def _on_death(self, runner: RunnerProcess) -> None:
        """End what a runner has left, fail its call by name, and start another runner."""
        self._watcher.forget(runner.sock)
        runner.sock.close()
        self._runners.remove(runner)
        _, status = os.waitpid(runner.pid, 0)
        self._end_orphans()
        if runner.call:
            self._fail(runner, status)
        self._deaths += 1
        if self._deaths >= _DEATHS:
            raise RuntimeError("the workers of the session die before they run a call: %s" % _how(status))
        self._start(runner.share)

    def _end_orphans(self) -> None:
        """End the processes that a runner has left behind, which are this one's now."""
        found: set[int] = set()

        def orphans() -> list[int]:
            everyone = process_tree.descendants(os.getpid())  # first: what living runners start meanwhile is not in it
            own = [self._flusher.pid]
            for runner in self._runners:
                own += [runner.pid, *process_tree.descendants(runner.pid)]
            living = [pid for pid in everyone if pid not in own]
            found.update(living)
            return living

        def reap() -> None:
            for pid in found:
                with contextlib.suppress(ChildProcessError):  # another's child, or collected
                    os.waitpid(pid, os.WNOHANG)

        process_tree.end(orphans, reap)
        reap()

    def _fail(self, runner: RunnerProcess, status: int) -> None:
        message = "worker %d of the session, which ran the call, %s" % (runner.share.number + 1, _how(status))
        self._tell_end(runner.call, message)

    def _tell_end(self, number: int, message: str) -> None:
        """Say how a call ended whose runner has not said it: by its outcome, or that it is lost, and why."""
        outcome = publish.read(self._attempt_of(number), OUTCOME)
        if outcome is not None:
            size = (json.loads(outcome.decode()).get("value") or {}).get("size") or 0
            self._tell(number, "end", outcome, size)
            return
        job = CallJob(os.path.join(self._folder, str(number)), self._spec)
        verdict = Verdict(LOST, message, stage="function", hint="call again")
        try:
            attempt = CallAttempt(job, lambda what, data, **facts: self._tell(number, what, data, **facts))
            attempt.publish_without_run(verdict)
        except OSError:  # a full disk: who listens hears of it, and no other call must end for it
            facts = dict(verdict.facts, node=job.node, by="supervisor")
            self._tell(number, "end", (json.dumps(document(job.id, 1, LOST, facts)) + "\n").encode())


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "was killed by %s" % describe_signal(os.WTERMSIG(status))
    return "exited with status %d" % os.WEXITSTATUS(status)


def shares_of(spec: dict[str, Any]) -> list[Share]:
    """Return what each of a session's workers has.

    Raises:
        CallRejected: The session has other GPUs than it asked for, so that none can be given to a worker.
    """
    workers: int = spec["session"].get("workers", 1)
    # Not the numbers that SLURM has for them: where it hides the others, CUDA counts from 0.
    given, asked = os.environ.get("CUDA_VISIBLE_DEVICES", ""), spec["resources"]["gpus"]
    found = [name for name in given.split(",") if name]
    if workers > 1 and asked and len(found) != asked:
        message = "the session has %d GPUs (%s), and its %d workers share %d" % (len(found), given, workers, asked)
        raise CallRejected("environment", message, "leave workers= out, or look at what the scheduler gives to the job")
    return [Share(spec, number, workers, given) for number in range(workers)]


def lay_out_call(folder: str, number: int, payload: bytes, facts: dict[str, Any]) -> None:
    """Make the folder of a call, as a whole, unless it is there.

    Raises:
        OSError: It could not be made, and nothing of it is left.
    """
    place = os.path.join(folder, str(number))
    aside = os.path.join(folder, ".%d-%s" % (number, os.urandom(4).hex()))
    try:
        os.mkdir(aside, 0o700)
        for name, data in ((PAYLOAD, payload), (CALL, json.dumps(facts).encode())):
            with open(os.path.join(aside, name), "xb", opener=_privately) as file:
                file.write(data)
        os.rename(aside, place)
    except OSError:
        _remove(aside)
        if not os.path.isdir(place):
            raise


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(folder: str) -> None:
    for name in (PAYLOAD, CALL):
        with contextlib.suppress(OSError):  # it was not made
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # as above
        os.rmdir(folder)


_FIRST_S, _LAST_S, _LONGEST_S = 0.02, 1.0, 10.0
_SLOWING = 60.0  # after a minute without a call: a look a second
_COST = 50.0  # looks take at most 2 % of the time


class FolderWatch:
    """Signs of life in a folder, which over a network file system the kernel does not give.

    Args:
        folder: It must exist.
        watcher: The loop of this process.

    Attributes:
        has_changed: Whether the kernel has said so.
    """

    def __init__(self, folder: str, watcher: SocketWatcher) -> None:
        self.has_changed = True
        self._cost_s = 0.0
        self._inotify = new_inotify()
        if self._inotify is not None:
            self._inotify.add(folder)
            watcher.watch(self._inotify.fd, READ, lambda _: self._on_change())
        self._since = self._looked = time.monotonic()

    def _on_change(self) -> None:
        assert self._inotify is not None
        self._inotify.events()
        self.has_changed = True

    def busy(self) -> None:
        """Look often again, as something came."""
        self._since = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Return the seconds since something came."""
        return time.monotonic() - self._since

    def pause_s(self) -> float:
        """Return how long to wait until the next look."""
        return max(min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING)), min(_LONGEST_S, _COST * self._cost_s))

    def is_due(self) -> bool:
        """Whether to look now."""
        return time.monotonic() >= self._looked + self.pause_s()

    def looked(self, cost_s: float) -> None:
        """Take note of a look, which took so long: with many calls the next comes later."""
        self._looked, self._cost_s = time.monotonic(), cost_s
