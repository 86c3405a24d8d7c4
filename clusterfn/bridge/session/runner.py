"""A runner: the process of a session from which its calls are forked, one after another.

It loads what calls use, and always has the process of its next call ready. The session's server hands it numbers, and
hears what is written to the files of a call. Both speak the agent's frames over a pair of sockets. A runner that dies
takes its call with it; the server starts another.

Calls go to runners that are free, in their order, and calls of an actor to the runner that has it. An actor takes the
place of a runner from the call that constructs it until it is gone.
"""

from __future__ import annotations

import collections
import os
import signal
import socket
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Tuple

from ..agent.frames import Inbox, pack
from ..agent.libc import become_subreaper, die_with_parent
from ..layout import THREADS
from ..supervisor.watch import Signals
from ..worker.fork_rules import settle_memory
from ..worker.preload import Preloader
from .call import RESTARTED, CallJob, serve_call
from .call_process import Ahead, CallProcess, fork_call_process
from .connections import ServerLink
from .keep_actor import KeptProcess, keep_actor

if TYPE_CHECKING:
    from ..supervisor.spec import Spec


# A call is its number and the content of its call.json.
Call = Tuple[int, Mapping[str, Any]]
# The worker of an actor has so many calls, so that it need not wait for the next.
_GIVEN_AHEAD = 16


