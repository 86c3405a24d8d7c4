"""`@cluster`: a function that runs on a host when it is called.

Options are checked at decoration; the configuration is read at the first call.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

from clusterfn.bridge import layout
from clusterfn.config import import_time
from clusterfn.config.option_checks import HOST_NAME
from clusterfn.config.options import HOST_VARIABLE, CallOptions, Hosts, Options, changed, parse_options
from clusterfn.errors import ConfigError
from clusterfn.public_api import public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, TypeAlias, Unpack

    from clusterfn.calls.group import JobGroup
    from clusterfn.calls.job import Job

    P = ParamSpec("P")
    Q = ParamSpec("Q")
    _Async: TypeAlias = "ClusterFunction[..., Coroutine[Any, Any, T]]"
else:
    # `typing.ParamSpec` needs Python 3.10, and only type checkers need the real one.
    P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
IN_JOB_INSTEAD = "call the function directly, it runs in this process"
# Methods of functions in submitit, Modal, Ray (docs/how-to/migrate.md) and Celery, and what to call instead.
_INSTEAD = {
    "remote": "f(...) itself, or f.submit(...), which returns a Job at once",
    **dict.fromkeys(("spawn", "delay", "apply_async"), "f.submit(...), which returns a Job at once"),
    **dict.fromkeys(("apply", "run"), "f(...) itself"),
    **dict.fromkeys(("imap", "map_array", "for_each"), "f.map(items)"),
    "starmap": "f.map(xs, ys)",
}


class ClusterFunction(Generic[P, R]):
    """A decorated function. Calling it runs it on its host and returns its value, or raises its own exception.

    The call of an `async def` function returns a coroutine, as without the decorator: `await` it for the value.

    Attributes:
        options: What the decorator said.
        __wrapped__: The function itself.
    """

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self.options = options
        self._mark: Any = _anchor(function, options, self)

    @public_api
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if inside_job():
            import_time.reject_call_in_job(f"{self.__name__}()", f"{self.__name__}.local(…)")
            return self.__wrapped__(*args, **kwargs)
        if inspect.iscoroutinefunction(self.__wrapped__):
            called: Any = self._run_awaited(*args, **kwargs)
            # Python names the coroutine in its warning that a coroutine was never awaited: the user knows only this
            # name.
            called.__qualname__ = self.__qualname__
            return called  # type: ignore[no-any-return]
        from clusterfn.calls import call

        return call.run_call(self.__wrapped__, tuple(args), dict(kwargs), self.options)

    @public_api
    async def _run_awaited(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await self.submit(*args, **kwargs)

    # mypy also asks for this overload where the function is decorated below @classmethod.
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Any: ...
    @overload
    def __get__(
        self: ClusterFunction[Concatenate[T, Q], R], instance: T, owner: type | None = None
    ) -> ClusterFunction[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> ClusterFunction[..., R]:
        return self if instance is None else BoundFunction(self, instance)

    @overload
    def submit(self: ClusterFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...
    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @public_api
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any]:
        """Send the call and return at once.

        Returns:
            A `Job`: a concurrent.futures.Future that can be awaited, and more.

        Raises:
            ConfigError, PayloadError: Before anything is sent.
            HostError, SubmitError: The host or its scheduler rejected it.
            RuntimeError: Inside a job.

        Example:
            >>> job = train.submit(1e-3)
            >>> job.result()
        """
        if inside_job():
            import_time.reject_sending_in_job(f"{self.__name__}.submit()", IN_JOB_INSTEAD)
        from clusterfn.calls import call

        return call.submit_call(self.__wrapped__, args, kwargs, self.options)

    @overload
    def map(
        self: _Async[T], *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: Literal["raise"], sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[T, NoReturn]: ...  # fmt: skip
    @overload
    def map(
        self: _Async[T], *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: Literal["collect"], sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[T | Exception, NoReturn]: ...  # fmt: skip
    @overload
    def map(
        self: _Async[T], *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: None = None, sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[T, Exception]: ...  # fmt: skip
    @overload
    def map(
        self, *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: Literal["raise"], sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[R, NoReturn]: ...  # fmt: skip
    @overload
    def map(
        self, *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: Literal["collect"], sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[R | Exception, NoReturn]: ...  # fmt: skip
    @overload
    def map(
        self, *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: None = None, sequential_up_to: int | None = None, **constants: Any,
    ) -> JobGroup[R, Exception]: ...  # fmt: skip
    @public_api
    def map(
        self, *iterables: Iterable[Any], max_parallel: int = 50, chunksize: int | Literal["auto"] = "auto",
        on_error: Literal["collect", "raise"] | None = None, sequential_up_to: int | None = None,
        **constants: Any,
    ) -> JobGroup[Any, Any]:  # fmt: skip
        """Call the function with each item, each call in a process of its own, and return at once.

        Args:
            iterables: One for each argument. Lists must have the same length; an iterator such as `itertools.count()`
                may be longer.
            max_parallel: Calls that run side by side, at most; fewer where the host has no room for as many.
            chunksize: Items that are taken from the queue at a time.
            on_error: "collect": an exception takes the place of a value; "raise": the first one is raised. None:
                `results()` and `as_completed()` collect them, and iterating raises.
            sequential_up_to: Up to this many items run one at a time, more run side by side. Without it, two items that
                would have to share a GPU of a machine without a scheduler run one at a time.
            constants: Keyword arguments of the function that are the same for all calls, sent once. To pass one with
                the name of an option above, use `itertools.repeat(x)` as an iterable.

        Returns:
            A `JobGroup`: `results()` waits for all of them, iterating gives the values in order as they come.

        Raises:
            ConfigError, PayloadError: Before anything is sent; the message names the item that cannot travel.
            HostError, Unsatisfiable: The host cannot be used, or not so.
            RuntimeError: Inside a job.

        Example:
            >>> group = train.map([1e-4, 1e-3, 1e-2], max_parallel=2, epochs=10)
            >>> group.results()
        """
        if inside_job():
            import_time.reject_sending_in_job(f"{self.__name__}.map()", IN_JOB_INSTEAD)
        from clusterfn.calls import mapping

        how = mapping.parse_map_options(max_parallel, chunksize, sequential_up_to)
        mapping.check_constants(self.__wrapped__, constants)
        return mapping.run(self.__wrapped__, iterables, self.options, how, on_error, constants)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself in this process."""
        return self.__wrapped__(*args, **kwargs)

    @public_api
    def on(self, host: Hosts) -> ClusterFunction[P, R]:
        """Return the same function for another host, or for any of several."""
        return self.with_options(host=host)

    @public_api
    @show_options(CallOptions)
    def with_options(self, **options: Unpack[CallOptions]) -> ClusterFunction[P, R]:
        """Return the same function with some options changed; the others stay. See `cluster` for what they mean.

        With `gpus=0` no type and size of GPUs stays.
        """
        return _unpickled(self._mark, changed(self.options, options))

    @public_api
    def script(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Describe what a call would do: the script, the commands, the files and their sizes. Nothing is sent."""
        from clusterfn.calls import call

        return call.describe_call(self.__wrapped__, args, kwargs, self.options)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...] | str:
        """Pickle as the plain function would: by name; by value where a pickler such as cloudpickle does that."""
        # Protocols before 4 cannot pickle a name with dots.
        if protocol < 4:
            return self.__qualname__
        return _unpickled, (self._mark, None if self._mark.__dict__["decorated"] is self else self.options)

    def _on_its_way(self) -> tuple[Any, ...]:
        """Tell `bridge.serialization.pickler` how to pickle it for a job."""
        from clusterfn.hosts import serialization

        going: tuple[Any, ...] = serialization.part("classes").reduce_decorated(self.__wrapped__)
        return going

    # A type checker that saw `__getattr__` would accept every misspelled attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Find the function late: unpickled as a part of it, this object exists before the function is complete."""
            if "__wrapped__" in vars(self) or "function" not in vars(vars(self).get("_mark", _anchor)):
                instead = f": call {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")
            self._fill()
            return getattr(self, name)

    def _fill(self) -> None:
        functools.update_wrapper(self, self._mark.function)
        vars(self).setdefault("options", self._mark.options)

    def __repr__(self) -> str:
        name = getattr(self.__wrapped__, "__qualname__", repr(self.__wrapped__))
        return f"<cluster function {getattr(self.__wrapped__, '__module__', '')}.{name}>"

    __name__: str
    __qualname__: str


