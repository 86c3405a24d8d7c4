"""What public functions share: their options, checked arguments, and tracebacks that show the user's frames alone."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge.attributes import attribute, signature_of
from clusterfn.config import options as call_options
from clusterfn.config.notes import is_verbose
from clusterfn.errors import ClusterfnError, ConfigError, JobError, MapError, SweepError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
# The classes that take options for all of their calls.
_WITH_OPTIONS = ("Executor", "Session")
_OURS = (os.path.dirname(__file__) + os.sep, "<frozen ")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_WE_CALL = ("cloudpickle", "cryptography", "ipykernel", "IPython", "jupyter_client", "paramiko", "yaml", "zmq")


def public_api(function: Callable[P, R]) -> Callable[P, R]:
    """Check how a public function is called, and remove our frames from the tracebacks of its errors.

    Raises:
        ConfigError: When it is called with a keyword that it does not have, or with a value that needs one.
    """
    check = _check_of_calls(function)

    def call_clusterfn(*args: P.args, **kwargs: P.kwargs) -> R:
        # Below Python 3.11, this hides the frame from IPython and pytest.
        __tracebackhide__ = True
        with _HideOurFrames():
            check(args, kwargs)
            return function(*args, **kwargs)

    def iterate_clusterfn(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
        __tracebackhide__ = True
        with _HideOurFrames():
            check(args, kwargs)
            return (yield from function(*args, **kwargs))  # type: ignore[misc]

    async def await_clusterfn(*args: P.args, **kwargs: P.kwargs) -> Any:
        __tracebackhide__ = True
        with _HideOurFrames():
            check(args, kwargs)
            return await function(*args, **kwargs)  # type: ignore[misc]

    outside: Any = call_clusterfn
    if inspect.isgeneratorfunction(function):
        outside = iterate_clusterfn
    elif inspect.iscoroutinefunction(function):
        outside = await_clusterfn
    return functools.wraps(function)(outside)


def show_options(options: type) -> Callable[[F], F]:
    """Show the keys of a TypedDict as keywords of a function that takes them as `**options`.

    The signature gets each of them. A docstring that names `CallOptions` gets their descriptions.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
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


def _check_of_calls(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, object]], None]:
    """Return what checks the arguments of each call: no keyword is unknown, and no value lacks its keyword."""
    *_, around, name = f".{function.__qualname__}".split(".")
    called = around if name == "__init__" else name
    owner = around if around in _WITH_OPTIONS else ""
    parameters = inspect.signature(function).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    nameless = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    known = [parameter.name for parameter in parameters if parameter.kind not in nameless and parameter.name != "self"]
    only_named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    # Where nothing needs a keyword, Python itself says how many values there may be.
    most = sys.maxsize
    if only_named and inspect.Parameter.VAR_POSITIONAL not in kinds:
        most = len(kinds) - len(only_named) - takes_any

    def check(args: tuple[Any, ...], kwargs: Mapping[str, object]) -> None:
        if len(args) > most:
            raise call_options.without_keyword(called, args[most], only_named)
        for keyword, value in () if takes_any else kwargs.items():
            if keyword not in known:
                raise call_options.unknown(f"{called}() has", keyword, value, known, owner)

    return check


def check_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: str = ""
) -> None:
    """Reject arguments that the function would reject, if its signature is certain.

    Args:
        owner: As for `options.where_to_write`.

    Raises:
        TypeError: As Python itself raises it. For an option of clusterfn it says where to write that.
    """
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
    except TypeError as misfit:
        name = plain.__qualname__ if sys.version_info >= (3, 10) else plain.__name__
        message = f"{name}() {_misfit(signature, args, kwargs) or misfit}"
        if option := next(
            (name for name in kwargs if name not in signature.parameters and name in call_options.keywords()), None
        ):
            where = call_options.where_to_write(option, owner, plain.__name__)
            message += f"; {option}= is an option of clusterfn: {where}"
        raise TypeError(message) from None


def check_values(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]) -> None:
    """Raise ConfigError for a command with a value that a shell would read as code; files are known only in the job."""
    if attribute(function, "command_line") is None:
        return
    # This import is late, because few calls run a command.
    from clusterfn.bridge.worker.command_line import WRITE_PLAIN, NotPlain, fill_command

    command, names = function.args  # type: ignore[attr-defined]
    for args in calls:
        given = {**dict(zip(names, args)), **constants}
        try:
            plain = {name: value for name, value in given.items() if isinstance(value, (str, int, float))}
            fill_command(command, plain)
        except NotPlain as error:
            raise ConfigError(str(error), hint=WRITE_PLAIN) from None


