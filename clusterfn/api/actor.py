"""An actor: an object of the user's class that stays in a process of a session, and whose methods are called there."""

from __future__ import annotations

import _thread
import contextlib
import operator
import os
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from clusterfn.api.actor_class import ActorClass
from clusterfn.calls import job_display
from clusterfn.calls.session_actor import ActorCall
from clusterfn.config.options import Options
from clusterfn.errors import ActorLost, ClusterfnError, ConfigError, HostError
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterfn.calls.job import Job
    from clusterfn.calls.session_tracker import SessionCallJob

    # The function, its arguments, its keywords, what the call is to the actor, its options, and whether to follow it.
    ActorSender = Callable[
        [Callable[..., Any], tuple[Any, ...], Mapping[str, Any], ActorCall, Options, bool], SessionCallJob[Any]
    ]


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
    ) -> None:  # fmt: skip
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
    def close(self, *args: Any, **kwargs: Any) -> Any:
        """End the actor after its earlier calls, and free its worker and its GPU memory.

        If the class has a method `close`, it is called first, with these arguments, and its value is returned. Closing
        an actor that is gone does nothing, nor does closing it in a forked child of the process that made it.

        Raises:
            TypeError: The class's own `close` does not take these arguments. The actor stays.
            Exception: What the class's own `close` raises. The actor ends all the same.
        """
        handle = self._handle
        return None if handle.is_over else handle.close(handle.kind.closing(args, kwargs), args, kwargs)

    def __enter__(self) -> Actor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._handle.close_after_error(isinstance(error, KeyboardInterrupt))

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
        return job_display.result(job, "", "stop")

    @public_api
    async def _run_awaited(self, *args: Any, **kwargs: Any) -> Any:
        return await self.submit(*args, **kwargs)

    @public_api
    def submit(self, *args: Any, **kwargs: Any) -> Job[Any]:
        """Send the call, and return its Job. Calls of an actor run one after another, in the order of their sending.

        Raises:
            ActorLost: The actor is closed, or gone with its state.
            ConfigError: The method is a generator, or decorated and asks for what the session does not have.
            PayloadError: An argument cannot be sent; the message names it.
        """
        return self._send(args, kwargs, follow=False)

    def _send(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], follow: bool) -> SessionCallJob[Any]:
        handle, name = self._handle, self._name
        method = handle.kind.method(name)
        method.check_call(args, kwargs)
        called = operator.attrgetter(name)
        return handle.send(called, args, kwargs, ActorCall(handle.number, name), method.options, follow)

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
        self.number = constructed.tracker.number
        self.host = constructed.host
        self.send = send
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to close here: it was closed, or belongs to the process that this is a fork of."""
        return self._is_closed or os.getpid() != self._pid

    def close(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Close it after calling `function`, show what that prints, and return the value; None if it is gone."""
        with contextlib.suppress(ActorLost):
            job = self.send(function, args, kwargs, self._closing, Options(), True)
            self._is_closed = True
            try:
                return job_display.result(job, "", "stop")
            except HostError:
                # The request to close has not reached the host, so the actor is still open, and the caller may close it
                # again.
                self._is_closed = False
                raise
        return None

    def close_after_error(self, is_interrupted: bool) -> None:
        """Close it where its block ends with an error. After Ctrl-C, do not wait for its earlier calls."""
        if self.is_over:
            return
        try:
            function = self.kind.closing((), {})
        except (ConfigError, TypeError):
            # The closing method needs arguments. The error of the block must reach the caller, so this one is dropped.
            function = type(None)
        if is_interrupted:
            self.close_unseen(function)
        else:
            self.close(function, (), {})

    def close_unseen(self, function: Callable[..., Any]) -> None:
        """Close it without a word, and do not wait for its earlier calls."""
        if not self.is_over:
            # The session or its connection may have ended, which has ended the actor too.
            with contextlib.suppress(ClusterfnError, RuntimeError):
                self.send(function, (), {}, self._closing, Options(), False)

    @property
    def _closing(self) -> ActorCall:
        return ActorCall(self.number, "close", closes=True)
