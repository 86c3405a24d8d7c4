"""Where the configurations of a sweep come from: a grid or a list of which some are chosen, or a study."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from clusterfn.api.sweep import sampling, study
from clusterfn.api.sweep.journal import SweepJournal
from clusterfn.api.sweep.report import Trial
from clusterfn.api.sweep.space import Configuration, ConfigurationList, Grid, read
from clusterfn.calls import job_display
from clusterfn.errors import ConfigError


class SweepSelection:
    """A seeded choice of a grid or list: one batch.

    Args:
        configurations: As for `sweep`.
        sampler: "grid" or "random".
        max_configs: As for `sweep`.

    Attributes:
        sampler: For the journal.
        size: How many configurations there are; None if there is no end of them.
        count: How many are tested.

    Raises:
        ConfigError: What is not a grid, or cannot be sampled so.
    """

    def __init__(self, configurations: object, sampler: str, max_configs: int | None) -> None:
        self.space: Grid | ConfigurationList = read(configurations)
        self.sampler = sampler
        self._max = max_configs
        sampling.check(self.space, sampler, max_configs)
        drawn = isinstance(self.space, Grid) and bool(self.space.drawn)
        self.size = None if drawn else self.space.size
        self.count = min(filter(None, [self.size, max_configs]))

    def seed(self, wanted: int | None, journal: SweepJournal) -> int | None:
        """What decides the draws: what was said, what the journal says, or a new one, which is said."""
        if wanted is not None or not sampling.is_chance(self.space, self.sampler, self._max):
            return wanted
        known = [each["seed"] for each in journal.told("begin")]
        if known and isinstance(known[0], int):
            return known[0]
        seed = secrets.randbelow(1 << 32)
        job_display.tell(f"seed={seed} chooses the same configurations again")
        return seed

    def minimize(self, wanted: bool) -> bool:
        """Whether the lowest score is the best."""
        return wanted

    def batches(self, seed: int | None, journal: SweepJournal) -> Iterable[list[Configuration]]:
        """What is run together."""
        return [sampling.choose(self.space, self.sampler, self._max, seed or 0)]

    def tell(self, trials: Sequence[Trial[Any]]) -> None:
        """How they ended: nothing follows from it."""

    def keywords(self) -> list[list[str]]:
        """The arguments of each configuration."""
        if isinstance(self.space, ConfigurationList):
            return [list(each) for each in self.space.configurations]
        return [self.space.keywords()]


class Study:
    """A study of Optuna's: a batch after the other, each told before the next. Attributes as `SweepSelection` has them.

    Args:
        configurations: Keyword -> list, or distribution of Optuna's.
        asked: The study.
        max_configs: How many trials; needed.
        at_once: How many in a batch.

    Raises:
        ConfigError: It has several goals, or there is no number of trials.
    """

    sampler = "optuna"
    size = None

    def __init__(self, configurations: object, asked: Any, max_configs: int | None, at_once: int) -> None:
        self._distributions = study.distributions(configurations)
        lists = {key: list(getattr(each, "choices", [str(each)])) for key, each in self._distributions.items()}
        self.space = Grid(lists, {})
        if len(asked.directions) != 1:
            raise ConfigError("the study has several goals, and a sweep ranks by one", hint="make one with a direction")
        if max_configs is None:
            raise ConfigError("a study has no end of configurations", hint="say max_configs=")
        self.count = max_configs
        self._study = asked
        self._at_once = at_once
        self._rounds: study.Rounds | None = None

    def seed(self, wanted: int | None, journal: SweepJournal) -> None:
        """None: a study draws by itself."""
        if wanted is not None:
            raise ConfigError("a study draws by itself", hint="give the seed to the study's sampler, and none here")

    def minimize(self, wanted: bool) -> bool:
        """Whether the lowest score is the best: the study says so itself."""
        lowest: bool = self._study.direction.name == "MINIMIZE"
        if wanted and not lowest:
            raise ConfigError(
                "minimize=True, but the study maximizes", hint='optuna.create_study(direction="minimize")'
            )
        return lowest

    def batches(self, seed: int | None, journal: SweepJournal) -> Iterable[list[Configuration]]:
        """What is run together: first what a journal knows, then rounds."""
        known = {name: each for told in journal.told("sampled") for name, each in told["configurations"].items()}
        before = [Configuration(name, values) for name, values in known.items()]
        self._rounds = study.Rounds(self._study, self._distributions, self.count, self._at_once, before)
        return self._rounds

    def tell(self, trials: Sequence[Trial[Any]]) -> None:
        """Tell the study how they ended."""
        for trial in trials:
            if self._rounds is not None:
                self._rounds.tell(trial)

    def keywords(self) -> list[list[str]]:
        """The arguments of each configuration."""
        return [list(self._distributions)]
