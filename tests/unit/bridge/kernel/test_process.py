"""How long a kernel is idle, as its own iopub socket says."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from clusterfn.bridge.kernel.carried import SocketWatcher
from clusterfn.bridge.kernel.process import KernelActivity
from tests.waiting import WAIT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs on hosts alone")


class Kernel:
    """Its iopub channel, and what watches it."""

    def __init__(self, iopub: Any, path: Path) -> None:
        self.iopub = iopub
        self.session = Session(key=b"key")
        self.watcher = SocketWatcher()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(path))
        self.activity = KernelActivity(self.watcher, sock)
        while not iopub.poll(0):  # the handshake, until the subscription is there
            self.watcher.wait(0.01)
        assert iopub.recv() == b"\x01kernel."

    def publish(self, request: Any, state: str) -> None:
        content = {"execution_state": state}
        self.session.send(self.iopub, "status", content, parent=request, ident=b"kernel.7.status")

    def is_idle(self, expected: bool) -> bool:
        """Whether it becomes so."""
        until = time.monotonic() + WAIT_S
        while bool(self.activity.idle_s()) is not expected and time.monotonic() < until:
            self.watcher.wait(0.01)
        return bool(self.activity.idle_s())


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as iopub:
        iopub.bind(f"ipc://{tmp_path}/k-2")
        found = Kernel(iopub, tmp_path / "k-2")
        yield found
        found.activity.close()
        found.watcher.close()


def test_a_kernel_is_idle_while_no_cell_runs_whatever_clients_ask(kernel: Kernel):
    cell, completion = (kernel.session.msg(f"{kind}_request") for kind in ("execute", "complete"))
    info = kernel.session.msg("kernel_info_request")
    assert kernel.is_idle(True)

    kernel.publish(cell, "busy")
    assert not kernel.is_idle(False)
    kernel.publish(completion, "busy")
    kernel.publish(cell, "idle")
    kernel.publish(info, "busy")
    assert not kernel.is_idle(False)
    kernel.publish(completion, "idle")
    assert kernel.is_idle(True), "kernel_info_request counts"


def test_a_client_waits_until_the_answer_to_this_subscription_has_passed(kernel: Kernel, monkeypatch):
    monkeypatch.setattr("clusterfn.bridge.kernel.process.time.monotonic", lambda: 0.0)  # it waits without end
    assert not kernel.activity.is_subscribed()

    kernel.session.send(kernel.iopub, "iopub_welcome", {"subscription": "kernel."}, ident=b"kernel.")
    while not kernel.activity.is_subscribed():  # until the limit of the test, as no clock runs
        kernel.watcher.wait(0.01)


def test_a_kernel_that_sends_no_welcome_keeps_clients_waiting_for_half_a_second(kernel: Kernel, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("clusterfn.bridge.kernel.process.time.monotonic", lambda: now + 0.6)
    assert kernel.activity.is_subscribed()
