"""SLURM: the scheduler of a host with `scheduler: slurm`."""

import string

_LETTERS = string.ascii_uppercase + string.digits + "_"
# What sbatch, squeue and scancel would obey or pass on from the login's environment, as prefixes. SLURM_CONF says where
# SLURM is: the prefixes cover every other name that begins with SLURM_.
INHERITED = (
    "SBATCH_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SALLOC_", "SRUN_",
    *("SLURM_" + "CONF"[:length] + each for length, kept in enumerate("CONF") for each in _LETTERS if each != kept),
)  # fmt: skip
