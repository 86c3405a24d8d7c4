"""The command `clusterfn`: what a person, or a script in another language, does with jobs and hosts.

`parser` lists the commands, and names the function that carries each one out. Data goes to stdout, everything
else to stderr. Exit codes: 0, 1 (job or host failed), 2 (usage, configuration), 130 (Ctrl-C).
"""

from __future__ import annotations

import sys

from clusterfn import __version__

# Not imported from `typing`, which would be most of what `clusterfn --version` loads.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `clusterfn`; None takes them from the command line.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words == ["--version"]:
        # Programs ask for the version at every start, so answer without loading anything else.
        print(f"clusterfn {__version__}")
        return 0
    from clusterfn.cli.command_line import run_command

    return run_command(words)
