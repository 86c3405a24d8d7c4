"""Runs a batch of configurations, each end of which is in the journal before it is shown.

Those that finished in an earlier run are taken from journal and cache, a group that still runs is followed, the rest
is sent.
"""

from __future__ import annotations

import concurrent.futures
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterfn.api.decorator import ClusterFunction
from clusterfn.bridge.job_states import RUNNING, SHORT
from clusterfn.calls import attach, job_display, mapping
from clusterfn.calls.group import JobGroup, state_of_group
from clusterfn.calls.group_items import ItemOutcome
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.mapping import MapOptions
from clusterfn.display import console
from clusterfn.errors import Cancelled, ConfigError, PayloadError, SweepError
from clusterfn.hosts import serialization
from clusterfn.packing import labels
from clusterfn.sweeps.fingerprint import Unstable, fingerprint
from clusterfn.sweeps.journal import Kept, Store, SweepJournal
from clusterfn.sweeps.report import CACHE, JOURNAL, SweepProgress, Trial, cause, counted, named, show_line
from clusterfn.sweeps.scoring import Scoring, sequence
from clusterfn.sweeps.space import Configuration

_LOOK_S = 0.5


@dataclass(frozen=True)
class ResultStore:
    """Where values are kept.

    Attributes:
        values: Of this sweep, by the name of the configuration.
        cache: Of all sweeps, by what was called with what; None without one.
        code: What was called, as a digest; there is a cache only if it has one.
    """

    values: Store
    cache: Store | None = None
    code: str | None = None

    def key(self, config: Mapping[str, Any]) -> str | None:
        """Return the key of a result in the cache; None if there is no cache, or no such key."""
        if self.cache is None:
            return None
        try:
            return fingerprint(self.code, sorted(config.items(), key=lambda item: item[0]))
        except Unstable as unstable:
            console.tell(f"this configuration is not cached: {unstable} ({labels.label((), config)})")
            return None

    def keep(self, trial: Trial[Any]) -> None:
        """Keep the value of one that ended well."""
        kept = Kept(trial.value, trial.seconds)
        self.values.put(trial.name, kept)
        if self.cache and (key := self.key(trial.config)):
            self.cache.put(key, kept)


