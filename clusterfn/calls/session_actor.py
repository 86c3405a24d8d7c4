"""Actors as the client knows them: what a call is to one, which of them hold workers, and why others are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterfn.errors import ActorLost, ConfigError

_CLOSED = "it was closed"
# Packing this many bytes takes no noticeable time.
_SMALL = 1 << 20


@dataclass(frozen=True)
class ActorCall:
    """What a call is to an actor.

    Attributes:
        actor: The number of the call that constructs it; 0 for this call itself.
        name: Of the class, or of the method.
        closes: Whether the actor ends with it.
    """

    actor: int
    name: str
    closes: bool = False

    def facts(self, number: int) -> dict[str, Any]:
        """Return what goes into the call.json of the call with this number."""
        return {"actor": self.actor or number, "name": self.name, **({"closes": True} if self.closes else {})}


class Actors:
    """The actors of one session.

    Args:
        workers: How many workers it has, each of which can have one actor.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._living: dict[int, str] = {}
        self._gone: dict[int, str] = {}
        # Actors without a local object, which may live on the host.
        self._unheld: set[int] = set()
        # Actors whose local object is gone. Some of them are closed already.
        self._abandoned: set[int] = set()

    def begin(self, number: int, name: str) -> None:
        """Take note of an actor that is to be constructed."""
        self._living[number] = name

    def end(self, number: int, why: str) -> None:
        """Take note that an actor is gone, or will be before any later call."""
        self._living.pop(number, None)
        self._gone.setdefault(number, why)

    def close(self, number: int) -> None:
        """Take note that an actor is being closed: it still has its worker."""
        self._gone.setdefault(number, _CLOSED)

    def reopen(self, number: int) -> None:
        """Take note that the closing of an actor has not reached its host."""
        if self._gone.get(number) == _CLOSED and number in self._living:
            del self._gone[number]

    def lose(self, number: int, why: str) -> None:
        """Take note that an actor has no local object, and that its host may have it all the same."""
        self.end(number, why)
        self._unheld.add(number)

    def stay(self, number: int, is_held: bool) -> None:
        """Let an actor be closed again: by its local object if that is held, or with the next call."""
        if is_held:
            self.reopen(number)
        else:
            self.lose(number, "")

    def abandon(self, number: int) -> None:
        """Have an actor closed before the next call that needs a worker. The garbage collector calls this: no lock."""
        self._abandoned.add(number)

    def unheld(self) -> Iterator[int]:
        """Yield the actors to close, as each keeps a worker from the calls that come now."""
        for number in sorted(self._unheld):
            # The number goes first: if closing fails, it is added again.
            self._unheld.discard(number)
            yield number
        for number in sorted(self._abandoned):
            self._abandoned.discard(number)
            if not self.is_gone(number):
                yield number

    def is_gone(self, number: int) -> bool:
        """Whether an actor is gone, or being closed."""
        return number in self._gone

    def name_of(self, number: int) -> str:
        """Return the name of an actor's class."""
        return self._living.get(number, "")

    def check_room(self, name: str) -> None:
        """Reject a call that no worker could run before an actor is closed.

        Raises:
            ConfigError: Actors have all of them.
        """
        # Waiting for a worker instead could last for ever: the `close()` of the actor may come after this call.
        if len(self._living) < self._workers:
            return
        names = ", ".join(self._living.values())
        whose = "its only worker" if self._workers == 1 else f"all of its {self._workers} workers"
        raise ConfigError(
            f"the session has no worker for {name}: {whose} {'has the actor' if self._workers == 1 else 'have actors'} "
            f"({names})",
            hint="close an actor (model.close()), make the call a method of its class, or have more workers:"
            f" Session(workers={self._workers + 1}, …). Each needs its own GPU if the session has GPUs",
        )

    def check(self, number: int, name: str) -> None:
        """Reject a call of an actor that is known to be gone.

        Raises:
            ActorLost: It is; the message says why.
        """
        if number in self._gone:
            raise actor_lost(name, self._gone[number])


def actor_lost(name: str, why: str, host: str | None = None, job: str | None = None) -> ActorLost:
    """Return the error of a call of an actor that is gone; `host` and `job` are where it was."""
    return ActorLost(
        f"the actor {name} is gone, and its state with it: {why}", host=host, job=job, stage="submit",
        hint=f"create it again: session.actor({name}, …)",
    )  # fmt: skip


def is_packed_at_once(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether packing these takes no time that is worth a word, nor a thread that would say it."""
    return all(
        isinstance(value, (int, float, type(None))) or (isinstance(value, (str, bytes)) and len(value) < _SMALL)
        for value in (*args, *kwargs.values())
    )
