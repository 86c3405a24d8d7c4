"""Real hosts on one machine: sshd with old and new Pythons, odd login shells, a GPU box without GPUs and a SLURM of two nodes.

`python -m tests.lab up` builds it (README.md in this folder); tests get a `Lab` from the fixture `lab`.
"""

from .handle import Daemon, Lab, LabHost, LabMissing, SlurmControls
from .network import DelayProxy

__all__ = ["Daemon", "DelayProxy", "Lab", "LabHost", "LabMissing", "SlurmControls"]
