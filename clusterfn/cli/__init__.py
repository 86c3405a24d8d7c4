"""The command `clusterfn`: what a person, or a script in another language, does with jobs and hosts.

`parser` says which commands there are, a module named like a command does it.
Data goes to stdout, everything else to stderr. Exit codes: 0, 1 (job or host failed), 2 (usage,
configuration), 130 (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from clusterfn.cli.parser import make_parser
from clusterfn.errors import ClusterfnError, ConfigError

__all__ = ["Complaint", "FileFailed", "describe_error", "main"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `clusterfn`; None takes them from the command line.

    Returns:
        The exit code.
    """
    try:
        given = make_parser().read(argv)
    except SystemExit as leaving:  # argparse has printed its help, or what was wrong
        return int(leaving.code or 0)
    loud = given.verbose or os.environ.get("CLUSTERFN_DEBUG", "") not in ("", "0")
    try:
        code: int = given.run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:  # a job may also have raised it
        failed = _print_error(error, loud)
        if failed is not None:
            return failed
        # `clusterfn jobs | head` has read enough: let the flush at exit raise nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the command's outermost frame: what it does not know it raises
        failed = _print_error(error, loud)
        if failed is None:  # not foreseen: a defect of ours, which its traceback shows best
            raise
        return failed


def _print_error(error: BaseException, loud: bool) -> int | None:
    """Print what went wrong to stderr; return the exit code, or None for an error that nothing foresaw."""
    import logging  # late, as below: they take time, and `clusterfn --help` is fast

    from clusterfn.calls import console

    complaint = describe_error(error, loud)
    if complaint is None:
        return None
    console.say(f"{complaint.text}\n", logging.ERROR)
    return complaint.code


class FileFailed(Exception):
    """The user's file cannot be imported; the text is Python's own complaint, from the user's lines on."""


@dataclass(frozen=True)
class Complaint:
    """What to print to stderr, and the exit code."""

    text: str
    code: int


def describe_error(error: BaseException, loud: bool = False) -> Complaint | None:
    """Return how an error reads on the command line; None for an unforeseen one.

    Args:
        loud: Whether our own traceback is wanted before it.
    """
    if isinstance(error, FileFailed):
        text, code = str(error), USAGE
    elif isinstance(error, ClusterfnError):
        text, code = f"{type(error).__name__}: {error}", USAGE if isinstance(error, ConfigError) else FAILED
    elif remote := _remote_traceback(error):
        # The traceback as the host wrote it, and the exception as it arrived where that says more.
        text, code = remote.strip('"').strip("\n"), FAILED
        arrived = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        text = text if text.endswith(arrived) else f"{text}\n{arrived}"
    else:
        return None
    if loud:
        ours = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = f"{ours}\n{text}"
    return Complaint(text, code)


def _remote_traceback(error: BaseException) -> str | None:
    """Return what the host told of an exception that the function itself raised; None if it came from no job."""
    from clusterfn.calls.outcome import RemoteTraceback

    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        if isinstance(following, RemoteTraceback):
            return following.text
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return None
