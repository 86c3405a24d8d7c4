"""A cable is pulled while jobs run: nothing is lost, nothing runs twice, and whoever waits is told.

The host is behind a cable of its own (tests/lab/cable.py); `near` is another way to the same jobs.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn.calls import call
from clusterfn.calls.job import run_of
from clusterfn.config.options import parse_options
from tests.e2e.conftest import MINOR
from tests.lab import Cable
from tests.waiting import stays, until

pytestmark = pytest.mark.lab

LOST = re.compile(r"no connection to far since \d\d:\d\d:\d\d, reconnecting: \w+")


def speaker(runs: Path, lines: int, every: float, gate: str = "") -> Callable[[], int]:
    """A function that notes on the host's disk that it runs, numbers its lines, and waits for the gate, a file."""
    place = str(runs)

    def speak() -> int:
        import time

        fd = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, os.environ["CLUSTERFN_JOB"].encode() + b"\n")
        os.close(fd)
        for number in range(lines):
            print("line", number, flush=True)
            time.sleep(every)
        deadline = time.monotonic() + 200  # longer than any test waits
        while gate and not os.path.exists(gate) and time.monotonic() < deadline:
            time.sleep(0.02)
        return lines

    return speak


@dataclass
class Talk:
    """A job whose output is followed, with what is told of the connection meanwhile."""

    runs: Path
    lines: int
    job: Any = None
    output: bytearray = field(default_factory=bytearray)
    troubles: list[str] = field(default_factory=list)

    def begin(self, every: float, waits: bool = False) -> Talk:
        options = parse_options({"host": "far"})
        prepared = call.prepare(speaker(self.runs, self.lines, every, self.gate if waits else ""), (), {}, options)
        self.job = call.send_call(prepared, live=True)
        run_of(self.job).listen(self._hear)
        return self

    def _hear(self, kind: str, what: Any) -> None:
        if kind == "stdout":
            self.output += what
        elif kind == "connection":
            self.troubles.append(what)

    @property
    def gate(self) -> str:
        return f"{self.runs}-gate"

    @property
    def connection(self) -> Any:
        return run_of(self.job).at.connection

    @property
    def outcomes(self) -> list[Path]:
        return list((self.runs.parent / "jobs" / self.job.id).glob("attempts/*/outcome.json"))

    def is_whole(self) -> None:
        """Its value, every line once and in order, and one run."""
        assert self.job.result(150) == self.lines
        until(lambda: self.output.count(b"\n") >= self.lines)
        assert self.output.decode() == told(self.lines)
        assert self.runs.read_text().split() == [f"{self.job.id}/1"] and len(self.outcomes) == 1


def told(lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(lines))


@dataclass
class Far:
    """The host behind the cable. `root` lies on this machine too."""

    cable: Cable
    root: Path

    def talk(self, lines: int, every: float, waits: bool = False) -> Talk:
        return Talk(self.root / f"runs-{secrets.token_hex(4)}", lines).begin(every, waits)


@pytest.fixture
def far(lab: Any, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with lab.cable() as cable:
        lines = f"    ssh_config: {lab.ssh_config}\n    scheduler: bare\n    limits: {{cores: 64}}\n"
        lines += f"    root: {lab_root}\n"
        lines += f'    environment: "python:{lab.python(MINOR)}"\n'
        hosts = {"far": cable.alias, "near": "py36-bash"}
        config = tmp_path / "clusterfn.yml"
        config.write_text("hosts:\n" + "".join(f"  {key}:\n    address: {to}\n{lines}" for key, to in hosts.items()))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
        yield Far(cable, lab_root)


def test_five_seconds_without_a_cable_are_not_even_noticed(far: Far) -> None:
    """What is submitted meanwhile starts once the cable is back."""
    first = far.talk(120, 0.05)
    until(lambda: len(first.output) > 200)
    agent = first.connection.facts.pid
    far.cable.down()
    second = far.talk(3, 0.0)
    stays(lambda: not second.runs.exists(), 5)
    far.cable.up()

    first.is_whole()
    second.is_whole()
    assert first.troubles == [] and first.connection.facts.pid == agent


def test_a_job_that_ends_behind_a_cable_that_never_comes_back_is_found_by_another_way(far: Far) -> None:
    """And whoever waited may stop waiting."""
    talk = far.talk(20, 0.1, waits=True)
    until(lambda: len(talk.output) > 20)
    far.cable.down()
    Path(talk.gate).touch()
    until(lambda: talk.outcomes)
    with pytest.raises(concurrent.futures.TimeoutError):
        talk.job.result(timeout=0.5)
    found = clusterfn.attach(talk.job.id, "near")

    assert found.result(150) == 20 and found.logs() == told(20)
    assert talk.runs.read_text().split() == [f"{talk.job.id}/1"]
    talk.connection.close()