class Runner:
    """Runs batches of one sweep.

    Args:
        function: What to call.
        scoring: What its results are worth.
        journal: Open.
        shelf: Where values are kept.
        progress: What is shown.
        max_parallel: As for `map`.
    """

    def __init__(
        self, function: ClusterFunction[Any, Any], scoring: Scoring, journal: SweepJournal, shelf: ResultStore,
        progress: SweepProgress, max_parallel: int,
    ) -> None:  # fmt: skip
        self._function = function
        self._scoring = scoring
        self._journal = journal
        self._shelf = shelf
        self._progress = progress
        self._max_parallel = max_parallel
        self._ended, self._sent = _history(journal)
        self._saw_score = bool(self._ended)
        self._labels: dict[str, str] = {}
        self.folder = ""

    def run(self, batch: Sequence[Configuration]) -> list[Trial[Any]]:
        """Run a batch, and return its trials in its order.

        Raises:
            PayloadError: One of them cannot travel; the message says which.
            HostError, and whatever `map` raises.
        """
        trials: dict[str, Trial[Any]] = {}
        self._labels.update(named({each.name: each.values for each in batch}))
        self._take(trials, batch, self._finished, "finished in an earlier run")
        self._take(trials, batch, self._cached, "in the cache")
        unknown = [each for each in batch if each.name not in trials]
        records = [self._sent[each.name] for each in unknown if each.name in self._sent]
        # The ends of these configurations, or their values, are only on the host.
        for record in {id(each): each for each in records}.values():
            missing = (each for each in batch if each.name not in trials)
            waiting = {each.name: each for each in missing if self._sent.get(each.name) is record}
            group = self._attached(record)
            if group is not None:
                configurations = [waiting.get(name) for name in record["names"]]
                trials.update(self._follow(_Following(group, configurations, self._journal), again=True))
                if stopped := sum(name not in trials for name in waiting):
                    console.tell(f"{stopped} of {counted(len(batch))}: were stopped earlier and run again")
        remaining = [each for each in batch if each.name not in trials]
        if remaining:
            trials.update(self._follow(_Following(self._send(remaining), remaining, self._journal)))
        return [trials[each.name] for each in batch]

    def _take(
        self, trials: dict[str, Trial[Any]], batch: Sequence[Configuration],
        find: Callable[[Configuration], Trial[Any] | None], source: str,
    ) -> None:  # fmt: skip
        """Add the trials of configurations that need not run."""
        remaining = [each for each in batch if each.name not in trials]
        existing = {each.name: trial for each in remaining if (trial := find(each)) is not None}
        trials.update(existing)
        self._saw_score = self._saw_score or bool(existing)
        for trial in existing.values():
            self._progress.known(trial)
        if existing:
            console.tell(f"{len(existing)} of {counted(len(batch))}: {source}")

    def _finished(self, config: Configuration) -> Trial[Any] | None:
        record = self._ended.get(config.name)
        kept = self._shelf.values.get(config.name, config.name) if record else None
        if record is None or kept is None:
            return None
        return Trial(
            config.name, config.values, record["score"], kept.value, None, kept.seconds, tuple(record["scores"]),
            record["group"], record["item"], record["host"], JOURNAL,
        )  # fmt: skip

    def _cached(self, config: Configuration) -> Trial[Any] | None:
        key = self._shelf.key(config.values)
        kept = self._shelf.cache.get(key, config.name) if self._shelf.cache and key else None
        if kept is None:
            return None
        trial = self._scored(Trial(config.name, config.values, None, kept.value, seconds=kept.seconds, source=CACHE))
        if trial.error is not None:
            return None
        self._shelf.values.put(config.name, kept)
        self._write_down(trial)
        return trial

    def _attached(self, record: Mapping[str, Any]) -> GroupState | None:
        """Attach to a group that was sent before and may still run; None if its host does not have it."""
        try:
            group = attach.attach(record["group"], record["host"])
        except ConfigError as gone:
            console.tell(f"{record['group'][:SHORT]} is submitted again: {gone.message}")
            return None
        console.tell(f"reattached to {group.id[:SHORT]} on {group.host}")
        return state_of_group(group) if isinstance(group, JobGroup) else None

    def _send(self, batch: Sequence[Configuration]) -> GroupState:
        function = self._function.__wrapped__
        called: Any = functools.partial(serialization.part("stand_ins").with_keywords, function)
        called.__name__ = getattr(function, "__name__", "function")
        names = [f"{each.name} {self._labels[each.name]}" for each in batch]

        def note_sent(group: GroupState) -> None:
            own = [each.name for each in batch]
            self._journal.add("sent", group=group.id, host=group.host, folder=group.folder, names=own)

        # The group is in the journal before anything is sent, so a sweep that resumes knows which group to look for.
        caller = mapping.Caller(names, note_sent)
        try:
            items, how = [[each.values for each in batch]], MapOptions(self._max_parallel)
            return state_of_group(mapping.run(called, items, self._function.options, how, caller=caller))
        except PayloadError as rejected:
            rejected.message = re.sub(r"^item (\d+)", lambda match: batch[int(match[1])].name, rejected.message)
            raise

    def _follow(self, following: _Following, again: bool = False) -> dict[str, Trial[Any]]:
        """Collect the ends of those items of a group that are wanted, as they come.

        With `again`, of a group of an earlier run, an item that was stopped since then has no end: it is sent again.
        """
        group, trials = following.group, {}
        self.folder = f"{group.host}:{group.folder}"
        try:
            for _ in range(len(group)):
                config, index, ended = following.next(lambda: self._progress.wait(group))
                if config is not None and not (again and isinstance(ended.error, Cancelled)):
                    trials[config.name] = self._ends(group, index, config, ended)
        except KeyboardInterrupt:
            self._progress.close()
            job_display.interrupted(group, group.on_interrupt, "results()")
            show_line(f"clusterfn: to resume, run the same sweep with journal={str(self._journal.path)!r}")
            raise
        finally:
            self._progress.close()
        return trials

    def _ends(self, group: GroupState, index: int, config: Configuration, ended: ItemOutcome) -> Trial[Any]:
        trial: Trial[Any] = Trial(
            config.name, config.values, None, ended.value, ended.error, ended.usage.get("wall_s", 0.0),
            job=group.id, item=index, host=group.host,
        )  # fmt: skip
        trial = trial if trial.error is not None else self._scored(trial)
        if trial.error is None:
            # The value is kept before the journal says that the trial has ended, because a sweep that resumes needs
            # both.
            self._shelf.keep(trial)
        self._write_down(trial)
        self._progress.show(trial, self._labels[trial.name], group)
        self._saw_score = self._saw_score or trial.score is not None
        # The first result lacks the key of `score=`, so the others would lack it too.
        if not self._saw_score and self._scoring.lacks(trial.value):
            group.stop()
            raise SweepError(
                "the sweep was stopped: its first result has no such score", host=group.host, job=group.id,
                stage="function", evidence=[str(trial.error)], hint="set score= to one of its keys, or to a function",
            ) from trial.error  # fmt: skip
        return trial

    def _scored(self, trial: Trial[Any]) -> Trial[Any]:
        try:
            return replace(trial, score=self._scoring.of(trial.value), scores=sequence(trial.value))
        except Exception as error:  # noqa: BLE001 - score= of the user's may raise anything
            # Without a function of the user, the traceback has only clusterfn's own frames, which do not help the user.
            own = callable(self._scoring.by)
            return replace(trial, error=error if own else error.with_traceback(None))

    def _write_down(self, trial: Trial[Any]) -> None:
        self._journal.add(
            "ended", name=trial.name, score=trial.score, scores=list(trial.scores), seconds=round(trial.seconds, 3),
            error=None if trial.error is None else cause(trial.error), source=trial.source,
            group=trial.job, item=trial.item, host=trial.host,
        )  # fmt: skip


