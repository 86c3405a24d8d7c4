"""`clusterfn jupyter`: a browser's connections to JupyterLab inside a job. Most tests have a small server in its place,
which listens and ends as JupyterLab does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import BOTH, Hosts, lab_venv
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
SERVER = """
import http.server, os, socketserver, sys

path = next(word.partition("=")[2] for word in sys.argv if word.startswith("--ServerApp.sock="))

class Answers(http.server.BaseHTTPRequestHandler):
    def address_string(self):
        return "browser"

    def do_GET(self):
        known = self.headers["Authorization"] == "token " + os.environ["JUPYTER_TOKEN"]
        body = b"[]" if self.path.startswith("/api/") else ("%d " % os.getpid()).encode() * 100000
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/shutdown":
            os._exit(0)

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(path, Answers).serve_forever()
"""


class Lab:
    """A `clusterfn jupyter` that runs."""

    def __init__(self, host: str, folder: Path, *words: str) -> None:
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            argv = [sys.executable, "-m", "clusterfn", "jupyter", host, "--no-browser", *words]
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.base, _, self.token = address.partition("/lab?token=")

    def get(self, path: str, method: str = "GET", token: str | None = None) -> bytes:
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        asked = urllib.request.Request(self.base + path, headers=headers, method=method)
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            return bytes(answer.read())

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def root(here: Path, tmp_path: Path) -> Iterator[Path]:
    """This machine as host, whose environment has the small server as jupyterlab; the host's root."""
    (tmp_path / "modules" / "jupyterlab").mkdir(parents=True)
    (tmp_path / "modules" / "jupyterlab" / "__init__.py").touch()
    (tmp_path / "modules" / "jupyterlab" / "__main__.py").write_text(SERVER)
    with Path(os.environ["CLUSTERFN_CONFIG"]).open("a") as config:
        config.write(f"    env: {{PYTHONPATH: {tmp_path}/modules}}\n")
    yield here
    for folder in (here / "jobs").iterdir():  # what the test has left running
        (folder / "cancel").touch()
        until((folder / "attempts" / "1" / "outcome.json").exists)


def outcome(root: Path) -> Any:
    (job,) = (root / "jobs").iterdir()
    until((job / "attempts" / "1" / "outcome.json").exists)
    return json.loads((job / "attempts" / "1" / "outcome.json").read_text())


def test_a_browser_reaches_jupyterlab_in_its_job_until_ctrl_c(root: Path, tmp_path: Path):
    lab = Lab("here", tmp_path, "--environment", "current")

    pid = lab.get("/").split()[0].decode()
    assert lab.get("/") == f"{pid} ".encode() * 100000
    with pytest.raises(urllib.error.HTTPError, match="403"):
        lab.get("/", token="another")
    assert lab.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()

    assert lab.end() == 0
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert outcome(root)["kind"] == "returned"


def test_jupyterlab_that_is_shut_down_in_the_browser_ends_the_command(root: Path, tmp_path: Path):
    lab = Lab("here", tmp_path, "--environment", "current")
    lab.get("/shutdown")

    assert lab.process.wait(WAIT_S) == 0, lab.errors.read_text()
    assert lab.end() == 0


def test_idle_jupyterlab_releases_its_gpus_and_says_so(root: Path, tmp_path: Path):
    lab = Lab("here", tmp_path, "--environment", "current", "--idle", "8s")

    assert lab.process.wait(WAIT_S) == 1
    assert "JupyterLab was idle for 8 s, and has released its GPUs" in lab.errors.read_text()
    lab.end()


@pytest.mark.parametrize(
    ("environment", "said"),
    [("python:{}/empty/bin/python", "has no jupyterlab, which this job needs"), ("nowhere.yml", "there is no file")],
)
def test_what_cannot_start_says_why(here: Path, tmp_path: Path, environment: str, said: str):
    venv.create(tmp_path / "empty")
    lab = Lab("here", tmp_path, "--environment", environment.format(tmp_path))

    assert lab.process.wait(WAIT_S) in (1, 2)
    assert said in lab.errors.read_text()
    lab.end()


def test_a_port_that_is_taken_is_rejected_before_a_job_is_sent(here: Path, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lab = Lab("here", tmp_path, "--environment", "current", "--port", str(port))
        assert lab.process.wait(WAIT_S) == 2
    assert f"port {port} of this machine cannot be used: Address already in use" in lab.errors.read_text()
    assert not (here / "jobs").exists()
    lab.end()


@pytest.fixture(scope="module")
def with_jupyterlab(lab: Any) -> Path:
    return lab_venv(lab, "jupyterlab", "jupyterlab")


@pytest.mark.lab
@pytest.mark.long  # it installs JupyterLab
@BOTH
def test_the_real_jupyterlab_runs_over_ssh_and_inside_a_job_of_slurm(
    hosts: Hosts, host: str, with_jupyterlab: Path, tmp_path: Path
):
    before = hosts.jobs()
    lab = Lab(host, tmp_path, "--environment", f"venv:{with_jupyterlab}", "--memory", "1GB")
    (job,) = hosts.jobs() - before

    kernel = json.loads(lab.get("/api/kernels", "POST"))
    until(lambda: json.loads(lab.get(f"/api/kernels/{kernel['id']}"))["execution_state"] in ("idle", "starting"))
    assert b"<title>JupyterLab</title>" in lab.get("/lab")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        lab.get("/api/kernels", token="another")

    assert lab.end() == 0
    outcome = hosts.root / "jobs" / job / "attempts" / "1" / "outcome.json"
    until(outcome.exists)
    assert json.loads(outcome.read_text())["kind"] == "returned"
