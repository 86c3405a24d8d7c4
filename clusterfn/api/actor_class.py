"""The class of an actor: which methods it has, and which calls of them could only fail."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.api.decorator import reject_generator, undecorated
from clusterfn.bridge.attributes import signature_of
from clusterfn.config.options import Options
from clusterfn.errors import ConfigError, did_you_mean
from clusterfn.public_api import check_arguments

_STAYS = "what it sets on itself stays on the host: add a method that returns it"


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
        self._methods: dict[str, ActorFunction] = {}

    def check_construction(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reject arguments that the class would reject, if that is certain.

        Raises:
            TypeError: The one that Python itself raises.
        """
        init = inspect.getattr_static(self.cls, "__init__")
        if isinstance(init, types.FunctionType) and type(self.cls).__call__ is type.__call__:
            check_arguments(init, (None, *args), kwargs)

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

    def method(self, name: str) -> ActorFunction:
        """Return what the class has under this name, as it was at the first call."""
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = ActorFunction(f"{self.name}.{name}", self._found(name))
        return method

    def closing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return what ends an actor of it: its own `close`, or nothing if it has none.

        Raises:
            ConfigError, TypeError: Its own could only fail with these arguments, or there is none that takes any.
        """
        if self.has("close"):
            self.method("close").check_call(args, kwargs)
            return operator.attrgetter("close")
        if args or kwargs:
            raise TypeError(f"{self.name} has no method close, so close() takes no arguments")
        return type(None)

    def _found(self, name: str) -> Any:
        return inspect.getattr_static(self.cls, name, None)


class ActorFunction:
    """A method of an actor.

    Args:
        name: For messages, with its class.
        found: What the class has: a function, decorated or not, or another thing that can be called.

    Attributes:
        options: Those of its decorator.
        is_async: Whether its calls are awaited.
    """

    def __init__(self, name: str, attribute: Any) -> None:
        plain = attribute.__func__ if isinstance(attribute, (staticmethod, classmethod)) else attribute
        self.options = Options()
        if callable(plain):
            plain, self.options = undecorated(plain)
        self._name = name
        self._plain = plain
        self.is_async = inspect.iscoroutinefunction(plain)
        # The placeholder fills the parameter `self` or `cls` when a call is checked against the signature. A static
        # method has neither.
        self._first = () if isinstance(attribute, staticmethod) else (None,)
        self._signature = signature_of(plain) if isinstance(plain, types.FunctionType) else None

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reject a call that could only fail.

        Raises:
            ConfigError: It is a generator.
            TypeError: It does not take these arguments; the one that Python itself raises.
        """
        reject_generator(self._plain, self._name)
        if self._signature is not None:
            try:
                self._signature.bind(*self._first, *args, **kwargs)
            except TypeError:
                check_arguments(self._plain, (*self._first, *args), kwargs)
