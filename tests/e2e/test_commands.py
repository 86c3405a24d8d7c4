"""Commands, scripts and modules in jobs: on this machine, over SSH, and in SLURM."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import clusterfn
from clusterfn import CommandFailed, ConfigError, File, ResultError
from tests.e2e.conftest import RANKS, local_host

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
TRAIN = """
import argparse, json, os, sys
from mylab import names

given = argparse.ArgumentParser()
given.add_argument("--lr", type=float, default=1.0)
given.add_argument("--fail", type=int, default=0)
given = given.parse_args()
print(names.HELLO, given.lr, os.path.basename(sys.executable), flush=True)
print("what went wrong", file=sys.stderr)
with open("metrics.json", "w") as file:
    json.dump({"score": -given.lr, "lr": given.lr}, file)
sys.exit(given.fail)
"""
FILES = {
    "train.py": TRAIN, "mylab/__init__.py": "", "mylab/names.py": "HELLO = 'hello'\n", "mylab/train.py": TRAIN,
    "plain.sh": "echo plain $1; exit 4\n", "lines.txt": "one\ntwo\n",
    "env.sh": "#!/usr/bin/env python\nimport sys; print('python', sys.argv[1])\n",
}  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("words", "printed", "status"),
    [
        (["-m", "mylab.train", "--lr", "2"], "hello 2.0 python", 0),
        (["--", "python", "train.py", "--fail", "3"], "hello 1.0 python", 3),
        (["plain.sh", "a"], "plain a", 4), (["--", "env.sh", "b"], "python b", 0),
        (["--", "grep two lines.txt | tr a-z A-Z"], "TWO", 0), (["--", "false | cat"], "", 1),
        (["--", "sh", "-c", "kill -SEGV $$"], "", 139), (["--stdin", "lines.txt", "--", "cat"], "one\ntwo", 0),
    ],
)  # fmt: skip
def test_a_command_runs_as_it_would_here(ask, here, project, words, printed, status):
    ran = ask("run", *words)

    assert (ran.returncode, ran.stdout.strip()[: len(printed)]) == (status, printed), ran.stderr
    assert "Traceback" not in ran.stderr


PYPROJECT = """
[project]
name = "lab"
version = "1.2"
scripts = {lab-train = "lab.cli:main"}
[build-system]
requires = ["setuptools"]
"""


EACH_WAY = "python scripts/run.py a && python -m lab.cli a && lab-train a | cat && sh job.sh"


@pytest.mark.parametrize(("code", "words", "times"), [("src/lab", ["lab-train", "a"], 1), ("lab", [EACH_WAY], 4)])
def test_a_project_that_can_be_installed_is_imported_as_if_it_were(
    ask, here, tmp_path, monkeypatch, code, words, times
):
    for name, text in {
        "pyproject.toml": PYPROJECT, f"{code}/__init__.py": "", "job.sh": "#!/bin/sh\nlab-train a\n",
        f"{code}/cli.py": "import sys\ndef main():\n    print('lab', sys.argv[1])\nif __name__ == '__main__': main()\n",
        "scripts/run.py": "from lab.cli import main\nmain()\n",
    }.items():  # fmt: skip
        (tmp_path / "lab" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lab" / name).write_text(text)
    monkeypatch.chdir(tmp_path / "lab")

    ran = ask("run", "--", *words)

    assert (ran.returncode, ran.stdout) == (0, "lab a\n" * times), ran.stderr


def test_folders_and_links_of_a_project_are_there_and_what_is_written_comes_back(here, project):
    for name in ("logs", "data"):
        (project / name).mkdir()
    (project / "data/x.csv").write_text("1")
    (project / "latest").symlink_to("data")
    (project / "there").symlink_to("/etc")
    (project / "nowhere").symlink_to("/of/another/host")

    line = "cat latest/x.csv && ls -d there/passwd && date > logs/today && readlink latest"
    job = clusterfn.command(line, outputs=["logs/*"]).submit()
    job.result()

    assert job.logs() == "1there/passwd\ndata\n"
    assert "nowhere is a link to /of/another/host, which is not on this host" in job.logs("stderr")
    assert [file.name for file in job.files] == ["logs/today"]


@pytest.mark.parametrize(
    ("words", "given", "printed"),
    [
        (["--", "bash"], "echo of $0; exit 0\n", "of bash\n"),
        (["--json", "--map", "n=1,2", "--result", "out", "--", "cat > out; true {n}"], "[3]", "[3]"),
    ],
)  # fmt: skip
def test_what_is_piped_in_is_the_standard_input_of_the_command(here, project, words, given, printed):
    argv = [sys.executable, "-m", "clusterfn", "run", *words]
    ran = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=150, check=False)

    values = [each["value"] for each in json.loads(ran.stdout)] if "--json" in words else [ran.stdout]
    assert {json.dumps(each) if "--json" in words else each for each in values} == {printed}, ran.stderr
    assert f"the command gets {len(given)} bytes of standard input" in ran.stderr


def test_ctrl_c_on_a_command_says_how_to_follow_it_to_its_exit_status(ask, here, project, tmp_path):
    line = f"echo began; until [ -e '{tmp_path}/go' ]; do sleep 0.1; done; exit 7"
    waiting = subprocess.Popen(
        [sys.executable, "-m", "clusterfn", "run", "--", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert waiting.stdout.readline() == "began\n"
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=150)

    followed = re.search(r"follow it: +clusterfn (attach \w+)   which exits with its exit status", said)
    assert followed and "clusterfn result" not in said, said
    (tmp_path / "go").touch()
    ran = ask(*followed[1].split())
    assert (ran.returncode, ran.stdout) == (7, "began\n"), ran.stderr
    assert "clusterfn result" not in ran.stderr


def test_a_program_that_ends_before_its_command_names_what_follows_it(here, project, tmp_path):
    line = f"until [ -e '{tmp_path}/go' ]; do sleep 0.1; done"
    text = f"import clusterfn; clusterfn.command({line!r}).submit()"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=150, check=True)
    (tmp_path / "go").touch()

    assert re.search(r"keeps running on here: (\w+) \(clusterfn attach \1 follows it to its exit status,", ended.stderr)


def test_a_failed_command_says_its_status_and_the_end_of_its_stderr(here, project):
    with pytest.raises(CommandFailed) as caught:
        clusterfn.run("python train.py --fail 3")

    assert (caught.value.exit_status, caught.value.signal) == (3, "")
    assert caught.value.message == "python train.py --fail 3: exit status 3"
    assert caught.value.evidence == ("what went wrong",)
    with pytest.raises(CommandFailed) as caught:
        clusterfn.run(["sh", "-c", "kill -9 $$"], results="data")
    assert (caught.value.exit_status, caught.value.signal) == (137, "SIGKILL")


def test_a_command_is_a_function_to_map_and_to_sweep(here, project):
    train = clusterfn.command("python train.py --lr {lr}", result="metrics.json", memory="200MB")

    assert train.map([0.5, 2]).results() == [{"score": -0.5, "lr": 0.5}, {"score": -2.0, "lr": 2.0}]
    assert clusterfn.sweep(train, {"lr": [3, 1, 2]}).best.config == {"lr": 1}


def test_a_line_takes_files_and_plain_values_and_rejects_all_others(here, project, tmp_path):
    root = tempfile.mkdtemp(prefix="cf-", dir="/tmp")  # a line rejects the path of a file, too, if it has a blank
    (tmp_path / "clusterfn.yml").write_text(local_host(Path(root)))
    show = clusterfn.command("cat {file} && echo '{word}' $(( {word} + 1 )); true", result=None)
    job = show.submit(File("lines.txt"), "3")
    job.result()

    assert job.logs() == "one\ntwo\n3 4\n"
    with pytest.raises(ConfigError, match="a shell would not read the value '3; ls' of {word} as one word"):
        show(File("lines.txt"), "3; ls")
    shutil.rmtree(root, ignore_errors=True)


def test_a_result_that_is_not_written_is_an_error_of_the_result(here, project):
    with pytest.raises(ResultError, match=r"its result cannot be read from none\.json"):
        clusterfn.run("true", result="none.json")


def test_each_value_of_a_map_is_a_run_and_one_failure_is_the_exit_code(ask, here, project):
    ran = ask("run", "--json", "--map", "fail=0,3", "--map", "lr=1..2", "--", "python", "train.py", "--fail", "{fail}",
              "--lr", "{lr}")  # fmt: skip

    told = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert [each["exit_status"] for each in told] == [0, 0, 3, 3]
    assert told[3]["arguments"] == {"fail": "3", "lr": "2"}
    all_failed = ask("run", "--map", "fail=3,4", "--", "python", "train.py", "--fail", "{fail}")
    assert re.search(r"next:  clusterfn logs \w{4} shows what each item printed", all_failed.stderr)


def test_a_job_shows_its_command(ask, here, project):
    ask("run", "--detach", "--", "python", "train.py", "--lr", "0.5")

    (job,) = json.loads(ask("jobs", "--json").stdout)
    assert (job["name"], job["arguments"]) == ("train", "python train.py --lr 0.5")
    got = ask("result", job["id"])
    assert (got.returncode, got.stdout) == (0, "")
    assert f"clusterfn logs {job['id'][:4]} shows what it printed" in got.stderr


def test_what_is_called_a_token_or_a_password_is_shown_nowhere(ask, here, project):
    fails = ["sh", "-c", "exit 3"]
    once = ask("run", "--", *fails, "--token", "geheim1", "password=geheim2")
    each = ask("run", "--map", "token=geheim3,geheim4", "--", *fails, "--token={token}")
    called = clusterfn.cluster(login).submit("geheim5")
    with pytest.raises(CommandFailed) as caught:
        clusterfn.command([*fails, "{password}"])("geheim6")
    called.result()

    listed = ask("jobs")
    assert "geheim" not in once.stderr + each.stderr + listed.stdout + str(caught.value)
    assert "sh -c 'exit 3' --token ***" in listed.stdout


def login(password):
    return len(password)


def test_pull_fetches_what_a_command_has_left_and_no_caches_of_its_project(here, project):
    made = clusterfn.command(["python", "-m", "mylab.train"], env={"PYTHONDONTWRITEBYTECODE": ""}).submit()
    made.result()

    assert [file.name for file in made.files] == ["metrics.json"]


def test_secrets_reach_a_command_and_its_evidence_does_not_show_them(ask, here, project, monkeypatch):
    monkeypatch.setenv("TOKEN", "geheim1234")
    ran = ask("run", "--secret", "TOKEN", "--", 'test -n "$TOKEN" && echo $TOKEN >&2; exit 5')

    assert ran.returncode == 5
    with pytest.raises(CommandFailed) as caught:
        clusterfn.run("echo $TOKEN >&2; exit 5", secrets=["TOKEN"])
    assert "geheim1234" not in str(caught.value.evidence)


@pytest.mark.parametrize("line", ["./long.sh", pytest.param("python long.py | cat", marks=pytest.mark.long)])
def test_the_warning_before_the_end_reaches_the_command_and_a_requeue_begins_again(here, project, line):
    (project / "long.py").write_text(
        "import os, signal, time\n"
        "state = os.environ['CLUSTERFN_CHECKPOINT'] + '/state'\n"
        "def save(number, _):\n"
        "    open(state, 'w').close()\n"
        "    signal.signal(number, signal.SIG_DFL)\n"
        "    os.kill(os.getpid(), number)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('resumed') if os.path.exists(state) else time.sleep(60)\n"
    )
    (project / "long.sh").write_text(
        "#!/bin/sh\n"
        'trap "echo saved > \\"$CLUSTERFN_CHECKPOINT/state\\"; trap - TERM; kill -TERM $$" TERM\n'
        'if [ -e "$CLUSTERFN_CHECKPOINT/state" ]; then echo resumed; exit 0; fi\n'
        "while :; do sleep 0.1; done\n"
    )
    job = clusterfn.command(line, time="10min", warn_before="595s", requeue={"timeout": 50}).submit()

    assert job.result(150) is None
    assert job.logs() == "resumed\n"


def test_an_array_of_sbatch_is_a_map(ask, here, project):
    (project / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --array=1-3%2\n#SBATCH -p gpu\ncd $SLURM_SUBMIT_DIR\n"
        'echo "[$SLURM_ARRAY_TASK_ID, $((SLURM_JOB_ID - SLURM_ARRAY_JOB_ID))]" > out.json\n'
        "mv slurm-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.out log.txt\n"
    )
    ran = ask("run", "--result", "out.json", "--json", "job.sbatch")

    assert [each["value"] for each in json.loads(ran.stdout)] == [[1, 0], [2, 1], [3, 2]], ran.stderr
    assert "not taken from job.sbatch: --partition=gpu (the host has no SLURM)" in ran.stderr


# What a script sees of its job, and each of its tasks; the names of a job and of its folder are its own.
SEES = r"""
env | grep -E '^(SLURM|SRUN|SBATCH|CUDA_V|OMP)' | grep -vE '_(JOBID|JOB_ID|DIR|PID|OPEN_MODE|NODENAME|NODELIST|CONF)=' |
    grep -v TOPOLOGY
