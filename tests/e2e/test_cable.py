"""A cable is pulled while jobs run: nothing is lost, nothing runs twice, and whoever waits is told.

The host is behind a cable of its own (tests/lab/cable.py); `near` is another way to the same jobs.
"""

from __future__ import annotations

import concurrent.futures
import os
import pty
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterfn.calls import attach, call
from clusterfn.calls.job import entry_of
from clusterfn.config.options import parse_options
from tests.e2e.conftest import MINOR
from tests.lab import Cable
from tests.waiting import until

pytestmark = pytest.mark.lab

LOST = re.compile(r"no connection to far since \d\d:\d\d:\d\d, reconnecting: \w+")


def speaker(runs: Path, lines: int, every: float, gate: str = "") -> Callable[[], int]:
    """A function that notes on the host's disk that it runs, numbers its lines, and waits for the gate, a file."""
    place = str(runs)

    def speak() -> int:
        import os
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
        self.job = call.send_call(prepared, live=True)[0]
        entry_of(self.job).listen(self._hear)
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
        return entry_of(self.job).tracker.session.connection

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
    time.sleep(5)
    assert not second.runs.exists()
    far.cable.up()

    first.is_whole()
    second.is_whole()
    assert first.troubles == [] and first.connection.facts.pid == agent


@pytest.mark.long
@pytest.mark.fault("28")
def test_after_a_minute_without_a_cable_everything_is_there(far: Far) -> None:
    """One job ends meanwhile, one goes on, one is submitted before anybody knows, one after."""
    ends, goes_on = far.talk(200, 0.1), far.talk(900, 0.1)
    until(lambda: len(ends.output) > 200 and len(goes_on.output) > 200)
    far.cable.down()
    began = time.monotonic()
    unknowing = far.talk(3, 0.0)
    until(lambda: goes_on.troubles)
    assert 40 < time.monotonic() - began < 90
    assert LOST.search(goes_on.job.status), goes_on.job.status
    knowing = far.talk(3, 0.0)
    assert knowing.job.status == f"PENDING ({goes_on.job.reason})"
    assert len(ends.outcomes) == 1 and not ends.job.done()
    time.sleep(max(0.0, 60 - (time.monotonic() - began)))
    far.cable.up()

    for talk in (ends, goes_on, unknowing, knowing):
        talk.is_whole()
    assert ends.troubles[-1] == goes_on.troubles[-1] == ""
    assert goes_on.job.status == "RETURNED"


def test_a_job_that_ends_behind_a_cable_that_never_comes_back_is_found_by_another_way(far: Far) -> None:
    """And whoever waited may stop waiting."""
    talk = far.talk(20, 0.1, waits=True)
    until(lambda: len(talk.output) > 20)
    far.cable.down()
    Path(talk.gate).touch()
    until(lambda: talk.outcomes)
    with pytest.raises(concurrent.futures.TimeoutError):
        talk.job.result(timeout=0.5)
    found = attach.attach(talk.job.id, "near")

    assert found.result(150) == 20 and found.logs() == told(20)
    assert talk.runs.read_text().split() == [f"{talk.job.id}/1"]
    talk.connection.close()


SCRIPT = """
import os, sys
from clusterfn import cluster

@cluster(host="far")
def speak(runs, lines, every):
    import os, time
    with open(runs, "a") as file:
        file.write(os.environ["CLUSTERFN_JOB"] + "\\n")
    deadline = time.monotonic() + 200  # longer than any test waits
    for number in range(lines):
        print("line", number, flush=True)
        time.sleep(every)
        while number == lines // 2 and not os.path.exists(runs + "-gate") and time.monotonic() < deadline:
            time.sleep(0.02)
    return lines

"""


@dataclass
class Script:
    """A user's script, in a terminal or with its output in a log."""

    path: Path
    terminal: bool

    def __enter__(self) -> Script:
        self.end, theirs = pty.openpty()
        outs = {"stdout": theirs, "stderr": theirs} if self.terminal else {"stdout": theirs, "stderr": subprocess.PIPE}
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        self.process = subprocess.Popen([sys.executable, self.path], stdin=subprocess.PIPE, env=env, **outs)
        os.close(theirs)
        self.log = None if self.terminal else self.process.stderr.fileno()
        self.text = {self.end: b"", self.log: b""}
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self.end)

    def read(self, within_s: float = 0.02) -> None:
        """Whatever stands there; a terminal that nobody writes to any more gives an error on Linux."""
        for fd in select.select([each for each in self.text if each is not None], [], [], within_s)[0]:
            try:
                self.text[fd] += os.read(fd, 65536)
            except OSError:
                time.sleep(within_s)

    def says(self, pattern: str | re.Pattern[str]) -> Callable[[], Any]:
        def look() -> Any:
            self.read()
            return re.search(pattern, self.shown)

        return look

    @property
    def shown(self) -> str:
        """What stands where clusterfn speaks."""
        return self.text[self.end if self.terminal else self.log].decode(errors="replace")

    def ended(self) -> int | None:
        self.read()
        return self.process.poll()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_who_waits_is_informed_and_each_line_is_shown_once(far: Far, tmp_path: Path, terminal: bool) -> None:
    runs = far.root / "runs-script"
    path = tmp_path / "script.py"
    path.write_text(f"{SCRIPT}\nspeak({str(runs)!r}, 60, 0.05)\n")
    with Script(path, terminal) as script:
        until(lambda: script.read() or b"line 5\r" in script.text[script.end])
        far.cable.down()
        far.cable.cut()
        began = time.monotonic()
        until(script.says(LOST))
        assert time.monotonic() - began < 40  # a link that only falls silent counts as dead after 45 s
        Path(f"{runs}-gate").touch()
        far.cable.up()
        until(lambda: script.ended() is not None)
        assert script.process.returncode == 0, script.shown
        printed = script.text[script.end].decode().replace("\r\n", "\n")
        shown = script.shown.replace("\r\n", "\n")
    if terminal:
        assert re.search(r"\r\x1b\[K\w{4} running \d\d:\d\d \(no connection to far since [^\n]*\r\x1b\[K", shown), shown
        printed = re.sub(r"\r\x1b\[K[^\n\r]*(?=\r\x1b\[K)|\r\x1b\[K", "", printed).partition("\n")[2]
    else:
        assert re.search(r"clusterfn: \w{4} the connection to far is back\n", shown), shown
        assert len(LOST.findall(shown)) == 1
    assert printed == told(60)
    assert len(runs.read_text().split()) == 1


def test_a_script_may_end_though_its_cable_is_pulled(far: Far, tmp_path: Path) -> None:
    """It says how its job is found again."""
    runs = far.root / "runs-script"
    path = tmp_path / "script.py"
    path.write_text(
        f"{SCRIPT}\nimport time\njob = speak.submit({str(runs)!r}, 20, 0.05)\n"
        "while not job.running(): time.sleep(0.02)\nprint(job.id, flush=True)\nsys.stdin.read()\n"
    )
    with Script(path, terminal=False) as script:
        until(lambda: script.read() or b"\n" in script.text[script.end])
        far.cable.down()
        script.process.stdin.close()
        began = time.monotonic()
        until(lambda: script.ended() is not None)
        assert time.monotonic() - began < 40  # after 45 s the link counts as dead, which must not be waited for
        job_id = script.text[script.end].decode().strip()
        assert script.process.returncode == 0
        assert f"keeps running on far: {job_id[:4]}" in script.shown

    Path(f"{runs}-gate").touch()
    assert attach.attach(job_id, "near").result(150) == 20
