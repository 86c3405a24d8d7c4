"""Programs that tests write or start."""

from __future__ import annotations

import sys
from pathlib import Path

from clusterfn.cli import main as main  # the command `clusterfn`, in the process of the test


def python_program(path: Path, source: str, *flags: str) -> Path:
    """Write a program in Python, run by the interpreter of the tests, and return its path.

    Its first line names /bin/sh, as a line with `#!` takes no interpreter whose path has a blank. For Python the second
    line is a string.
    """
    words = " ".join(f'"{word}"' for word in ("exec", sys.executable, *flags, "$0", "$@"))
    path.write_text(f"#!/bin/sh\n{words}\n{source}")
    path.chmod(0o755)
    return path
