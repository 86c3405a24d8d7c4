"""What the host's builder says, and how its silence is taken."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.bridge.builder.progress import in_words
from clusterfn.errors import EnvironmentBuildError, HostKeyError, SubmitError
from clusterfn.hosts import environment_builder
from clusterfn.hosts.environment_builder import RemoteBuild
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import Spawned, SpawnReply
from tests.waiting import WAIT_S, until


class Connection:
    """Remembers who follows the log, and has its content."""

    def __init__(self) -> None:
        self.content = b""
        self.removed: list[str] = []
        self.spawned: list[Any] = []

    def follow(self, files: Any) -> Any:
        ((_, self.say, _),) = files
        self.following: Reply[Any] = Reply(lambda: self.following.reject(CancelledError()))
        return self.following

    def get(self, path: str, sink: Any) -> Reply[int]:
        sink(self.content)
        return done(len(self.content))

    def run(self, argv: list[str], *_: Any, **__: Any) -> None:
        self.removed.append(argv[-1])

    def spawn(self, argv: list[str], folder: str, log: str, **_: Any) -> SpawnReply:
        self.process = SpawnReply(lambda: None)
        self.spawned.append((argv, folder, log))
        return self.process


def done(value: Any) -> Reply[Any]:
    reply: Reply[Any] = Reply(lambda: None)
    reply.resolve(value)
    return reply


def end(heard: Any, status: int | None) -> None:
    """Have its process end."""
    heard.build.spawn(["build.py", "build", "plan"], "/r")
    heard.connection.process.resolve(Spawned(1, 1))
    heard.connection.process.exited.resolve(status)


def line(stage: str, **more: Any) -> bytes:
    return json.dumps({"stage": stage, **more}).encode() + b"\n"


@pytest.fixture
def heard() -> Any:
    connection = Connection()
    host, scheduler = SimpleNamespace(name="hpc"), SimpleNamespace(unset=())
    build = RemoteBuild(SimpleNamespace(host=host, connection=connection, scheduler=scheduler), "/r/builds/x/log-1")  # type: ignore[arg-type]
    progress: list[Any] = []
    return SimpleNamespace(build=build, connection=connection, progress=progress, outcome=build.listen(progress.append))


def test_a_build_is_followed_though_two_threads_listen_at_the_same_time():
    class Listeners(list[Any]):
        """Lets both threads add themselves before either goes on, if they can."""

        both = threading.Barrier(2)

        def append(self, listener: Any) -> None:
            super().append(listener)
            with contextlib.suppress(threading.BrokenBarrierError):
                self.both.wait(0.3)

    connection = Connection()
    build = RemoteBuild(SimpleNamespace(host=SimpleNamespace(name="hpc"), connection=connection), "/r/log")  # type: ignore[arg-type]
    build.listeners = Listeners()
    progress: list[Any] = []
    threads = [threading.Thread(target=build.listen, args=(progress.append,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    connection.say(line("unpack", done=1, of=3))

    assert [each["stage"] for each in progress] == ["unpack", "unpack"]


def test_progress_comes_line_by_line_however_it_is_cut(heard):
    data = line("unpack", done=1, of=3) + b"Traceback: no words of ours\n" + line("done", done=1, of=1)
    for start in range(0, len(data), 7):
        heard.connection.say(data[start : start + 7])

    assert [each["stage"] for each in heard.progress] == ["unpack"]
    assert heard.outcome.result(0)["stage"] == "done" and heard.build.made.result(0)
    until(lambda: heard.connection.removed == ["/r/builds/x/log-1"])


def test_a_process_that_ended_is_asked_for_its_last_word(heard):
    heard.connection.content = line("link", done=1, of=2) + line("failed", message="no room", hint="make some")

    end(heard, 256)

    error = environment_builder.build_error(heard.outcome.result(WAIT_S), "hpc")
    assert (error.message, error.hint) == ("the environment could not be built: no room", "make some")
    assert isinstance(heard.build.made.exception(0), EnvironmentBuildError)


def test_a_process_that_was_killed_without_a_word_leaves_what_it_printed(heard):
    heard.connection.content = line("link") + b"MemoryError\n"

    end(heard, 9)

    told = heard.outcome.result(WAIT_S)
    assert (told["at"], told["message"], told["evidence"]) == (
        "stopped", "its builder was ended by signal 9", ["MemoryError"],
    )  # fmt: skip


def test_a_builder_whose_agent_is_gone_is_started_once_more_and_says_how_it_ended(heard):
    end(heard, None)
    until(lambda: len(heard.connection.spawned) == 2)
    assert heard.connection.spawned == [(["build.py", "build", "plan"], "/r", "/r/builds/x/log-1")] * 2

    heard.connection.content = line("failed", message="the plan is gone")
    heard.connection.process.resolve(Spawned(2, 2))
    heard.connection.process.exited.resolve(256)

    assert heard.outcome.result(WAIT_S)["message"] == "the plan is gone" and len(heard.connection.spawned) == 2


def test_one_that_was_never_started_says_why(heard):
    heard.build.refused(SubmitError("no such partition"))

    with pytest.raises(SubmitError, match="no such partition"):
        heard.outcome.result(0)
    assert isinstance(heard.build.made.exception(0), SubmitError)


def test_the_last_word_becomes_an_error_with_all_of_its_facts():
    told = {"stage": "failed", "message": "the disk is full", "evidence": ["3 MB free"], "hint": "make room"}

    error = environment_builder.build_error(told, "tensor01")

    assert isinstance(error, EnvironmentBuildError)
    assert (error.host, error.stage, error.evidence, error.hint) == (
        "tensor01", "environment", ("3 MB free",), "make room",
    )  # fmt: skip
    assert error.stage in layout.STAGES


@pytest.mark.parametrize(
    "told, words",
    [
        ({"stage": "unpack", "done": 3, "of": 16, "bytes": 5 << 20}, "unpack 3 of 16, 5 MB"),
        ({"stage": "fetch", "done": 6, "of": 60, "bytes": 9 << 20, "size": 33981653}, "fetch 6 of 60, 9 MB of 32.4 MB"),
        ({"stage": "fetch", "done": 0, "of": 1, "bytes": 0, "size": 2 << 30}, "fetch, 0 bytes of 2 GB"),
        ({"stage": "fetch", "bytes": 1200 << 20, "size": 2 << 30}, "fetch, 1.2 GB of 2 GB"),
        ({"stage": "compile", "done": 0, "of": 1}, "compile"),
        ({"stage": "wait", "text": "ada on n3 builds it"}, "wait: ada on n3 builds it"),
    ],
)
def test_how_far_it_is_reads_like_a_sentence(told, words):
    assert in_words(told) == words


def test_who_waits_for_a_build_learns_why_its_connection_has_ended(heard):
    heard.connection.following.reject(HostKeyError("the key has changed"))

    assert isinstance(heard.outcome.exception(WAIT_S), HostKeyError)
