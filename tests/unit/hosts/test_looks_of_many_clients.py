"""How often a cluster's controller is asked, by clients and agents on a clock of the test's own: hours pass at once.

The looks of the client (`SchedulerWatch`) and what the agent makes of them (`RepeatHandler`, with its file on the disk)
are the real ones. The scheduler, the connection and the clock are fakes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.agent import processes
from clusterfn.bridge.agent.timers import Timer
from clusterfn.hosts import loop, scheduler_watch
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import CommandLook
from clusterfn.hosts.scheduler_watch import SchedulerWatch
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM

MINUTE, HOUR = 60.0, 3600.0
KEPT_S = 300.0  # SLURM's MinJobAge: so long it lists a job that has ended
ANSWERS_S = 0.2


class Clock:
    """Seconds that pass when nothing more is to be done at the present one."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self._numbers = itertools.count()
        self._due: list[Timer] = []

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self.now + seconds, next(self._numbers), action)
        heapq.heappush(self._due, timer)
        return timer

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0].due <= until:
            timer = heapq.heappop(self._due)
            self.now = timer.due
            timer.run()
        self.now = until


@dataclass
class Job:
    """One job of the cluster, and when it starts and ends."""

    name: str
    starts: float
    ends: float

    def line(self, now: float) -> str:
        state = "PENDING" if now < self.starts else "RUNNING" if now < self.ends else "COMPLETED"
        return f"7|{state}|None|1|N/A|{self.name}"


@dataclass
class Cluster:
    """A controller; it remembers when it was asked."""

    clock: Clock
    root: Path
    jobs: list[Job] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)

    def squeue(self) -> bytes:
        self.asked.append(self.clock.now)
        now = self.clock.now
        return "\n".join(job.line(now) for job in self.jobs if now < job.ends + KEPT_S).encode()

    def busiest_hour(self) -> float:
        """The most questions of an hour, for each minute of it."""
        return max(sum(begin <= each < begin + HOUR for each in self.asked) for begin in self.asked) / 60


class Client:
    """One program, with an agent of its own on a login node."""

    def __init__(self, cluster: Cluster, login_node: str) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.messages = 0
        self.watch = SchedulerWatch(self, Slurm(SLURM, "ada"), clock=self.clock)  # type: ignore[arg-type]
        self.out, self.root, self.machine, self.at = (
            SimpleNamespace(size=0),
            str(cluster.root),
            login_node,
            self.clock.at,
        )

    def submit(self, job: Job) -> None:
        self.cluster.jobs.append(job)
        self.watch.add(job.name, lambda seen: None)
        self.clock.at(job.ends - self.clock.now + 1.0, lambda: self.watch.remove(job.name))  # its outcome has come

    def usable(self) -> bool:
        return True

    def repeat(self, argv: Any, interval_s: float, *, share: str, unset: Any, on_look: Callable[..., Any]) -> Repeating:
        self.messages += 1
        return Repeating(self, {"id": 1, "argv": argv, "interval_s": interval_s, "share": share}, on_look)


class Repeating(processes.RepeatHandler):
    """The agent's handler, and at the same time the reply that the client has to it."""

    def __init__(self, client: Client, header: dict[str, Any], on_look: Callable[[CommandLook], Any]) -> None:
        super().__init__(client, header, b"")  # type: ignore[arg-type]
        self._client, self._on_look, self._text = client, on_look, ""
        self._reply: Reply[None] = Reply(lambda: None)
        self.error = self._reply.error
        client.at(0.0, lambda: None if self.ended else self.safely(self.start))

    def send(self, header: Any, body: bytes = b"") -> None:
        if not header.get("end"):
            self._client.messages += 1
            self._text = self._text if header["same"] else body.decode()
            self._on_look(CommandLook(header["rc"], self._text, "", header["same"], header["age_s"]))

    def close(self, error: Any, header: Any, body: bytes) -> None:
        assert error is None, error
        self.ended = True
        if self.timer:
            self.timer.drop()
        self.release()

    def cancel(self) -> None:
        self._client.messages += 1
        self.stop()
        self._reply.reject(CancelledError())


