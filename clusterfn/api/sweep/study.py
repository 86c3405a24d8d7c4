"""A study of Optuna's as what chooses configurations: it is asked for a round of them, and told how each ended.

Optuna itself is only touched where the user has made a study, and so has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterfn.api.sweep.report import Trial
from clusterfn.api.sweep.space import Configuration
from clusterfn.errors import ConfigError

_CATEGORIES = (type(None), bool, int, float, str)
_NAME = "TRIAL_"


def is_study(sampler: object) -> bool:
    """Whether it is one of Optuna's."""
    optuna = sys.modules.get("optuna")
    return optuna is not None and isinstance(sampler, optuna.Study)


def distributions(given: object) -> dict[str, Any]:
    """Key -> a distribution of Optuna's: what is a list becomes a choice.

    Raises:
        ConfigError: Something is neither a list nor a distribution, or a list has values that Optuna cannot keep.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError("a study needs a dict of lists or of Optuna's distributions", hint='write {"lr": [0.1, 0.2]}')
    return {key: _distribution(key, values) for key, values in given.items()}


def _distribution(key: str, values: Any) -> Any:
    kinds = sys.modules["optuna"].distributions
    if isinstance(values, kinds.BaseDistribution):
        return values
    if not isinstance(values, (list, tuple, range)):
        raise ConfigError(
            f"{key}={values!r:.60} is neither a list nor a distribution of Optuna's", hint=f"write [{values!r:.60}]"
        )
    strange = [each for each in values if type(each) not in _CATEGORIES]
    if strange:
        raise ConfigError(
            f"{key}: Optuna keeps numbers and texts, not {strange[0]!r:.60}", hint="give names, and look them up inside"
        )
    return kinds.CategoricalDistribution(list(values))


class Rounds:
    """Configurations as a study gives them, `at_once` at a time, `count` in all.

    Args:
        study: Of Optuna's.
        given: Distributions by key.
        count: How many in all.
        at_once: How many in a round.
        before: Names and arguments of those that a journal knows: they come first, as they were.
    """

    def __init__(
        self, study: Any, given: Mapping[str, Any], count: int, at_once: int, before: Sequence[Configuration]
    ) -> None:
        self._study = study
        self._given = dict(given)
        self._count = count
        self._at_once = at_once
        self._before = before
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[list[Configuration]]:
        if self._before:
            for each in self._before:
                self._numbers[each.name] = self._known(each)
            yield list(self._before)
        while len(self._numbers) < self._count:
            yield [self._ask() for _ in range(min(self._at_once, self._count - len(self._numbers)))]

    def _known(self, before: Configuration) -> int:
        """Its number in the study: that of its name, if the study knows it; else it is asked to give it again."""
        number = int(before.name[len(_NAME) :])
        trials = self._study.get_trials(deepcopy=False)
        if number < len(trials) and trials[number].params == before.values:
            return number
        self._study.enqueue_trial(before.values)
        return int(self._study.ask(self._given).number)

    def _ask(self) -> Configuration:
        trial = self._study.ask(self._given)
        name = f"{_NAME}{trial.number:04d}"
        self._numbers[name] = trial.number
        return Configuration(name, dict(trial.params))

    def tell(self, trial: Trial[Any]) -> None:
        """How one of them ended; what the study has been told before is not told again."""
        number = self._numbers[trial.name]
        if self._study.get_trials(deepcopy=False)[number].state.is_finished():
            return
        if trial.score is None:
            self._study.tell(number, state=sys.modules["optuna"].trial.TrialState.FAIL)
        else:
            self._study.tell(number, trial.score)
