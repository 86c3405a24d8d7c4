"""What hostile eyes found once: nothing may hang, nothing may be lost, nothing is less than asked."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusterfn import Session, cluster, errors
from clusterfn.calls import attach, history
from clusterfn.hosts.host_state import open_session
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A local host whose folder is the test's own."""
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here: {{scheduler: local, root: {tmp_path}/root}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return tmp_path / "root"


def double(x):
    return 2 * x


def waits_to_be_killed(path):
    part = Path(f"{path}.part")
    part.write_text(str(os.getppid()))
    part.rename(path)
    time.sleep(600)


def gone(folder: Path) -> None:
    """Remove a folder; an agent or a job may write into it at this moment."""
    until(lambda: not shutil.rmtree(folder, ignore_errors=True) and not folder.exists())


def everything(root: Path) -> None:
    gone(root)


def the_bridge(root: Path) -> None:
    gone(root / "bridge")


def the_jobs(root: Path) -> None:
    gone(root / "jobs")


def the_machines(root: Path) -> None:
    gone(root / "machines")


def the_blobs(root: Path) -> None:
    gone(root / "blobs")


def a_file_of_the_bridge(root: Path) -> None:
    for worker in root.glob("bridge/*/worker.py"):
        worker.unlink()


def bytes_of_the_bridge(root: Path) -> None:
    for main in root.glob("bridge/*/_clusterfn/bridge/worker/main.py"):
        os.truncate(main, 10)


LOSSES = [everything, the_bridge, the_jobs, the_machines, the_blobs, a_file_of_the_bridge, bytes_of_the_bridge]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_what_a_host_has_lost_is_sent_again_and_the_call_runs(root, lose):
    f, large = cluster(lambda data, x: len(data) + x), b"x" * (1 << 20)
    assert f(large, 1) == len(large) + 1
    time.sleep(0.2)  # a host checks its bridge no more often than it has time for

    lose(root)

    assert f.submit(large, 2).result(timeout=150) == len(large) + 2


@pytest.mark.parametrize("lose", [everything, the_bridge], ids=lambda lose: lose.__name__)
def test_a_map_and_a_session_run_on_a_host_that_has_lost_what_they_need(root, lose):
    f = cluster(double)
    assert f(1) == 2

    lose(root)
    assert f.map([2, 3]).results(150) == [4, 6]

    lose(root)
    with Session() as session:
        assert session.submit(double, 4).result(150) == 8


def test_many_calls_at_once_on_a_host_that_has_lost_its_root_send_one_bridge(root):
    f = cluster(double)
    assert f(1) == 2

    everything(root)

    jobs = [f.submit(number) for number in range(8)]
    assert [job.result(timeout=150) for job in jobs] == [2 * number for number in range(8)]
    assert len(list(root.glob("bridge/*"))) == 1


def test_the_error_of_a_job_whose_files_were_removed_says_so(root):
    begun = root.with_name("begun")
    job = cluster(waits_to_be_killed).submit(str(begun))
    until(begun.exists)
    supervisor = int(begun.read_text())

    gone(root)
    os.killpg(os.getpgid(supervisor), signal.SIGKILL)

    with pytest.raises(errors.ClusterfnError, match="here has lost the job's files: its root was removed"):
        job.result(timeout=150)
    assert cluster(double).submit(3).result(timeout=150) == 6


def test_a_callback_of_a_refused_job_may_ask_the_host(root):
    job = cluster(double).submit(1)
    assert job.result() == 2
    heard = threading.Event()
    refused = cluster(double).submit(1)
    refused.on_refused(errors.SubmitError("no"))
    refused.add_done_callback(lambda done: (done.logs(), heard.set()))
    assert heard.wait(150)


@pytest.mark.parametrize("asked, has", [({"cores": 9999}, "cores=9999"), ({"memory": "900TB"}, "memory=")])
def test_more_than_the_machine_has_is_refused_before_anything_is_sent(root, asked, has):
    with pytest.raises(errors.Unsatisfiable, match=f"{has}.* is more than here has"):
        cluster(**asked)(double)(1)
    assert not list(root.glob("jobs/*"))


def test_a_stream_that_cannot_show_a_character_costs_no_value(root, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))

    assert cluster(lambda: print("\N{GRINNING FACE}") or 5)() == 5

    assert rb"\U0001f600" in shown.getvalue()


