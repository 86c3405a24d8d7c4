"""How an error reads on the command line: its text, its facts for `--json`, and the exit code."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterfn.errors import ClusterfnError, ConfigError

FAILED, USAGE = 1, 2
_FACTS = ("host", "job", "stage", "evidence", "hint", "log")


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
        text, code = str(error), USAGE
    elif isinstance(error, ClusterfnError):
        text = f"{type(error).__name__}: {error}"
        code = USAGE if isinstance(error, ConfigError) else getattr(error, "exit_status", FAILED)
    elif remote := facts.get("traceback"):
        # Show the traceback as the host wrote it. Add the exception as it arrived if that says more.
        arrived = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        text, code = remote if remote.endswith(arrived) else f"{remote}\n{arrived}", FAILED
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
