"""A shell beside a job, or in an environment of the host; the shell reads its commands from a pipe here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.bridge.box import Box
from tests.bridge.host import Bench, clean_environ, obey_modes

ASKS = "echo PATH=$PATH; echo CUDA=[$CUDA_VISIBLE_DEVICES] JOB=[$CLUSTERFN_JOB]; echo MINE=$MINE; pwd; exit 3\n"


def opened(bench: Bench, job: str, facts: str = "") -> subprocess.CompletedProcess[str]:
    argv = [bench.host, "-I", "-S", str(bench.bridge / "supervise.py"), "shell", job, facts]
    env = {**clean_environ(), "SHELL": "/bin/sh"}
    return subprocess.run(
        argv, input=ASKS, capture_output=True, text=True, env=env, timeout=150, preexec_fn=obey_modes, check=False
    )


def test_the_environment_of_a_host_comes_first_in_its_shell(bench: Bench, tmp_path: Path):
    facts = {"python": "/opt/ml/bin/python", "activation": {"set": {"MINE": "yes"}}, "env": {}}

    ran = opened(bench, "", json.dumps(facts))

    assert ran.returncode == 3
    assert ran.stdout.startswith("PATH=/opt/ml/bin:") and "MINE=yes\n" in ran.stdout


def test_beside_a_running_job_the_shell_has_its_folder_and_variables(bench: Bench):
    job = bench.job("def f():\n    import time\n    time.sleep(300)\n", env={"MINE": "of the job"})
    script = job.start()
    job.wait_for("running")

    ran = opened(bench, str(job.folder))
    (job.folder / "cancel").touch()
    script.wait(150)

    assert ran.returncode == 3 and "MINE=of the job\n" in ran.stdout and "JOB=[]" in ran.stdout
    assert ran.stdout.splitlines()[-1] == str(job.attempt / "work")


def test_beside_a_running_job_the_shell_sees_the_gpus_of_the_job(box: Box):
    job = box.bench.job("def f():\n    import time\n    time.sleep(300)\n", resources={"gpus": 1})
    script = job.start(PATH=box.path)
    job.wait_for("running")

    ran = opened(box.bench, str(job.folder))
    (job.folder / "cancel").touch()
    script.wait(150)

    assert f"CUDA=[{box.uuid(0)}]" in ran.stdout or f"CUDA=[{box.uuid(1)}]" in ran.stdout


def test_a_job_that_has_not_started_has_no_shell(bench: Bench):
    ran = opened(bench, str(bench.job("def f():\n    return 1\n").folder))

    assert ran.returncode == 1 and ran.stdout == ""