srun sh -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on GPUs $CUDA_VISIBLE_DEVICES with $SLURM_CPUS_ON_NODE cores'
scontrol show job $SLURM_JOB_ID | grep -oE '(NumCPUs|NumTasks|CPUs/Task|MinMemory(CPU|Node)|Tres[A-Za-z]*)=[^ ]*'
"""


def whichever_gpus(text):
    """The lines, with how many GPUs a task sees: SLURM gives each job those that are free."""
    count = r"((?:JOB_GPUS|DEVICES)=|on GPUs )([\d,]+)"
    return sorted(re.sub(count, lambda gpus: f"{gpus[1]}{len(gpus[2].split(','))}", text).splitlines())


@pytest.mark.lab
@pytest.mark.parametrize(
    "lines",
    [
        "--ntasks=2 --gpus-per-task=1 --mem-per-cpu=333M", "-N 2 --ntasks-per-node=2 -c 2 --gres=gpu:1 -J two",
        "-n 3 --gpus=2 --cpus-per-gpu=2 --mem-per-gpu=200M", "--gpus-per-node=2 --ntasks-per-gpu=1 --gpu-bind=single:1",
    ],
)  # fmt: skip
def test_a_script_has_what_plain_sbatch_gives_it(ask, hosts, lab, project, lines):
    text = f"#!/bin/bash\n#SBATCH {lines}\n#SBATCH -p gpu\n{SEES}"
    (project / "job.sh").write_text(text)
    out, plain = hosts.root / "plain.out", hosts.root / "job.sh"
    plain.write_text(text)
    shutil.chown(plain, "cfbash")

    ran = ask("run", "slurm", "job.sh")
    lab.ssh("slurm", ["sbatch", "--wait", f"--chdir={hosts.root}", f"--output={out}", str(plain)])

    assert ran.returncode == 0, ran.stderr
    by_sbatch = out.read_text().replace(str(hosts.root), "")
    assert whichever_gpus(ran.stdout) == whichever_gpus(by_sbatch)
    assert "task 1" in ran.stdout and "not taken" not in ran.stderr


def test_a_script_on_one_machine_has_the_variables_and_the_log_of_sbatch(here, project):
    (project / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --ntasks-per-node=2 --mem=1G --output=logs/%x-%j.out -J train\n"
        "echo port $(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4)) $(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))\n"
        "echo $SLURM_JOB_NAME $SLURM_JOB_NUM_NODES $SLURM_PROCID$SLURM_LOCALID$SLURM_NODEID $SLURM_CPUS_ON_NODE "
        '$SLURM_MEM_PER_NODE ${SLURM_CPUS_PER_TASK-unset} "$SLURM_JOB_NODELIST"\n'
        'mkdir results && mv "logs/train-$SLURM_JOB_ID.out" results/log.txt\n'
    )
    job = clusterfn.command("./job.sh").submit()

    assert job.result(150) is None
    port, names = job.logs().splitlines()
    assert re.fullmatch(r"port 1\d{4} 2", port) and names.startswith("train 1 000 2 1024 unset ")
    assert next(here.rglob("log.txt")).read_text() == job.logs(), "what it moves is its whole log"


@pytest.mark.lab
def test_a_script_of_sbatch_starts_its_tasks_by_srun(ask, hosts, project):
    (project / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --mem=500M\n#SBATCH -J tasks\n"
        "#SBATCH --output=%x.out\necho script $SLURM_JOB_NAME\nsrun sh -c 'echo task $SLURM_PROCID'\n"
    )
    ran = ask("run", "slurm", "job.sbatch")

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["script tasks", "task 0", "task 1", "task 2", "task 3"]
    assert "not taken from job.sbatch: --output=%x.out" in ran.stderr


REDUCES = """
import os
import torch
from accelerate import Accelerator

