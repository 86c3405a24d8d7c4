"""An actor: an object of the user's class that stays in a process of a session, and whose methods are called there."""

from __future__ import annotations

import _thread
import contextlib
import inspect
import operator
import os
import types
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from clusterfn.api.decorator import reject_generator, undecorated
from clusterfn.calls.job import shown_to_end
from clusterfn.calls.session_call import ActorCall
from clusterfn.config.options import Options
from clusterfn.errors import ActorLost, ClusterfnError, ConfigError, HostError, did_you_mean
from clusterfn.public_api import check_arguments, public_api

if TYPE_CHECKING:
    from clusterfn.calls.job import Job
    from clusterfn.calls.session_call import SessionCallJob

    # The function, its arguments, its keywords, what the call is to the actor, and whether to follow it.
    ActorSender = Callable[
        [Callable[..., Any], tuple[Any, ...], Mapping[str, Any], ActorCall, bool], SessionCallJob[Any]
    ]

_STAYS = "what it sets on itself stays on the host: add a method that returns it"


class Actor:
    """An object on the host: `session.actor(Model, path)` constructs it, and its methods run there, in their order.

    `model.predict(batch)` shows what the method prints, and returns its value or raises its exception.
    `model.predict.submit(batch)` returns a Job. The call of an `async def` method is awaited. The object keeps its
    state from one call to the next. It ends with `close()`, with its `with` block, when nothing refers to the actor
    here, and with its session.

    Example:
        >>> with session.actor(Classifier, "weights.pt") as model:
        ...     labels = model.predict(batch)
    """

    def __init__(
        self, kind: ActorClass, constructed: SessionCallJob[Any], send: ActorSender, abandon: Callable[[int], None]
    ) -> None:
        handle = ActorHandle(kind, constructed, send)
        object.__setattr__(self, "_handle", handle)

        def end() -> None:
            # A call that comes before the thread runs closes the actor itself, because it may need the actor's worker.
            abandon(handle.number)
            # `threading` would need a lock, which the thread that collects the garbage may hold at this moment.
            _thread.start_new_thread(handle.close_unseen, (type(None),))

        weakref.finalize(self, end).atexit = False

    _handle: ActorHandle

    def __getattr__(self, name: str) -> ActorMethod:
        # `copy` and `pickle` make an object without `__init__`, and ask it for attributes. Without this check the
        # lookup of `_handle` would recurse.
        if name == "_handle":
            raise AttributeError(name)
        self._handle.kind.check_name(name)
        return ActorMethod(self, self._handle, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object itself, as its class defines it."""
        if "__call__" not in dir(self._handle.kind.cls):
            raise TypeError(f"{self._handle.kind.name} has no __call__: call one of its methods")
        return ActorMethod(self, self._handle, "__call__")(*args, **kwargs)

    @public_api
    def close(self) -> Any:
        """End the actor after its earlier calls, and free its worker and its GPU memory.

        If the class has a method `close`, it is called first, without arguments, and its value is returned. Closing an
        actor that is gone does nothing, nor does closing it in a forked child of the process that made it.

        Raises:
            TypeError: The class's own `close` needs arguments. The actor stays.
            Exception: What the class's own `close` raises. The actor ends all the same.
        """
        handle = self._handle
        if handle.is_over:
            return None
        if handle.kind.has("close"):
            handle.kind.method("close").check_call((), {})
        return handle.close()

    def __enter__(self) -> Actor:
        return self

    @public_api
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The error of the block must reach the caller at once.
            self._handle.close_unseen(self._handle.kind.closing())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: attributes of an actor are set by its methods, on the host")

    def __dir__(self) -> list[str]:
        return [*self._handle.kind.methods(), "close"]

    def __reduce__(self) -> NoReturn:
        raise TypeError("this is an actor itself, which stays in its process: pass what its methods return")

    def __repr__(self) -> str:
        return f"<Actor {self._handle.kind.name} on {self._handle.host}>"


class ActorMethod:
    """A method of an actor: call it, or `submit` it."""

    def __init__(self, actor: Actor, handle: ActorHandle, name: str) -> None:
        # The method keeps its actor alive: an actor without other references, as in `Session.actor(C).method()`, ends
        # only after this call.
        self._actor = actor
        self._handle = handle
        self._name = self.__name__ = name

    @public_api
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, show what it prints, and return its value or raise its exception.

        The call of an `async def` method returns a coroutine for the value, and shows nothing.

        Ctrl-C stops the call. This ends the actor if the call is running, but not if it is still waiting.

        Raises:
            ActorLost: The actor is closed, or gone with its state.
            Exception: What the method raises, or one of `clusterfn.errors`.
        """
        if self._handle.kind.method(self._name).is_async:
            return self._run_awaited(*args, **kwargs)
        job = self._send(args, kwargs, follow=True)
        return shown_to_end(job, "", "stop")

    @public_api
    async def _run_awaited(self, *args: Any, **kwargs: Any) -> Any:
        return await self.submit(*args, **kwargs)

    @public_api
    def submit(self, *args: Any, **kwargs: Any) -> Job[Any]:
        """Send the call, and return its Job. Calls of an actor run one after another, in the order of their sending.

        Raises:
            ActorLost: The actor is closed, or gone with its state.
            ConfigError: The method is a generator, or decorated with options.
            PayloadError: An argument cannot be sent; the message names it.
        """
        return self._send(args, kwargs, follow=False)

    def _send(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], follow: bool) -> SessionCallJob[Any]:
        handle, name = self._handle, self._name
        method = handle.kind.method(name)
        method.check_call(args, kwargs)
        called = operator.attrgetter(name)
        return handle.send(called, args, kwargs, ActorCall(handle.number, name), follow)

    def __getattr__(self, name: str) -> NoReturn:
        # An object made without `__init__`, such as a copy, has no `_name`: the message below would recurse.
        if name == "_name":
            raise AttributeError(name)
        instead = f"or send its calls with submit: [actor.{self._name}.submit(x) for x in xs]"
        raise AttributeError(f"{self._name}.{name}: call a method of an actor, {instead}")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"this is a method of an actor, which runs it itself: actor.{self._name}.submit(…)")

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._actor!r}>"


