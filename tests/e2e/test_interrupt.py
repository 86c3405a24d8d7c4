"""Ctrl-C once: the job goes on and its id is told. Twice: it ends, with all its processes. Whatever ends the caller
besides, the job goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from clusterfn import Cancelled, attach
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.e2e.inside import PATIENT
from tests.waiting import until

pytestmark = pytest.mark.lab

SCRIPT = """
import os, sys, time
from clusterfn import cluster

@cluster(host=sys.argv[1], on_interrupt=sys.argv[3])
def wait(folder):
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("began", flush=True)
    deadline = time.monotonic() + 200  # longer than any test waits for what must end it before
    while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    return "value"

if __name__ == "__main__":
    print("result:", wait(sys.argv[2]))
"""


class Caller:
    """A script that waits in a call, as a terminal would start it: in a process group of its own."""

    def __init__(self, path, host, folder, on_interrupt):
        argv = [sys.executable, "-u", str(path), host, str(folder), on_interrupt]
        # a shell's background job has SIGINT ignored, and so would what pytest starts there
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        self.job_id = re.match(r"clusterfn: (\w{16}) wait on ", self.process.stderr.readline())[1]
        assert self.process.stdout.readline() == "began\n"

    def interrupt(self):
        """What the terminal does at Ctrl-C: SIGINT to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self):
        """(stdout, stderr) after its end."""
        return self.process.communicate(timeout=150)


@pytest.fixture
def call(hosts, tmp_path, gate):
    """Start a script that waits in a call."""
    path = tmp_path / "waits.py"
    started = []

    def start(host="tensor01", on_interrupt="detach", before=""):
        path.write_text(before + SCRIPT)
        started.append(Caller(path, host, gate, on_interrupt))
        return started[-1]

    yield start
    for caller in started:
        caller.process.kill()
        caller.process.communicate()


@ON_SLURM
def test_once_leaves_the_job_running_and_says_how_to_get_it(call, gate, host):
    caller = call(host)
    begin = time.monotonic()

    caller.interrupt()

    out, err = caller.end()
    assert 2.5 < time.monotonic() - begin < 100  # the time in which a second one counts
    short = caller.job_id[:4]
    assert f"{caller.job_id} keeps running on {host}" in err
    assert "waiting 3 s for Ctrl-C again" in err
    assert f"clusterfn result {short}" in err
    assert f"clusterfn.attach('{caller.job_id}').result()" in err
    assert f"clusterfn cancel {short}" in err
    assert "KeyboardInterrupt" in err
    assert f"keeps running on {host}: " not in err  # it was told above
    assert "result:" not in out
    job = attach(caller.job_id, host)
    until(lambda: job.state == "RUNNING")
    (gate / "go").touch()
    assert job.result(150) == "value"


@ON_BARE
def test_twice_ends_the_job_and_its_tree(call, lab, host):
    caller = call(host, before=PATIENT)
    until(lambda: len(lab.processes(f"{caller.job_id}/1")) == 2)

    caller.interrupt()
    while "Ctrl-C again within 3 s" not in caller.process.stderr.readline():
        assert caller.process.poll() is None
    caller.interrupt()

    _, err = caller.end()
    assert f"{caller.job_id} was stopped" in err
    assert f"keeps running on {host}: " not in err
    with pytest.raises(Cancelled):
        attach(caller.job_id, host).result(150)
    until(lambda: lab.processes(f"{caller.job_id}/1") == [])


def test_once_ends_the_job_where_that_was_chosen(call, lab):
    caller = call(on_interrupt="stop")

    caller.interrupt()

    _, err = caller.end()
    assert f"{caller.job_id} was stopped" in err
    with pytest.raises(Cancelled):
        attach(caller.job_id, "tensor01").result(150)
    until(lambda: lab.processes(f"{caller.job_id}/1") == [])


@pytest.mark.fault("26")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_killed_caller_leaves_the_job_running(call, gate, name):
    caller, number = call(), getattr(signal, name)

    caller.process.send_signal(number)

    caller.end()
    assert caller.process.returncode == -number
    job = attach(caller.job_id, "tensor01")
    until(lambda: job.state == "RUNNING")
    (gate / "go").touch()
    assert job.result(150) == "value"


WAITING = {
    "a call": ("wait(folder)", True),
    "an exception": ("wait.submit(folder).exception()", False),
    "each result": ("for value in wait.map([folder]): pass", False),
    "a sweep": ("clusterfn.sweep(wait, {'folder': [folder]})", True),
}
FRAMES = """
import clusterfn, sys
from clusterfn import cluster

@cluster
def wait(folder):
    import os, time
    open(os.path.join(folder, "began"), "w").close()
    deadline = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < deadline:
        time.sleep(0.02)

folder = sys.argv[1]
def of_the_user():
    WHAT
of_the_user()
"""


@pytest.mark.parametrize("what", WAITING)
@pytest.mark.usefixtures("here")
def test_what_follows_shows_the_users_frames_and_not_ours(tmp_path, what):
    script = tmp_path / "script.py"
    text, says_more = WAITING[what]
    script.write_text(FRAMES.replace("WHAT", text.replace("\n", "\n    ")))
    caller = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    until((tmp_path / "began").exists)

    os.killpg(caller.pid, signal.SIGINT)
    _, err = caller.communicate(timeout=150)
    (tmp_path / "go").touch()

    told, *tracebacks = err.split("Traceback (most recent call last):\n")
    assert ("Ctrl-C again within 3 s" in told) == says_more
    assert len(tracebacks) == 1
    frames = re.findall(r'File ".*?([^/]+\.py)", line \d+, in (\S+)', tracebacks[0])
    assert frames == [("script.py", "<module>"), ("script.py", "of_the_user")], err


MANY = """
import os, sys
from clusterfn import cluster

@cluster(host="tensor01")
def wait(x):
    import time
    print("began", flush=True)
    time.sleep(600 if x else 0)
    return x

if __name__ == "__main__":
    group = wait.map([0, 1, 2], max_parallel=2)
    print(group.id, flush=True)
    group.results()
"""


@pytest.fixture
def group_waiter(hosts, tmp_path):
    """A script that waits for a group of which the first item has ended, and the group's id."""
    path = tmp_path / "many.py"
    path.write_text(PATIENT + MANY)
    process = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    found = re.match(r"clusterfn: (\w{4}) wait on", process.stderr.readline())[1]
    while not (line := process.stderr.readline()).startswith("[1/3] 0 ✓"):
        assert line.startswith(f"clusterfn: {found} pending"), line  # if it takes seconds
    group_id = process.stdout.readline().strip()
    yield process, group_id
    process.kill()
    attach(group_id).stop()


def test_ctrl_c_twice_ends_a_group(group_waiter):
    process, group_id = group_waiter

    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr.readline() == "\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=150)

    group = attach(group_id)
    assert group.wait(150) and group.states == ["RETURNED", "CANCELLED", "CANCELLED"]
