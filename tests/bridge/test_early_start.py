"""A worker that is started ahead of its attempt: it loads meanwhile, and runs nothing before it may begin."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.bridge.box import Box
from tests.bridge.host import Bench, Job, command_of, is_running, obey_modes
from tests.bridge.layout import layout_bridge
from tests.waiting import until

# The supervisor loads its code only once there is a file, which the worker's own interpreter can make.
WAITS = (
    "supervisor/main.py",
    "_DAY_S, _SOON_S = 86400.0, 60.0",
    """_DAY_S, _SOON_S = 86400.0, 60.0
for _ in range(6000):
    if os.path.exists(os.environ["GATE"]):
        break
    time.sleep(0.01)
else:
    raise SystemExit("no worker was started")
""",
)
RECVMSG = ("47", "212")  # its number on x86-64 and on arm64
ENV = "def f():\n    import os\n    return os.environ.get('MINE')\n"


@pytest.fixture
def gate(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for which supervisors wait before they load."""
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "waits", WAITS))
    return tmp_path / "gate"


def worker_of(job: Job) -> int:
    """Its only process with its tag, once it is the interpreter of the environment."""

    def loaded() -> int | None:
        return next((pid for pid in job.tagged() if b"worker.py" in command_of(pid)), None)

    return until(loaded)


def test_the_worker_loads_while_the_supervisor_does(bench: Bench, gate: Path, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n: >"{gate}"\nexec "{bench.python}" "$@"\n')
    python.chmod(0o755)

    outcome = bench.job("def f():\n    return 1\n", python=str(python)).run(GATE=str(gate))

    assert outcome["kind"] == "returned"


def test_it_is_the_worker_of_the_attempt_and_gets_its_folder(bench: Bench, gate: Path):
    job = bench.job("def f():\n    import os\n    return os.getpid(), os.getcwd()\n")
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    assert not job.attempt.exists()

    gate.touch()
    script.wait(150)

    assert job.value() == [pid, str(job.attempt / "work")]


def test_it_gets_gpus_that_are_leased_later_and_holds_them(box: Box, gate: Path):
    job = box.job(1, 300)
    job.start(GATE=str(gate), PATH=box.path)
    pid = worker_of(job)
    gate.touch()
    card = job.wait_for("starting")["gpus"][0]
    job.wait_for("running")

    held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    sockets = {line.split()[6]: line for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]}
    names = [sockets[link[8:-1]].split()[-1] for link in held if link.startswith("socket:") and link[8:-1] in sockets]
    (job.folder / "cancel").touch()

    assert any(f"gpu/{card}" in name for name in names)


@pytest.mark.parametrize("around", [{}, {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}])
def test_until_it_may_begin_it_has_no_gpu(box: Box, gate: Path, tmp_path: Path, around: dict[str, str]):
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nprint(repr(os.environ.get('CUDA_VISIBLE_DEVICES')), file=open({str(tmp_path / 'seen')!r}, 'w'))\n"
    )
    job = box.job(1, env={"PYTHONPATH": str(tmp_path)})
    gate.touch()

    assert job.run(GATE=str(gate), PATH=box.path, **around)["kind"] == "returned"
    assert (tmp_path / "seen").read_text() == "''\n" and job.value() in ("0", "1")


def test_relative_folders_of_its_variables_are_those_of_its_working_directory(bench: Bench, tmp_path: Path):
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "mine.py").write_text("VALUE = 7\n")
    spec = {"env": {"PYTHONPATH": "src"}, "cwd": str(tmp_path / "project")}

    job, outcome = bench.run("def f():\n    import mine\n    return mine.VALUE\n", **spec)

    assert outcome["kind"] == "returned" and job.value() == 7


def test_a_working_directory_that_is_not_there_is_named_by_the_attempt(bench: Bench):
    _, outcome = bench.run("def f():\n    return 1\n", cwd="/no/such/folder")

    assert (outcome["kind"], outcome["stage"]) == ("environment", "environment")
    assert outcome["message"] == "the working directory /no/such/folder cannot be used: No such file or directory"
    assert outcome["hint"] == "correct cwd="


def test_a_working_directory_that_a_variable_makes_relative_is_entered_once(bench: Bench, tmp_path: Path):
    job = bench.job("def f():\n    import os\n    return os.getcwd()\n", cwd="$PLACE")

    assert job.run(PLACE="tmp")["kind"] == "returned" and job.value() == "/tmp"


def test_one_that_was_killed_while_it_waited_is_replaced(bench: Bench, gate: Path):
    job = bench.job("def f():\n    return 1\n")
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(pid))

    gate.touch()
    script.wait(150)

    assert job.outcome()["kind"] == "returned" and job.wait_for("starting")["pid"] != pid