def check_calls(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]) -> None:
    """Reject calls `function(*args, **constants)` that the function would reject.

    Raises:
        TypeError: The function does not take these arguments.
    """
    for args in {len(args): args for args in calls}.values():
        try:
            check_arguments(function, args, constants)
        except TypeError as error:
            if not _are_packed(function, calls, constants):
                raise
            name = attribute(function, "__name__", "")
            call = f"{name if str(name).isidentifier() else 'f'}.map(*zip(*items))"
            tip = f"each item is one argument: to pass its parts as arguments, call {call}"
            raise TypeError(f"{error}; {tip}") from None


def _are_packed(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]) -> bool:
    """Whether each call has one tuple or list, whose parts the function would take as arguments."""
    if not all(len(args) == 1 and type(args[0]) in (tuple, list) for args in calls):
        return False
    try:
        for parts in {len(args[0]): args[0] for args in calls}.values():
            check_arguments(function, tuple(parts), constants)
    except TypeError:
        return False
    return True


def _misfit(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Say, as a call in Python does, why arguments do not fit; "" for what only `bind` can say."""
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    takes_more = inspect.Parameter.VAR_POSITIONAL in kinds
    takes_any_keyword = inspect.Parameter.VAR_KEYWORD in kinds
    nameless = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    placed = [parameter for parameter in parameters if parameter.kind in positional]
    named = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    filled = {parameter.name for parameter in placed[: len(args)]}
    for name in kwargs:
        if not takes_any_keyword and name not in signature.parameters:
            return f"got an unexpected keyword argument {name!r}"
        if name in nameless:
            return ""
        if name in filled:
            return f"got multiple values for argument {name!r}"
    if len(args) > len(placed) and not takes_more:
        return _too_many(placed, len(args), sum(parameter.name in kwargs for parameter in named))
    for parts, kind in (placed[len(args) :], "positional"), (named, "keyword-only"):
        needed = [parameter.name for parameter in parts if parameter.default is parameter.empty]
        missing = [repr(name) for name in needed if name not in kwargs]
        if missing:
            *most, last = missing
            comma = "," if len(most) > 1 else ""
            these = f"{', '.join(most)}{comma} and {last}" if most else last
            return f"missing {len(missing)} required {kind} argument{'s' if most else ''}: {these}"
    return ""


def _too_many(placed: list[inspect.Parameter], given: int, named: int) -> str:
    most, least = len(placed), sum(parameter.default is parameter.empty for parameter in placed)
    takes = f"{most} positional argument{'' if most == 1 else 's'}"
    if least < most:
        takes = f"from {least} to {most} positional arguments"
    were = "was" if given == 1 and not named else "were"
    also = ""
    if named:
        also = f"positional argument{'' if given == 1 else 's'} (and {named} keyword-only argument"
        also += ") " if named == 1 else "s) "
    return f"takes {takes} but {given} {also}{were} given"


class _HideOurFrames:
    """Removes our frames from the error that leaves the block; CLUSTERFN_DEBUG=1 keeps them.

    What raises an error again after a block adds no line to its traceback, other than `raise error`. So from Python
    3.11 on the function around the block is not in it either. Python 3.9 and 3.10 show that one function.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if error is None or is_verbose():
            return
        kept = None
        if _has_the_users(error):
            # The user may have passed a function to this call, and then its frames are in the middle.
            kept = _linked(frames)
        else:
            _drop_what_we_met(error)
        # Even a frozen dataclass cannot reject this call, as it would an assignment.
        error.with_traceback(kept)
        if frames is not None:
            # Python 3.9 and 3.10 raise with these frames again.
            frames.tb_next = kept
        _link_chain(error.__cause__ or error.__context__)


def _drop_what_we_met(error: BaseException) -> None:
    """Leave out the errors that we met on the way to this one: its message says it all."""
    # The cause of such an error is the user's own exception.
    of_a_job = isinstance(error, (JobError, MapError, SweepError))
    if isinstance(error, ClusterfnError) and not of_a_job and not _has_the_users(error.__cause__):
        error.__cause__, error.__suppress_context__ = None, True
    met = error.__context__
    while met is not None and met.__traceback__ is not None and not _has_the_users(met):
        error.__context__ = met = met.__context__


def _link_chain(error: BaseException | None) -> None:
    """Remove our frames from an error, and from all that it came from."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.with_traceback(_linked(error.__traceback__))
        error = error.__cause__ or error.__context__


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
