"""Files that a job keeps open continue after their server has forgotten them as they are open, as after a failover."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.supervisor.attempt import Attempt, read_events
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.output import Pump
from tests.unit.bridge.supervisor.test_job_files import lay

Forget = Callable[..., None]


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forget:
    """Let each of these files have another handle from now on, and the one that is open be stale."""

    def forgets(*paths: str) -> None:
        stale = {os.stat(path).st_ino for path in paths}

        def refusing(real: Any) -> Any:
            def wrote(fd: int, *more: Any) -> int:
                if os.fstat(fd).st_ino in stale:
                    raise OSError(errno.ESTALE, "Stale file handle")
                return int(real(fd, *more))

            return wrote

        for path in paths:
            (tmp_path / "copy").write_bytes(Path(path).read_bytes())
            (tmp_path / "copy").replace(path)
        for name in ("pwrite", "write"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name)))

    return forgets


def test_heartbeat_and_events_of_an_attempt(tmp_path: Path, forget: Forget) -> None:
    attempt = Attempt(JobFolder(str(lay(tmp_path))), 1)
    attempt.prepare()
    forget(attempt.path("heartbeat"), attempt.path("events.jsonl"))

    attempt.beat()
    attempt.beat()
    attempt.event("running")

    assert Path(attempt.path("heartbeat")).read_bytes() == b"00000002"
    assert [each["event"] for each in read_events(attempt)] == ["running"]


def test_output(tmp_path: Path, forget: Forget) -> None:
    reads, writes = os.pipe()
    pump = Pump(reads, str(tmp_path / "stdout"), 1000)
    os.write(writes, b"before ")
    pump.move()
    forget(str(tmp_path / "stdout"))

    os.write(writes, b"after")
    os.close(writes)
    pump.drain()

    assert pump.close() is None and (tmp_path / "stdout").read_bytes() == b"before after"
    pump.forget()
