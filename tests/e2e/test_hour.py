"""Jobs of more than an hour in a minute: what looks at them, or waits for a word, has a clock 60 times as fast.

That is the supervisor's clock, of which a copy with another `time.monotonic` is sent, and the times that agent and
client give each other: after 20 minutes of silence an agent leaves, after less of it a client asks for a word. How long
a client waits until it gives a stream up stays as it is: the machine is not 60 times as fast.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long]
TIMES = 60

FASTER = f"""
import json, sys, time
from clusterfn import TimeLimit
from clusterfn import cluster
from clusterfn.config import config_file
from clusterfn.hosts import bridge_bundle as parcel, keepalive
from clusterfn.hosts import scheduler_watch as watch
from clusterfn.hosts.rpc import boot
from clusterfn.hosts.host_state import open_session

TIMES = {TIMES}
CLOCK = b'''
import time
if sys.argv[1:2] == ["run"]:
    began, real = time.monotonic(), time.monotonic
    time.monotonic = lambda: began + {TIMES} * (real() - began)
'''
files = dict(parcel.bridge().files)
head, found, tail = files["supervise.py"].partition(b"sys.path.insert")
assert found
files["supervise.py"] = head + CLOCK + found + tail
faster = parcel.make(files)
parcel.bridge = lambda: faster

sources = dict(boot.agent_sources())
silence = "SILENCE_S = 20 * 60.0"
assert silence in sources["server.py"]
sources["server.py"] = sources["server.py"].replace(silence, f"SILENCE_S = 20 * 60.0 / {{TIMES}}")
line = boot.line_of(sources)
boot.agent_line = lambda: line

faster_clocks = [(keepalive, "QUIET_S"), (keepalive, "IDLE_PING_S"), (keepalive, "PERIOD_S"), (watch, "_RUNNING_S")]
for module, name in faster_clocks:
    setattr(module, name, getattr(module, name) / TIMES)

def agent():
    return open_session(config_file.load().hosts["hour"]).connection.facts.pid

@cluster(host="hour")
def sit(minutes):
    import time
    print("began", flush=True)
    time.sleep(minutes * 60 / {TIMES})
    return minutes
"""


@pytest.fixture
def hour(lab, hosts, tmp_path, monkeypatch):
    """A host `hour` with a root that knows nothing of other clocks."""
    root = f"hour-{secrets.token_hex(4)}"
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=("py36",))
    path.write_text(path.read_text().replace("  py36:", "  hour:").replace(hosts.root_name, f"~/{root}"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield lab.home("bash") / root
    shutil.rmtree(lab.home("bash") / root, ignore_errors=True)


LONG = """
@cluster(host="hour", time="5min")
def idle():
    return None

idle()
first = agent()
jobs = [sit.with_options(time=limit).submit(75) for limit in ("2h", "1h")]
value, error = jobs[0].result(150), jobs[1].exception(150)
print(json.dumps([value, jobs[0].usage["wall_s"], type(error).__name__, str(error), agent() == first]))
"""


def test_a_job_of_more_than_an_hour_returns_and_one_that_had_an_hour_is_ended(hour, run_script):
    value, wall_s, kind, said, same_agent = run_script(FASTER + LONG, timeout_s=300)

    assert value == 75 and 75 * 60 < wall_s < 120 * 60
    assert kind == "TimeLimit" and "ran longer than the 1 h" in said
    assert same_agent  # 75 minutes without a word of the jobs are no silence


ASLEEP = """
job = sit.submit(75)
while job.logs() != "began\\n":
    time.sleep(0.1)
print(agent(), flush=True)
print(json.dumps([job.result(150), agent()]))
"""


@pytest.mark.fault("26")
def test_a_laptop_that_sleeps_for_longer_than_an_agent_waits_finds_its_job_when_it_wakes(hour, tmp_path):
    script = tmp_path / "asleep.py"
    script.write_text(FASTER + ASLEEP)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as laptop:
        try:
            before = int(laptop.stdout.readline())
            laptop.send_signal(signal.SIGSTOP)
            until(lambda: not os.path.exists(f"/proc/{before}"))
            laptop.send_signal(signal.SIGCONT)
            value, after = json.loads(laptop.stdout.readline())
        finally:
            laptop.kill()

    assert value == 75 and after != before
