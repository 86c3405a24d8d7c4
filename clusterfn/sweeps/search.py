"""The story of a sweep, from top to bottom.

configurations -> which of them -> journal -> batches, each a group of `map` -> ranking, or one error
"""

from __future__ import annotations

import collections
import datetime
import platform
import secrets
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from clusterfn.api.decorator import ClusterFunction, inside_job
from clusterfn.bridge import layout
from clusterfn.calls.call import job_name
from clusterfn.config import import_time, places
from clusterfn.display import console
from clusterfn.errors import ConfigError, SweepError
from clusterfn.public_api import check_arguments, public_api
from clusterfn.sweeps import journal as journals
from clusterfn.sweeps import report as reports
from clusterfn.sweeps import scoring
from clusterfn.sweeps.choice import Study, SweepSelection
from clusterfn.sweeps.journal import Store, SweepJournal
from clusterfn.sweeps.report import SweepResult, Trial, cause, counted, show_line
from clusterfn.sweeps.run import ResultStore, Runner
from clusterfn.sweeps.space import GRID, RANDOM, Configuration

R = TypeVar("R")
_CAUSES = 10
_DIGITS = 12


@overload
def sweep(
    function: ClusterFunction[..., Coroutine[Any, Any, R]],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, cache: bool | str | Path = False,
    journal: str | Path | None = None, max_parallel: int = 50,
) -> SweepResult[R]: ...  # fmt: skip
@overload
def sweep(
    function: ClusterFunction[..., R],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, cache: bool | str | Path = False,
    journal: str | Path | None = None, max_parallel: int = 50,
) -> SweepResult[R]: ...  # fmt: skip
@public_api
def sweep(
    function: ClusterFunction[..., Any],
    configurations: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, max_configs: int | None = None,
    sampler: Literal["grid", "random"] | Any = "grid", seed: int | None = None, score: scoring.By = None,
    minimize: bool = False, top: int = 5, group_by: str | None = None, cache: bool | str | Path = False,
    journal: str | Path | None = None, max_parallel: int = 50,
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
        cache: Whether results are kept for other sweeps of the same code with the same arguments; or the folder.
        journal: The file with each decision. If it exists, the sweep resumes. None begins a new one among
            clusterfn's own files, and says which.
        max_parallel: As for `map`.

    Returns:
        A `SweepResult`: `ranking`, `best`, `failed`, `ghosts` and each trial by name. Print it for the report.

    Raises:
        SweepError: No configuration was completed; it lists the most frequent causes with their counts.
        ConfigError, PayloadError, TypeError: Before anything is sent; among them a journal of another sweep.
        HostError: As for `map`; what ended before is in the journal.
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
    own = places.cache_folder() / "sweeps" if cache else None
    kept = own if isinstance(cache, bool) else places.expanded(cache)
    request = _SweepRequest(choice, ranking, top, group_by, kept, max_parallel)
    with SweepJournal(_new_journal(function) if journal is None else Path(journal)) as book:
        result = _run(function, request, book, choice.seed(seed, book))
        # The values are in the result, and for some days on their host.
        if journal is None:
            journals.forget_values(book.path)
        return result


_OF_A_COMMAND = 'write clusterfn.command("...", result="metrics.json"), a file to which the command writes its score'


@dataclass(frozen=True)
class _SweepRequest:
    """What is wanted."""

    choice: SweepSelection | Study
    scoring: scoring.Scoring
    top: int
    group_by: str | None
    cache: Path | None
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


def _new_journal(function: ClusterFunction[..., Any]) -> Path:
    folder = places.state_folder() / "sweeps"
    journals.forget_old_values(folder)
    # Each sweep has a journal of its own: one for each function and seed would silently return old results in a
    # notebook.
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return folder / f"{job_name(function.__name__)}-{now}-{secrets.token_hex(2)}.jsonl"


def _run(
    function: ClusterFunction[..., R], request: _SweepRequest, journal: SweepJournal, seed: int | None
) -> SweepResult[R]:
    """Run one batch after another; each is in the journal before it runs."""
    code = journals.code_of(function.__wrapped__, function.options)
    _begin(function, request, journal, seed, code)
    cache = None
    # Each version of a function has a separate folder, which can be deleted alone.
    if request.cache is not None and code is not None:
        cache = Store(request.cache / f"{job_name(function.__name__)}-{code[:_DIGITS]}")
    shelf = ResultStore(Store(journals.values_beside(journal.path)), cache, code)
    progress = reports.SweepProgress(request.choice.count, request.scoring.minimize)
    runner = Runner(function, request.scoring, journal, shelf, progress, request.max_parallel)
    trials: list[Trial[R]] = []
    for phase, batch in enumerate(request.choice.batches(seed, journal), 1):
        _announce(request, journal, phase, batch)
        ended = runner.run(batch)
        request.choice.tell(ended)
        trials += ended
        if any(each.score is not None for each in trials) and len(trials) < request.choice.count:
            show_line(f"{counted(len(trials))} of {request.choice.count} tested")
    if cache is not None:
        console.tell(f"cached: {cache.in_words()}; to recompute everything, delete that folder")
    result = SweepResult(trials, request.scoring.minimize, journal.path, seed, request.top, request.group_by)
    for names in result.ghosts:
        journal.add("ghosts", names=names)
    journal.add("ranking", names=[[each.name, each.score] for each in result.ranking])
    journal.add("end", completed=len(result.ranking), tested=len(result))
    if not result.ranking:
        raise _none_completed(result, runner)
    # Only the last line: the table appears when the user prints the result.
    show_line(reports.last_line(result))
    return result


def _begin(
    function: ClusterFunction[..., Any], request: _SweepRequest, journal: SweepJournal, seed: int | None,
    code: str | None,
) -> None:  # fmt: skip
    """Write the first line of the journal; if it has one, check that it is of the same sweep."""
    facts: dict[str, Any] = {
        "format": journals.FORMAT, "function": function.__name__, "module": getattr(function, "__module__", None),
        "code": code, **journals.describe(request.choice.space), "size": request.choice.size,
        "max_configs": request.choice.count, "sampler": request.choice.sampler, "seed": seed,
        "score": journals.score_of(request.scoring.by), "minimize": request.scoring.minimize,
    }  # fmt: skip
    # The package is looked up, because importing it here would import this module again.
    own = sys.modules["clusterfn"].__version__
    versions = {"clusterfn": own, "python": platform.python_version()}
    earlier = journal.records_of("begin")
    if not earlier:
        journal.add("begin", **facts, versions=versions)
        console.tell(f"journal {journal.path}")
    else:
        if unlike := journals.differences(earlier[0], facts):
            hint = "choose another file: journal=; with cache=True, sweeps share their results"
            raise ConfigError(f"{journal.path} is the journal of another sweep", evidence=unlike, hint=hint)
        journal.add("resumed", versions=versions)
        console.tell(f"resuming from {journal.path}")
        without = [key for key, digest in facts["digests"].items() if digest is None]
        without += [function.__name__] if code is None else []
        if without:
            names = ", ".join(without)
            console.tell(f"clusterfn cannot tell whether {names} has changed: its content cannot be compared")
    if code is None and request.cache is not None:
        console.tell(f"nothing is cached: the content of {function.__name__} cannot be compared")


def _announce(request: _SweepRequest, journal: SweepJournal, phase: int, batch: Sequence[Configuration]) -> None:
    size = request.choice.size
    if size is not None and len(batch) < size:
        show_line(f"Capping configurations from {size} to {len(batch)} as requested")
    if request.group_by is not None:
        possible = request.choice.space.possible(request.group_by)
        show_line(reports.distribution(request.group_by, possible, batch))
    announced = {name for record in journal.records_of("sampled") for name in record["configurations"]}
    if not announced.issuperset(each.name for each in batch):
        journal.add("sampled", phase=phase, configurations={each.name: each.values for each in batch})


def _none_completed(result: SweepResult[Any], runner: Runner) -> SweepError:
    causes = collections.Counter(cause(error) for error in result.failed.values())
    shown = [f"{count} x {each}" for each, count in causes.most_common(_CAUSES)]
    shown += [f"and {len(causes) - _CAUSES} other causes"] if len(causes) > _CAUSES else []
    keys = scoring.possible_keys(each.value for each in result)
    hosts, jobs = {each.host for each in result}, {each.job for each in result}
    hint = f"the journal lists each of them: {result.journal}"
    if keys:
        hint = f"name the key that holds the score: score={keys[0]!r}; if the lowest is best, add minimize=True"
    error = SweepError(
        f"no configuration completed successfully ({len(result)} tested)", stage="function", evidence=shown, hint=hint,
        host=hosts.pop() if len(hosts) == 1 else None, job=jobs.pop() if len(jobs) == 1 else None,
        log=f"{runner.folder}/{layout.ELEMENTS}" if runner.folder else None,
    )  # fmt: skip
    error.__cause__ = next(iter(result.failed.values()))
    return error