def test_a_ledger_that_cannot_be_written_costs_nothing(root, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    assert cluster(double)(2) == 4


def test_a_torn_line_of_the_ledger_hides_no_job(root):
    job = cluster(double).submit(2)
    job.result()
    with history.ledger_path().open("a") as file:
        file.write(f'{{"id": "{job.id}", "ho')

    assert attach.attach(job.id).result(timeout=150) == 4


def test_a_forked_child_does_not_wait_for_ever(root):
    code = (
        "import os, sys, time\n"
        "from clusterfn import cluster\n"
        "job = cluster(lambda: time.sleep(5)).submit()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        job.result()\n"
        "    except RuntimeError as error:\n        os._exit(7 if 'another process' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "job.result()\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=os.environ,
        capture_output=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


def test_an_array_may_be_reused_after_submit(root):
    large = bytearray(b"a" * (2 << 20))
    job = cluster(lambda data: bytes(data[:3])).submit(large)
    large[:3] = b"bbb"
    assert job.result(timeout=150) == b"aaa"


@pytest.mark.parametrize(
    "env", [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CLUSTERFN_JOB": "x/1"}, {"A": "\ud800"}], ids=["cards", "ours", "half"]
)
def test_variables_that_would_undo_a_promise_are_refused(env):
    with pytest.raises(errors.ConfigError):
        cluster(env=env)(double)


@pytest.mark.lab
def test_a_withdrawn_job_leaves_slurms_queue(lab, tmp_path, monkeypatch):
    config = tmp_path / "clusterfn.yml"
    python = lab.python(f"{sys.version_info[0]}.{sys.version_info[1]}")
    host = (
        f"{{address: slurm-dash, ssh_config: {lab.ssh_config}, scheduler: slurm, slurm: {{partition: closed}}, "
        f"environment: 'python:{python}'"
    )
    config.write_text(f"hosts:\n  patient: {host}}}\n  hasty: {host}, queue_timeout: 1s}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))

    stopped = cluster(double, host="patient").submit(1)  # with a limit it may be over before it is stopped
    stopped.stop()

    with pytest.raises(errors.Cancelled):
        stopped.result(timeout=150)
    assert stopped.id not in lab.slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%j").stdout

    with pytest.raises(errors.Unsatisfiable, match="queue_timeout"):
        cluster(double, host="hasty").submit(1).result(timeout=150)


def test_a_session_asks_again_after_an_hour_what_the_host_has(root, monkeypatch):
    """The host removes what no client has asked for in a long time."""
    from clusterfn.config import config_file

    session = open_session(config_file.load().resolve(None)[0])
    for reply in session.lay_out_bridge():
        reply.result(150)
    blob = root / "blobs" / "0123"
    blob.parent.mkdir()
    blob.touch()
    assert session.missing([str(blob)]) == set() and session.has_bridge
    blob.unlink()
    shutil.rmtree(session.bridge)
    assert session.missing([str(blob)]) == set() and session.has_bridge

    monkeypatch.setattr("clusterfn.hosts.host_state.time.time", lambda now=time.time(): now + 3601)
    assert not session.has_bridge
    assert session.missing([str(blob)]) == {str(blob)}
    for reply in session.lay_out_bridge():
        reply.result(150)
    assert os.path.isdir(session.bridge)
    monkeypatch.undo()


def test_a_session_forgets_what_it_distrusts(root):
    from clusterfn.config import config_file

    session = open_session(config_file.load().resolve(None)[0])
    assert session.has_bridge or session.lay_out_bridge()[0].result(150) is not None
    session.distrust()
    assert not session.has_bridge
