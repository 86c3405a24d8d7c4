"""Actors in the server of a session: an object that stays, calls in their order, and what its end leaves to others."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.unit.bridge.session.serving import Client, Server, of_main
from tests.waiting import until


@of_main
class Counter:
    """Travels by value, as a class of a script does."""

    def __init__(self, start: int = 0) -> None:
        print("constructed")
        self.count = start

    def add(self, number: int = 1) -> int:
        print("adding", number)
        self.count += number
        return self.count

    def places(self) -> tuple[int, int, str]:
        return os.getpid(), os.getppid(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def wait_for(self, path: str) -> str:
        import time

        while not os.path.exists(path):
            time.sleep(0.02)
        return "through"

    def fail(self) -> None:
        raise KeyError("no such word")

    def unpicklable(self) -> Any:
        return (each for each in [self])

    def types(self, box: Any) -> int:
        self.seen = [*getattr(self, "seen", []), type(box)]
        return len(set(self.seen))

    async def loop(self) -> int:
        import asyncio

        await asyncio.sleep(0)
        return id(asyncio.get_running_loop())

    def say_later(self, path: str) -> None:
        import threading

        threading.Thread(target=lambda: (self.wait_for(path), print("from a thread", flush=True))).start()


class Proxy:
    """An actor of a test."""

    def __init__(self, client: Client, number: int, *args: Any) -> None:
        self.client, self.number = client, number
        client.send(number, Counter, *args, facts={"actor": number, "name": "Counter"})

    def send(self, number: int, method: str, *args: Any, **facts: Any) -> None:
        facts = {"actor": self.number, "name": method, **facts}
        self.client.send(number, attrgetter(method), *args, facts=facts)


def test_an_actor_has_the_share_of_one_worker_and_the_others_run_calls_beside_it(start, tmp_path):
    client = Client(start(workers=2, gpus=2, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b"))
    actor = Proxy(client, 1)
    actor.send(2, "places")
    actor.send(3, "wait_for", str(tmp_path / "gate"))
    client.send(4, os.getenv, "CUDA_VISIBLE_DEVICES")
    client.send(5, Path(tmp_path / "gate").touch)

    its_gpu = client.end(2)[1][2]
    other = client.end(4)[1]
    client.end(5)

    assert {its_gpu, other} == {"GPU-a", "GPU-b"}
    assert client.end(3)[1] == "through"


def test_calls_of_an_actor_whose_session_is_started_again_say_that(start: Callable[..., Server]):
    server = start()
    client = Client(server)
    actor = Proxy(client, 1)
    actor.send(2, "add")
    client.end(2)
    server.process.kill()
    server.process.wait()
    (server.folder / "door.json").unlink()

    again = start(server.folder)
    client = Client(again)
    client.send(3, attrgetter("add"), facts={"actor": 1, "name": "add"})
    lost = client.end(3)[0]
    client.send(4, abs, -4)

    assert lost["kind"] == "actor_lost"
    assert lost["message"] == "the actor Counter is gone, and its state with it: the session was restarted"
    assert client.end(4)[1] == 4, "its worker is free"
    assert again.close()["calls"] == 1


def test_what_a_thread_of_an_actor_prints_between_two_calls_is_the_sessions(server, client, tmp_path):
    actor = Proxy(client, 1)
    actor.send(2, "say_later", str(tmp_path / "gate"))
    client.end(2)
    (tmp_path / "gate").touch()
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(server.process.stdout.fileno(), 100)  # type: ignore[union-attr]
    actor.send(3, "add")

    assert said == b"from a thread\n"
    assert client.end(3)[1] == 1
    assert client.printed()["stdout", 3] == b"adding 1\n"


def test_many_calls_of_an_actor_leave_no_descriptor_open(client: Client):
    actor = Proxy(client, 1)
    actor.send(2, "places")
    pid, runner, _ = client.end(2)[1]

    def opened() -> list[int]:
        return [len(os.listdir(f"/proc/{each}/fd")) for each in (pid, runner)]

    before = opened()
    for number in range(3, 203):
        actor.send(number, "add")
    assert client.end(202)[1] == 200

    # The end of a call may be heard before its files are closed.
    until(lambda: all(now <= earlier for now, earlier in zip(opened(), before)))


def test_a_session_that_is_closed_with_an_actor_leaves_no_reserved_disk_space(server: Server, client: Client):
    Proxy(client, 1, 10)
    client.end(1)
    assert list(server.folder.glob("calls/.reserve*"))

    assert server.close()["why"] == "closed"
    assert not list(server.folder.glob("calls/.reserve*"))
