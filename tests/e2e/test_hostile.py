"""What hostile eyes found once: nothing may hang, nothing may be lost, nothing is less than asked."""

from __future__ import annotations

import io
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import Session, cluster, errors
from tests.processes import agents_here, is_running, named, supervisor_of
from tests.waiting import stays, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


@pytest.fixture
def root(here) -> Path:
    """The folder of a local host."""
    return here


def double(x):
    return 2 * x


def waits_to_be_killed(path):
    part = Path(f"{path}.part")
    part.write_text(Path(os.environ["CLUSTERFN_CHECKPOINT"]).with_name("processes").read_text().split()[2])
    part.rename(path)
    time.sleep(600)


def begins(path):
    path.touch()
    time.sleep(600)


def says(text, path):
    while not os.path.exists(path):
        time.sleep(0.05)
    return text


for travels_by_value in (double, begins, waits_to_be_killed, says):  # else each job imports this module, and pytest
    travels_by_value.__module__ = "__main__"


def gone(folder: Path) -> None:
    """Remove a folder; an agent or a job may write into it at this moment."""
    until(lambda: not shutil.rmtree(folder, ignore_errors=True) and not folder.exists())


def a_file_of_the_bridge(root: Path) -> None:
    for worker in root.glob("bridge/*/worker.py"):
        worker.unlink()


def bytes_of_the_bridge(root: Path) -> None:
    for main in root.glob("bridge/*/_clusterfn/bridge/worker/main.py"):
        begin = main.read_bytes()[:10]
        main.unlink()  # the roots of other tests have the file, too
        main.write_bytes(begin)


LOSSES = {
    "everything": gone,
    "the bridge": lambda root: gone(root / "bridge"),
    "the blobs": lambda root: gone(root / "blobs"),
    "a file of the bridge": a_file_of_the_bridge,
    "bytes of the bridge": bytes_of_the_bridge,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_what_a_host_has_lost_is_sent_again_and_the_call_runs(root, lose):
    f, large = cluster(lambda data, x: len(data) + x), b"x" * (1 << 20)
    assert f(large, 1) == len(large) + 1
    stays(root.exists, 0.2)  # a host checks its bridge no more often than it has time for

    lose(root)

    assert f.submit(large, 2).result(timeout=150) == len(large) + 2


@pytest.mark.long
def test_a_map_and_a_session_run_on_a_host_that_has_lost_what_they_need(root):
    f = cluster(double)
    assert f(1) == 2

    gone(root)
    assert f.map([2, 3]).results(150) == [4, 6]

    gone(root)
    with Session() as session:
        assert session.submit(double, 4).result(150) == 8


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


@pytest.mark.long
def test_who_waits_for_jobs_whose_files_are_removed_learns_whether_they_run_or_wait(root):
    third = cluster(cores=22)  # two at a time: a limit of jobs would count those of tests beside this one
    begun = [root.with_name("item"), root.with_name("job")]
    group = third(begins).map([begun[0]])
    job = third(begins).submit(begun[1])
    until(lambda: all(each.exists() for each in begun))
    supervisors = {os.getpgid(pid) for each in (group, job) for pid in named(f"{root}/jobs/{each.id}")}
    waiting, waiting_group = third(double).submit(1), third(double).map([1, 2])
    until(lambda: len(list(root.glob("machines/*/queue/*"))) == 3)
    session = Session(cores=22)
    call = session.submit(double, 1)
    attached = [clusterfn.attach(each.id, "here") for each in (group, job, waiting, waiting_group)]
    ends = [getattr(each, "results", None) or each.result for each in (*attached, waiting, waiting_group, call)]
    words = [sys.executable, "-m", "clusterfn", "logs", "-f", job.id]
    logs = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert logs.stderr is not None
    assert any("has printed nothing yet" in line for line in logs.stderr)  # a busy machine may say that it connects

    gone(root)
    for each in supervisors:
        os.killpg(each, signal.SIGKILL)

    for end in ends:
        with pytest.raises(errors.ClusterfnError, match="here has lost the job's files: its root was removed"):
            end(timeout=150)
    assert "here has lost the job's files" in logs.communicate(timeout=150)[1] and logs.returncode == 1


@pytest.mark.long
def test_a_script_that_dies_before_its_first_heartbeat_is_noticed_though_the_agent_that_started_it_is_gone(root):
    config = Path(os.environ["CLUSTERFN_CONFIG"])
    config.write_text(config.read_text() + "    setup: [sleep 600]\n")
    job = cluster(double).submit(1)
    scripts = until(lambda: named(f"{root}/jobs/{job.id}"))
    os.kill(agents_here()[0], signal.SIGKILL)
    stays(lambda: not job.done(), 3)  # the successor looks at once, and finds it alive

    for group in {os.getpgid(each) for each in scripts}:
        os.killpg(group, signal.SIGKILL)

    with pytest.raises(errors.WorkerLost, match="the job's processes are gone"):
        job.result(timeout=100)


def test_a_stream_that_cannot_show_a_character_costs_no_value(root, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))

    assert cluster(lambda: print("\N{GRINNING FACE}") or 5)() == 5

    assert rb"\U0001f600" in shown.getvalue()


