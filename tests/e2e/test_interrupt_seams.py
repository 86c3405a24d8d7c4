"""Ctrl-C and kills at moments that only a change of the client's own functions brings about."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from clusterfn import ConfigError, attach
from clusterfn.calls import attach as calls_attach
from tests.e2e.conftest import local_host
from tests.e2e.inside import PATIENT
from tests.waiting import until

ARRIVING = """
import os, signal, sys, threading
from clusterfn import cluster
from clusterfn.calls import leaving
from clusterfn.calls.arriving import Arriving

write, has_value, looked = Arriving.write, leaving.has_value, threading.Event()

def look(run):
    found = has_value(run)
    looked.set()
    return found

def interrupt_and_write(arriving, piece):  # on the reader's thread, when some of the value has come
    write(arriving, piece)
    if len(arriving.value) > 10_000_000:
        Arriving.write = write
        os.kill(os.getpid(), signal.SIGINT)
        looked.wait(100)  # the rest must not come before

@cluster(host=sys.argv[1], on_interrupt=sys.argv[2])
def large():
    return bytes(100_000_000)

Arriving.write, leaving.has_value = interrupt_and_write, look
large()
"""


@pytest.mark.lab
def test_a_value_that_comes_already_is_not_lost(hosts, tmp_path):
    path = tmp_path / "large.py"
    path.write_text(ARRIVING)

    ran = subprocess.run(
        [sys.executable, path, "tensor01", "stop"], capture_output=True, text=True, timeout=150, check=False
    )

    told = re.search("the function of ([0-9a-f]{16}) has ended, and its value stays on tensor01", ran.stderr)
    assert told, ran.stderr
    assert "was stopped" not in ran.stderr
    assert len(attach(told[1], "tensor01").result(150)) == 100_000_000


LEAVING = """
import os, signal, sys, threading, time, traceback
from clusterfn import cluster
from clusterfn.config import config_file
from clusterfn.hosts.host_state import open_host

def tell_when_it_waits(main=threading.get_ident()):
    while "_finish_all" not in [each.name for each in traceback.extract_stack(sys._current_frames()[main])]:
        time.sleep(0.02)
    print("waits", flush=True)

function = cluster(abs)
function(-1)
agent = open_host(config_file.load().resolve(None)[0]).connection.facts.pid
print(agent, flush=True)
os.kill(agent, signal.SIGSTOP)
function.submit(-1)
threading.Thread(target=tell_when_it_waits, daemon=True).start()
"""


@pytest.mark.usefixtures("here")
def test_ctrl_c_at_the_end_of_a_program_that_still_sends_lets_it_go_and_shows_nothing_of_ours(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LEAVING)
    caller = subprocess.Popen([sys.executable, script], stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    agent = int(caller.stdout.readline())
    try:
        assert caller.stdout.readline() == "waits\n"
        os.kill(caller.pid, signal.SIGINT)
        _, err = caller.communicate(timeout=150)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGKILL)

    assert "Traceback" not in err and "File " not in err
    assert "keeps running on here, if it was sent before Ctrl-C: " in err


SLOW_LINE = """
import os, sys, threading, time, traceback
import clusterfn
from clusterfn.hosts.transports.base import ProcessStream

write = ProcessStream.write
def slowly(self, data):
    time.sleep(len(data) / (8e6 if os.path.exists(os.path.join(folder, "fast")) else 5e5))
    write(self, data)

def tell_when_it_waits(main=threading.get_ident()):
    while "_show_all" not in [each.name for each in traceback.extract_stack(sys._current_frames()[main])]:
        time.sleep(0.02)
    print("waiting", flush=True)

@clusterfn.cluster
def up(data, folder):
    open(os.path.join(folder, "ran"), "a").write("ran")
    return 42

folder, how = sys.argv[1:]
clusterfn.cluster(abs)(-1)  # what every call needs is there
print("ready", flush=True)
ProcessStream.write = slowly
data = os.urandom(24 << 20)
try:
    if how == "map":
        group = up.map([data], [folder])
        threading.Thread(target=tell_when_it_waits, daemon=True).start()
        group.results()
    else:
        up(data, folder)
finally:
    print("left", flush=True)
"""


@pytest.fixture
def sender(tmp_path, warm_root, monkeypatch):
    """Start a script that sends 24 MB to this machine in 48 seconds, with 8 MB/s once there is the file `fast`."""
    config, script = tmp_path / "clusterfn.yml", tmp_path / "script.py"
    config.write_text(local_host(warm_root, tmp_path.name))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    started = []

    def start(how, before=""):
        script.write_text(before + SLOW_LINE)
        argv = [sys.executable, "-u", script, tmp_path, how]
        started.append(subprocess.Popen(argv, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True))
        assert started[-1].stdout.readline() == "ready\n"
        if how == "map":  # whose call returns before anything is sent
            assert started[-1].stdout.readline() == "waiting\n"
        else:
            while " pending" not in started[-1].stderr.readline():  # how much was sent comes after 15 s only
                assert started[-1].poll() is None
        until(lambda: list((tmp_path / "root" / "jobs").glob("*.part-*")))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["call", "map"])
def test_twice_while_a_call_is_sent_drops_it_and_nothing_runs(sender, tmp_path, how):
    process = sender(how, PATIENT)
    process.send_signal(signal.SIGINT)
    while "press Ctrl-C again and nothing will run" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=150)

    assert f"was not sent completely: nothing runs on {tmp_path.name}" in err
    assert f"keeps running on {tmp_path.name}: " not in err
    assert not (tmp_path / "ran").exists()
    until(lambda: not list((tmp_path / "root").glob("[bfj]*/*.part-*")))


def test_ctrl_c_again_while_the_program_still_sends_drops_it_and_nothing_runs(sender, tmp_path):
    process = sender("call")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "left\n"
    while "sending (Ctrl-C cancels it): " not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=150)

    assert "was not sent completely: nothing runs" in err
    assert not (tmp_path / "ran").exists()


def test_once_while_a_call_is_sent_has_it_sent_and_run_and_says_how_to_get_it(sender, tmp_path):
    process = sender("call")
    process.send_signal(signal.SIGINT)
    said = [process.stderr.readline()]
    while "press Ctrl-C again and nothing will run" not in said[-1]:
        assert process.poll() is None
        said.append(process.stderr.readline())
    (tmp_path / "fast").touch()

    err = "".join(said) + process.stderr.read()

    assert re.search(r"still sending \w{16} to \S+ \(.*\d+ MB.*\); it runs once all of it has arrived", err)
    told = re.search(rf"keeps running on {tmp_path.name}: (\w+) |was sent, and .*\(clusterfn result (\w+) gets", err)
    assert told, err  # the second, if all of it has left before the three seconds are over
    assert attach(told[1] or told[2], tmp_path.name).result(150) == 42


def test_a_call_that_is_being_sent_is_no_job_yet(sender, tmp_path, monkeypatch):
    monkeypatch.setattr(calls_attach, "ON_ITS_WAY_S", 0.0)
    process = sender("call")
    process.send_signal(signal.SIGSTOP)  # it must not be done before attach looks
    job_id = next((tmp_path / "root" / "jobs").glob("*.part-*")).name[:16]

    with pytest.raises(ConfigError, match=f"job {job_id} has not started: only part of it has arrived") as caught:
        attach(job_id, tmp_path.name)
    process.send_signal(signal.SIGCONT)
    assert str(caught.value.hint).startswith("attach once that program has sent all of it")
