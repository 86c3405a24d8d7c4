"""A host in memory that answers nothing by itself, and the conversations that wait for it: a test does one at a time.

world = World(SLURM, monkeypatch)
world.settle()
world.waits        # at which `await` of which function each conversation waits, and for which request
"""

from __future__ import annotations

import ast
import asyncio
import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from clusterfn.calls import conclusion, liveness, sending
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import Reply, Spawned, SpawnReply
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc.reply import RequestCancelled
from clusterfn.packing.payload import pack
from clusterfn.scheduler import scheduler_for
from tests.golden import samples
from tests.turns import settle

LIBRARY = Path(loop.__file__).parents[1]
BOOT = "b0b0b0b0-0000-4000-8000-000000000000"
ENDED = json.dumps({"kind": "cancelled", "message": "stopped"}).encode()
AGAIN = json.dumps({"kind": "superseded", "superseded_by": 2}).encode()
FULL = json.dumps({"full": {"kind": "full", "message": "No space left on device", "path": "/root"}})


def said(out: str = "", err: str = "", rc: int = 0) -> Any:
    """How a program has ended."""
    return SimpleNamespace(rc=rc, signal=None, out=out.encode(), err=err.encode())


def refused(kind: str, words: str) -> HostError:
    error = HostError(words)
    error.kind = kind
    return error


# What may be answered to each program or request; the first lets the story go on.
ANSWERS: Mapping[str, Sequence[Any]] = {
    "sbatch": [said("77\n"), said(err="sbatch: error: AssocMaxSubmitJobLimit", rc=1), said(err="no answer", rc=1)],
    "spawn": [Spawned(5, 1)],
    "exited": [256, 0, None],
    "grep": [said("{claim}"), said(), refused("timeout", "it took too long")],
    "scontrol": [said(err="slurm_load_jobs error: Invalid job id specified", rc=1), said("JobState=RUNNING")],
    "cat": [said(BOOT + "\n"), said("no boot id")],
    "tail": [said("Killed\n"), refused("missing", "there is no log")],
    "conclude": [said('{"attempt": "1", "won": true}'), said("no words"), said(FULL)],
    "have": [[True], [False]],
    "find": [said("there\n"), said()],
    "end": [said('{"left": []}'), said('{"left": ["5 python"]}'), refused("timeout", "it took too long")],
}


class Request(NamedTuple):
    """An open request: of what kind it is, and what ends it."""

    what: str
    reply: Reply[Any]
    on_content: Callable[[bytes], Any] | None = None
    on_silent: Callable[[], Any] | None = None
    on_gone: Callable[[], Any] | None = None


class HeldConnection:
    """A connection whose requests stay open until they are answered by hand."""

    link = SimpleNamespace(
        state=SimpleNamespace(name="connected", since=0.0, cause=""), on_state=lambda _: lambda: None
    )
    facts = SimpleNamespace(machine="m-1")

    def __init__(self) -> None:
        self.open: dict[int, Request] = {}

    def _ask(self, what: str, reply_type: type[Reply[Any]] = Reply, **more: Any) -> Any:
        number = max(self.open, default=0) + 1
        reply = reply_type(lambda: self._cancel(number))
        self.open[number] = Request(what, reply, **more)
        reply.future.add_done_callback(lambda _: self.open.pop(number, None))
        return reply

    def _cancel(self, number: int) -> None:
        request = self.open.get(number)
        if request is not None:
            request.reply.reject(RequestCancelled("the request was cancelled"))

    def run(self, argv: Sequence[str], **_: Any) -> Reply[Any]:
        return self._ask(argv[0].rpartition("/")[2])  # type: ignore[no-any-return]

    def have(self, paths: Sequence[str], **_: Any) -> Reply[Any]:
        return self._ask("have")  # type: ignore[no-any-return]

    def put(self, *_: Any, **__: Any) -> Reply[Any]:
        return self._ask("put")  # type: ignore[no-any-return]

    put_tree = put

    def follow(self, files: Any, until: str, on_content: Any = None, **_: Any) -> Reply[Any]:
        return self._ask("follow", on_content=on_content)  # type: ignore[no-any-return]

    def still(self, path: str, after_s: float, on_silent: Any, *, on_gone: Any, **_: Any) -> Reply[Any]:
        return self._ask("still", on_silent=on_silent, on_gone=on_gone)  # type: ignore[no-any-return]

    def spawn(self, *_: Any, **__: Any) -> SpawnReply:
        reply: SpawnReply = self._ask("spawn", SpawnReply)
        number = max(self.open) + 1
        self.open[number] = Request("exited", reply.exited)
        reply.exited.future.add_done_callback(lambda _: self.open.pop(number, None))
        return reply


