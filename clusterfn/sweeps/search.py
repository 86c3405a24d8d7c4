"""The story of a sweep, from top to bottom.

configurations -> which of them -> a group of `map` -> ranking, or one error
"""

from __future__ import annotations

import collections
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, overload

from clusterfn.api.decorator import ClusterFunction, inside_job
from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.config import import_time
from clusterfn.display import console
from clusterfn.errors import ConfigError, SweepError
from clusterfn.public_api import check_arguments, public_api
from clusterfn.sweeps import report as reports
from clusterfn.sweeps import space as spaces
from clusterfn.sweeps.report import SweepResult, cause, show_line
from clusterfn.sweeps.run import By, Runner, Scoring, check_score

R = TypeVar("R")
_CAUSES = 10


@overload
def sweep(
    function: ClusterFunction[..., Coroutine[Any, Any, R]],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    max_configs: int | None = None,
    seed: int | None = None,
    score: By = None,
    minimize: bool = False,
    top: int = 5,
    resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[R]: ...
@overload
def sweep(
    function: ClusterFunction[..., R],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    max_configs: int | None = None,
    seed: int | None = None,
    score: By = None,
    minimize: bool = False,
    top: int = 5,
    resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[R]: ...
@public_api
def sweep(
    function: ClusterFunction[..., Any],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    max_configs: int | None = None,
    seed: int | None = None,
    score: By = None,
    minimize: bool = False,
    top: int = 5,
    resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[Any]:
    """Call a function with many configurations, each in a process of its own, and rank what it returns.

    Args:
        function: Decorated by `cluster`. It is called with each configuration as keyword arguments.
        configurations: Keyword -> list of its values: the grid is their product, in the order written. Or a list of
            dicts, each a configuration.
        max_configs: How many are tested, exactly, chosen by chance; None tests all.
        seed: Of that choice: the same seed chooses the same configurations. None takes a new one, and says it.
        score: What a result is worth: a key of it, or a function of it. None takes a number, or its "score".
        minimize: Whether the lowest score is the best.
        top: How many the report ranks.
        resume: The id that an earlier call of the same sweep has printed. The sweep follows its group; if that has
            ended, configurations that failed or were stopped run once more. Nothing else runs again.
        max_parallel: As for `map`.

    Returns:
        A `SweepResult`: `ranking`, `best`, `failed` and each trial by name. Print it for the report.

    Raises:
        SweepError: No configuration was completed; it lists the most frequent causes with their counts.
        ConfigError, PayloadError, TypeError: Before anything is sent; `resume=` may be the id of another sweep.
        HostError: As for `map`.
        RuntimeError: Inside a job.

    Example:
        >>> result = clusterfn.sweep(train, {"lr": [1e-4, 1e-3], "model": ["small", "large"]}, max_configs=3, seed=1)
        >>> result.best.config
    """
    _check_arguments(function, max_configs, top, max_parallel, seed)
    check_score(score)
    space = spaces.read(configurations)
    for keywords in space.keywords():
        check_arguments(function.__wrapped__, (), dict.fromkeys(keywords))
    if max_configs is not None and max_configs < space.size:
        seed = _seed(seed, resume)
    chosen = spaces.choose(space, max_configs, seed or 0)
    if len(chosen) < space.size:
        show_line(f"Capping configurations from {space.size} to {len(chosen)} as requested")
    progress = reports.SweepProgress(len(chosen), minimize)
    again = "" if seed is None else f"seed={seed}"
    runner = Runner(function, Scoring(score, minimize), progress, max_parallel, again)
    result: SweepResult[Any] = SweepResult(runner.run(chosen, resume), minimize, seed, top)
    if not result.ranking:
        raise _none_completed(result, runner)
    # Only the last line: the table appears when the user prints the result.
    show_line(reports.last_line(result))
    return result


def _seed(wanted: int | None, resume: str | None) -> int:
    """Return the seed given, or a new one, to be shown; raise ConfigError if a sweep resumes, and none is known."""
    if wanted is not None:
        return wanted
    if resume is not None:
        raise ConfigError("resume= needs the seed of the sweep", hint="give the seed= that the sweep has printed")
    seed = secrets.randbelow(1 << 32)
    console.tell(f"seed={seed} chooses the same configurations again")
    return seed


_OF_A_COMMAND = 'write clusterfn.command("...", result="metrics.json"), a file to which the command writes its score'


def _check_arguments(function: object, max_configs: object, top: object, max_parallel: object, seed: object) -> None:
    if inside_job():
        import_time.reject_sending_in_job("clusterfn.sweep()", "a job cannot submit jobs")
    if not isinstance(function, ClusterFunction):
        hint = 'write @cluster above it, or clusterfn.cluster(cores=1, host="local")(function)'
        hint = _OF_A_COMMAND if isinstance(function, str) else hint
        raise ConfigError(f"a sweep needs a function decorated with @cluster, not {function!r:.60}", hint=hint)
    if getattr(function.__wrapped__, "is_without_value", False):
        raise ConfigError("the command returns no value, so no configuration would have a score", hint=_OF_A_COMMAND)
    if function.options.outputs:
        problem = "outputs= cannot be used with a sweep: most files would be those of configurations that lose"
        hint = "fetch those of a trial: clusterfn.attach(trial.job).download(trial.item, pattern)"
        raise ConfigError(problem, hint=hint)
    for name, value in (("max_configs", max_configs), ("top", top), ("max_parallel", max_parallel)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (name == "max_configs" and value is None):
            raise ConfigError(f"{name}={value!r:.60} is not a number of configurations", hint="give 1 or more")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ConfigError(f"seed={seed!r:.60} is not a whole number", hint="give 0 or more")


def _none_completed(result: SweepResult[Any], runner: Runner) -> SweepError:
    causes = collections.Counter(cause(error) for error in result.failed.values())
    shown = [f"{count} x {why}" for why, count in causes.most_common(_CAUSES)]
    shown += [f"and {len(causes) - _CAUSES} other causes"] if len(causes) > _CAUSES else []
    hosts, jobs = {trial.host for trial in result}, {trial.job for trial in result}
    hint = f"each of them by its index: clusterfn.attach({result.results[0].job[:SHORT]!r}).failed"
    error = SweepError(
        f"no configuration completed successfully ({len(result)} tested)",
        stage="function",
        evidence=shown,
        hint=hint,
        host=hosts.pop() if len(hosts) == 1 else None,
        job=jobs.pop() if len(jobs) == 1 else None,
        log=f"{runner.folder}/{layout.ELEMENTS}" if runner.folder else None,
    )
    error.__cause__ = next(iter(result.failed.values()))
    return error
