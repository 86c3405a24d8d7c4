"""How an error reads on the command line, and which exit code it is. Prints nothing."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from clusterfn.calls.outcome import RemoteTraceback
from clusterfn.cli.target import FileFailed
from clusterfn.errors import ClusterfnError, ConfigError

FAILED, USAGE = 1, 2


@dataclass(frozen=True)
class Complaint:
    """What to print on stderr, and how to leave."""

    text: str
    code: int


def of(error: BaseException, loud: bool = False) -> Complaint | None:
    """The complaint for an error, None for an unforeseen one.

    Args:
        loud: Whether our own traceback is wanted before it.
    """
    foreseen = _foreseen(error)
    if foreseen is None or not loud:
        return foreseen
    ours = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Complaint(f"{ours}\n{foreseen.text}", foreseen.code)


def _foreseen(error: BaseException) -> Complaint | None:
    if isinstance(error, FileFailed):
        return Complaint(str(error), USAGE)
    if isinstance(error, ClusterfnError):
        return Complaint(f"{type(error).__name__}: {error}", USAGE if isinstance(error, ConfigError) else FAILED)
    remote = remote_traceback(error)
    if remote is not None:
        # The traceback as the host wrote it, and the exception as it arrived where that says more.
        text = remote.text.strip('"').strip("\n")
        arrived = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        return Complaint(text if text.endswith(arrived) else f"{text}\n{arrived}", FAILED)
    return None


def remote_traceback(error: BaseException) -> RemoteTraceback | None:
    """What the host told of an exception that the function itself raised; None if it did not come from a job."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        if isinstance(following, RemoteTraceback):
            return following
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return None