class BoundFunction(ClusterFunction[P, R]):
    """A decorated method of an object, which is its first argument."""

    def __init__(self, method: ClusterFunction[..., R], instance: object) -> None:
        called = functools.partial(method.__wrapped__, instance)
        functools.update_wrapper(called, method.__wrapped__, updated=())
        del called.__wrapped__  # type: ignore[attr-defined]  # else it would travel too
        super().__init__(called, method.options)
        self._parts = (method, instance)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle as the decorated method and the object."""
        return BoundFunction, self._parts

    def _on_its_way(self) -> tuple[Any, ...]:
        return functools.partial, self._parts


def _anchor(function: Callable[..., Any], options: Options, decorated: ClusterFunction[Any, Any]) -> Any:
    """Make an empty function that is found at `name._mark`, where `name` is the decorated function's.

    Every pickler treats it as it treats functions of that module, and so the decorated one that refers to it.
    """

    def anchor() -> None: ...

    anchor.__module__ = getattr(function, "__module__", None) or __name__
    anchor.__qualname__ = f"{getattr(function, '__qualname__', '<none>')}._mark"
    anchor.__dict__.update(function=function, options=options, decorated=decorated)
    return anchor


def _unpickled(anchor: Any, options: Options | None) -> ClusterFunction[Any, Any]:
    """Return the decorated function of that anchor; with options, a variant of it that has them."""
    existing: ClusterFunction[Any, Any] | None = None if options else vars(anchor).get("decorated")
    function: ClusterFunction[Any, Any] = existing or ClusterFunction.__new__(ClusterFunction)
    function._mark = anchor
    if options is None:
        anchor.decorated = function
    else:
        function.options = options
    if "function" in vars(anchor) and "__wrapped__" not in vars(function):
        function._fill()
    return function


def reject_generator(function: object, name: str | None = None, hint: str = "return a list from it") -> None:
    """Reject a generator function.

    Raises:
        ConfigError: It is one.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = name or getattr(function, "__name__", "this")
        problem = f"{name} is a generator function, and a generator exists only in the process that runs it"
        raise ConfigError(problem, hint=hint)


