"""Run configurations as one group of `map`, or resume an earlier one, and score its values."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from clusterfn.api.decorator import ClusterFunction
from clusterfn.bridge.attributes import attribute, is_a
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import attach, leaving, mapping
from clusterfn.calls.demand import job_name
from clusterfn.calls.group import JobGroup, state_of_group
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.map_display import next_ended
from clusterfn.calls.mapping import MapOptions
from clusterfn.display import console
from clusterfn.errors import ConfigError, PayloadError, SweepError
from clusterfn.hosts import serialization
from clusterfn.sweeps.report import SweepProgress, Trial, counted, named, show_line
from clusterfn.sweeps.space import Configuration

By = Union[str, Callable[[Any], Any], None]
_DEFAULT = "score"


@dataclass(frozen=True)
class Scoring:
    """How results are compared.

    Attributes:
        by: A key of the result, or a function of it; None takes the number itself, or the value of its "score".
        minimize: Whether the lowest is the best.
    """

    by: By = None
    minimize: bool = False

    def of(self, value: Any) -> float:
        """Return the score of a result; raise ValueError if it is no number, or what the user's function raises."""
        if callable(self.by):
            found = self.by(value)
        elif is_a(value, Mapping):
            found = value.get(_DEFAULT if self.by is None else self.by)
        else:
            found = value if self.by is None else attribute(value, self.by)
        score = _number(found)
        if score is None:
            raise ValueError(f"the result has no score: {_described(self.by, value)}")
        if math.isnan(score):
            raise ValueError("the score is nan")
        return score

    def lacks(self, value: Any) -> bool:
        """Whether a dict does not have the key that the user named."""
        return isinstance(self.by, str) and is_a(value, Mapping) and self.by not in value


def check_score(by: object) -> None:
    """Reject what is no way to find a score; raise ConfigError if it is neither a key nor a function."""
    if by is not None and not isinstance(by, str) and not callable(by):
        raise ConfigError(f"score={by!r:.60} is neither a key nor a function", hint='use "loss", or a function')


def _number(value: Any) -> float | None:
    size = None if is_a(value, numbers.Real) else attribute(value, "size")
    if type(size) is int and size == 1 and attribute(value, "item") is not None:
        # The value is an array of a single number.
        value = value.item()
    # bool is a number for Python, but True and False are no scores.
    return float(value) if is_a(value, numbers.Real) and type(value) is not bool else None


def _described(by: By, value: Any) -> str:
    if callable(by):
        return f"score= returned no number for {value!r:.60}"
    key = _DEFAULT if by is None else by
    if is_a(value, Mapping):
        return f"{key!r} is {value[key]!r:.60}" if key in value else f"no {key!r} among {sorted(map(str, value))}"[:160]
    return f"it is {value!r:.60}" if by is None else f"{type(value).__name__} has no number {key!r}"


