"""The warning of a job before its end (`warn_before=`): an exception, or a call of the user's own function.

The supervisor, or the scheduler, sends SIGTERM to the worker, which calls `deliver` in the main thread
(`bridge/worker/warning.py`). A function with a handler of its own for SIGTERM gets the signal instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[[], object])
_callbacks: list[Callable[[], object]] = []


class TimeAlmostUp(BaseException):
    """The job is about to be ended: by its time limit, or by a scheduler that needs its resources.

    With `warn_before=` it is raised in the main thread of the function, once. Save what the next attempt needs, and let
    it pass: the attempt then counts as one that ran out of time, and `requeue=` starts the next one. A function may
    also raise it by itself after the warning. A value that is returned counts, as always.

    Like KeyboardInterrupt it is no `Exception`, so that `except Exception` in a training loop does not hide it.

    Example:
        >>> try:
        ...     train(model)
        ... except clusterfn.TimeAlmostUp:
        ...     save(model)
        ...     raise
    """


def on_warning(callback: F) -> F:
    """Call a function before the end of the job (`warn_before=`), in place of raising `TimeAlmostUp`.

    It is called once, in the main thread, without arguments, between two steps of the function, which then continues.
    It may raise `TimeAlmostUp` itself. Several are called in the order in which they were given.

    Returns:
        The function, so that this can be a decorator.

    Example:
        >>> clusterfn.on_warning(lambda: save(model))
    """
    if not callable(callback):
        raise TypeError(f"on_warning() takes a function without arguments, not {callback!r:.80}")
    _callbacks.append(callback)
    return callback


def deliver() -> None:
    """Warn the function: call what it has given to `on_warning`, or else raise.

    Raises:
        TimeAlmostUp: It has given nothing.
    """
    for callback in list(_callbacks):
        callback()
    if not _callbacks:
        raise TimeAlmostUp("the job is about to be ended; save a checkpoint")
