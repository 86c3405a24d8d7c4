"""The story of a sweep, from top to bottom.

configurations -> which of them -> batches, each a group of `map` -> ranking, or one error
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from clusterfn.api.decorator import ClusterFunction, inside_job
from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.config import import_time
from clusterfn.errors import ConfigError, SweepError
from clusterfn.public_api import check_arguments, public_api
from clusterfn.sweeps import report as reports
from clusterfn.sweeps import scoring
from clusterfn.sweeps.choice import Study, SweepSelection
from clusterfn.sweeps.report import SweepResult, Trial, cause, counted, show_line
from clusterfn.sweeps.run import Runner
from clusterfn.sweeps.space import GRID, RANDOM, Configuration

R = TypeVar("R")
_CAUSES = 10
_DIGITS = 12


@overload
def sweep(
    function: ClusterFunction[..., Coroutine[Any, Any, R]],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[R]: ...  # fmt: skip
@overload
def sweep(
    function: ClusterFunction[..., R],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[R]: ...  # fmt: skip
@public_api
def sweep(
    function: ClusterFunction[..., Any],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, resume: str | None = None,
    max_parallel: int = 50,
) -> SweepResult[Any]:  # fmt: skip
    """Call a function with many configurations, each in a process of its own, and rank what it returns.

    Args:
        function: Decorated by `cluster`. It is called with each configuration as keyword arguments.
        configurations: Keyword -> list of its values: the grid is their product, in the order written. Or a list of
            dicts, each a configuration.
        max_configs: How many are tested, exactly; None tests the whole grid.
        sampler: "grid" keeps the order of the grid. "random" tests in the order of the draws, and takes functions of a
            `random.Random` as well as lists. Or an `optuna.Study`, which is asked for `max_parallel` at a time.
        seed: Of the draws: the same seed chooses the same configurations. None takes a new one, and says it.
        score: What a result is worth: a key of it, or a function of it. None takes a number, or its "score".
        minimize: Whether the lowest score is the best. A study says itself.
        top: How many the report ranks.
        group_by: A keyword: the sweep counts the configurations with each of its values, and the ranking shows it.
        resume: The id that an earlier call of the same sweep has printed. The sweep follows its group; if that has
            ended, configurations that failed or were stopped run once more. Nothing else runs again.
        max_parallel: As for `map`.

    Returns:
        A `SweepResult`: `ranking`, `best`, `failed`, `ghosts` and each trial by name. Print it for the report.

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
    scoring.check(score)
    choice = _choice(configurations, sampler, max_configs, max_parallel)
    for keywords in choice.keywords():
        check_arguments(function.__wrapped__, (), dict.fromkeys(keywords))
    arguments = choice.space.keywords()
    if group_by is not None and group_by not in arguments:
        raise ConfigError(f"group_by={group_by!r} is not among the arguments", hint=f"one of {', '.join(arguments)}")
    ranking = scoring.Scoring(score, choice.minimize(minimize))
    request = _SweepRequest(choice, ranking, top, group_by, max_parallel)
    return _run(function, request, choice.seed(seed, resume), resume)


_OF_A_COMMAND = 'write clusterfn.command("...", result="metrics.json"), a file to which the command writes its score'


@dataclass(frozen=True)
class _SweepRequest:
    """What is wanted."""

    choice: SweepSelection | Study
    scoring: scoring.Scoring
    top: int
    group_by: str | None
    max_parallel: int


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


def _choice(configurations: object, sampler: Any, max_configs: int | None, at_once: int) -> SweepSelection | Study:
    optuna = sys.modules.get("optuna")
    if optuna is not None and isinstance(sampler, optuna.Study):
        return Study(configurations, sampler, max_configs, at_once)
    if sampler not in (GRID, RANDOM):
        raise ConfigError(f"sampler={sampler!r:.60} is not known", hint='use "grid", "random" or an optuna.Study')
    return SweepSelection(configurations, sampler, max_configs)


def _run(
    function: ClusterFunction[..., R], request: _SweepRequest, seed: int | None, resume: str | None
) -> SweepResult[R]:
    """Run one batch after another."""
    progress = reports.SweepProgress(request.choice.count, request.scoring.minimize)
    again = "" if seed is None else f"seed={seed}"
    runner = Runner(function, request.scoring, progress, request.max_parallel, again)
    trials: list[Trial[R]] = []
    for batch in request.choice.batches(seed):
        _announce(request, batch)
        ended = runner.run(batch, resume)
        request.choice.tell(ended)
        trials += ended
        if any(trial.score is not None for trial in trials) and len(trials) < request.choice.count:
            show_line(f"{counted(len(trials))} of {request.choice.count} tested")
    result = SweepResult(trials, request.scoring.minimize, seed, request.top, request.group_by)
    if not result.ranking:
        raise _none_completed(result, runner)
    # Only the last line: the table appears when the user prints the result.
    show_line(reports.last_line(result))
    return result


def _announce(request: _SweepRequest, batch: Sequence[Configuration]) -> None:
    size = request.choice.size
    if size is not None and len(batch) < size:
        show_line(f"Capping configurations from {size} to {len(batch)} as requested")
    if request.group_by is not None:
        possible = request.choice.space.possible(request.group_by)
        show_line(reports.distribution(request.group_by, possible, batch))


def _none_completed(result: SweepResult[Any], runner: Runner) -> SweepError:
    causes = collections.Counter(cause(error) for error in result.failed.values())
    shown = [f"{count} x {each}" for each, count in causes.most_common(_CAUSES)]
    shown += [f"and {len(causes) - _CAUSES} other causes"] if len(causes) > _CAUSES else []
    keys = scoring.possible_keys(each.value for each in result)
    hosts, jobs = {each.host for each in result}, {each.job for each in result}
    hint = f"each of them by its index: clusterfn.attach({result.results[0].job[:SHORT]!r}).failed"
    if keys:
        hint = f"name the key that holds the score: score={keys[0]!r}; if the lowest is best, add minimize=True"
    error = SweepError(
        f"no configuration completed successfully ({len(result)} tested)", stage="function", evidence=shown, hint=hint,
        host=hosts.pop() if len(hosts) == 1 else None, job=jobs.pop() if len(jobs) == 1 else None,
        log=f"{runner.folder}/{layout.ELEMENTS}" if runner.folder else None,
    )  # fmt: skip
    error.__cause__ = next(iter(result.failed.values()))
    return error