class ActorHandle:
    """What an actor and its methods share.

    Attributes:
        kind: The class.
        number: Of the call that has constructed it.
        host: Its host.
        send: Sends a call.
    """

    def __init__(self, kind: ActorClass, constructed: SessionCallJob[Any], send: ActorSender) -> None:
        self.kind = kind
        self.number = constructed.run.at.number
        self.host = constructed.host
        self.send = send
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to close here: it was closed, or belongs to the process that this is a fork of."""
        return self._is_closed or os.getpid() != self._pid

    def close(self) -> Any:
        """Close it after its class's own `close`, show what that prints, and return its value; None if it is gone."""
        with contextlib.suppress(ActorLost):
            job = self.send(self.kind.closing(), (), {}, self._closing, True)
            self._is_closed = True
            try:
                return shown_to_end(job, "", "stop")
            except HostError:
                # The request to close has not reached the host, so the actor is still open, and the caller may close it
                # again.
                self._is_closed = False
                raise
        return None

    def close_unseen(self, function: Callable[..., Any]) -> None:
        """Close it without a word, and do not wait for its earlier calls."""
        if not self.is_over:
            # The session or its connection may have ended, which has ended the actor too.
            with contextlib.suppress(ClusterfnError, RuntimeError):
                self.send(function, (), {}, self._closing, False)
                self._is_closed = True

    @property
    def _closing(self) -> ActorCall:
        return ActorCall(self.number, "close", closes=True)


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
            check_arguments(init, (None, *args), kwargs, "Session")

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

    def closing(self) -> Callable[..., Any]:
        """Return what ends an actor of it: its own `close`, or nothing if it has none."""
        return operator.attrgetter("close") if self.has("close") else type(None)

    def _found(self, name: str) -> Any:
        return inspect.getattr_static(self.cls, name, None)


class ActorFunction:
    """A method of an actor.

    Args:
        name: For messages, with its class.
        found: What the class has: a function, decorated or not, or another thing that can be called.

    Raises:
        ConfigError: It is decorated with options, which nothing would obey.

    Attributes:
        is_async: Whether its calls are awaited.
    """

    def __init__(self, name: str, attribute: Any) -> None:
        plain = attribute.__func__ if isinstance(attribute, (staticmethod, classmethod)) else attribute
        if callable(plain):
            plain, options = undecorated(plain)
            if options != Options():
                raise ConfigError(
                    f"{name} has options of its own, and the methods of an actor run with those of its session",
                    hint="decorate the method with @cluster alone, or not at all",
                )
        self._name = name
        self._plain = plain
        self.is_async = inspect.iscoroutinefunction(plain)
        # The placeholder fills the parameter `self` or `cls` when a call is checked against the signature. A static
        # method has neither.
        self._first = () if isinstance(attribute, staticmethod) else (None,)

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Reject a call that could only fail.

        Raises:
            ConfigError: It is a generator.
            TypeError: It does not take these arguments; the one that Python itself raises.
        """
        reject_generator(self._plain, self._name)
        if isinstance(self._plain, types.FunctionType):
            check_arguments(self._plain, (*self._first, *args), kwargs, "Session")
