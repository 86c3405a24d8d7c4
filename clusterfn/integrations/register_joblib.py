"""Where other libraries learn to send their work to a host; none of them is imported before it is asked for."""

from __future__ import annotations

from typing import Any

from clusterfn.api.decorator import inside_job
from clusterfn.errors import ConfigError
from clusterfn.public_api import public_api


@public_api
def register_joblib() -> None:
    """Make `joblib.parallel_config("clusterfn", host=…)` send the batches of `joblib.Parallel` to a host as jobs.

    The backend takes the options of `cluster`. The environment on the host must have joblib too.

    Raises:
        ConfigError: joblib is missing, or older than 1.5.

    Example:
        >>> clusterfn.register_joblib()
        >>> with joblib.parallel_config("clusterfn", host="tensor01", cores=4, environment="environment.yml"):
        ...     search.fit(x, y)  # GridSearchCV of scikit-learn, for example
    """
    try:
        import joblib

        is_recent = hasattr(joblib.parallel.ParallelBackendBase, "submit")
    except ImportError:
        is_recent = False
    if not is_recent:
        raise ConfigError("register_joblib() needs joblib 1.5 or newer", hint="pip install 'joblib>=1.5'")
    # A module that a call imports may register the backend in the job too.
    if inside_job():
        joblib.register_parallel_backend("clusterfn", _in_this_process)
        return
    from clusterfn.integrations.joblib_backend import ClusterfnBackend

    joblib.register_parallel_backend("clusterfn", ClusterfnBackend)


def _in_this_process(nesting_level: int | None = None, **_: object) -> Any:
    """Make the backend of a loop within a job, whatever its options: it runs in the job's own process."""
    from joblib.parallel import SequentialBackend

    return SequentialBackend(nesting_level=nesting_level)