class _Following:
    """The items of one group as they begin and end."""

    def __init__(
        self, group: GroupState, configurations: Sequence[Configuration | None], journal: SweepJournal
    ) -> None:
        self.group = group
        self._configurations = configurations
        self._journal = journal
        self._followed = 0
        self._begun: set[int] = set()
        self._look_at = 0.0

    def next(self, on_tick: Callable[[], None]) -> tuple[Configuration | None, int, ItemOutcome]:
        """Return the next item that has ended; None for one that is not wanted. `on_tick` runs between looks."""
        while True:
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + _LOOK_S
                for index, state in enumerate(self.group.states):
                    if state == RUNNING:
                        self._begins(index)
            try:
                index, ended = self.group.ended_after(self._followed, time.monotonic() + _LOOK_S)
            except concurrent.futures.TimeoutError:
                on_tick()
                continue
            self._followed += 1
            # The item has begun and ended between two looks.
            if ended.usage:
                self._begins(index)
            return self._configurations[index], index, ended

    def _begins(self, index: int) -> None:
        config = self._configurations[index]
        if config is not None and index not in self._begun:
            self._begun.add(index)
            self._journal.add("began", name=config.name, group=self.group.id)


def _history(journal: SweepJournal) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return, by name, the ends of trials that returned, and the groups of those that have not failed."""
    ended: dict[str, dict[str, Any]] = {}
    sent: dict[str, dict[str, Any]] = {}
    for record in journal.records:
        if record["event"] == "sent":
            sent.update({name: record for name in record["names"]})
        elif record["event"] == "ended":
            if record["error"] is None:
                ended[record["name"]] = record
            else:
                sent.pop(record["name"], None)
    return ended, sent
