"""Where the configurations of a sweep come from: a seeded choice of a grid or list, or a study of Optuna's.

Optuna itself is only touched where the user has made a study, and so has imported it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.sweeps import space as spaces
from clusterfn.sweeps.report import Trial
from clusterfn.sweeps.space import Configuration, ConfigurationList, Grid

_CATEGORIES = (type(None), bool, int, float, str)
_NAME = "TRIAL_"


class SweepSelection:
    """A seeded choice of a grid or list: one batch.

    Args:
        configurations: As for `sweep`.
        sampler: "grid" or "random".
        max_configs: As for `sweep`.

    Attributes:
        sampler: How they are chosen.
        size: How many configurations there are; None if there is no end of them.
        count: How many are tested.

    Raises:
        ConfigError: What is not a grid, or cannot be sampled so.
    """

    def __init__(self, configurations: object, sampler: str, max_configs: int | None) -> None:
        self.space: Grid | ConfigurationList = spaces.read(configurations)
        self.sampler = sampler
        self._max = max_configs
        spaces.check(self.space, sampler, max_configs)
        drawn = isinstance(self.space, Grid) and bool(self.space.drawn)
        self.size = None if drawn else self.space.size
        self.count = min(filter(None, [self.size, max_configs]))

    def seed(self, wanted: int | None, resume: str | None) -> int | None:
        """What decides the draws: the seed given, or a new one, which is shown.

        Raises:
            ConfigError: A sweep resumes, and nothing says which configurations it had.
        """
        by_chance = self.sampler == spaces.RANDOM or (self._max is not None and self._max < self.space.size)
        if wanted is not None or not by_chance:
            return wanted
        if resume is not None:
            raise ConfigError("resume= needs the seed of the sweep", hint="give the seed= that the sweep has printed")
        seed = secrets.randbelow(1 << 32)
        console.tell(f"seed={seed} chooses the same configurations again")
        return seed

    def minimize(self, wanted: bool) -> bool:
        """Whether the lowest score is the best."""
        return wanted

    def batches(self, seed: int | None) -> Iterable[list[Configuration]]:
        """Return the configurations that run together."""
        return [spaces.choose(self.space, self.sampler, self._max, seed or 0)]

    def tell(self, trials: Sequence[Trial[Any]]) -> None:
        """Do nothing: scores choose no further configurations."""

    def keywords(self) -> list[list[str]]:
        """Return the arguments of each configuration."""
        if isinstance(self.space, ConfigurationList):
            return [list(each) for each in self.space.configurations]
        return [self.space.keywords()]


class Study:
    """A study of Optuna's: it learns the scores of a batch before the next. Attributes as in `SweepSelection`.

    Args:
        configurations: Keyword -> list, or distribution of Optuna's.
        study: The study.
        max_configs: How many trials; needed.
        at_once: How many in a batch.

    Raises:
        ConfigError: It has several goals, or there is no number of trials.
    """

    sampler = "optuna"
    size = None

    def __init__(self, configurations: object, study: Any, max_configs: int | None, at_once: int) -> None:
        if not isinstance(configurations, Mapping) or not configurations:
            hint = 'write {"lr": [0.1, 0.2]}'
            raise ConfigError("a study needs a dict of lists or Optuna distributions", hint=hint)
        self._distributions = {key: _distribution(key, values) for key, values in configurations.items()}
        lists = {key: list(getattr(each, "choices", [str(each)])) for key, each in self._distributions.items()}
        self.space = Grid(lists, {})
        if len(study.directions) != 1:
            hint = "create the study with direction="
            raise ConfigError("the study has several objectives; a sweep ranks by one", hint=hint)
        if max_configs is None:
            raise ConfigError("a study can draw any number of configurations", hint="set max_configs=")
        self.count = max_configs
        self._study = study
        self._at_once = at_once
        # The number of each trial in Optuna's study, by the name of the configuration.
        self._numbers: dict[str, int] = {}

    def seed(self, wanted: int | None, resume: str | None) -> None:
        """None: a study draws by itself.

        Raises:
            ConfigError: A seed was given, or a group to resume.
        """
        if wanted is not None:
            raise ConfigError("a study has its own sampler", hint="pass the seed to the study's sampler instead")
        if resume is not None:
            hint = "give the study a storage, and call the sweep again with it"
            raise ConfigError("a study knows what has run, so resume= cannot be used with it", hint=hint)

    def minimize(self, wanted: bool) -> bool:
        """Whether the lowest score is the best: the study says so itself."""
        lowest: bool = self._study.direction.name == "MINIMIZE"
        if wanted and not lowest:
            hint = 'optuna.create_study(direction="minimize")'
            raise ConfigError("minimize=True, but the study maximizes", hint=hint)
        return lowest

    def batches(self, seed: int | None) -> Iterator[list[Configuration]]:
        """Yield the configurations that run together, `at_once` at a time."""
        while len(self._numbers) < self.count:
            yield [self._ask() for _ in range(min(self._at_once, self.count - len(self._numbers)))]

    def _ask(self) -> Configuration:
        trial = self._study.ask(self._distributions)
        name = f"{_NAME}{trial.number:04d}"
        self._numbers[name] = trial.number
        return Configuration(name, dict(trial.params))

    def tell(self, trials: Sequence[Trial[Any]]) -> None:
        """Tell the study how they ended, each once."""
        for trial in trials:
            number = self._numbers[trial.name]
            if self._study.get_trials(deepcopy=False)[number].state.is_finished():
                continue
            if trial.score is None:
                self._study.tell(number, state=sys.modules["optuna"].trial.TrialState.FAIL)
            else:
                self._study.tell(number, trial.score)

    def keywords(self) -> list[list[str]]:
        """Return the arguments of each configuration."""
        return [list(self._distributions)]


def _distribution(key: str, values: Any) -> Any:
    """Return a distribution of Optuna's; a list becomes a choice."""
    kinds = sys.modules["optuna"].distributions
    if isinstance(values, kinds.BaseDistribution):
        return values
    if not isinstance(values, (list, tuple, range)):
        problem = f"{key}={values!r:.60} is neither a list nor an Optuna distribution"
        raise ConfigError(problem, hint=f"write [{values!r:.60}]")
    strange = [each for each in values if type(each) not in _CATEGORIES]
    if strange:
        problem = f"{key}: Optuna stores numbers and strings, not {strange[0]!r:.60}"
        raise ConfigError(problem, hint="pass names, and look them up in the function")
    return kinds.CategoricalDistribution(list(values))
