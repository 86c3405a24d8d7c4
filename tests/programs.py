"""Programs that tests write or start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def main(words: Sequence[str]) -> int:
    """Run the command `clusterfn` as it is installed, but in the process of the test; its exit status."""
    (command,) = (entry for entry in metadata.distribution("clusterfn").entry_points if entry.name == "clusterfn")
    status: int = command.load()(words)
    return status


def python_program(path: Path, source: str, *flags: str) -> Path:
    """Write a program in Python, run by the interpreter of the tests, and return its path.

    Its first line names /bin/sh, as a line with `#!` takes no interpreter whose path has a blank. For Python the second
    line is a string.
    """
    words = " ".join(f'"{word}"' for word in ("exec", sys.executable, *flags, "$0", "$@"))
    path.write_text(f"#!/bin/sh\n{words}\n{source}")
    path.chmod(0o755)
    return path