class Share:
    """What one of a session's workers has of the session.

    Args:
        number: Which worker, from 0.
        of: How many there are.
        given: The GPUs that the session has, as a list with commas.
    """

    def __init__(self, spec: Spec, number: int, of: int, given: str) -> None:
        self.number = number
        gpus = spec["resources"]["gpus"] // of
        self.spec: Spec = {**spec, "resources": {**spec["resources"], "gpus": gpus}, "syncs_later": True}
        names = [name for name in given.split(",") if name]
        self.gpus = names[number * gpus : (number + 1) * gpus]
        self._of = of

    def apply(self) -> None:
        """Give this process its share of the GPUs and CPUs."""
        if self._of == 1:
            return
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        # Only Linux says which CPUs a process may use.
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        first, end = (len(cpus) * number // self._of for number in (self.number, self.number + 1))
        if end > first and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cpus[first:end])
        for name in THREADS:
            if os.environ.get(name, "").isdecimal():
                os.environ[name] = str(max(1, int(os.environ[name]) // self._of))


class RunnerProcess:
    """A runner, as the server has it.

    Attributes:
        share: What it has of the session.
        given: The numbers of the call that it runs, and of those that it runs next.
        actor: The actor that it has, by the number of the call that constructs it; 0 for none.
        is_ready: Whether it waits for a call.
    """

    def __init__(self, share: Share, pid: int, sock: socket.socket) -> None:
        self.share = share
        self.pid = pid
        self.sock = sock
        self.inbox = Inbox()
        self.given: collections.deque[int] = collections.deque()
        self.actor = 0
        self.is_ready = False

    @property
    def call(self) -> int:
        """The number of the call that it runs; 0 for none."""
        return self.given[0] if self.given else 0

    def give(self, number: int, is_live: bool, facts: Mapping[str, Any]) -> None:
        """Have it run a call, of an actor if its call.json says so. If it has just died, its socket says so.

        Args:
            is_live: Whether a client hears what the call prints.
        """
        self.given.append(number)
        self.actor = facts.get("actor", 0)
        self.is_ready = False
        try:
            self.sock.sendall(pack({"n": number, "live": is_live, "actor": self.actor, "facts": facts}))
        except (BrokenPipeError, ConnectionResetError):
            return


class ActorTurns:
    """An actor, by its calls.

    Attributes:
        name: Of its class.
        waiting: Its calls that are not yet given to its worker.
        gone: Why it is gone; "" if it is not.
    """

    def __init__(self, name: str, gone: str = "") -> None:
        self.name = name
        self.waiting: collections.deque[Call] = collections.deque()
        self.gone = gone


class Turns:
    """The calls of a session that wait; `lost` are those of actors that are gone."""

    def __init__(self) -> None:
        self.lost: collections.deque[tuple[int, ActorTurns]] = collections.deque()
        self._waiting: collections.deque[Call] = collections.deque()
        # The keys are the numbers of the calls that construct the actors.
        self._actors: dict[int, ActorTurns] = {}

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        """Take the next call, and what its call.json says."""
        which = facts.get("actor", 0)
        if which == number:
            self._actors[number] = ActorTurns(str(facts.get("name")))
        if which in (0, number):
            self._waiting.append((number, facts))
            return
        actor = self._actors.get(which) or ActorTurns("of an earlier start", RESTARTED)
        if actor.gone:
            self.lost.append((number, actor))
        else:
            actor.waiting.append((number, facts))

    def next_for(self, runner: RunnerProcess) -> Call | None:
        """Return the call that this worker is to be given now; None for none."""
        if runner.is_ready:
            return self._waiting.popleft() if self._waiting else None
        actor = self._actors.get(runner.actor)
        if actor is None or not actor.waiting or len(runner.given) >= _GIVEN_AHEAD:
            return None
        return actor.waiting.popleft()

    def is_empty(self) -> bool:
        return not (self.lost or self._waiting or any(actor.waiting for actor in self._actors.values()))

    def lose(self, which: int, reason: str, given: Iterable[int]) -> None:
        """Take note that an actor is gone, and that calls which were given to its worker have not run."""
        actor = self._actors[which]
        actor.gone = actor.gone or reason
        self.lost += [(number, actor) for number in (*given, *(number for number, _ in actor.waiting))]
        actor.waiting.clear()


def start_runner(folder: str, share: Share, foreign: Iterable[int]) -> RunnerProcess:
    """Start a runner.

    Args:
        folder: Of the session's calls.
        share: What it has of the session.
        foreign: Descriptors of this process that it must not keep open.
    """
    ours, its = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(folder, share, its, parent, [*foreign, ours.fileno()])
    its.close()
    return RunnerProcess(share, pid, ours)


def _live(folder: str, share: Share, sock: socket.socket, parent: int, foreign: Iterable[int]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        die_with_parent(signal.SIGKILL, parent)
        become_subreaper()
        for fd in foreign:
            os.close(fd)
        share.apply()
        CallRunner(folder, share.spec, ServerLink(sock)).serve()
    except BaseException:  # noqa: BLE001 - after a fork nothing may run on; the session's stderr gets all of it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


class CallRunner:
    """The process itself; `folder` is that of the session's calls."""

    def __init__(self, folder: str, spec: Spec, link: ServerLink) -> None:
        self._folder = folder
        self._spec = spec
        self._job = CallJob(folder, spec)
        self._link = link
        self._preloader = Preloader()
        self._signals = Signals([signal.SIGCHLD])
        self._ahead = Ahead(folder, self._fork)

    def serve(self) -> None:
        """Run call after call, until the server closes the socket."""
        self._prepare(None, [])
        while (order := self._link.next()) is not None:
            if not order["actor"]:
                self._run(order["n"], order["live"], order["facts"])
            elif order["actor"] == order["n"]:
                kept = KeptProcess(self._folder, self._spec, order, self._ahead, self._signals)
                if not keep_actor(self._link, kept):
                    break
                self._prepare(None, [])
            # else its actor has just ended: the server hears of that, and says so to the call
        self._ahead.dismiss()

    def _run(self, number: int, is_live: bool, facts: Mapping[str, Any]) -> None:
        job = self._job.of(os.path.join(self._folder, str(number)))
        loaded = serve_call(job, facts, self._signals, self._ahead, self._link.reporter(number), is_live)
        ran = loaded is not None
        self._prepare(ran, self._preloader.load(loaded or []))

    def _prepare(self, ran: bool | None, loaded: list[str]) -> None:
        """Have a process ready for the next call, and say so.

        Args:
            ran: Whether the last call was to be run; None if there was none.
            loaded: What was loaded since.
        """
        if ran is None:
            settle_memory()
        if loaded:
            self._ahead.dismiss_process()
        self._ahead.prepare()
        self._link.send(what="ready", ran=ran, loaded=loaded)

    def _fork(self) -> CallProcess:
        return fork_call_process(dict(self._spec), self._preloader, [self._link.fileno()])
