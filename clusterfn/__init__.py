"""Run a Python function on a GPU server or a SLURM cluster over SSH, and get its value or the truth back.

    from clusterfn import cluster

    @cluster(cores=4, memory="16GB", gpus=1, host="tensor01", environment="python:/opt/envs/ml/bin/python")
    def train(lr: float) -> dict: ...

    best = train(1e-3)

The names below are the whole public interface; everything else may change.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would be most of what `clusterfn --version` imports
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"  # setup.cfg reads it here, without importing the package

if TYPE_CHECKING:
    from clusterfn.api.command import command, run
    from clusterfn.api.configure import configure
    from clusterfn.api.decorator import ClusterFunction, cluster
    from clusterfn.api.executor import Executor
    from clusterfn.api.in_job import TimeAlmostUp, checkpoint, load_training, on_warning, save_training
    from clusterfn.api.login import login, logout
    from clusterfn.api.session import Session
    from clusterfn.calls.attach import attach, jobs
    from clusterfn.calls.group import JobGroup
    from clusterfn.calls.job import Job
    from clusterfn.errors import (
        ActorLost,
        AuthenticationError,
        Cancelled,
        ClusterfnError,
        CommandFailed,
        ConfigError,
        DependencyFailed,
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
        ResultTooLarge,
        Stalled,
        SubmitError,
        SweepError,
        TimeLimit,
        Unreachable,
        Unsatisfiable,
        WorkerLost,
    )
    from clusterfn.integrations.dask.client import dask_client
    from clusterfn.integrations.register_joblib import register_joblib
    from clusterfn.packing.files import Directory, File
    from clusterfn.sweeps.report import SweepResult
    from clusterfn.sweeps.search import sweep

__all__ = [
    "ActorLost",
    "AuthenticationError",
    "Cancelled",
    "ClusterFunction",
    "ClusterfnError",
    "CommandFailed",
    "ConfigError",
    "DependencyFailed",
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
    "ResultTooLarge",
    "Session",
    "Stalled",
    "SubmitError",
    "SweepError",
    "SweepResult",
    "TimeAlmostUp",
    "TimeLimit",
    "Unreachable",
    "Unsatisfiable",
    "WorkerLost",
    "__version__",
    "attach",
    "checkpoint",
    "cluster",
    "command",
    "configure",
    "dask_client",
    "jobs",
    "load_training",
    "login",
    "logout",
    "on_warning",
    "register_joblib",
    "run",
    "save_training",
    "sweep",
]

# Loaded at first use, so that `import clusterfn` and `clusterfn --version` stay light.
_HOMES = {
    "ClusterFunction": "api.decorator",
    "cluster": "api.decorator",
    "attach": "calls.attach",
    "command": "api.command",
    "run": "api.command",
    "configure": "api.configure",
    "dask_client": "integrations.dask.client",
    "jobs": "calls.attach",
    "login": "api.login",
    "logout": "api.login",
    "Executor": "api.executor",
    "register_joblib": "integrations.register_joblib",
    "File": "packing.files",
    "Directory": "packing.files",
    "Job": "calls.job",
    "JobGroup": "calls.group",
    "Session": "api.session",
    "checkpoint": "api.in_job",
    "TimeAlmostUp": "api.in_job",
    "on_warning": "api.in_job",
    "load_training": "api.in_job",
    "save_training": "api.in_job",
    "SweepResult": "sweeps.report",
    "sweep": "sweeps.search",
}


def load_ipython_extension(shell: Any) -> None:
    """Add `%%cluster` to IPython: `%load_ext clusterfn`."""
    from clusterfn.integrations.jupyter import cell_magic

    cell_magic.load(shell)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'clusterfn' has no attribute {name!r}")
    import importlib

    try:
        home = importlib.import_module(f"clusterfn.{_HOMES.get(name, 'errors')}")
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("clusterfn."):
            raise
        return _not_in_jobs(name)
    return getattr(home, name)


def _not_in_jobs(name: str) -> Any:
    """Return what stands for a function or a class that does not travel with jobs.

    A module may import it there, and make an object of the class; who uses one gets an error.
    """

    def reject(*_: object, **__: object) -> None:
        from clusterfn.config import import_time

        import_time.reject_sending_in_job(f"clusterfn.{name}()", "call it on your own machine")

    unused = {"__init__": lambda *_, **__: None, "__getattr__": reject, "__enter__": reject, "__aenter__": reject}
    return type(name, (), {**unused, "__module__": __name__}) if name[0].isupper() else reject


def __dir__() -> list[str]:
    return list(__all__)
