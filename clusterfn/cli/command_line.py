"""Run one command to its exit code, and report what went wrong: as text on stderr, with `--json` as JSON on stdout.

How an error reads is decided here for all commands: its text, its facts for `--json`, and the exit code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterfn.bridge.layout import DISK_ERRORS
from clusterfn.cli.argument_parser import WrongUsage
from clusterfn.cli.parser import make_parser
from clusterfn.config.notes import be_verbose, is_verbose
from clusterfn.errors import ClusterfnError, ConfigError

# The exit code by which shells report Ctrl-C: 128 and the number of SIGINT.
INTERRUPTED = 130
_FAILED = 1
_USAGE = 2
_FACTS = ("host", "job", "stage", "evidence", "hint", "log")


def run_command(words: Sequence[str]) -> int:
    """Run the command that these words name; return its exit code."""
    _open_closed_streams()
    # The parser may reject the words. Until it has run, any `--json` asks for errors as JSON.
    as_json = "--json" in words
    try:
        args = make_parser().read(words)
        if args.verbose:
            be_verbose()
        # A `--json` among the words may be an argument of the user's script. The parser knows which it is.
        as_json = bool(getattr(args, "json", False))
        code: int = args.run(args)
        # Flush here, where the handlers below still catch the error of a closed pipe.
        sys.stdout.flush()
        return code
    except WrongUsage as error:
        facts = {"type": "UsageError", "message": error.message}
        return _print_complaint(Complaint(f"{error.usage}{error}", _USAGE, facts), as_json)
    except SystemExit as leaving:
        # argparse has printed its help, and exits.
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        # A function of a job may also have raised this, which is then an ordinary error of the job.
        complaint = describe_error(error, is_verbose())
        if complaint is not None:
            return _print_complaint(complaint, as_json)
        # In `clusterfn jobs | head`, `head` has read enough.
        _print_nothing_more()
        return 0
    except Exception as error:
        # This is the command's outermost frame, so it must turn every foreseen error into an exit code.
        complaint = describe_error(error, is_verbose())
        if complaint is None and isinstance(error, OSError) and error.errno in (*DISK_ERRORS, errno.EFBIG):
            where = "" if error.filename else ", perhaps the one to which stdout goes"
            why = f"a disk of this machine is full{where}" if error.errno != errno.EFBIG else "see `ulimit -f` here"
            text = f"clusterfn: {error}: {why}"
            complaint = Complaint(text, _FAILED, error_facts(error))
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            _print_nothing_more()
        if complaint is None:
            # No code foresees this error, so it is a defect of clusterfn. Its traceback shows it best.
            raise
        return _print_complaint(complaint, as_json)


def _open_closed_streams() -> None:
    """Let a stream lead nowhere that was closed before we started, as by `>&-`: Python has None in its place."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _print_nothing_more() -> None:
    """Redirect stdout, because Python's flush at exit would fail as ours did."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_complaint(complaint: Complaint, as_json: bool) -> int:
    """Print what went wrong; return the exit code."""
    # Imported late, as below, because these imports take time, and `clusterfn --help` must be fast.
    import logging

    from clusterfn.display import console

    console.say(f"{complaint.text}\n", logging.ERROR)
    if as_json:
        try:
            print(console.as_json({"error": {**complaint.facts, "exit_code": complaint.code}}), flush=True)
        except OSError:
            # The text is on stderr already.
            _print_nothing_more()
    return complaint.code


class FileFailed(Exception):
    """The user's file cannot be imported; the text is Python's own complaint, from the user's lines on."""


@dataclass(frozen=True)
class Complaint:
    """What to print to stderr, the exit code, and the same as facts for `--json`."""

    text: str
    code: int
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)


def describe_error(error: BaseException, loud: bool = False) -> Complaint | None:
    """Return how an error reads on the command line; None for an unforeseen one.

    Args:
        loud: Whether to show our own traceback before it.
    """
    facts = error_facts(error)
    if isinstance(error, FileFailed):
        text = str(error)
        code = _USAGE
    elif isinstance(error, ClusterfnError):
        text = f"{type(error).__name__}: {error}"
        code = _USAGE if isinstance(error, ConfigError) else getattr(error, "exit_status", _FAILED)
    elif remote := facts.get("traceback"):
        # Show the traceback as the host wrote it. Add the exception as it arrived if that says more.
        arrived = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        text = remote if remote.endswith(arrived) else f"{remote}\n{arrived}"
        code = _FAILED
    else:
        return None
    if loud:
        own_traceback = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = f"{own_traceback}\n{text}"
    return Complaint(text, code, facts)


def error_facts(error: BaseException) -> dict[str, Any]:
    """Return what `--json` shows of an error: type, message, and each fact that it has."""
    if isinstance(error, ClusterfnError):
        details = {name: getattr(error, name) for name in _FACTS}
        return {"type": type(error).__name__, "message": str(error.message), **{k: v for k, v in details.items() if v}}
    facts = {"type": type(error).__name__, "message": str(error)}
    remote = _remote_traceback(error)
    return facts if remote is None else {**facts, "traceback": remote.strip('"').strip("\n")}


def _remote_traceback(error: BaseException) -> str | None:
    """Return the traceback from the host for what the function itself raised; None if it came from no job."""
    # Imported late, because it takes time, and `clusterfn --help` must be fast.
    from clusterfn.calls.outcome_errors import RemoteTraceback

    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        if isinstance(following, RemoteTraceback):
            return following.text
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return None
