"""See what runs, change what waits, be told of the end, reach a port: on this machine, over SSH and on SLURM."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import clusterfn
from clusterfn import cluster
from tests.e2e.conftest import ON_BARE, ON_SLURM
from tests.processes import is_running, supervisor_of
from tests.programs import main
from tests.waiting import until


def work(go: str) -> int:
    import os

    held = bytearray(os.urandom(1) * (60 << 20))
    while not os.path.exists(go):
        pass
    return len(held)


def rest(go: str) -> int:
    import os

    while not os.path.exists(go):
        time.sleep(0.02)
    return 1


def serve(go: str) -> int:
    """Serve a page on a port, whose number is printed."""
    import http.server
    import os
    import threading

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"page of the job " * 10000)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("port", server.server_address[1], flush=True)
    while not os.path.exists(go):
        time.sleep(0.1)
    return 1


def fail() -> None:
    raise ValueError("too large")


for each in (work, rest, serve, fail):
    each.__module__ = "__main__"


@contextlib.contextmanager
def running(function, go, **options):
    job = cluster(**options)(function).submit(str(go))
    try:
        until(lambda: job.state == "RUNNING")
        yield job
    finally:
        job.stop()
        until(job.done)


def test_a_running_job_says_what_it_uses_in_each_place(here, tmp_path, capsys):
    with running(work, tmp_path / "go") as job:

        def measured():  # at first perhaps while the function is loaded
            now = job.usage.get("now") or {}
            return (now.get("cores") or 0) > 0.02 and now["memory_bytes"] > 60 << 20 and now

        used = until(measured)
        (listed,) = clusterfn.jobs("here")
        assert main(["jobs", "here"]) == 0
        table = capsys.readouterr().out
        assert main(["top", "here", "--json"]) == 0
        top = json.loads(capsys.readouterr().out)
        assert main(["top", "here"]) == 0
        screen = capsys.readouterr().out
        (tmp_path / "go").touch()
        job.result(150)

    assert 0.02 < used["cores"] < 1.5 and used["memory_bytes"] > 60 << 20
    assert listed.usage["now"]["memory_bytes"] > 60 << 20 and listed.asked["cores"] == 1 and listed.ended is None
    assert re.search(r"\d\.\d cores, \d+(\.\d)? MB", table)
    assert top["own"][0]["usage"]["now"]["cores"] and top["machine"]["cores"] == os.cpu_count()
    assert re.search(rf"^{job.id[:4]} +work +RUNNING .* \d\.\d of 1 ", screen, re.MULTILINE)
    assert "now" not in job.usage and job.usage["cpu_s"] > 0


def test_what_ended_jobs_used_is_compared_with_what_they_asked_for(here, tmp_path, capsys):
    (tmp_path / "go").touch()
    group = cluster(cores=2, memory="2GB")(work).map([str(tmp_path / "go")] * 3)
    assert group.results(150) == [60 << 20] * 3

    def reports():
        assert main(["usage", "here", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    (report,) = until(reports)  # the host knows the end of a map after that of its last item
    assert (report["name"], report["jobs"], report["asked"]["memory_bytes"]) == ("work", 1, 2 << 30)
    assert 60 << 20 < report["memory_bytes"] < 1 << 30 and 'memory="256MB"' in report["suggestions"]


def notified(root, job):
    path = root / "jobs" / job.id / "notified.json"
    return until(lambda: path.exists() and json.loads(path.read_text()))


def test_the_end_is_reported_once_and_the_command_leaves_the_host(here, tmp_path):
    said, secret = tmp_path / "said", secrets.token_hex(16)
    line = f'echo "$CLUSTERFN_JOB_STATE $CLUSTERFN_JOB_MESSAGE" >>"{said}"; cat >>"{said}"; : {secret}'
    job = cluster(notify=line)(fail).submit()
    with pytest.raises(ValueError, match="too large"):
        job.result(150)

    assert notified(here, job)["told"] is True
    state, sentence = said.read_text().splitlines()
    assert state.startswith("RAISED ") and sentence.startswith(f"fail ({job.id[:4]}) on here has failed")
    assert "too large" in sentence
    assert not (here / "jobs" / job.id / "notify").exists()
    until(lambda: not is_running(supervisor_of(here / "jobs" / job.id)))  # files come and go before
    kept = [path for path in here.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert kept == []


def test_a_map_notifies_once_and_a_short_job_not_where_only_long_ones_do(here, tmp_path):
    said = tmp_path / "said"
    line = f'echo "$CLUSTERFN_JOB_ID" >>"{said}"'
    group = cluster(notify=line)(abs).map([1, 2, 3])
    assert group.results(150) == [1, 2, 3]
    short = cluster(notify={"command": line, "after": "1h"})(abs).submit(-1)
    assert short.result(150) == 1

    assert [notified(here, job)["told"] for job in (group, short)] == [True, False]
    assert said.read_text() == f"{group.id}\n"


def test_a_retry_of_items_notifies_again(here, tmp_path):
    said = tmp_path / "said"
    group = cluster(notify=f'echo "$CLUSTERFN_JOB_ID" >>"{said}"')(ord).map(["xy"])
    assert group.wait(150) and group.failed
    until(lambda: said.exists() and said.read_text())

    assert group.retry_failed().wait(150)

    until(lambda: len(set(said.read_text().split())) == 2)


def test_a_notification_that_fails_is_said_and_changes_no_outcome(here, capsys):
    job = cluster(notify="echo no such room >&2; exit 3")(abs).submit(-1)
    assert job.result(150) == 1

    assert "no such room" in notified(here, job)["failed"]
    assert main(["jobs", "here"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith(job.id[:4])]
    assert "RETURNED" in line and "the notification failed: the command ended with status 3: no such room" in line


@pytest.mark.lab
@ON_BARE
def test_a_host_tells_of_a_job_whose_client_is_gone(host, hosts, lab, tmp_path):
    extra = f"notify: {{command: 'cat >>{hosts.root}/told', after: 1s}}"
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, extra)
    env = {**os.environ, "CLUSTERFN_CONFIG": str(path), "CLUSTERFN_HOST": host}
    script = "import time, clusterfn\nf = clusterfn.cluster(time.sleep)\nprint(f.submit(2).id)\nf.submit(1.5)\n"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)

    until(lambda: (told := hosts.root / "told").exists() and len(told.read_text().splitlines()) == 2)
    assert f"sleep ({done.stdout[:4]}) on {host} has returned" in (hosts.root / "told").read_text()
    (hosts.root / "told").unlink()


ENDS = """
import atexit, threading, time
atexit.register(lambda: print(*(each.name for each in threading.enumerate())))
import clusterfn
clusterfn.cluster(time.sleep).submit(0)
"""


@pytest.mark.lab
@ON_BARE
@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_no_thread_that_works_outlives_the_program(host, hosts, lab, tmp_path, transport):
    """A daemon thread that runs while the interpreter ends can crash the process."""
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"transport: {transport}")
    env = {**os.environ, "CLUSTERFN_CONFIG": str(path), "CLUSTERFN_HOST": host}
    done = subprocess.run([sys.executable, "-c", ENDS], env=env, capture_output=True, text=True, check=True)

    assert "MainThread" in done.stdout and set(done.stdout.split()) <= {"MainThread", "clusterfn-exit"}


@pytest.fixture
def tunnelled(capfd):
    """Start `clusterfn tunnel` with these words; the address here. Ended by Ctrl-C."""
    started = []

    def start(*words):
        argv = [sys.executable, "-m", "clusterfn", "tunnel", *words]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        return process, re.search(r"http://[\d.:]+", line)[0]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=150)


def page(address):
    with urllib.request.urlopen(address, timeout=150) as answer:
        return answer.read()


@pytest.mark.lab
@ON_SLURM
def test_a_port_of_a_job_is_reached_here_until_the_job_ends(host, hosts, tunnelled, request):
    job = cluster(host=host)(serve).submit("/nonexistent")
    request.addfinalizer(job.stop)
    port = until(lambda: "port" in job.logs() and job.logs().split()[1])

    process, address = tunnelled(job.id, port, "--local-port", "0")

    pages = [None] * 4
    readers = [threading.Thread(target=lambda n=n: pages.__setitem__(n, page(address))) for n in range(4)]
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    assert pages == [b"page of the job " * 10000] * 4
    job.stop()
    assert process.wait(150) == 0 and "has ended, and the tunnel with it" in process.stderr.read()


@pytest.mark.lab
def test_a_port_on_which_nothing_of_this_user_listens_is_named(hosts, tunnelled, tmp_path):
    """Root's own port on the shared machine is another user's."""
    strangers = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    port = strangers.server_address[1]
    with strangers, running(rest, tmp_path / "never", host="tensor01") as job:
        process, address = tunnelled(job.id, str(port), "--local-port", "0")
        with pytest.raises(OSError):
            page(address)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=150)[1]
    assert re.search(rf"port {port} of \S+ belongs to another user", said)
