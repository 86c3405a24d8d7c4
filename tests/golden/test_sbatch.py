"""The argv of sbatch, whole, for a table of configurations."""

import pytest

from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm import Slurm
from tests.golden.golden import matches
from tests.golden.samples import SLURM, SUBMISSIONS, job


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_sbatch_is_the_approved_one(name):
    made = SUBMISSIONS[name]
    request = Slurm(made.host, "1000").submission(made).request()
    unset = request.pop("unset")
    assert "SBATCH_" in unset
    assert (request["do"], request["cwd"]) == ("run", f"{made.root}/jobs/{made.id}")
    assert matches("\n".join(request["argv"]) + "\n", f"sbatch/{name}.txt")


@pytest.mark.parametrize("root", ["/home/100%", "/home/a\\b"])
def test_a_folder_that_slurm_would_misread_is_refused(root):
    with pytest.raises(ConfigError, match="SLURM replaces"):
        Slurm(SLURM, "1000").submission(job(SLURM, root=root))
