"""SLURM: the scheduler of a host with `scheduler: slurm`."""

from clusterfn.bridge.schedulers.registry import SCHEDULERS

OBEYED = SCHEDULERS["slurm"].obeyed
