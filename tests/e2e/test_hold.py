"""`clusterfn hold`: calls of any program run in one allocation of SLURM, and in their own where they do not fit."""

from __future__ import annotations

import json
import pwd
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import attach
from tests.programs import main as command
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.lab
MINOR = f"3.{sys.version_info[1]}"


@pytest.fixture
def root(lab: Any, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of its own on SLURM: what is held there is held for no other test."""
    lines = [
        "address: slurm", f"ssh_config: {lab.ssh_config}", f"root: ~/{lab_root.name}", "scheduler: slurm",
        f'environment: "python:{lab.python(MINOR)}"', "slurm: {partition: {cpu: short, gpu: gpu}}", 'poll_floor: "1s"',
        'defaults: {time: "5min", memory: "500MB"}',
    ]  # fmt: skip
    (tmp_path / "clusterfn.yml").write_text("hosts:\n  held:\n" + "".join(f"    {line}\n" for line in lines))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    return lab_root


@pytest.fixture
def hold(root: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Hold an allocation with these words; the record of it, once it takes jobs. It is released after the test."""
    held: list[str] = []

    def begin(*words: str) -> dict[str, Any]:
        assert command(["hold", "held", "--json", *words]) == 0
        said = capsys.readouterr()
        held.append(json.loads(said.out)["id"])
        assert (f"(job {held[0][:4]})" in said.err) is ("--wait" in words)
        job = attach(held[0], "held")
        until(lambda: (root / "held" / "record").exists() or job.done())
        assert not job.done(), job.exception()
        return dict(json.loads((root / "held" / "record").read_text()))

    yield begin
    for job in held:
        attach(job, "held").stop()


SCRIPT = """
import json, os, sys, time
from clusterfn import WorkerLost, cluster

def place():
    names = "SLURM_JOB_ID", "SLURM_STEP_ID", "CUDA_VISIBLE_DEVICES", "HOME", "PATH"
    return {name: os.environ.get(name, "") for name in names}

def waits(gate):
    deadline = time.monotonic() + 200  # longer than any test waits for what must end it before
    while not os.path.exists(gate) and time.monotonic() < deadline:
        time.sleep(0.02)
    return 1

def dies():
    import signal
    from pathlib import Path
    supervisor = os.getppid()
    script = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (script, supervisor, os.getpid()):
        os.kill(pid, signal.SIGKILL)

remote = cluster(host="held", **json.loads(sys.argv[1]))
"""
PLACE = "print(json.dumps(remote(place)()))"


@pytest.fixture
def program(root: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a program of its own whose last line uses `remote`, a decorator with these options."""

    def begin(last: str = PLACE, **options: Any) -> subprocess.Popen[str]:
        path = tmp_path / f"script_{secrets.token_hex(4)}.py"
        path.write_text(f"{SCRIPT}{last}\n")
        argv = [sys.executable, str(path), json.dumps(options)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    return begin


Program = Callable[..., "subprocess.Popen[str]"]
Hold = Callable[..., "dict[str, Any]"]


def ended(process: subprocess.Popen[str]) -> tuple[Any, str]:
    """What a program has printed last, as JSON, and what it said."""
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def test_calls_of_any_program_run_in_what_is_held(hold: Hold, program: Program, root: Path) -> None:
    record = hold("--gpus", "1", "--cores", "2", "--memory", "2GB", "--time", "10min")

    (first, said), (second, _), (other, _) = (ended(program(gpus=gpus)) for gpus in (1, 1, 0))

    assert {each["SLURM_JOB_ID"] for each in (first, second, other)} == {record["id"]}
    assert "is not in the held allocation" not in said
    assert (first["CUDA_VISIBLE_DEVICES"] != "", other["CUDA_VISIBLE_DEVICES"]) == (True, "")
    assert (first["HOME"], "/usr/bin" in first["PATH"]) == (str(root.parent), True)
    assert first["SLURM_STEP_ID"] != second["SLURM_STEP_ID"]
    until(lambda: not list(root.glob("jobs/*/claim.step*")))  # `enter` removes the other name of each claim
    assert len(list(root.glob("jobs/*/claim"))) == 4


SESSION = """
import json, os
from clusterfn import Session

with Session("held", cores=1) as session:
    print(json.dumps([session.call(os.getenv, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]))
"""


@pytest.mark.usefixtures("root")
def test_a_session_runs_in_what_is_held(hold: Hold) -> None:
    record = hold("--cores", "2", "--time", "10min")

    ran = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True, check=True, timeout=WAIT_S)

    job, step = json.loads(ran.stdout.splitlines()[-1])
    assert (job, step.isdecimal()) == (record["id"], True)


def test_what_does_not_fit_gets_an_allocation_of_its_own_and_a_line(hold: Hold, program: Program) -> None:
    record = hold("--cores", "1", "--memory", "1GB", "--time", "10min")

    found, said = ended(program(cores=2))

    assert found["SLURM_JOB_ID"] != record["id"]
    assert "place is not in the held allocation" in said
    assert "it needs 2 cores, and that has 1" in said


def test_a_call_that_finds_it_busy_does_not_wait_for_it(hold: Hold, program: Program, root: Path) -> None:
    record = hold("--cores", "1", "--memory", "1GB", "--time", "10min")
    busy = program(f"print(remote(waits)({str(root / 'gate')!r}))")
    until(lambda: len(list(root.glob("jobs/*/claim"))) == 2)

    found, said = ended(program())
    (root / "gate").touch()

    assert found["SLURM_JOB_ID"] != record["id"]
    assert f"place is not in the held allocation {record['id']}: " in said
    assert ended(busy)[0] == 1


def test_release_ends_it_once_its_calls_have_ended(
    hold: Hold, program: Program, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = hold("--cores", "2", "--memory", "1GB", "--time", "10min")
    assert command(["hold", "held", "--cores", "1"]) == 2
    assert f"held already holds 2 cores of {record['node']}" in capsys.readouterr().err
    running = program(f"print(remote(waits)({str(root / 'gate')!r}))")
    until(lambda: len(list(root.glob("jobs/*/claim"))) == 2)

    assert command(["release", "held"]) == 0

    assert not (root / "held").exists(), "it waits until no call enters any more"
    (root / "gate").touch()
    assert ended(running)[0] == 1
    assert attach(record["job"], "held").result(WAIT_S) is None
    assert command(["release", "held"]) == 1
    assert "nothing is held on held" in capsys.readouterr().err


def test_it_ends_when_it_is_idle(hold: Hold, root: Path) -> None:
    record = hold("--cores", "1", "--memory", "1GB", "--time", "10min", "--idle", "4s")
    # A call of a program might come too late on a busy machine. This has the variables of a step, as a call has them.
    account = pwd.getpwuid(root.stat().st_uid)
    step = {"SLURM_JOB_ID": record["id"], "SLURM_STEP_ID": "7"}
    busy = subprocess.Popen(["sleep", "600"], env=step, user=account.pw_uid, group=account.pw_gid)
    try:
        time.sleep(6)
        assert (root / "held").exists()
    finally:
        busy.kill()
        busy.wait()

    until(lambda: not (root / "held").exists())
    assert attach(record["job"], "held").result(WAIT_S) is None


def test_a_record_of_what_is_gone_costs_no_call(hold: Hold, program: Program, root: Path) -> None:
    record = hold("--cores", "1", "--memory", "1GB", "--time", "10min")
    holder = attach(record["job"], "held")
    holder.stop()
    until(holder.done)
    shutil.rmtree(root / "held", ignore_errors=True)  # there if its process was killed before SLURM's SIGTERM came
    (root / "held").mkdir(mode=0o700)
    (root / "held" / "record").write_text(json.dumps(record))
    (root / "held" / "environment").write_text(f"HOME={root.parent}\0PATH=/usr/bin:/bin\0")
    for path in (root / "held", *(root / "held").iterdir()):
        shutil.chown(path, root.owner(), root.group())

    found, said = ended(program())

    assert found["SLURM_JOB_ID"] != record["id"]
    assert not (root / "held").exists(), said


@pytest.mark.long
def test_a_call_whose_processes_are_killed_ends_with_its_cause(hold: Hold, program: Program) -> None:
    hold("--cores", "1", "--memory", "1GB", "--time", "10min")
    last = "try: remote(dies)()\nexcept WorkerLost as lost: print(json.dumps(str(lost)))"

    said, _ = ended(program(last))

    assert said.startswith("the job ended in the held allocation and left no result")


def test_a_call_names_the_allocation_that_is_cancelled_under_it(hold: Hold, program: Program, root: Path) -> None:
    record = hold("--cores", "1", "--memory", "1GB", "--time", "10min", "--wait")
    last = (
        "try: remote(time.sleep)(120)\nexcept Exception as error: print(json.dumps([type(error).__name__, str(error)]))"
    )
    busy = program(last)
    until(lambda: len(list(root.glob("jobs/*/attempts/1/events.jsonl"))) == 2)

    attach(record["job"], "held").stop()

    (kind, message), _ = ended(busy)
    assert kind == "Cancelled"
    assert f"the held allocation {record['id']}, in which it ran, was cancelled" in message