here = Accelerator(cpu=True)
total = here.reduce(torch.ones(1) * (here.process_index + 1))
os.write(1, f"rank {here.process_index} of {here.num_processes} {total.item()}\\n".encode())
here.end_training()
os._exit(0)  # gloo's threads end the rank by SIGABRT else: docs/upstream.md
"""


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "nodes", "printed"),
    [
        ("torchrun --nproc-per-node 2 ranks.py", 1, ["rank 0 of 2 3.0", "rank 1 of 2 3.0"]),
        ("torchrun --nproc-per-node 2 ranks.py", 2, ["rank 0 of 4 10.0", "rank 1 of 4 10.0"]),
        ("bash train.sh", 2, ["rank 0 of 2 3.0"]),
        ("accelerate launch reduces.py", 2, ["rank 0 of 2 3.0"]),
    ],
)
def test_a_launcher_finds_the_nodes_without_a_word_in_its_line(hosts, torch, project, line, nodes, printed):
    for name, text in (("ranks.py", RANKS), ("reduces.py", REDUCES), ("train.sh", "torchrun ranks.py\n")):
        (project / name).write_text(text)
    job = clusterfn.command(line, host="slurm", nodes=nodes, cores=2, memory="2GB", environment=torch).submit()
    job.result()

    assert sorted(job.logs().splitlines()) == printed
    assert job.files == []


@pytest.mark.lab
@pytest.mark.long
def test_torchrun_uses_the_gpus_of_the_job(hosts, project):
    job = clusterfn.command("printenv PET_NPROC_PER_NODE", host="tensor01", gpus=4).submit()
    job.result()

    assert job.logs() == "4\n"


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="only there workers are forked")
@pytest.mark.parametrize(
    ("starts", "workers"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "starts threads"),
        ("print('hello')", "prints"),
        ("import atexit, os, random; os.environ['CHANGED'] = '1'; atexit.register(int); random.Random()", "forked"),
        ("import os; os.environ['OMP_NUM_THREADS'] = '1000'", "changes variables that a worker gets last"),
    ],
    ids=["a thread", "prints", "variables and random numbers", "late variables"],
)
def test_check_says_whether_workers_are_forked_and_why_not(ask, here, venv, starts, workers):
    packages = next((venv / "lib").glob("python*/site-packages"))
    (packages / "certifi-like.pth").write_text(f"import sys; {starts}\n")

    ran = ask("check", "here", "--environment", f"venv:{venv}")

    why = "" if workers == "forked" else "started by exec, because when it starts, the environment "
    assert re.search(rf"PASS  function +returned from .* s; workers: {why}{workers}$", ran.stdout, re.MULTILINE), ran
