"""What runs for a command: its copy of the project, its shells, and what torchrun and accelerate are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import clusterfn.hosts.serialization  # noqa: F401 - it makes the package that a worker has there
from clusterfn.bridge.worker import command
from clusterfn.bridge.worker.command_line import interpreter_of, launcher_variables, to_warn, with_nodes
from tests.waiting import until

PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("program", flush=True), sys.exit(0)))
open("ready", "w").close()
for _ in range(600):
    time.sleep(0.1)  # a signal just before a long sleep would be seen after it
print("was not warned", flush=True)
"""


def test_a_script_without_the_right_to_execute_is_run_as_the_kernel_would_and_keeps_its_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py3").write_text("#!/usr/bin/env -S python3 -u\nprint(1)\n")
    (tmp_path / "job.py3").chmod(0o644)

    assert interpreter_of("./job.py3") == ["/usr/bin/env", "-S python3 -u"]
    assert (tmp_path / "job.py3").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes in /proc")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sh -c '{python} program.py | cat; true'; true", "program"),
        ("trap 'echo trap' TERM; {python} program.py; true", "program trap"),
        ("trap 'echo trap; kill -TERM $!; wait; exit' TERM; {python} program.py & wait", "trap program"),
        ("exec {python} program.py", "program"),
    ],
)  # fmt: skip
def test_a_warning_reaches_the_programs_of_a_shell_once(tmp_path, script, said):
    assert warned(tmp_path, script, signal.SIG_DFL) == said.split()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes in /proc")
def test_a_warning_reaches_the_program_of_a_shell_with_a_trap_below_nohup(tmp_path):
    script = "trap 'echo trap' TERM; {python} program.py; true"

    assert warned(tmp_path, script, signal.SIG_IGN) == ["program", "trap"]


def warned(tmp_path, script, on_quit):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "python").symlink_to(sys.executable)  # whose own path may have a blank
    line = script.format(python="./python")
    before = signal.signal(signal.SIGQUIT, on_quit)  # which programs inherit
    try:
        with subprocess.Popen(["bash", "-c", line], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            until((tmp_path / "ready").exists)
            for pid in to_warn(process.pid, signal.SIGTERM):
                os.kill(pid, signal.SIGTERM)
            return process.communicate()[0].split()
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_a_shell_that_runs_no_program_is_warned_itself():
    with subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE) as process:
        assert to_warn(process.pid, signal.SIGTERM) == [process.pid]
        process.kill()


class Scheduler:
    """One of whose jobs one has been submitted here."""

    def jobs_in(self, folder: str) -> list[str]:
        return ["7"]


@pytest.mark.parametrize(
    ("line", "words", "kept_for"),
    [
        (": sbatch \udce9", [], "job 7"), ("", ["sh", "submits.sh"], "job 7"),
        ("", ["true", "/dev/zero"], ""), ("", ["true", "pipe"], ""),
    ],
)  # fmt: skip
def test_only_the_files_of_a_command_are_searched_for_what_submits_jobs(
    line, words, kept_for, tmp_path, monkeypatch, capsys
):
    project, work = tmp_path / "project", tmp_path / "work"
    project.mkdir()
    (project / "submits.sh").write_text(": sbatch next.sh\n")
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(command, "scheduler_of_job", lambda _: Scheduler())
    os.mkfifo("pipe")

    command.run({"line": line, "words": words, "shown": "it", "project": str(project)}, {})

    assert (work / "submits.sh").exists() is bool(kept_for)
    said = f"clusterfn: the project's files stay in {work} for {kept_for}\n"
    assert capsys.readouterr().err == said * bool(kept_for)


ON_TWO = {
    "GROUP_WORLD_SIZE": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "4567",
    "CLUSTERFN_JOB": "7f3a/1", "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}  # fmt: skip


def test_torchrun_on_one_node_gets_the_gpus_and_a_port_of_its_own():
    found = launcher_variables({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})

    assert found.pop("PET_MASTER_PORT").isdecimal()
    assert found == {"PET_NPROC_PER_NODE": "2"}


def test_torchrun_without_gpus_decides_by_itself_how_many_processes_it_starts():
    assert set(launcher_variables({"CUDA_VISIBLE_DEVICES": ""})) == {"PET_MASTER_PORT"}


def test_torchrun_on_several_nodes_meets_at_the_first():
    assert launcher_variables(ON_TWO) == {
        "PET_NPROC_PER_NODE": "4", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n1",
        "PET_MASTER_PORT": "4567", "PET_RDZV_ENDPOINT": "n1:4567", "PET_RDZV_ID": "7f3a-1",
    }  # fmt: skip


def test_where_srun_starts_each_process_no_launcher_starts_more():
    assert launcher_variables({**ON_TWO, "LOCAL_WORLD_SIZE": "4"}) == {}


def test_what_the_user_has_set_stays():
    assert "PET_NPROC_PER_NODE" not in launcher_variables({**ON_TWO, "PET_NPROC_PER_NODE": "1"})


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        (["accelerate", "launch"], "--num_processes=8 --multi_gpu", ["train.py", "--cpu"]),
        (["accelerate", "launch"], "--multi_gpu", ["--num_processes", "4", "train.py"]),
        (["python", "-m", "accelerate.commands.launch"], "--num_processes=8", ["--use_fsdp", "train.py"]),
        (["accelerate", "launch"], "", ["--config-file", "fsdp.yaml", "train.py"]),
    ],
)
def test_accelerate_gets_what_its_command_line_leaves_out(before, added, after):
    where = "--num_machines=2 --machine_rank=1 --main_process_ip=n1 --main_process_port=4567"

    assert with_nodes([*before, *after], ON_TWO) == [*before, *where.split(), *added.split(), *after]


@pytest.mark.parametrize("words", [["accelerate", "config"], ["python", "train.py"], ["torchrun", "train.py"]])
def test_other_commands_stay_as_they_are(words):
    assert with_nodes(words, ON_TWO) == words


def test_on_one_node_accelerate_stays_as_it_is():
    assert with_nodes(["accelerate", "launch", "train.py"], {}) == ["accelerate", "launch", "train.py"]
