"""What a runner makes for its next call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.bridge.session.serving import Client, Server, part
from tests.unit.bridge.session.test_door import note_and_stay, outlast_and_kill_the_runner
from tests.waiting import WAIT_S, until


def ahead_of(folder: Path) -> Any:
    call_process = part("call_process")
    return call_process.Ahead(str(folder), lambda: call_process.fork_call_process({}, SimpleNamespace(generators=[])))


def test_a_process_that_is_stopped_or_dead_holds_up_no_end_and_one_that_died_costs_no_descriptor(tmp_path: Path):
    made, before = ahead_of(tmp_path), len(os.listdir("/dev/fd"))
    made.prepare()
    [dead] = made.pids()
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)

    given = made.give("/call", "/call", {})
    assert given.pid != dead
    given.dismiss()
    made.prepare()
    os.kill(made.pids()[0], signal.SIGSTOP)
    made.dismiss()
    assert len(os.listdir("/dev/fd")) == before


# Once the gate is there, no worker gets as far as to wait for a call.
DIE_AT_THE_GATE = """
import os
from clusterfn.hosts import serialization
serialization.part("container")
from clusterfn.bridge.session import runner
serve_calls = runner.CallRunner.serve
runner.CallRunner.serve = lambda self: os._exit(7) if os.path.exists({gate!r}) else serve_calls(self)
"""


def test_a_session_whose_workers_die_at_once_ends_with_its_other_calls(start: Callable[..., Server], tmp_path: Path):
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    server = start(workers=2, before=DIE_AT_THE_GATE.format(gate=str(gate)))
    client = Client(server)
    client.send(1, note_and_stay, str(pids))
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))

    gate.touch()
    client.send(2, outlast_and_kill_the_runner, 0.0)

    assert server.process.wait(WAIT_S) != 0
    until(lambda: not Path("/proc", pids.read_text().strip()).exists())
