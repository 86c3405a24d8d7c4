"""No public call waits without a word: whatever is broken, within ten seconds it ends, or says what it waits for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import cluster
from clusterfn.bridge.supervisor.process_tree import parent_of
from tests.e2e.round_trips import There, behind
from tests.waiting import until

pytestmark = [pytest.mark.lab]
DRIVER = Path(__file__).parents[1] / "fixtures" / "waiting_call.py"
SILENT_S, GIVEN_UP_S = 10.0, 12.0
AT_ONCE = 6
CALLS = [
    "f()", "f.submit().result()", "f.map()", "group.results()", "group.wait()", "Executor.map()", "Session.call()",
    "Session().submit()", "attach()", "jobs()", "job.result()", "job.follow()", "job.logs()", "job.files",
    "job.download()", "job.stack()", "job.cancel()", "job.stop()", "clusterfn result", "clusterfn logs",
    "clusterfn logs -f", "clusterfn attach", "clusterfn jobs", "clusterfn cancel", "clusterfn check", "clusterfn gpus",
    "clusterfn top", "clusterfn pull", "clusterfn clean", "clusterfn env list",
]  # fmt: skip
SOME = ["f()", "job.result()", "job.logs()", "clusterfn jobs", "clusterfn cancel", "Session.call()"]


@dataclass
class Scene:
    """A host, the jobs on it, and the processes that are about to call.

    Attributes:
        there: The host behind proxies.
        root: Its root, as it lies on this machine.
        job: A job that runs.
        agents: The pids of the agents of those that call.
    """

    there: There
    root: Path
    job: clusterfn.Job[Any]
    agents: list[int] = field(default_factory=list)

    @property
    def supervisor(self) -> int:
        """The supervisor of the job."""
        events = (Path(self.job.folder) / "attempts" / "1" / "events.jsonl").read_text().splitlines()
        worker = next(each["pid"] for each in map(json.loads, events) if each["event"] == "starting")
        return parent_of(worker)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def moved_away(folder: Path) -> Iterator[None]:
    aside = folder.with_name(folder.name + ".aside")
    folder.rename(aside)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
        aside.rename(folder)


@contextlib.contextmanager
def full(lab: Any, root: Path) -> Iterator[None]:
    """Nothing can be written below the root: what is there is shown on a small disk that is full."""
    aside = root.with_name(root.name + ".full")
    aside.mkdir()
    try:
        with lab.disk(aside, "cfbash", "64m"):
            subprocess.run(["cp", "-a", f"{root}/.", aside], check=True)
            with contextlib.suppress(OSError), (aside / "filler").open("wb") as file:
                while True:
                    file.write(b"x" * (1 << 16))
            subprocess.run(["mount", "--bind", aside, root], check=True)
            try:
                yield
            finally:
                subprocess.run(["umount", "--lazy", root], check=True)
    finally:
        aside.rmdir()


def sessions_of(agents: Sequence[int]) -> list[int]:
    """The sshd processes that serve these agents' connections."""
    found = []
    for agent in agents:
        pid = agent
        while pid > 1 and b"sshd" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = parent_of(pid)
        found.append(pid)
    return found


@contextlib.contextmanager
def pulled(scene: Scene) -> Iterator[None]:
    for proxy in scene.there.proxies:
        proxy.blackhole()
    try:
        yield
    finally:
        for proxy in scene.there.proxies:
            proxy.restore()


@contextlib.contextmanager
def gone(scene: Scene) -> Iterator[None]:
    for proxy in scene.there.proxies:
        proxy.refuse()
        proxy.cut()
    try:
        yield
    finally:
        for proxy in scene.there.proxies:
            proxy.refuse(refusing=False)


@contextlib.contextmanager
def spooler_killed(root: Path) -> Iterator[None]:
    """The spooler of this root is stopped, and then killed: it never comes to what waits."""
    words = [b"spool", os.fsencode(root)]
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))}
    pids = [pid for pid, path in commands.items() if path.exists() and has(path.read_bytes().split(b"\0"), words)]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    yield


