"""Run a Python function on a GPU server or a SLURM cluster over SSH, and get its value or the truth back.

    from clusterfn import cluster

    @cluster(cores=4, memory="16GB", gpus=1, host="tensor01", environment="python:/opt/envs/ml/bin/python")
    def train(lr: float) -> dict: ...

    best = train(1e-3)

The names below are the whole public interface; everything else may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from clusterfn._version import __version__
from clusterfn.decorator import ClusterFunction, cluster

if TYPE_CHECKING:
    from clusterfn.access import login, logout
    from clusterfn.errors import (
        AuthenticationError,
        Cancelled,
        ClusterfnError,
        ConfigError,
        DiskFull,
        EnvironmentBuildError,
        ExitedEarly,
        FunctionError,
        HostDiskFull,
        HostError,
        HostKeyError,
        JobError,
        KilledBySignal,
        LockError,
        MapError,
        NodeFailed,
        OutOfMemory,
        PayloadError,
        Preempted,
        ResultError,
        Stalled,
        SubmitError,
        SweepError,
        TimeLimit,
        Unreachable,
        Unsatisfiable,
        WorkerLost,
    )
    from clusterfn.executor import Executor
    from clusterfn.files import Directory, File
    from clusterfn.group import JobGroup
    from clusterfn.job import Job
    from clusterfn.lookup import attach, jobs
    from clusterfn.sessions import Session
    from clusterfn.sweeping import SweepResult, sweep

__all__ = [
    "AuthenticationError",
    "Cancelled",
    "ClusterFunction",
    "ClusterfnError",
    "ConfigError",
    "Directory",
    "DiskFull",
    "EnvironmentBuildError",
    "Executor",
    "ExitedEarly",
    "File",
    "FunctionError",
    "HostDiskFull",
    "HostError",
    "HostKeyError",
    "Job",
    "JobError",
    "JobGroup",
    "KilledBySignal",
    "LockError",
    "MapError",
    "NodeFailed",
    "OutOfMemory",
    "PayloadError",
    "Preempted",
    "ResultError",
    "Session",
    "Stalled",
    "SubmitError",
    "SweepError",
    "SweepResult",
    "TimeLimit",
    "Unreachable",
    "Unsatisfiable",
    "WorkerLost",
    "__version__",
    "attach",
    "cluster",
    "jobs",
    "login",
    "logout",
    "sweep",
]

# Loaded at first use, so that `import clusterfn` stays light.
_HOMES = {
    "attach": "lookup",
    "jobs": "lookup",
    "login": "access",
    "logout": "access",
    "Executor": "executor",
    "File": "files",
    "Directory": "files",
    "Job": "job",
    "JobGroup": "group",
    "Session": "sessions",
    "SweepResult": "sweeping",
    "sweep": "sweeping",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'clusterfn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"clusterfn.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return list(__all__)
