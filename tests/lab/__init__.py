"""Real hosts on one machine: sshd with old and new Pythons, odd shells, a GPU box without GPUs, a SLURM, a Grid Engine.

`python -m tests.lab up` builds it (README.md in this folder); tests get a `Lab` from the fixture `lab`.
"""

from .cable import Cable
from .handle import Daemon, GridEngineControls, Lab, LabHost, LabMissing, SlurmControls
from .network import DelayProxy
from .newcomer import Newcomer
from .own_slurm import OwnSlurm
from .ownbox import OwnBox

__all__ = [
    "Cable", "Daemon", "DelayProxy", "GridEngineControls", "Lab", "LabHost", "LabMissing", "Newcomer", "OwnBox",
    "OwnSlurm", "SlurmControls",
]  # fmt: skip