def test_a_ledger_that_cannot_be_written_costs_nothing(root, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    assert cluster(double)(2) == 4


def test_a_forked_child_does_not_wait_for_ever(root):
    code = (
        "import os, sys, time\n"
        "from clusterfn import cluster\n"
        "def wait(go):\n    while not os.path.exists(go):\n        time.sleep(0.02)\n"
        "job = cluster(wait).submit(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        job.result()\n"
        "    except RuntimeError as error:\n        os._exit(7 if 'another process' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "os.mkdir(sys.argv[1])\n"
        "job.result()\n"
    )
    argv = [sys.executable, "-W", "ignore", "-c", code, root.with_name("go")]
    done = subprocess.run(argv, env=os.environ, capture_output=True, timeout=150)
    assert done.returncode == 0, done.stderr.decode()


def test_an_array_may_be_reused_after_submit(root):
    large = bytearray(b"a" * (2 << 20))
    job = cluster(lambda data: bytes(data[:3])).submit(large)
    large[:3] = b"bbb"
    assert job.result(timeout=150) == b"aaa"


# Another user takes the place of a job with a job of their own that has ended.
PLANTS = """
cp -r "$3" "$1/jobs/planted"
chmod -R a+rX "$1/jobs/planted"
for file in $(grep -rl "$(basename "$3")" "$1/jobs/planted"); do sed -i "s,$(basename "$3"),$2,g" "$file"; done
mv "$1/jobs/$2" "$1/jobs/aside"
mv "$1/jobs/planted" "$1/jobs/$2"
"""


def as_second(script: str, *words: str | Path) -> None:
    """Run lines of a shell as the second account of the lab."""
    uid = pwd.getpwnam("cfsecond").pw_uid
    subprocess.run(["sh", "-euc", script, "sh", *words], check=True, user=uid, group=uid, extra_groups=[], cwd="/")


@pytest.fixture
def open_root(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of py36-bash, in which all may write into `jobs`; py36-second has one beside it."""
    shared = Path(tempfile.mkdtemp(prefix="clusterfn-planted-", dir="/tmp"))
    shared.chmod(0o1777)
    names, python = ("py36-bash", "py36-second"), lab.python("3.11")
    lines = "".join(
        f"  {name}: {{address: {name}, ssh_config: '{lab.ssh_config}', root: '{shared / name}', scheduler: bare, "
        f"limits: {{cores: 64}}, environment: 'python:{python}'}}\n"
        for name in names
    )
    (tmp_path / "clusterfn.yml").write_text("hosts:\n" + lines)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    root = shared / "py36-bash"
    for folder, mode in ((root, 0o755), (root / "jobs", 0o777)):
        folder.mkdir()
        folder.chmod(mode)
        shutil.chown(folder, "cfbash", "cfbash")
    yield root
    shutil.rmtree(shared, ignore_errors=True)


@pytest.mark.lab
@pytest.mark.parametrize(
    ("shut", "seen", "hint"),
    [
        (False, "{root}/jobs on py36-bash is not safe to use: everybody may write to it", "chmod go-w {root}/jobs"),
        (True, "{job} on py36-bash is not safe to use: it belongs to cfsecond", "mv {job} {job}.theirs"),
    ],
    ids=["all may write", "nobody may write any more"],
)
def test_a_result_that_another_user_plants_is_never_loaded(open_root: Path, shut: bool, seen: str, hint: str):
    go, jobs = open_root.parent / "go", open_root / "jobs"
    with pytest.raises(errors.HostError, match="everybody may write to it: another user could plant") as before:
        cluster(host="py36-bash")(double)(1)
    assert before.value.hint == f"run `chmod go-w {jobs}` on py36-bash"
    jobs.chmod(0o755)
    job = cluster(host="py36-bash")(says).submit("mine", str(go))
    theirs = cluster(host="py36-second")(says).submit("planted", "/")
    assert theirs.result(150) == "planted"
    until(lambda: job.state == "RUNNING")

    jobs.chmod(0o777)
    folder = open_root.parent / "py36-second" / "jobs" / theirs.id
    until(lambda: not is_running(supervisor_of(folder)))  # files that vanish would end the copy
    as_second(PLANTS, open_root, job.id, folder)
    jobs.chmod(0o755 if shut else 0o777)

    place = {"root": open_root, "job": jobs / job.id}
    with pytest.raises(errors.HostError, match="is not safe to use"):
        job.result(150)
    with pytest.raises(errors.HostError, match=seen.format(**place)) as caught:
        clusterfn.attach(job.id, host="py36-bash").result(150)
    assert caught.value.hint == f"run `{hint.format(**place)}` on py36-bash"
    go.touch()
    # The fixture removes that sign with the root: a function that has not seen it would hold its core for ever.
    until(lambda: not named(jobs / job.id / "attempts" / "1"))
