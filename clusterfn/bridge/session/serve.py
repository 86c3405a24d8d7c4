"""Serve the calls of a session in their order, until it is closed or no call has come for `idle_s`.

A call comes as a whole folder, `calls/<n>`, by one rename: the agent makes it, or this process, of what a client sends
through the socket. New folders are noticed by inotify, and on network file systems by looking less and less often.
Runners run the calls; this process loads nothing that calls use, and never waits for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from ..agent.libc import become_subreaper
from ..kernel.carried import READ, SocketWatcher, attach_command, receive
from ..layout import ACTOR_LOST, CALL, CALLS, CLOSE, DOOR, HOST_DISK, LOST, OUTCOME, VALUE
from ..schedulers.registry import scheduler_named
from ..supervisor import process_tree, publish
from ..supervisor.classify_exit import describe_exit
from ..supervisor.verdict import Verdict, document
from ..worker.execute import CallRejected
from .call import FULL_DISK, ROOM, CallAttempt, CallJob, is_taken, take_call
from .connections import ClientConnection, Listener, SessionSocket
from .folders import CALL_FACTS, FolderWatch, lay_out
from .keep_actor import CREATE_AGAIN
from .runner import ActorTurns, RunnerProcess, Share, Turns, start_runner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..agent.frames import Header
    from ..supervisor.spec import Spec

# So many runners may die in a row that have run no call.
_DEATHS = 5


def serve(job: str, spec: Spec) -> dict[str, Any]:
    """Serve until there is an end; how many calls it served, and why it ended: "closed" or "idle"."""
    folder = os.path.join(job, CALLS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    become_subreaper()
    server = SessionServer(folder, spec)
    try:
        if server.address:
            way = {
                "socket": server.address,
                "attach": attach_command(server.address),
                "submission": scheduler_named(spec["scheduler"]).submission_id(),
            }
            publish.replace(os.path.join(job, DOOR), json.dumps(way).encode(), sync=False)
        why = server.serve()
    except BaseException:
        # After a signal, too, no client would learn how the calls end, and they would hold the GPUs.
        server.end_calls()
        raise
    finally:
        # There may be no such file.
        with contextlib.suppress(OSError):
            # It goes before its address is free for others.
            os.unlink(os.path.join(job, DOOR))
        server.close()
    return {"calls": server.served, "why": why, "loaded beforehand": server.loaded}


class SessionServer:
    """The calls of one session.

    Attributes:
        served: How many ran.
        address: The path of the socket that takes calls; "" without one.
        loaded: Modules that calls find loaded.
    """

    def __init__(self, folder: str, spec: Spec) -> None:
        self.served = 0
        self.loaded: list[str] = []
        self._folder = folder
        self._spec = spec
        # This is the number of the last call that was found.
        self._last = 0
        # These are the calls after it whose folders are there.
        self._known: set[int] = set()
        self._listeners: dict[int, Listener] = {}
        # These are the facts of calls that came through the socket.
        self._facts: dict[int, Mapping[str, Any]] = {}
        self._turns = Turns()
        self._deaths = 0
        shares = shares_of(spec)
        self._watcher = SocketWatcher()
        self._calls = FolderWatch(folder, self._watcher)
        self._socket = SessionSocket(self._watcher, self._on_frame)
        self.address = self._socket.address
        self._runners: list[RunnerProcess] = []
        for share in shares:
            self._start(share)

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
            self._socket.flush(time.monotonic())

    def end_calls(self) -> None:
        """Kill the runners that run a call, and with them the calls."""
        for runner in self._runners:
            if runner.call:
                os.kill(runner.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the runners."""
        self._socket.close()
        for runner in self._runners:
            runner.sock.close()
        for runner in self._runners:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(runner.pid, 0)

    def _look(self) -> None:
        """List the folders of calls. A network file system shows a new one to those who list."""
        names = os.listdir(self._folder)
        self._known.update(int(name) for name in names if name.isdecimal() and int(name) > self._last)
        self._calls.looked()

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
        """Give the next calls to the runners whose turn it is, in their order."""
        while self._has_next():
            self._last += 1
            self._known.discard(self._last)
            self._calls.busy()
            found = self._facts_of(self._last)
            if found is not None:
                self._turns.add(self._last, found)
        for runner in self._runners:
            while True:
                call = self._turns.next_for(runner)
                if call is None:
                    break
                number, facts = call
                listener = self._listeners.get(number)
                runner.give(number, listener is not None and listener.is_live, facts)
        while self._turns.lost:
            self._fail_lost(*self._turns.lost.popleft())

    def _facts_of(self, number: int) -> Mapping[str, Any] | None:
        """Return what is in the call.json of a call; None for a number that its client skips, or if it is damaged."""
        if number in self._facts:
            return self._facts.pop(number)
        try:
            with open(os.path.join(self._folder, str(number), CALL), encoding="utf-8") as file:
                return dict(json.load(file))
        except FileNotFoundError:
            return None
        except ValueError:
            self._tell_end(number, "its %s is damaged" % CALL)
            return None

    def _why_over(self) -> str:
        if any(runner.call for runner in self._runners) or not self._turns.is_empty() or self._has_next():
            return ""
        if os.path.exists(os.path.join(self._folder, CLOSE)):
            # The request came after the calls before it, which the last look may have missed.
            self._look()
            return "" if self._has_next() else "closed"
        return "idle" if self._calls.silent_s >= self._spec["session"]["idle_s"] else ""

    def _pause_s(self) -> float:
        pause = self._calls.pause_s()
        due = self._socket.due()
        return max(0.0, min(pause, min(due) - time.monotonic())) if due else pause

    # the client

    def _on_frame(self, client: ClientConnection, header: Header, body: bytes) -> None:
        if header["what"] == "hello":
            client.answers_pieces = bool(header.get("answer_pieces"))
            client.send("welcome")
        elif header["what"] == "call":
            self._accept_call(client, int(header["n"]), header, body)

    def _accept_call(self, client: ClientConnection, number: int, header: Header, payload: bytes) -> None:
        """Lay out a call's folder as the agent would, unless it is there. A client that hears "again" sends it so."""
        self._calls.busy()
        self._listeners[number] = Listener(client, number, bool(header["live"]))
        try:
            facts = {name: header[name] for name in CALL_FACTS if name in header}
            lay_out(self._folder, number, payload, facts)
        except OSError:
            # The client asks the agent to try, which reports why it cannot.
            del self._listeners[number]
            client.send("again", n=number)
            return
        client.has_taken(number)
        if number > self._last:
            self._known.add(number)
            self._facts[number] = facts

    # the runners

    def _start(self, share: Share) -> None:
        foreign = [*self._socket.fds(), *(runner.sock.fileno() for runner in self._runners)]
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
                self._on_ready(runner, header["ran"])
                runner.is_ready = True
                self.loaded += [name for name in header["loaded"] if name not in self.loaded]
            elif header["what"] == "next":
                self._on_ready(runner, header["ran"])
            elif header["what"] == "gone":
                self._lose_actor(runner, header["reason"])
            else:
                self._tell(header["n"], header["what"], body, header.get("size", 0))

    def _on_ready(self, runner: RunnerProcess, ran: bool | None) -> None:
        # Another process has published the end of the call, or the disk is full.
        if runner.call in self._listeners:
            if ran:
                self._tell_end(runner.call, "the disk took no outcome of the call")
            else:
                self._tell_end(runner.call, FULL_DISK, HOST_DISK)
        if runner.call:
            runner.given.popleft()
        self._deaths = 0
        self.served += bool(ran)
        self._calls.busy()

    def _tell(self, number: int, what: str, data: bytes, size: int = 0) -> None:
        """Pass on what was written to a call's files."""
        listener = self._listeners.get(number)
        if listener is not None:
            listener.pass_on(what, data, os.path.join(self._path(number), VALUE), size)
        if what == "end":
            self._listeners.pop(number, None)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, str(number))

    def _on_death(self, runner: RunnerProcess) -> None:
        """End what a runner has left, fail its call by name, and start another runner."""
        self._watcher.forget(runner.sock)
        runner.sock.close()
        self._runners.remove(runner)
        _, status = os.waitpid(runner.pid, 0)
        self._end_orphans()
        if runner.call:
            # The call may have taken longer than an idle session lasts.
            self._calls.busy()
        how = "worker %d of the session, which %%s, %s" % (runner.share.number + 1, describe_exit(status))
        if runner.call and (not runner.actor or is_taken(self._path(runner.call))):
            self._tell_end(runner.given.popleft(), how % "ran the call", ends_actor=bool(runner.actor))
        if runner.actor:
            self._lose_actor(runner, how % "had it")
        self._deaths += 1
        if self._deaths >= _DEATHS:
            raise RuntimeError("the workers of the session die before they run a call: %s" % describe_exit(status))
        self._start(runner.share)

    def _end_orphans(self) -> None:
        """End the processes that a runner has left behind, which are this one's now."""

        def own() -> list[int]:
            pids = []
            for runner in self._runners:
                pids += [runner.pid, *process_tree.descendants(runner.pid)]
            return pids

        process_tree.end_all_but(own)

    def _lose_actor(self, runner: RunnerProcess, reason: str) -> None:
        self._turns.lose(runner.actor, reason, runner.given)
        self._socket.send("gone", actor=runner.actor, reason=reason)
        runner.given.clear()
        runner.actor = 0

    def _fail_lost(self, number: int, actor: ActorTurns) -> None:
        """Publish that a call of an actor will not run, unless it was withdrawn."""
        # On a full disk, a client that listens is informed all the same.
        with contextlib.suppress(OSError):
            if not take_call(self._attempt(number), self._path(number)) and number not in self._listeners:
                return
        message = "the actor %s is gone, and its state with it: %s" % (actor.name, actor.gone)
        self._tell_end(number, message, ACTOR_LOST)

    def _attempt(self, number: int) -> CallAttempt:
        job = CallJob(self._path(number), self._spec)
        return CallAttempt(job, lambda what, data, **facts: self._tell(number, what, data, **facts))

    def _tell_end(self, number: int, message: str, kind: str = LOST, ends_actor: bool = False) -> None:
        """Say how a call ended whose runner has not said it: by its outcome, or that it is lost, and why."""
        outcome = publish.read(self._path(number), OUTCOME)
        if outcome is not None:
            size = (json.loads(outcome.decode()).get("value") or {}).get("size") or 0
            self._tell(number, "end", outcome, size)
            return
        hint = ROOM if kind == HOST_DISK else "call again"
        if ends_actor or kind == ACTOR_LOST:
            hint = CREATE_AGAIN
        verdict = Verdict(kind, message, stage="function" if kind == LOST else "start", hint=hint)
        try:
            attempt = self._attempt(number)
            attempt.actor_gone = message if ends_actor else ""
            attempt.publish_without_run(verdict)
        except OSError:
            # On a full disk, a client that listens is informed, and no other call must end because of it.
            complete = verdict.replace(node=CallJob(self._path(number), self._spec).node, by="supervisor")
            ending = dict(document(self._spec["id"], 1, complete), actor_gone=message if ends_actor else "")
            self._tell(number, "end", (json.dumps(ending) + "\n").encode())


def shares_of(spec: Spec) -> list[Share]:
    """Return what each of a session's workers has.

    Raises:
        CallRejected: The session has other GPUs than it asked for, so that none can be given to a worker.
    """
    workers: int = spec["session"].get("workers", 1)
    # Not the numbers that SLURM has for them: where it hides the others, CUDA counts from 0.
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    asked = spec["resources"]["gpus"]
    found = [name for name in given.split(",") if name]
    if workers > 1 and asked and len(found) != asked:
        message = "the session has %d GPUs (%s), and its %d workers share %d" % (len(found), given, workers, asked)
        raise CallRejected("environment", message, "leave workers= out, or look at what the scheduler gives to the job")
    return [Share(spec, number, workers, given) for number in range(workers)]
