"""The argv of sbatch, whole, for a table of configurations, and how words become a line for a shell."""

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn.config.job_spec import Group
from clusterfn.config.spec import Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler import job_script
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.golden import matches
from tests.golden.samples import SLURM, SUBMISSIONS, job


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_sbatch_is_the_approved_one(name):
    made = SUBMISSIONS[name]
    request = Slurm(made.host, "1000").submission(made)
    assert "SBATCH_" in request.unset
    assert (request.do, request.cwd) == ("run", f"{made.root}/jobs/{made.id}")
    assert matches("\n".join(request.argv) + "\n", f"sbatch/{name}.txt")


def test_a_group_is_as_few_arrays_as_slurm_takes():
    made = SUBMISSIONS["everything-asked"]._replace(group=Group(10_000, 5, 2001, 50, None, 27_002.5))
    requests = Slurm(made.host, "1000").elements(made, range(1, 2002), 1000)

    assert [numbers for numbers, _ in requests] == [range(1, 1001), range(1001, 2001), range(2001, 2002)]
    told = [" ".join(request.argv[1:]).replace(request.cwd, "FOLDER") for _, request in requests]
    assert matches("\n".join(told) + "\n", "sbatch/group.txt")


@pytest.mark.parametrize("root", ["/home/100%", "/home/a\\b"])
def test_a_folder_that_slurm_would_misread_is_refused(root):
    with pytest.raises(ConfigError, match="SLURM expands"):
        Slurm(SLURM, "1000").submission(job(SLURM, root=root))


def test_gpus_that_could_not_be_asked_for_are_refused():
    dropped = job(SLURM._replace(scheduler_options={"gres": None}), resources=Resources(gpus=2))
    with pytest.raises(ConfigError, match="gpus=2 cannot be asked for"):
        Slurm(dropped.host, "me").submission(dropped)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(deadline=None, max_examples=25)
@given(st.lists(TEXT, max_size=5))
def test_words_arrive_in_a_shell_as_they_were(words):
    echo = "import os, sys; os.write(1, repr(list(map(os.fsencode, sys.argv[1:]))).encode())"
    line = job_script.command_line([sys.executable, "-c", echo, *words])
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    done = subprocess.run(["dash" if shutil.which("dash") else "sh"], input=line.encode(), capture_output=True, env=env)
    assert done.stdout.decode() == repr([word.encode() for word in words])


def test_a_nul_is_refused():
    with pytest.raises(ValueError, match="NUL"):
        job_script.quote("a\0b")