def has(all_words: Sequence[bytes], words: Sequence[bytes]) -> bool:
    return any(list(all_words[first : first + len(words)]) == list(words) for first in range(len(all_words)))


STATES: dict[str, Callable[[Scene, Any], contextlib.AbstractContextManager[None]]] = {
    "agent stopped": lambda scene, _: stopped(scene.agents),
    "supervisor stopped": lambda scene, _: stopped([scene.supervisor]),
    "sshd stopped": lambda scene, _: stopped(sessions_of(scene.agents)),
    "cable pulled": lambda scene, _: pulled(scene),
    "host gone": lambda scene, _: gone(scene),
    "root removed": lambda scene, _: moved_away(scene.root),
    "disk full": lambda scene, lab: full(lab, scene.root),
    "spooler gone": lambda scene, _: spooler_killed(scene.root),
    "clock jump": lambda *_: contextlib.nullcontext(),  # by those that call
    "other version": lambda *_: contextlib.nullcontext(),  # as above
}


def calling(scene: Scene, group: str, names: Sequence[str], **env: str) -> list[subprocess.Popen[str]]:
    """Processes that have connected, and call once they are told to."""
    started = [
        subprocess.Popen(
            [sys.executable, str(DRIVER), name, scene.job.id, group, str(GIVEN_UP_S)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        )
        for name in names
    ]  # fmt: skip
    for each in started:
        assert each.stdout is not None
        scene.agents.append(json.loads(each.stdout.readline())["agent"])
    return started


def silent(lab: Any, state: str, scene: Scene, group: str, names: Sequence[str]) -> list[str]:
    """Those of the calls that neither ended nor said anything in time."""
    env = {"OTHER_VERSION": "1"} if state == "other version" else {}
    processes, told = calling(scene, group, names, **env), {}
    try:
        with STATES[state](scene, lab):
            for each in processes:
                assert each.stdin is not None
                each.stdin.write(f"{state}\n")
                each.stdin.flush()
            for name, each in zip(names, processes):
                assert each.stdout is not None
                told[name] = json.loads(each.stdout.readline())
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    in_time = [name for name, said in told.items() for when in (said["took"], said["spoke"]) if within(when)]
    return [f"{name}: {said}" for name, said in told.items() if name not in in_time]


def within(when: float | None) -> bool:
    return when is not None and when <= SILENT_S


def check(lab: Any, state: str, names: Sequence[str]) -> list[str]:
    """Return which calls wait without a word while the host is in that state."""
    found: list[str] = []
    with behind(lab, 0.0) as there:
        sleep = cluster(host="new0")(time.sleep)
        job, group = sleep.submit(600.0), sleep.map([600.0, 600.0])
        first_job = job
        until(lambda: job.state == "RUNNING" and group.state == "RUNNING")
        if state == "spooler gone":  # all that come after this one wait behind it
            job = sleep.with_options(cores=64).submit(600.0)
            until(lambda: job.reason)
            names = [name for name in names if name != "Session.call()"]
        root = Path(job.folder).parents[1]
        for first in range(0, len(names), AT_ONCE):
            scene = Scene(there, root, job)
            some = names[first : first + AT_ONCE]
            found += silent(lab, state, scene, group.id, some)
        for each in (job, first_job, group):
            each.stop()
    return found


@pytest.mark.parametrize("state", ["cable pulled"])
def test_a_call_ends_or_says_within_10_s_what_it_waits_for(lab: Any, state: str) -> None:
    assert check(lab, state, SOME) == []


@pytest.mark.long
@pytest.mark.parametrize("state", list(STATES))
def test_every_public_call_ends_or_says_within_10_s_what_it_waits_for(lab: Any, state: str) -> None:
    assert check(lab, state, CALLS) == []
