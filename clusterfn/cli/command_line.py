"""Run one command to its exit code, and report what went wrong: as text on stderr, with `--json` as JSON on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from clusterfn.cli.argument_parser import WrongUsage
from clusterfn.cli.complaint import USAGE, Complaint, describe_error
from clusterfn.cli.parser import make_parser
from clusterfn.config.quiet import be_verbose, is_verbose

# The exit code by which shells report Ctrl-C: 128 and the number of SIGINT.
INTERRUPTED = 130


def run_command(words: Sequence[str]) -> int:
    """Run the command that these words name; return its exit code."""
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
        return _print_complaint(Complaint(f"{error.usage}{error}", USAGE, facts), as_json)
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
        # In `clusterfn jobs | head`, `head` has read enough. Redirect
        # stdout, because Python's flush at exit would fail, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # This is the command's outermost frame, so it must turn every foreseen error into an exit code.
        complaint = describe_error(error, is_verbose())
        if complaint is None:
            # No code foresees this error, so it is a defect of clusterfn. Its traceback shows it best.
            raise
        return _print_complaint(complaint, as_json)


def _print_complaint(complaint: Complaint, as_json: bool) -> int:
    """Print what went wrong; return the exit code."""
    # Imported late, as below, because these imports take time, and `clusterfn --help` must be fast.
    import logging

    from clusterfn.cli import screen
    from clusterfn.display import console

    console.say(f"{complaint.text}\n", logging.ERROR)
    if as_json:
        print(screen.as_json({"error": {**complaint.facts, "exit_code": complaint.code}}), flush=True)
    return complaint.code