class HeldHost:
    """What a process knows of that host, whose scheduler is the real one."""

    root, has_held_allocation = "/root", False

    def __init__(self, host: Host) -> None:
        self.settings = host._replace(queue_timeout_s=None)
        self.scheduler = scheduler_for(self.settings, {"user": "ada", "boot_id": BOOT, "queue": lambda: ()})
        self.scheduler_rules = self.scheduler
        self.follow_window: FollowWindow[Any] = FollowWindow()
        self.contents = self.send_again = Mock()
        self.bridge = SimpleNamespace(folder="/root/bridge/abc123", supervise=self._supervise, distrust=Mock())
        self.held = HeldConnection()
        self.is_connected = True

    @property
    def connection(self) -> HeldConnection:
        if not self.is_connected:
            raise self.closed()
        return self.held

    @property
    def watch(self) -> Any:
        return self.connection and Mock()

    def closed(self) -> HostError:
        return HostError(f"The connection to {self.settings.name} was closed", host=self.settings.name)

    def _supervise(self, command: str, *_: Any, **__: Any) -> Reply[Any]:
        return self.connection.run([command])

    def unwatch(self, _: str) -> None:
        """Nothing is looked at."""


class Wait(NamedTuple):
    """Where a conversation waits: file and line of an `await`, and the request that it waits for in the end, if any."""

    place: tuple[str, int]
    request: Reply[Any] | None


