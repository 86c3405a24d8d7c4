"""Whose turn it is: calls go to workers that are free, in their order, and calls of an actor to the worker that has it.

An actor takes the place of a worker from the call that constructs it until it is gone.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runner import RunnerProcess

_GIVEN_AHEAD = 16  # calls that the worker of an actor has, so that it need not wait for the next


class Actor:
    """An actor, by its calls.

    Attributes:
        name: Of its class.
        waiting: Its calls that are not yet given to its worker.
        gone: Why it is gone; "" if it is not.
    """

    def __init__(self, name: str, gone: str = "") -> None:
        self.name = name
        self.waiting: collections.deque[int] = collections.deque()
        self.gone = gone


class Turns:
    """The calls of a session that wait.

    Attributes:
        lost: Calls of actors that are gone, and will not run.
    """

    def __init__(self) -> None:
        self.lost: collections.deque[tuple[int, Actor]] = collections.deque()
        self._waiting: collections.deque[int] = collections.deque()
        self._actors: dict[int, Actor] = {}  # by the numbers of the calls that construct them

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        """Take the next call, and what its call.json says."""
        which = facts.get("actor", 0)
        if which == number:
            self._actors[number] = Actor(str(facts.get("name")))
        if which in (0, number):
            self._waiting.append(number)
            return
        actor = self._actors.get(which) or Actor("of an earlier start", "the session was restarted")
        if actor.gone:
            self.lost.append((number, actor))
        else:
            actor.waiting.append(number)

    def next_for(self, runner: RunnerProcess) -> tuple[int, int]:
        """Return the call that this worker is to be given now, and its actor; 0 for none."""
        if runner.is_ready and self._waiting:
            number = self._waiting.popleft()
            return number, number if number in self._actors else 0
        actor = self._actors.get(runner.actor)
        if actor is None or not actor.waiting or len(runner.given) >= _GIVEN_AHEAD:
            return 0, 0
        return actor.waiting.popleft(), runner.actor

    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not (self._waiting or self.lost or any(actor.waiting for actor in self._actors.values()))

    def lose(self, which: int, reason: str, given: Iterable[int]) -> None:
        """Take note that an actor is gone, and that calls which were given to its worker have not run."""
        actor = self._actors[which]
        actor.gone = actor.gone or reason
        self.lost += [(number, actor) for number in (*given, *actor.waiting)]
        actor.waiting.clear()
