"""Whose turn it is: calls go to workers that are free, in their order, and calls of an actor to the worker that has it.

An actor takes the place of a worker from the call that constructs it until it is gone.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Tuple

from .call import RESTARTED

if TYPE_CHECKING:
    from .runner import RunnerProcess

# A call is its number and the content of its call.json.
Call = Tuple[int, Mapping[str, Any]]
# The worker of an actor has so many calls, so that it need not wait for the next.
_GIVEN_AHEAD = 16


class ActorTurns:
    """An actor, by its calls.

    Attributes:
        name: Of its class.
        waiting: Its calls that are not yet given to its worker.
        gone: Why it is gone; "" if it is not.
    """

    def __init__(self, name: str, gone: str = "") -> None:
        self.name = name
        self.waiting: collections.deque[Call] = collections.deque()
        self.gone = gone


class Turns:
    """The calls of a session that wait.

    Attributes:
        lost: Calls of actors that are gone, and will not run.
    """

    def __init__(self) -> None:
        self.lost: collections.deque[tuple[int, ActorTurns]] = collections.deque()
        self._waiting: collections.deque[Call] = collections.deque()
        # The keys are the numbers of the calls that construct the actors.
        self._actors: dict[int, ActorTurns] = {}

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        """Take the next call, and what its call.json says."""
        which = facts.get("actor", 0)
        if which == number:
            self._actors[number] = ActorTurns(str(facts.get("name")))
        if which in (0, number):
            self._waiting.append((number, facts))
            return
        actor = self._actors.get(which) or ActorTurns("of an earlier start", RESTARTED)
        if actor.gone:
            self.lost.append((number, actor))
        else:
            actor.waiting.append((number, facts))

    def next_for(self, runner: RunnerProcess) -> Call | None:
        """Return the call that this worker is to be given now; None for none."""
        if runner.is_ready:
            return self._waiting.popleft() if self._waiting else None
        actor = self._actors.get(runner.actor)
        if actor is None or not actor.waiting or len(runner.given) >= _GIVEN_AHEAD:
            return None
        return actor.waiting.popleft()

    def count_waiting(self) -> int:
        """Return how many calls wait for a worker that is free."""
        return len(self._waiting)

    def count_all_waiting(self) -> int:
        """Return how many calls wait, for a worker that is free or for their actor."""
        return len(self._waiting) + sum(len(actor.waiting) for actor in self._actors.values())

    def is_empty(self) -> bool:
        return not (self.lost or self.count_all_waiting())

    def lose(self, which: int, reason: str, given: Iterable[int]) -> None:
        """Take note that an actor is gone, and that calls which were given to its worker have not run."""
        actor = self._actors[which]
        actor.gone = actor.gone or reason
        self.lost += [(number, actor) for number in (*given, *(number for number, _ in actor.waiting))]
        actor.waiting.clear()
