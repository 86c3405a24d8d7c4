"""What fetches the files of a job from a host, which is the test's own."""

from __future__ import annotations

import io
import linecache
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.agent.files import glob_pattern
from clusterfn.hosts import transfer
from clusterfn.hosts.remote_files import CheckpointFolder, fetch


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that an agent lists for this pattern."""
    return [name for name in names if glob_pattern(pattern).match(name)]


def download(host: Any, pattern: Any, to: Path) -> list[Path]:
    """Fetch files of the host's folder /work, as `Job.download` does."""
    return fetch(host, "/work", pattern, to)


def checkpoint(host: Any) -> CheckpointFolder:
    """The folder that `Job.checkpoint` gives."""
    return CheckpointFolder(host, "/checkpoint", "job.checkpoint")


def write_to(patch: pytest.MonkeyPatch, disk: Callable[..., io.BytesIO]) -> None:
    """Let fetched files be written to this disk."""
    patch.setattr(transfer, "open", disk, raising=False)


def interrupted_at(number):
    """Let Ctrl-C come before that line of the module; it is called for each line."""
    left = [number]

    def trace(frame, event, _):
        if frame.f_code.co_filename != transfer.__file__:
            return None
        line = linecache.getline(transfer.__file__, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with self._lock"):  # the lock is free after it, really
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return trace

    return trace