def test_a_default_timeout_of_sockets_in_the_environment_does_not_end_it(bench: Bench, gate: Path, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import socket\nsocket.setdefaulttimeout(0.1)\n")
    job = bench.job("def f():\n    return 1\n", env={"PYTHONPATH": str(tmp_path)})
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    until(lambda: not is_running(pid) or Path(f"/proc/{pid}/syscall").read_text().split()[0] in RECVMSG)

    gate.touch()
    script.wait(150)

    assert job.outcome()["kind"] == "returned" and job.wait_for("starting")["pid"] == pid


def test_an_interpreter_behind_a_program_of_the_host_gets_its_cpus(bench: Bench, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n"{bench.python}" "$@"\nexit $?\n')
    python.chmod(0o755)

    job, outcome = bench.run("def f():\n    import os\n    return len(os.sched_getaffinity(0))\n", python=str(python))

    assert outcome["kind"] == "returned" and job.value() == 1


def test_a_job_with_other_variables_than_it_was_started_with_gets_another_worker(bench: Bench, gate: Path):
    job = bench.job(ENV, env={"MINE": "before"})
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    spec = json.loads((job.folder / "spec.json").read_text())
    (job.folder / "spec.json").write_text(json.dumps({**spec, "env": {"MINE": "after"}}))

    gate.touch()
    script.wait(150)

    assert job.value() == "after" and job.wait_for("starting")["pid"] != pid and not is_running(pid)


def built(bench: Bench, ready: str | None, **more: object) -> dict[str, object]:
    """An environment of the builder: what a job's spec says of it, and `more` of how it is used."""
    folder = bench.root / "envs" / ("7f3a" * 4)
    (folder / "bin").mkdir(parents=True)
    if ready is not None:
        (folder / "READY").write_text(ready)
    wanted = {"root": str(bench.root), "id": folder.name, "purged": False, "cuda": None}
    return {"building": {**wanted, **more}, "python": bench.python}


def test_an_environment_that_is_there_is_held_and_its_variables_are_known(bench: Bench, gate: Path):
    job = bench.job(ENV, **built(bench, '{"told": {"set": {"MINE": "by a script", "CONDA_PREFIX": "/x"}}}'))
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    assert (bench.root / "uses" / ("7f3a" * 4) / job.id).exists()

    gate.touch()
    script.wait(150)

    assert job.value() == "by a script" and job.wait_for("starting")["pid"] == pid


def test_it_ends_with_its_supervisor_and_has_run_nothing(bench: Bench, gate: Path, tmp_path: Path):
    job = bench.job(f"def f():\n    open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    script = job.start(GATE=str(gate))
    pid = worker_of(job)
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    os.kill(parent, signal.SIGKILL)
    until(lambda: not is_running(pid))
    script.wait(150)

    assert job.outcome()["kind"] == "lost" and not (tmp_path / "ran").exists()


def test_a_second_script_of_a_job_leaves_no_worker_behind(bench: Bench, gate: Path, tmp_path: Path):
    job = bench.job(f"def f():\n    with open({str(tmp_path / 'ran')!r}, 'a') as file:\n        file.write('x')\n")
    scripts = [job.start(GATE=str(gate)) for _ in range(2)]
    until(lambda: len({pid for pid in job.tagged() if b"worker.py" in command_of(pid)}) == 2)

    gate.touch()
    for script in scripts:
        script.wait(150)

    assert (tmp_path / "ran").read_text() == "x" and job.tagged() == []


def test_what_the_function_prints_has_its_files_before_it_begins(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It begins at once, and may lock or remove its folder while the supervisor is still busy."""
    begun = "        late = worker.begin(cwd, env, cpus, self.job.held.worker_fds())\n"
    slow = ("supervisor/run.py", begun, f"{begun}        time.sleep(1)\n")
    monkeypatch.setattr(bench, "bridge", layout_bridge(tmp_path / "slow", slow))
    locks = "def f():\n    import os\n    os.chmod(os.path.abspath('..'), 0)\n    print('said')\n    return 'value'\n"
    job = bench.job(locks)

    job.start(before=obey_modes).wait(150)

    assert (job.outcome()["kind"], job.value(), job.output()) == ("returned", "value", "said\n")


def test_what_its_interpreter_has_started_ends_if_another_submission_has_the_job(
    bench: Bench, gate: Path, tmp_path: Path
):
    starts = "import subprocess\nsubprocess.Popen(['/bin/sleep', '600'], start_new_session=True)\n"
    (tmp_path / "sitecustomize.py").write_text(starts)
    job = bench.job(ENV, env={"PYTHONPATH": str(tmp_path)})
    script = job.start(GATE=str(gate))
    until(lambda: any(b"sleep" in command_of(pid) for pid in job.tagged()))

    (job.folder / "claim").write_text("another")
    gate.touch()
    script.wait(150)

    assert "the job is claimed by submission another" in job.log()
    assert not [command_of(pid) for pid in job.tagged()]
