"""Run a program that may take long: report now and then that it runs, and never leave it behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 15.0  # between two reports


class Ended(NamedTuple):
    """How a program ended, and what it wrote."""

    status: int
    out: str
    err: str


def run(
    argv: Sequence[str],
    report: Callable[[float], None],
    *,
    given: str = "",
    folder: Path | None = None,
    variables: Mapping[str, str],
) -> Ended:
    """Run a program to its end.

    Args:
        report: Called every 15 s with the seconds that it has run.
    """
    began = time.monotonic()
    with subprocess.Popen(
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
        env=variables, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            while True:
                try:
                    out, err = process.communicate(given or None, timeout=PATIENCE_S)
                    return Ended(process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    given = ""  # is on its way
                    report(time.monotonic() - began)
        except BaseException:  # Ctrl-C too: it would go on without us
            process.kill()
            raise
