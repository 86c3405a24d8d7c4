"""SLURM: the scheduler of a host with `scheduler: slurm`."""

from clusterfn.scheduler.slurm.site import SlurmSite
from clusterfn.scheduler.slurm.submit import INHERITED, Slurm

__all__ = ["INHERITED", "Slurm", "SlurmSite"]