class World:
    """One job that is submitted to such a host, and everything that may happen to it.

    Args:
        host: The host.
        patch: Takes the clock of conversations into the test's hands.
    """

    def __init__(self, host: Host, patch: pytest.MonkeyPatch) -> None:
        self.host = HeldHost(host)
        self._sleepers: list[asyncio.Future[None]] = []
        self._others = self._tasks()  # such as those of connections that other tests have left open
        self._of_others = list(exit_flush.unanswered)
        patch.setattr(asyncio, "sleep", functools.partial(self._sleep, asyncio.sleep))
        patch.setattr(exit_flush, "run_in_thread", lambda work, _: work())
        host: Any = self.host
        self.tracker = Tracker(host, "7f3a000011112222", "train")
        self.job: Job[Any] = Job(self.tracker.run, self.tracker.source)
        spec, uploads = samples.job(self.host.settings), sending.Uploads([], {})
        sending.submit_job(spec, pack(len, ("",), {}, None), uploads, self.tracker)
        self.tracker.follow()
        self.settle()

    async def _sleep(self, real: Any, seconds: float) -> None:
        if not seconds or asyncio.current_task() in self._others:
            await real(seconds)
            return
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append(woken)
        await woken

    def _tasks(self) -> set[asyncio.Task[Any]]:
        async def look() -> set[asyncio.Task[Any]]:
            here = asyncio.current_task()
            return {task for task in asyncio.all_tasks() if task is not here}

        return loop.start(look()).result(100)

    # what happens

    def settle(self) -> None:
        """Let all conversations go on until they wait for something."""
        settle()

    @property
    def due(self) -> list[Callable[[], None]]:
        """Answers to requests, and the ends of pauses: one of them may come now."""
        found: list[Callable[[], None]] = []
        for request in self.host.held.open.values():
            found += [functools.partial(self.answer, request, each) for each in self._answers(request)]
        return found + [functools.partial(self.wake, each) for each in self._sleepers]

    @property
    def unasked(self) -> list[Callable[[], None]]:
        """What else may happen now."""
        told = [(each.on_silent, each.on_gone) for each in self.host.held.open.values()]
        found: list[Callable[[], None]] = [each for both in told for each in both if each is not None]
        found += [lambda: self.tracker.on_scheduler(None), self._look, self._stop]
        return [*found, lambda: self.tracker.cannot_have(conclusion.WITHDRAWN_JOB)]

    def _look(self) -> None:
        loop.begin(liveness.look_until_it_begins(self.tracker.run))

    def _stop(self) -> None:
        look = functools.partial(liveness.look_until_it_ends, self.tracker.run)
        loop.begin(conclusion.end_if_stuck(self.tracker.run.queue, self.job.done, lambda _: None, look))

    def _answers(self, request: Request) -> Sequence[Any]:
        if request.what in ("follow", "still"):
            return [AGAIN] if request.what == "follow" and self.tracker.run.at.attempt == 1 else []
        return ANSWERS.get(request.what, [said()])

    def answer(self, request: Request, answer: Any) -> None:
        """Let the answer to a request come."""
        if isinstance(answer, Exception):
            error = copy.copy(answer)
            error.host = self.host.settings.name  # type: ignore[attr-defined]
            request.reply.reject(error)
            return
        if request.on_content is not None:
            request.on_content(answer)
        if request.what == "grep" and answer.out:
            answer = said(f"{self.tracker.run.folder}/claim:{self.tracker.run.at.scheduler_id or 77}\n")
        request.reply.resolve(answer)

    def wake(self, sleeper: asyncio.Future[None]) -> None:
        """Let a pause end."""
        self._sleepers.remove(sleeper)
        loop.call(lambda: sleeper.done() or sleeper.set_result(None))

    def finish_pauses(self) -> None:
        """Let all pauses end."""
        for sleeper in list(self._sleepers):
            self.wake(sleeper)
        self.settle()

    def lose(self) -> None:
        """Lose the connection for good."""
        self.host.is_connected = False
        for request in list(self.host.held.open.values()):
            request.reply.reject(self.host.closed())

    def finish(self) -> None:
        """Let everything go well from now on, until nothing happens any more."""
        for _ in range(100):
            due = [each for each in self.host.held.open.values() if each.what not in ("follow", "still")]
            for request in due:
                self.answer(request, (*self._answers(request), None)[0])
            was_idle = not due and not self._sleepers
            self.finish_pauses()
            if was_idle and not self._sleepers:
                if self.job.done():
                    return
                for request in [each for each in self.host.held.open.values() if each.what == "follow"]:
                    self.answer(request, ENDED)

    # what is left

    @property
    def left(self) -> list[str]:
        """What still waits of it: conversations, open requests, and answers that Python would wait for at its exit."""
        tasks = [repr(task) for task in self._tasks() - self._others]
        requests = [request.what for request in self.host.held.open.values()]
        return tasks + requests + [repr(each) for each in list(exit_flush.unanswered) if each not in self._of_others]

    @property
    def waits(self) -> list[Wait]:
        """Where its conversations wait."""

        async def look() -> list[Wait]:
            return [wait for task in asyncio.all_tasks() - self._others for wait in _waits(task.get_coro())]

        return loop.start(look()).result(100)


def _waits(story: Any) -> list[Wait]:
    places: list[tuple[str, int]] = []
    request = None
    while story is not None:
        frame = getattr(story, "cr_frame", None)
        if frame is not None:
            path = Path(frame.f_code.co_filename)
            places.append((path.relative_to(LIBRARY).as_posix() if LIBRARY in path.parents else "", frame.f_lineno))
        own = getattr(story, "gi_frame", None)
        if own is not None and isinstance(own.f_locals.get("self"), Reply):
            request = own.f_locals["self"]
        story = getattr(story, "cr_await", None) or getattr(story, "gi_yieldfrom", None)
    return [Wait(_await_at(*place), request) for place in places if place[0]]


@functools.cache
def awaits_of(name: str) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Return each `await` of a module by its file and line: the function that has it, and its last line."""
    found = {}
    for function in ast.walk(ast.parse((LIBRARY / name).read_text(encoding="utf-8"))):
        if isinstance(function, ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Await):
                    found[name, node.lineno] = (function.name, node.end_lineno or node.lineno)
    return found


def _await_at(name: str, line: int) -> tuple[str, int]:
    """Return the `await` that has this line."""
    around = [place for place, (_, last) in awaits_of(name).items() if place[1] <= line <= last]
    return max(around, default=(name, line))
