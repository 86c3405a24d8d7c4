"""#SBATCH lines as people have them: what becomes an option, what is passed on, and what is named as not taken."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clusterfn.config.options import parse_options
from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.script import read_sbatch


def read(*lines, has_slurm=True):
    found = read_sbatch("#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "srun x\n", has_slurm)
    parse_options(found.options)  # a call takes them
    return found


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (["-J train", "-c 8", "--mem=64G", "-t 1-12:00:00"],
         {"name": "train", "cores": 8, "memory": "65536MB", "time": timedelta(days=1, hours=12)}),
        (["--gres=gpu:a100:2"], {"gpus": 2, "gpu_type": "a100"}), (["--gres=gpu"], {"gpus": 1}),
        (["--nodes=2", "--gpus=8"], {"nodes": 2, "gpus": 4}),
        (["-N2", "--ntasks-per-node=4", "--cpus-per-task=3", "--gpus-per-task=1"],
         {"nodes": 2, "cores": 12, "gpus": 4}),
        (["--ntasks=8", "--ntasks-per-node=4"], {"nodes": 2, "cores": 4}),
        (["-n 4", "--mem-per-cpu=2G"], {"cores": 4, "memory": "8192MB"}),
        (["--time=90"], {"time": timedelta(minutes=90)}), (["--time 10:30"], {"time": timedelta(minutes=10.5)}),
        (["-p gpu --account=lab # ours", "--exclusive"],
         {"slurm": {"partition": "gpu", "account": "lab", "exclusive": True}}),
        (["--requeue"], {"slurm": {"requeue": True}}), (["--no-requeue"], {"slurm": {"no-requeue": True}}),
        (["--signal=B:USR1@120"], {"warn_before": "120s"}),
        (["--mail-type=END", "--mail-user=ada@example.edu"],
         {"slurm": {"mail-type": "END", "mail-user": "ada@example.edu"}}),
        (["--gres=gpu:1,lscratch:100"], {"gpus": 1, "slurm": {"gres": "lscratch:100"}}),
    ],
)  # fmt: skip
def test_what_the_lines_ask_for_becomes_options(lines, options):
    found = read(*lines)

    assert (found.options, found.not_taken) == (options, [])


def test_srun_in_the_script_finds_the_tasks_that_the_lines_ask_for():
    found = read("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=3")

    assert found.env["SLURM_NTASKS"] == "8" and found.env["SRUN_CPUS_PER_TASK"] == "3"


def test_the_signal_is_the_one_that_the_script_waits_for():
    script, tasks = read("--signal=B:USR1@120"), read("--signal=USR1@120")

    assert (script.signal, script.alone) == ("SIGUSR1", True)
    assert (tasks.signal, tasks.alone) == ("SIGUSR1", False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--output=%x.out", "`clusterfn logs` shows the output"), ("-e err.txt", "`clusterfn logs` shows the output"),
        ("--chdir=/home/ada", "--cwd names a folder of the host"), ("--dependency=afterok:7", "pass one call's Job"),
        ("--mem=0", "--memory"),
        ("--export=ALL,TOKEN=geheim", "--export=TOKEN (use --env)"), ("--wrap=ls", "clusterfn run"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named_with_the_reason(line, reason):
    (told,) = read(line).not_taken

    assert reason in told


def test_without_slurm_its_own_options_are_not_taken():
    found = read("-p gpu", "-c 4", "--requeue", has_slurm=False)

    assert found.options == {"cores": 4, "requeue": ["preempted", "node"]}
    assert found.not_taken == ["--partition=gpu (the host has no SLURM)"]
    assert not read("--no-requeue", has_slurm=False).not_taken


@pytest.mark.parametrize(
    ("text", "array", "most"), [("0-3", "0 1 2 3", None), ("1-9:4%2", "1 5 9", 2), ("1,3,7", "1 3 7", None)]
)
def test_an_array_is_its_values(text, array, most):
    found = read(f"--array={text}")

    assert (found.array, found.max_parallel) == (array.split(), most)


@pytest.mark.parametrize("line", ["--time=soon", "--nodes=many", "--array=a", "--gres=gpu:x:y", "-J 'x", "hetjob"])
def test_a_value_that_sbatch_would_not_take_is_an_error(line):
    with pytest.raises(ConfigError, match="#SBATCH"):
        read(line)


def test_lines_after_the_first_command_count_no_more():
    assert read_sbatch("#!/bin/bash\n# about\n\n#SBATCH -c 2\necho\n#SBATCH -c 4\n", True).options == {"cores": 2}
    assert read_sbatch("#!/bin/bash\necho\n#SBATCH -c 4\n", True) is None
