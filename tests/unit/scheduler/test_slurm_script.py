"""#SBATCH lines as people have them: what sbatch gets, what becomes an option, what is rejected, what is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from clusterfn.config.options import parse_options
from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.keys import LETTERS, OPTIONS, PASSED, QUIET, READ
from clusterfn.scheduler.slurm.script import read_sbatch

LISTED = Path(__file__).parents[2] / "golden" / "sbatch-options.txt"


def read(*lines, has_slurm=True, given=()):
    text = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "srun x\n"
    found = read_sbatch(text, has_slurm, "job.sh", given)
    parse_options(found.options)  # a call takes them
    return found


def test_the_table_has_each_option_of_slurm_20_to_25_as_it_is_written():
    listed = [line.split() for line in LISTED.read_text().splitlines() if not line.startswith("#")]
    forms = {"!": "no", "?": "optional", "": "required", "#": "required"}

    of_table = {(name, option.letter or "-", forms[option.form]) for name, option in OPTIONS.items()}
    assert of_table == {(name, letter, form) for name, letter, form, _, _ in listed}
    assert LETTERS["c"] == "cpus-per-task"
    # Each is read, passed on, without effect, or named with a reason.
    assert all(each.script in (READ, PASSED, QUIET) or " " in each.script for each in OPTIONS.values())


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (["-J train", "-c 8", "--mem=64G", "-t 1-12:00:00"],
         {"name": "train", "cores": 8, "memory": "65536MB", "time": timedelta(days=1, hours=12)}),
        (["--gres=gpu:a100:2"], {"gpus": 2, "gpu_type": "a100"}), (["--gres=gpu"], {"gpus": 1}),
        (["--nodes=2", "--gpus=8"], {"nodes": 2, "gpus": 4}),
        (["-N2", "--ntasks-per-node=4", "--cpus-per-task=3", "--gpus-per-task=1"],
         {"nodes": 2, "cores": 12, "gpus": 4}),
        (["--ntasks=8", "--tasks-per-node=4"], {"nodes": 2, "cores": 4}), (["-N 2-3"], {"nodes": 2}),
        (["-n 4", "--mem-per-cpu=2G"], {"cores": 4, "memory": "8192MB"}),
        (["--gpus=2", "--cpus-per-gpu=3", "--mem-per-gpu=1g"], {"gpus": 2, "cores": 6, "memory": "2048MB"}),
        (["--ntasks=2", "--tres-per-task=cpu:4,gres/gpu:a100:1"], {"cores": 2, "gpus": 2, "gpu_type": "a100"}),
        (["--time=90"], {"time": timedelta(minutes=90)}), (["--time 10:30"], {"time": timedelta(minutes=10.5)}),
        (["--requeue"], {"requeue": ["preempted", "node"]}), (["--no-requeue"], {}),
        (["--signal=B:USR1@120"], {"warn_before": "120s"}),
    ],
)  # fmt: skip
def test_on_one_machine_the_lines_become_options(lines, options):
    found = read(*lines, has_slurm=False)

    assert (found.options, [each for each in found.not_taken if "no SLURM" not in each]) == (options, [])


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (["-n 2", "--gpus-per-task=1", "--mem-per-cpu=333M"],
         {"ntasks": "2", "gpus-per-task": "1", "mem-per-cpu": "333M", "mem": None, "cpus-per-task": None}),
        (["--requeue"], {"requeue": True}), (["--no-requeue"], {"no-requeue": True}),
        (["-p gpu --account=lab # ours", "--exclusive", "-k"],
         {"partition": "gpu", "account": "lab", "exclusive": True, "no-kill": True}),
        (["--gpus=a100:1,v100:1"], {"gpus": "a100:1,v100:1"}),
        (["--gres=gpu,lscratch:9"], {"gres": "lscratch:9,gpu:1"}),
        (["--mail-type=END", "--container-image=x.sqsh"], {"mail-type": "END", "container-image": "x.sqsh"}),
        (["--dependency=singleton", "-J train", "-t 9", "--export=ALL"], {"dependency": "singleton"}),
        (["-v", "--mem=0"], {"mem": "0"}), (["--cpus-per-task=4 --hint=nomultithread"],
                                             {"cpus-per-task": "4", "hint": "nomultithread"}),
    ],
)  # fmt: skip
def test_on_slurm_sbatch_gets_the_lines_as_they_are(lines, asked):
    assert read(*lines).request == asked


def test_what_a_call_says_comes_before_the_script():
    given = {"cores": 8, "nodes": 2, "gpu_type": "a100", "memory": "2GB"}
    found = read("-n 4", "-c 2", "--gpus-per-task=1", "--mem=1G", "-p gpu", given=given)

    found.leave_to_sbatch(given, ["mem"])
    assert found.request == {"ntasks": "4", "partition": "gpu", "nodes": "2"}
    assert given == {"cores": 8, "gpu_type": "a100", "memory": "2GB"} and found.options["gpus"] == 4


def test_the_signal_is_the_one_that_the_script_waits_for():
    found = [read(f"--signal={text}") for text in ("B:USR1@120", "USR1@120", "10", "RB:sigusr2@5")]

    assert [(each.signal, each.alone) for each in found] == [
        ("SIGUSR1", True), ("SIGUSR1", False), ("SIGUSR1", False), ("SIGUSR2", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--output=%x.out", "in the job's folder alone"), ("-e err.txt", "`clusterfn logs` shows it"),
        ("--chdir=/home/ada", "--cwd names a folder of the host"), ("--time=0", "--time=0 (the host's limit counts)"),
        ("--export=TOKEN,A=geheim", "--export=TOKEN (use --env)"), ("--wrap=ls", "clusterfn runs the script"),
        ("--hold", "submit it later"), ("--nodefile=x", "--nodelist"), ("--container=/oci", "in the script"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named_with_the_reason(line, reason):
    (told,) = read(line).not_taken

    assert reason in told and "geheim" not in told


def test_without_slurm_its_own_options_are_not_taken_and_no_dependency_is_dropped():
    found = read("-p gpu", "-c 4", "--mem=0", has_slurm=False)

    assert (found.options, found.not_taken) == (
        {"cores": 4}, ["--partition=gpu (the host has no SLURM)", "--mem=0 (ask for an amount with --memory)"]
    )  # fmt: skip
    for text in ("singleton", "afterok:7"):
        with pytest.raises(ConfigError, match="job.sh:2: #SBATCH --dependency=.*no SLURM, to let it wait"):
            read(f"--dependency={text}", has_slurm=False)


def test_lines_that_sbatch_reads_for_others_or_not_at_all_are_named():
    text = "#!/bin/bash\n#PBS -l nodes=2\n#PBS -q gpu\n#$ -pe smp 4\n#DW jobdw\n# $HOME\nls\n#SBATCH -c 4\n"

    assert [each.partition(" (")[0] for each in read_sbatch(text, True).not_taken] == [
        "2 lines with #PBS", "1 lines with #$", "1 lines with #DW", "1 lines with #SBATCH after the first command",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "array", "most"),
    [("0-3", "0 1 2 3", None), ("1-9:4%2", "1 5 9", 2), ("[1,3,7]", "1 3 7", None), ("1,1-2%0", "1 2", None)],
)
def test_an_array_is_its_values(text, array, most):
    found = read(f"--array={text}")

    assert (found.array, found.max_parallel) == (array.split(), most)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *[(f"--array={text}", "Invalid job array specification")
          for text in ("5-1", "1-5:0", "a", "-1", "0-100000", "")],
        *[(f"--{name}=0", f'Invalid numeric value "0" for --{name}.')
          for name in ("cpus-per-task", "ntasks", "ntasks-per-node", "cpus-per-gpu", "mincpus")],
        ("-c=2", 'Invalid numeric value "=2" for --cpus-per-task.'), ("-n 1.5", 'Invalid numeric value "1.5"'),
        ("--nodes=0", "Node count specification invalid"), ("--nodes=many", '"many" is not a valid node count'),
        ("-N3-1", "Maximum node count 1 is less than minimum node count 3"),
        *[(f"--{text}", "Invalid generic resource")
          for text in ("gres=gpu:x:y", "gpus=-1", "gpus-per-node=a:b", "gpus=")],
        *[(f"--mem={text}", "Invalid --mem specification") for text in ("-1", "1P", "1.5G", "x")],
        *[(f"--time={text}", "Invalid --time specification") for text in ("soon", "1:2:3:4", "1-2-3", "1.5")],
        *[(f"--signal={text}", "Invalid --signal specification")
          for text in ("FOO@60", "USR1@-1", "USR1@70000", "B@6")],
        ("--mem", "requires an argument"), ("-Z 1", "invalid option -- 'Z'"), ("-J 'x", "No closing quotation"),
        ("hetjob", "'hetjob' is no option"),
    ],
)  # fmt: skip
def test_what_sbatch_rejects_is_rejected_in_its_words_with_the_line(line, words):
    with pytest.raises(ConfigError) as caught:
        read("-p gpu", line)

    assert str(caught.value).startswith(f"job.sh:3: #SBATCH {line}") and words in str(caught.value)


def test_two_types_of_gpus_need_slurm():
    with pytest.raises(ConfigError, match="two types of GPU in one job need SLURM"):
        read("--gpus=a100:1,v100:1", has_slurm=False)


def test_lines_after_the_first_command_count_no_more():
    assert read_sbatch("#!/bin/bash\n# about\n\n#SBATCH -c 2\necho\n#SBATCH -c 4\n", True).options == {"cores": 2}
    assert read_sbatch("#!/bin/bash\necho\n", True) is None
