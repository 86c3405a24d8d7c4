"""SLURM: the scheduler of a host with `scheduler: slurm`."""
