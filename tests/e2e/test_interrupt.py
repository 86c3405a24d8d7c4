"""Ctrl-C or a notebook's stop button once: the job goes on and its id is told. Twice: it ends, with its processes.

Whatever ends the caller besides, the job goes on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from jupyter_client.manager import KernelManager

import clusterfn
from clusterfn import Cancelled, attach
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.e2e.inside import PATIENT
from tests.waiting import until

pytestmark = [
    pytest.mark.lab,
    # Of Jupyter's own making: its sockets and loops are closed late.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

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


def job_told(process):
    """The id in the line that says where a call runs; others come before it where a connection takes seconds."""
    while not (found := re.match(r"clusterfn: (\w+) wait on ", process.stderr.readline())):
        assert process.poll() is None
    return found[1]


class Caller:
    """A script that waits in a call, as a terminal would start it: in a process group of its own."""

    def __init__(self, path, host, folder, on_interrupt):
        argv = [sys.executable, "-u", str(path), host, str(folder), on_interrupt]
        self.process = subprocess.Popen(argv, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
        self.job_id = job_told(self.process)
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
    assert time.monotonic() - begin > 2.5  # the time in which a second one counts
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
    "each result": ("for value in wait.map([folder]): pass", True),
    "as completed": ("for pair in wait.map([folder]).as_completed(): pass", True),
    "a sweep": ("clusterfn.sweep(wait, {'folder': [folder]})", True),
}
FRAMES = """
import clusterfn, sys
from clusterfn import cluster

@cluster
def wait(folder):
    import os, time
    open(os.path.join(folder, "began"), "w").close()
    deadline = time.monotonic() + 200
    while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < deadline:
        time.sleep(0.02)

folder = sys.argv[1]
def of_the_user():
    WHAT
of_the_user()
"""


@pytest.mark.parametrize(
    "what",
    ["a call", "a sweep", *(pytest.param(what, marks=pytest.mark.long) for what in [*WAITING][1:4])],
)
@pytest.mark.usefixtures("here")
def test_what_follows_shows_the_users_frames_and_not_ours(tmp_path, what):
    script = tmp_path / "script.py"
    text, says_more = WAITING[what]
    script.write_text(FRAMES.replace("WHAT", text.replace("\n", "\n    ")))
    caller = subprocess.Popen([sys.executable, script, tmp_path], stderr=PIPE, text=True, start_new_session=True)
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
    process = subprocess.Popen([sys.executable, path], stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    job_told(process)
    while not process.stderr.readline().startswith("[1/3] 0 ✓"):  # how far it is comes before, if that takes seconds
        assert process.poll() is None
    group_id = process.stdout.readline().strip()
    yield process, group_id
    process.kill()
    attach(group_id).stop()


def test_ctrl_c_twice_ends_a_group(group_waiter):
    process, group_id = group_waiter

    os.killpg(process.pid, signal.SIGINT)
    while "Ctrl-C again within 3 s" not in process.stderr.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=150)

    group = attach(group_id)
    assert group.wait(150) and group.states == ["RETURNED", "CANCELLED", "CANCELLED"]


IN_A_CELL = """
from clusterfn import cluster
@cluster(host="tensor01")
def wait(folder):
    import os, time
    print("began")
    deadline = time.monotonic() + 200  # longer than any test waits for what must end it before
    while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return "value"
wait({folder!r})
"""


class Kernel:
    """A running kernel, one cell at a time."""

    def __init__(self, folder):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=150)
        self.said = ""
        self.error = None

    def execute(self, code):
        self.said, self.error = "", None
        self.idle = ("idle", self.client.execute(code))

    def until(self, words):
        """Read what the cell says until it says this; "" means: until it has ended."""
        while True:
            message = self.client.get_iopub_msg(timeout=150)
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                self.said += content["text"]
            elif kind == "error":
                self.error = content
            elif kind in ("execute_result", "display_data", "update_display_data"):
                self.said += content["data"]["text/plain"]
            # A kernel that starts slowly is asked several times whether it is ready, and is idle after each.
            ended = (content.get("execution_state"), message["parent_header"].get("msg_id")) == self.idle
            if ended or (words and words in self.said):
                return

    @property
    def job_id(self):
        return re.search(r"clusterfn: (\w{16}) wait on ", self.said)[1]

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def waiting(gate, tmp_path, request):
    """A kernel whose cell waits in a call."""
    kernel = Kernel(tmp_path)
    kernel.execute(getattr(request, "param", "") + IN_A_CELL.format(folder=str(gate)))
    kernel.until("began")
    yield kernel
    kernel.end()


def test_the_stop_button_detaches_and_tells_the_id(waiting, gate):
    waiting.manager.interrupt_kernel()
    waiting.until("")

    assert f"{waiting.job_id} keeps running on tensor01" in waiting.said
    assert waiting.error["ename"] == "KeyboardInterrupt"
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(waiting.error["traceback"]))
    frames = [Path(name).expanduser() for name in re.findall(r"^File (.+?\.py):\d+", shown, re.MULTILINE)]
    package = Path(clusterfn.__file__).parent
    ours = [frame.relative_to(package).as_posix() for frame in frames if frame.is_relative_to(package)]
    assert "wait('" in shown and ours == [], shown
    assert "or  press the stop button again within 3 s" in waiting.said
    (gate / "go").touch()
    waiting.execute(f"import clusterfn; clusterfn.attach('{waiting.job_id}').result(150)")
    waiting.until("")
    assert "value" in waiting.said


@pytest.mark.parametrize("waiting", [PATIENT], ids=["patient"], indirect=True)
def test_the_stop_button_twice_ends_the_job(waiting, lab):
    job_id = waiting.job_id

    waiting.manager.interrupt_kernel()
    waiting.until("again within 3 s")
    waiting.manager.interrupt_kernel()
    waiting.until("")

    assert f"{job_id} was stopped" in waiting.said
    with pytest.raises(Cancelled):
        attach(job_id, "tensor01").result(150)
    until(lambda: lab.processes(f"{job_id}/1") == [])
