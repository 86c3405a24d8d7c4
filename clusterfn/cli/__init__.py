"""The command `clusterfn`: what a person, or a script in another language, does with jobs and hosts.

`parser` says which commands there are; `calls`, `jobs`, `check`, `trust` and `demo` do them; `complaint` is how an
error reads. Data goes to stdout, everything else to stderr. Exit codes: 0, 1 (job or host failed), 2 (usage,
configuration), 130 (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from clusterfn.calls import job_display
from clusterfn.cli import complaint
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
    except BrokenPipeError as error:
        return _reader_left(error, loud)
    except Exception as error:  # the command's outermost frame: what it does not know it raises
        told = complaint.of(error, loud)
        if told is None:  # not foreseen: a defect of ours, which its traceback shows best
            raise
        job_display.say(f"{told.text}\n")
        return told.code


def _reader_left(error: BrokenPipeError, loud: bool) -> int:
    """`clusterfn jobs | head` has seen enough; a job may also have raised this error."""
    told = complaint.of(error, loud)
    if told is not None:
        job_display.say(f"{told.text}\n")
        return told.code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit has nobody to offend
    return 0
