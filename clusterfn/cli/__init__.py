"""The command `clusterfn`: what a person, or a script in another language, does with jobs and hosts.

`parser` says which commands there are, a module named like a command does it, and `error_text` says how an error reads.
Data goes to stdout, everything else to stderr. Exit codes: 0, 1 (job or host failed), 2 (usage,
configuration), 130 (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from clusterfn.cli.parser import make_parser

__all__ = ["main"]

_INTERRUPTED = 130


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
        return _INTERRUPTED
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
    """Say what went wrong, on stderr; the exit code, or None for an error that nothing foresaw."""
    from clusterfn.calls import job_display  # imported here, as both take time and `clusterfn --help` needs neither
    from clusterfn.cli import error_text

    told = error_text.of(error, loud)
    if told is None:
        return None
    job_display.say(f"{told.text}\n")
    return told.code
