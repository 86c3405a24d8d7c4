"""Each way a job can end, with real processes: one truthful outcome, and nothing left running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.processes import is_running
from tests.waiting import stays, until

SLEEP = "def f():\n    import time\n    print('sleeping', flush=True)\n    time.sleep(600)\n"

LARGE = """def f():
    import time
    block = bytearray(95 << 20)
    block[::4096] = b'1' * len(block[::4096])
    print('up', flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("call", ["os.kill(os.getpid(), 9)", "os.kill(0, 9)"])
def test_a_program_that_kills_itself_ends_by_that_signal(bench: Bench, call):
    source = f"def f():\n    import os, sys\n    print('why', file=sys.stderr)\n    {call}\n"
    job, outcome = bench.run(source)

    assert (outcome["kind"], outcome["signal"], outcome["by"]) == ("signal", "SIGKILL", "supervisor"), job.log()
    assert outcome["message"] == "the process that ran the function was ended by SIGKILL"
    assert outcome["evidence"] == ["why"]


def test_a_killed_supervisor_kills_its_worker_at_once(bench: Bench):
    job = bench.job(SLEEP)
    script = job.start()
    job.wait_for_text("sleeping")
    worker, supervisor = job.worker_pid(), job.supervisor_pid()
    os.kill(script.pid, signal.SIGKILL)  # nobody is left to sweep

    os.kill(supervisor, signal.SIGKILL)

    until(lambda: not is_running(worker))


def test_what_a_killed_supervisor_has_reserved_on_the_disk_goes_with_the_look_that_concludes_for_it(bench: Bench):
    job = bench.job(SLEEP)
    script = job.start()
    job.wait_for_text("sleeping")
    (job.folder / "calls").mkdir()
    (job.folder / "calls" / ".reserve-0123").touch()  # of the server of a session
    assert len(list(job.folder.rglob(".reserve-*"))) == 2

    os.kill(job.supervisor_pid(), signal.SIGKILL)
    script.wait(150)

    assert job.outcome()["kind"] == "lost"
    assert list(job.folder.rglob(".reserve-*")) == []


def test_a_time_limit_that_came_before_the_function_says_so(bench: Bench):
    late = "class Late:\n    def __reduce__(self):\n        import time\n        return time.sleep, (600,)\n"

    outcome = bench.job(f"{late}def f(late=Late()):\n    pass\n", resources={"time_s": 5.0}).run()

    assert outcome["kind"] == "time" and outcome["stage"] in ("start", "load")  # the former on a busy machine
    assert "longer than the 5 s it had; the function had not begun, because " in outcome["message"]


def test_a_request_to_stop_before_the_start_runs_nothing(bench: Bench):
    job = bench.job("def f():\n    open('/proc/self/fd/1', 'w').write('ran')\n")
    (job.folder / "cancel").touch()

    assert job.run()["kind"] == "cancelled"
    assert not (job.attempt / "stdout").exists()


def test_sigterm_with_a_request_is_a_cancellation(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settles = ("supervisor/watch.py", "_SETTLE_S = 0.5", "_SETTLE_S = 60.0")
    echoes = ("supervisor/run.py", "_TERM_ECHO_S = 0.5", "_TERM_ECHO_S = 60.0")
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "patient", settles, echoes))
    job = bench.job(SLEEP)
    job.start()
    job.wait_for_text("sleeping")
    supervisor, worker = job.supervisor_pid(), job.worker_pid()

    for pid in (supervisor, worker):
        os.kill(pid, signal.SIGTERM)
    stays(lambda: not job.has_outcome(), 0.2)
    (job.folder / "cancel").touch()  # arrives later than the signal, as on a network file system

    until(job.has_outcome)
    assert job.outcome()["kind"] == "cancelled"


# Touched page by page: to fill it by a copy takes twice as much for a moment, which is over the limit.
SHARED = """def f(megabytes, children):
    import os, time
    block = bytearray(megabytes << 20)
    for page in range(0, len(block), 4096):
        block[page] = 1
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            time.sleep(1)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return len(block)
"""


def test_pages_that_processes_share_are_counted_once(bench: Bench):
    job = bench.job(SHARED, 100, 3, resources={"memory_bytes": 200 << 20})

    assert job.run()["kind"] == "returned"


def test_a_kill_near_the_limit_is_taken_for_memory(bench: Bench):
    job = bench.job(LARGE, resources={"memory_bytes": 112 << 20})
    job.start()
    job.wait_for_text("up")
    job.wait_for_memory(95 << 20)

    os.kill(job.worker_pid(), signal.SIGKILL)

    until(job.has_outcome)
    assert job.outcome()["kind"] == "memory"


@pytest.mark.parametrize("gone", ["worker.py", "_clusterfn", "_clusterfn_wire", ""])
def test_a_damaged_bridge_is_named(bench: Bench, tmp_path: Path, gone):
    damaged = tmp_path / "damaged"
    shutil.copytree(bench.bridge, damaged)
    shutil.move(damaged / gone, tmp_path / "away")

    _, outcome = bench.run("def f():\n    pass\n", bridge=str(damaged))

    assert (outcome["kind"], outcome["stage"]) == ("environment", "start")
    assert outcome["message"].startswith("the bridge on the host is damaged: ")
    assert "call again" in outcome["hint"]


def test_usage_and_place_are_reported(bench: Bench, tmp_path: Path):
    waits = "    while not os.path.exists(go):\n        time.sleep(0.05)\n"
    source = f"def f(go):\n    import os, time\n    block = b'1' * (50 << 20)\n    time.sleep(0.3)\n{waits}"
    job = bench.job(source, str(tmp_path / "go"))
    script = job.start()
    job.wait_for_memory(50 << 20)
    (tmp_path / "go").touch()
    script.wait(150)

    outcome = job.outcome()
    assert outcome["usage"]["wall_s"] >= 0.3
    assert outcome["usage"]["cpu_s"] > 0
    assert outcome["usage"]["peak_memory_bytes"] > 50 << 20
    assert outcome["node"] == os.uname().nodename


def test_events_tell_the_story_in_order(bench: Bench):
    job, _ = bench.run("def f():\n    return 1\n")

    told = [(event["n"], event["event"]) for event in job.events()]

    assert told == [(1, "starting"), (2, "stage"), (3, "running"), (4, "stage"), (5, "ended")]
    starting = job.events()[0]
    assert starting["platform"].startswith(f"Linux {os.uname().release} {os.uname().machine}, glibc ")
    assert (starting["python"], starting["environment"], starting["lock"]) == (bench.python, None, None)


def test_the_heart_beats(bench: Bench):
    job = bench.job(SLEEP)
    job.start()

    job.wait_for_text("sleeping")

    beats = job.attempt / "heartbeat"
    assert re.fullmatch(rb"0000\d{4}", beats.read_bytes()) and int(beats.read_bytes()) > 0

    def beat_s() -> float:
        first, since = int(beats.read_bytes()), time.monotonic()
        until(lambda: int(beats.read_bytes()) > first + 1)
        return (time.monotonic() - since) / 2

    assert any(beat_s() < 12.0 for _ in range(5))  # who listens calls it dead then; a machine may be busy for once
