"""The argv of sbatch, whole, for a table of configurations."""

import pytest

from clusterfn.config.job_spec import Group
from clusterfn.config.spec import Resources
from clusterfn.errors import ConfigError
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