def undecorated(function: Callable[..., R]) -> tuple[Callable[..., R], Options]:
    """Return what is called and its options; a method or a partial has those of what it calls.

    Raises:
        ConfigError: It is no function.
    """
    if not callable(function) or isinstance(function, Options):
        hint = "pass the function, then its arguments: f, 3 instead of f(3)"
        raise ConfigError(f"{function!r:.60} is not a function", hint=hint)
    if isinstance(function, ClusterFunction):
        return function.__wrapped__, function.options
    called = function.func if isinstance(function, functools.partial) else None
    return function, called.options if isinstance(called, ClusterFunction) else Options()


@overload
def cluster(function: Callable[P, R]) -> ClusterFunction[P, R]: ...
@overload
def cluster(
    function: None = None, **options: Unpack[CallOptions]
) -> Callable[[Callable[P, R]], ClusterFunction[P, R]]: ...
# `show_options` is the outer one, so that a call with an unknown keyword reaches `parse_options`, which suggests the
# right one.
@show_options(CallOptions)
@public_api
def cluster(function: Any = None, **options: Any) -> Any:
    """Run a function on a host of clusterfn.yml; without a host, on this machine in a process of its own.

    An `async def` function runs to its end on the host; write `await f(...)`. A generator function is rejected.

    Args:
        function: The function, if you decorate it without options.
        options: As in `CallOptions`.

    Returns:
        A `ClusterFunction`.

    Raises:
        ConfigError: An option is unknown, or has the wrong type or unit.

    The call itself may raise `LockError` and `EnvironmentBuildError` if clusterfn builds an environment.

    Example:
        >>> @cluster(cores=4, memory="16GB", gpus=1, host="tensor01")
        ... def train(lr: float) -> dict: ...
        >>> train(1e-3)
    """
    if isinstance(function, (str, int, float, list, tuple, dict)):
        named = isinstance(function, str) and HOST_NAME.fullmatch(function)
        example = f'host="{function}"' if named else 'cores=2, host="tensor01"'
        raise ConfigError(f"@cluster({function!r}): options are keywords", hint=f"write @cluster({example})")
    parsed = parse_options(options)
    # The variable replaces the host that the code names, but not one that `.on()` chooses while the code runs.
    if redirected := os.environ.get(HOST_VARIABLE):
        parsed = parsed._replace(host=redirected)

    @public_api
    def decorate(target: Any) -> Any:
        if isinstance(target, ClusterFunction):
            raise ConfigError(f"{target.__name__} is already decorated", hint="use .with_options(…) on it")
        if isinstance(target, (classmethod, staticmethod, property, functools.cached_property)):
            name = type(target).__name__
            problem = f"@cluster is above @{name}, which does not return a function"
            raise ConfigError(problem, hint=f"put @{name} above @cluster")
        if not callable(target) or isinstance(target, type):
            hint = "write it on the line above a `def`"
            if isinstance(target, type):
                hint = "decorate one of its methods, or a function that creates an instance and works with it"
            raise ConfigError(f"@cluster goes on a function, not on {target!r}", hint=hint)
        hint = "return a list, or call `.map()` on a function of one item: its results arrive one by one"
        reject_generator(target, hint=hint)
        return ClusterFunction(target, parsed)

    return decorate if function is None else decorate(function)


def inside_job() -> bool:
    """Whether this process, or the one that started it, runs a job's function."""
    return layout.TAG in os.environ
