"""Actors as the client knows them: what a class lets one call, which actors hold workers, and why others are gone."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterfn.calls.payload import check_arguments
from clusterfn.errors import ActorLost, ConfigError, did_you_mean

_STAYS = "what it sets on itself stays on the host: add a method that returns it"
_SMALL = 1 << 20  # bytes that are packed in no time


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


class ActorClass:
    """The class of an actor.

    Raises:
        ConfigError: It is none.
    """

    def __init__(self, cls: Any) -> None:
        if not isinstance(cls, type):
            hint = "session.call(f, …) calls a function; for an actor, write a class whose methods use what it loads"
            raise ConfigError(f"session.actor() takes a class, not {cls!r:.60}", hint=hint)
        self.cls = cls
        self.name = cls.__name__

    def check_construction(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reject arguments that the class would reject, if that is certain.

        Raises:
            TypeError: The one that Python itself raises.
        """
        init = inspect.getattr_static(self.cls, "__init__")
        if isinstance(init, types.FunctionType) and type(self.cls).__call__ is type.__call__:
            check_arguments(functools.partial(init, None), args, kwargs)

    def methods(self) -> list[str]:
        """Return the names of its public methods."""
        return [name for name in dir(self.cls) if not name.startswith("_") and callable(getattr(self.cls, name, None))]

    def has(self, name: str) -> bool:
        """Whether it has a method of this name."""
        return callable(getattr(self.cls, name, None)) and not isinstance(self._found(name), property)

    def check_name(self, name: str) -> None:
        """Reject what is no method of it.

        Raises:
            AttributeError: The class has no such method, or has something else of this name.
        """
        if name.startswith("__") and name.endswith("__") and name != "__call__":
            raise AttributeError(f"an actor has no {name}")
        if self.has(name) or (not hasattr(self.cls, name) and hasattr(self.cls, "__getattr__")):
            return
        if hasattr(self.cls, name):
            raise AttributeError(f"{name} of {self.name} is not a method; {_STAYS}")
        raise AttributeError(f"{self.name} has no method {name}{did_you_mean(name, self.methods())}; {_STAYS}")

    def function(self, name: str) -> Any:
        """Return what the class has under this name: a function, decorated or not, or something else."""
        found = self._found(name)
        return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found

    def check_call(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reject a call that could only fail.

        Args:
            function: The method itself.

        Raises:
            ConfigError: It is a generator.
            TypeError: It does not take these arguments; the one that Python itself raises.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"{self.name}.{name} is a generator function, and a generator exists only in the process that runs it",
                hint="return a list from it",
            )
        if isinstance(function, types.FunctionType):
            is_static = isinstance(self._found(name), staticmethod)
            check_arguments(function if is_static else functools.partial(function, None), args, kwargs)

    def _found(self, name: str) -> Any:
        return inspect.getattr_static(self.cls, name, None)


class Actors:
    """The actors of one session.

    Args:
        workers: How many workers it has, each of which can have one actor.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._living: dict[int, str] = {}
        self._gone: dict[int, str] = {}

    def begin(self, number: int, name: str) -> None:
        """Take note of an actor that is to be constructed."""
        self._living[number] = name

    def end(self, number: int, why: str) -> None:
        """Take note that an actor is gone, or will be before any later call."""
        self._living.pop(number, None)
        self._gone.setdefault(number, why)

    def check_room(self, name: str) -> None:
        """Reject a call that no worker could run before an actor is closed.

        Raises:
            ConfigError: Actors have all of them.
        """
        if len(self._living) < self._workers:
            return
        names = ", ".join(self._living.values())
        whose = "its only worker" if self._workers == 1 else f"all of its {self._workers} workers"
        raise ConfigError(
            f"the session has no worker for {name}: {whose} {'has the actor' if self._workers == 1 else 'have actors'} "
            f"({names})",
            hint=f"close an actor (model.close()), or have more workers: Session(workers={self._workers + 1}, …)",
        )

    def check(self, number: int, name: str) -> None:
        """Reject a call of an actor that is known to be gone.

        Raises:
            ActorLost: It is; the message says why.
        """
        if number in self._gone:
            raise actor_lost(name, self._gone[number])


def actor_lost(name: str, why: str) -> ActorLost:
    """Return the error of a call of an actor that is gone."""
    return ActorLost(
        f"the actor {name} is gone, and its state with it: {why}", stage="submit",
        hint=f"create it again: session.actor({name}, …)",
    )  # fmt: skip


def is_packed_at_once(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether packing these takes no time that is worth a word, nor a thread that would say it."""
    return all(
        value is None or (isinstance(value, (bool, int, float, str, bytes)) and _size(value) < _SMALL)
        for value in (*args, *kwargs.values())
    )


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else 0