class Squeue:
    """One run of squeue, by an agent."""

    truncated = timed_out = False
    status: int | None = None
    stdout, stderr = 1, 2
    child = SimpleNamespace(failure=None)

    def __init__(self, client: Client, header: Any, stdin: bytes, done: Callable[[Squeue], None]) -> None:
        self._said = client.cluster.squeue()
        client.at(ANSWERS_S, lambda: self._end(done))

    def _end(self, done: Callable[[Squeue], None]) -> None:
        self.status = 0
        done(self)

    def result(self) -> dict[str, Any]:
        return {"rc": 0, "signal": None, "truncated": False}

    def text(self, fd: int) -> bytes:
        return self._said if fd == self.stdout else b""

    def kill(self) -> None:
        """It ends by itself."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(Clock(), tmp_path)
    monkeypatch.setattr(processes, "Program", Squeue)
    # This thread is that of all agents, and of all loops: nothing happens but by the clock.
    here = SimpleNamespace(call=lambda function, *args: function(*args), begin=loop.begin)
    monkeypatch.setattr(scheduler_watch, "loop", here)
    monkeypatch.setattr(processes, "time", SimpleNamespace(time=made.clock, monotonic=made.clock))
    return made


def jobs(cluster: Cluster, count: int, waits_s: float, runs_s: float) -> Iterator[Job]:
    """Jobs that wait and run for up to so long, from now on."""
    rng, now = random.Random(7), cluster.clock.now
    for number in range(count):
        starts = now + rng.uniform(0, waits_s)
        yield Job(f"f-{now:.0f}-{number}", starts, starts + rng.uniform(0.1, 1) * runs_s)


def send(cluster: Cluster, clients: list[Client], count: int, waits_s: float, runs_s: float) -> None:
    for client, job in zip(itertools.cycle(clients), jobs(cluster, count, waits_s, runs_s)):
        client.submit(job)


def test_three_clients_with_a_thousand_jobs_ask_a_controller_once_a_minute(cluster: Cluster) -> None:
    clients = [Client(cluster, "login1") for _ in range(3)]
    for _ in range(5):
        send(cluster, clients, 200, 20 * MINUTE, 40 * MINUTE)
        cluster.clock.run(MINUTE)

    cluster.clock.run(HOUR)

    assert all(job.ends < cluster.clock.now for job in cluster.jobs)
    assert cluster.busiest_hour() <= 1.0
    assert sum(client.messages for client in clients) < 6 * len(cluster.asked)


def test_the_first_job_of_an_hour_is_looked_at_soon_all_the_same(cluster: Cluster) -> None:
    client = Client(cluster, "login1")
    send(cluster, [client], 30, 10 * MINUTE, 20 * MINUTE)
    cluster.clock.run(HOUR)
    before = len(cluster.asked)

    send(cluster, [client], 1, HOUR, HOUR)
    cluster.clock.run(2 * MINUTE)

    assert len(cluster.asked) - before == 5


def test_each_of_three_login_nodes_asks_once_a_minute(cluster: Cluster) -> None:
    clients = [Client(cluster, f"login{number}") for number in range(3)]
    send(cluster, clients, 300, 2 * HOUR, HOUR)

    cluster.clock.run(2 * HOUR)

    assert cluster.busiest_hour() <= 3.3


def test_heartbeats_that_stop_together_ask_the_controller_no_more_often(cluster: Cluster) -> None:
    """The file system of the compute nodes hangs for an hour: each client misses each heartbeat every 12 seconds."""
    clients = [Client(cluster, "login1") for _ in range(3)]
    send(cluster, clients, 300, 0.0, 24 * HOUR)
    cluster.clock.run(HOUR)
    before = len(cluster.asked)

    for _ in range(300):
        for client in clients:
            client.watch.look_now()
        cluster.clock.run(12.0)

    assert len(cluster.asked) - before <= 90
