"""What public functions share: their options, checked arguments, and tracebacks that show the user's frames alone."""

from __future__ import annotations

import functools
import inspect
import os
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge.attributes import signature_of
from clusterfn.config import options as call_options
from clusterfn.errors import ClusterfnError, JobError, MapError, SweepError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_OURS = (os.path.dirname(__file__) + os.sep, "<frozen ")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_WE_CALL = ("cloudpickle", "cryptography", "ipykernel", "IPython", "jupyter_client", "paramiko", "tqdm", "yaml", "zmq")


def public_api(function: Callable[P, R]) -> Callable[P, R]:
    """Check the keywords of a public function, and remove our frames from the tracebacks of its errors.

    Raises:
        ConfigError: When it is called with a keyword that it does not have.
    """
    known = _keywords(function)
    *_, around, name = f".{function.__qualname__}".split(".")
    called = around if name == "__init__" else name

    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            _refuse_unknown(called, kwargs, known)
            return function(*args, **kwargs)
        except BaseException as error:  # every kind is passed on
            raise without_frames_of_clusterfn(error)  # CLUSTERFN_DEBUG=1 shows them

    def checked_iterator(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        __tracebackhide__ = True
        try:
            _refuse_unknown(called, kwargs, known)
            yield from function(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:  # as above
            raise without_frames_of_clusterfn(error)  # CLUSTERFN_DEBUG=1 shows them

    outside: Any = checked_iterator if inspect.isgeneratorfunction(function) else checked
    outside.__code__ = outside.__code__.replace(co_name=name)  # which a traceback shows
    return functools.wraps(function)(outside)


def show_options(options: type) -> Callable[[F], F]:
    """Show the keys of a TypedDict as keywords of a function that takes them as `**options`.

    The signature gets each of them. A docstring that names `CallOptions` gets their descriptions.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        given = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
            for name, kind in options.__annotations__.items()
        ]
        shown: Any = function
        shown.__signature__ = signature.replace(parameters=[*own, *given])
        text = inspect.cleandoc(function.__doc__ or "")
        shown.__doc__ = text.replace("    options: As in `CallOptions`.", call_options.descriptions())
        return function

    return decorate


def _refuse_unknown(called: str, given: Mapping[str, object], known: list[str] | None) -> None:
    for keyword, value in given.items():
        if known is not None and keyword not in known:
            raise call_options.unknown(f"{called}() has", keyword, value, known)


def _keywords(function: Callable[..., Any]) -> list[str] | None:
    """Those that it has; None if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    nameless = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    return [each.name for each in parameters if each.kind not in nameless and each.name != "self"]


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Reject arguments that the function would reject, if its signature is certain."""
    plain = function
    while isinstance(plain, (functools.partial, types.MethodType)):
        plain = plain.func if isinstance(plain, functools.partial) else plain.__func__
    if not isinstance(plain, types.FunctionType) or hasattr(plain, "__signature__"):
        return
    signature = signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as refused:
        error = _as_python_says_it(plain, signature, args, kwargs) or TypeError(f"{plain.__name__}() {refused}")
        if option := next(
            (each for each in kwargs if each not in signature.parameters and call_options.is_option(each)), None
        ):
            where = f"@cluster({option}=…) or {plain.__name__}.with_options({option}=…)"
            error = TypeError(f"{error}; {option}= is an option of clusterfn: write {where}")
        raise error from None


def _as_python_says_it(
    function: types.FunctionType, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return what Python raises at a call of an empty function with this signature."""
    bare = [
        each.replace(annotation=each.empty, default=each.default if each.default is each.empty else None)
        for each in signature.parameters.values()
    ]
    scope: dict[str, Any] = {}
    try:
        exec(f"def empty{inspect.Signature(bare)}: pass", scope)
    except (SyntaxError, ValueError):  # a name that only byte code can have
        return None
    empty = scope["empty"]
    empty.__name__, empty.__qualname__ = function.__name__, function.__qualname__
    empty.__code__ = empty.__code__.replace(co_name=function.__name__)  # Python 3.9 says this one
    try:
        empty(*args, **kwargs)
    except TypeError as error:
        return error.with_traceback(None)
    return None


def without_frames_of_clusterfn(error: BaseException) -> BaseException:
    """The error with the user's frames alone, and without what we met on the way: its message says it all."""
    if os.environ.get("CLUSTERFN_DEBUG"):
        return error
    if _has_the_users(error):  # such as those of a function that we were given
        return error.with_traceback(_linked(error.__traceback__))
    of_a_job = isinstance(error, (JobError, MapError, SweepError))  # its cause is the user's
    if isinstance(error, ClusterfnError) and not of_a_job and not _has_the_users(error.__cause__):
        error.__cause__, error.__suppress_context__ = None, True
    met = error.__context__
    while met is not None and met.__traceback__ is not None and not _has_the_users(met):
        error.__context__ = met = met.__context__
    return error.with_traceback(None)


def _linked(first: TracebackType | None) -> TracebackType | None:
    """These frames without ours."""
    kept: list[TracebackType] = []
    while first is not None:
        if not first.tb_frame.f_code.co_filename.startswith(_OURS):
            kept.append(first)
        first = first.tb_next
    for before, after in zip(kept, [*kept[1:], None]):
        before.tb_next = after
    return kept[0] if kept else None


def _has_the_users(error: BaseException | None) -> bool:
    frames = traceback.walk_tb(error.__traceback__) if error is not None else ()
    return any(_is_the_users(frame.f_code.co_filename) for frame, _ in frames)


def _is_the_users(file: str) -> bool:
    if file.startswith(_OURS):
        return False
    _, installed, package = file.rpartition(f"-packages{os.sep}")
    return package.split(os.sep)[0] not in _WE_CALL if installed else not file.startswith(_LIBRARY)