class Runner:
    """Runs the configurations of a sweep.

    Args:
        function: What to call.
        scoring: What its results are worth.
        progress: What is shown.
        max_parallel: As for `map`.
        again: What chooses the same configurations in another call of `sweep`, such as "seed=1"; "" for nothing.

    Attributes:
        folder: Of the group, on its host.
    """

    def __init__(
        self,
        function: ClusterFunction[Any, Any],
        scoring: Scoring,
        progress: SweepProgress,
        max_parallel: int,
        again: str,
    ) -> None:
        self._function = function
        self._scoring = scoring
        self._progress = progress
        self._max_parallel = max_parallel
        self._again = again
        self._saw_score = False
        self._labels: dict[str, str] = {}
        self.folder = ""

    def run(self, batch: Sequence[Configuration], resume: str | None = None) -> list[Trial[Any]]:
        """Run a batch, and return its trials in its order.

        Args:
            resume: The id of the group to which an earlier sweep has sent this batch.

        Raises:
            PayloadError: One of them cannot travel; the message says which.
            ConfigError: The group of that id has other configurations.
            HostError, and whatever `map` raises.
        """
        self._labels.update(named({config.name: config.values for config in batch}))
        return self._follow(self._send(batch) if resume is None else self._resume(batch, resume), batch)

    def _names(self, batch: Sequence[Configuration]) -> list[str]:
        return [f"{config.name} {self._labels[config.name]}" for config in batch]

    def _send(self, batch: Sequence[Configuration]) -> GroupState:
        function = self._function.__wrapped__
        called: Any = functools.partial(serialization.part("stand_ins").with_keywords, function)
        called.__name__ = getattr(function, "__name__", "function")
        try:
            items = [[config.values for config in batch]]
            how = MapOptions(self._max_parallel)
            return state_of_group(
                mapping.run(called, items, self._function.options, how, given_labels=self._names(batch))
            )
        except PayloadError as rejected:
            rejected.message = re.sub(r"^item (\d+)", lambda match: batch[int(match[1])].name, rejected.message)
            raise

    def _resume(self, batch: Sequence[Configuration], resume: str) -> GroupState:
        """Attach to the group; if it has ended, call what failed or was stopped once more."""
        group = attach.attach(resume)
        if not isinstance(group, JobGroup):
            raise ConfigError(f"resume={resume!r} is a single job", hint="give the id that the sweep has printed")
        theirs = [group.name, *(group.label(index) for index in range(len(group)))]
        name = self._function.options.name or job_name(self._function.__name__)
        ours = [name, *self._names(batch)]
        if theirs != ours:
            both = itertools.zip_longest(theirs, ours, fillvalue="nothing")
            differing = next(f"{their!r} there, {own!r} here" for their, own in both if their != own)
            hint = "give the same function, configurations, max_configs= and seed=, or leave resume= out"
            message = f"{resume} is the group of another sweep"
            raise ConfigError(message, host=group.host, job=group.id, evidence=[differing], hint=hint)
        if group.done() and group.failed:
            console.tell(f"{len(group.failed)} of {counted(len(group))}: failed or were stopped, and run once more")
            group.retry_failed()
        return state_of_group(group)

    def _follow(self, group: GroupState, batch: Sequence[Configuration]) -> list[Trial[Any]]:
        """Collect the ends of a group's items as they come, and return them in the order of the batch."""
        trials: dict[str, Trial[Any]] = {}
        self.folder = f"{group.host}:{group.folder}"
        try:
            for ended_before in range(len(group)):
                index, ended = next_ended(group, ended_before, lambda: self._progress.wait(group))
                trials[batch[index].name] = self._end(group, index, batch[index], ended)
        except KeyboardInterrupt:
            self._progress.close()
            leaving.interrupted(group, group.on_interrupt, "results()")
            words = ", ".join(filter(None, [self._again, f"resume={group.id[:SHORT]!r}"]))
            show_line(f"clusterfn: to resume, run the same sweep with {words}")
            raise
        finally:
            self._progress.close()
        return [trials[config.name] for config in batch]

    def _end(self, group: GroupState, index: int, config: Configuration, ended: ItemOutcome) -> Trial[Any]:
        place = (group.id, index, group.host)
        wall_s = ended.usage.get("wall_s", 0.0)
        trial: Trial[Any] = Trial(config.name, config.values, None, ended.value, ended.error, wall_s, *place)
        trial = trial if trial.error is not None else self._scored(trial)
        self._progress.show(trial, self._labels[trial.name], group)
        self._saw_score = self._saw_score or trial.score is not None
        # The first result lacks the key of `score=`, so the others would lack it too.
        if not self._saw_score and self._scoring.lacks(trial.value):
            group.stop()
            message = "the sweep was stopped: its first result has no such score"
            evidence = [str(trial.error)]
            hint = "set score= to one of its keys, or to a function"
            raise SweepError(
                message, host=group.host, job=group.id, stage="function", evidence=evidence, hint=hint
            ) from trial.error
        return trial

    def _scored(self, trial: Trial[Any]) -> Trial[Any]:
        try:
            return replace(trial, score=self._scoring.of(trial.value))
        except Exception as error:  # noqa: BLE001 - score= of the user's may raise anything
            # Without a function of the user, the traceback has only clusterfn's own frames, which do not help the user.
            own = callable(self._scoring.by)
            return replace(trial, error=error if own else error.with_traceback(None))
