"""How long JupyterLab has been idle, by what a small server in its place says of its kernels and terminals."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.kernel.process import LabActivity
from tests.waiting import until

LOOK_S = 0.02


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    answers: dict[str, Any]
    looks = 0


class Answers(http.server.BaseHTTPRequestHandler):
    server: Server

    def address_string(self) -> str:
        return "holder"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.looks += 1
        what = self.path.rpartition("/")[2]
        known = self.headers["Authorization"] == "token secret" and what in self.server.answers
        body = json.dumps(self.server.answers.get(what)).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(str(tmp_path / "lab"), Answers)
    made.answers = {"kernels": [kernel("idle", "1")], "terminals": []}
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def kernel(state: str, at: str) -> dict[str, str]:
    return {"id": "k", "execution_state": state, "last_activity": at}


@pytest.mark.parametrize(
    "now",
    [
        {"kernels": [kernel("idle", "2")], "terminals": []},
        {"kernels": [kernel("busy", "1")], "terminals": []},
        {"kernels": [kernel("idle", "1")], "terminals": [{"name": "1", "last_activity": "5"}]},
        {"kernels": []},
    ],
    ids=["a cell has ended", "a cell runs", "a terminal wrote", "a kernel was shut down"],
)
def test_what_users_do_is_activity_and_what_pages_ask_is_none(server: Server, tmp_path: Path, now: dict[str, Any]):
    activity = LabActivity(str(tmp_path / "lab"), "secret", LOOK_S)
    try:
        until(lambda: activity.idle_s() > 20 * LOOK_S and server.looks > 4)
        changed_at, server.answers = time.monotonic(), now
        until(lambda: activity.idle_s() < time.monotonic() - changed_at)
    finally:
        activity.close()


def test_a_server_that_does_not_answer_is_no_activity(tmp_path: Path):
    activity = LabActivity(str(tmp_path / "nothing"), "secret", LOOK_S)
    until(lambda: activity.idle_s() > 5 * LOOK_S)
    activity.close()
