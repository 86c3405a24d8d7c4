"""A shell beside a job; the shell reads its commands from a pipe here."""

from __future__ import annotations

import subprocess

from tests.bridge.box import Box
from tests.bridge.host import Bench, clean_environ, obey_modes

ASKS = "echo PATH=$PATH; echo CUDA=[$CUDA_VISIBLE_DEVICES] JOB=[$CLUSTERFN_JOB]; echo MINE=$MINE; pwd; exit 3\n"


def opened(bench: Bench, job: str) -> subprocess.CompletedProcess[str]:
    argv = [bench.host, "-I", "-S", str(bench.bridge / "supervise.py"), "shell", job, ""]
    env = {**clean_environ(), "SHELL": "/bin/sh"}
    return subprocess.run(
        argv, input=ASKS, capture_output=True, text=True, env=env, timeout=150, preexec_fn=obey_modes, check=False
    )


def test_beside_a_running_job_the_shell_has_its_folder_its_variables_and_its_gpus(box: Box):
    source = "def f():\n    import time\n    time.sleep(300)\n"
    job = box.bench.job(source, resources={"gpus": 1}, env={"MINE": "of the job"})
    script = job.start(PATH=box.path)
    job.wait_for("running")

    ran = opened(box.bench, str(job.folder))
    (job.folder / "cancel").touch()
    script.wait(150)

    assert ran.returncode == 3 and "MINE=of the job\n" in ran.stdout and "JOB=[]" in ran.stdout
    assert ran.stdout.splitlines()[-1] == str(job.attempt / "work")
    assert "CUDA=[0]" in ran.stdout or "CUDA=[1]" in ran.stdout


def test_a_job_that_has_not_started_has_no_shell(bench: Bench):
    ran = opened(bench, str(bench.job("def f():\n    return 1\n").folder))

    assert ran.returncode == 1 and ran.stdout == ""
