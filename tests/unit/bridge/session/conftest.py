"""What the tests of a session's server share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bridge.session.serving import Client, Server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def run(folder: Path | None = None, **options: Any) -> Server:
        folder = folder or tmp_path / f"job{len(started)}"
        folder.mkdir(exist_ok=True)
        started.append(Server(folder, **options))
        return started[-1]

    yield run
    for server in started:
        for sock in server.sockets:
            sock.close()
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)
