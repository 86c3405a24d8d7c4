"""A supervisor that a signal has stopped, or a file system hangs: who asks for its end gets it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.processes import is_running
from tests.waiting import until


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


SLEEPS = "def f(seconds):\n    import time\n    time.sleep(seconds)\n"


class Hung:
    """A process that only SIGKILL ends, as one that waits for a file system does: this one traces it."""

    def __init__(self, pid: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        for each in self._threads:
            if self._libc.ptrace(_ATTACH, each, None, None) != 0:
                pytest.skip("processes cannot be traced here")
            os.waitpid(each, _ALL)

    def collect(self) -> None:
        """Let its parent hear of its death, which its tracer hears first."""
        for each in self._threads:
            os.waitpid(each, _ALL)


_ATTACH, _ALL = 16, 0x40000000


@pytest.mark.parametrize("what", ["and job.sh stopped", "hung, and job.sh killed"])
def test_a_job_that_does_not_end_when_asked_to_is_ended_by_who_asks(bench: Bench, what: str):
    job = bench.job(SLEEPS, 600)
    script = job.start()
    supervisor = job.supervisor_pid()
    if "hung" in what:
        threading.Thread(target=lambda: Hung(supervisor).collect()).start()
        until(lambda: state_of(supervisor) == "t")
    else:
        os.kill(supervisor, signal.SIGSTOP)
    os.kill(script.pid, signal.SIGKILL if "killed" in what else signal.SIGSTOP)
    script.poll()
    (job.folder / "cancel").touch()

    told = json.loads(job.call("end").stdout)

    assert told == {"left": []}
    assert job.outcome()["kind"] == "cancelled"
    script.wait(150)
    until(lambda: job.tagged() == [])
    assert not is_running(supervisor)


def test_a_job_that_has_ended_or_never_began_is_left_alone(bench: Bench):
    ended, waits = bench.ended(), bench.job(SLEEPS, 600)
    before = ended.outcome()

    assert json.loads(ended.call("end").stdout) == json.loads(waits.call("end").stdout) == {"left": []}

    assert ended.outcome() == before
    assert not (waits.folder / "attempts").exists()
