"""A cable is pulled while a user's script waits, in a terminal or with its output in a log: what the script shows."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from tests.e2e.test_cable import LOST, Far, far, told  # noqa: F401 - a fixture
from tests.waiting import until

pytestmark = pytest.mark.lab

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
        """Its exit status, once all is read that it wrote before."""
        status, seen = self.process.poll(), None
        while seen != (seen := dict(self.text)):
            self.read()
        return status


@pytest.mark.parametrize("terminal", [pytest.param(True, marks=pytest.mark.long), False], ids=["terminal", "log"])
def test_who_waits_is_informed_and_each_line_is_shown_once(far: Far, tmp_path: Path, terminal: bool) -> None:  # noqa: F811
    runs = far.root / "runs-script"
    path = tmp_path / "script.py"
    path.write_text(f"{SCRIPT}\nspeak({str(runs)!r}, 60, 0.05)\n")
    with Script(path, terminal) as script:
        until(lambda: script.read() or b"line 5\r" in script.text[script.end])
        far.cable.down()
        far.cable.cut()
        until(script.says(LOST))
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


def test_a_script_may_end_though_its_cable_is_pulled(far: Far, tmp_path: Path) -> None:  # noqa: F811
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
        until(lambda: script.ended() is not None)
        assert not LOST.search(script.shown), "a link counts as dead after 45 s, which must not be waited for"
        job_id = script.text[script.end].decode().strip()
        assert script.process.returncode == 0
        assert f"keeps running on far: {job_id[:4]}" in script.shown

    Path(f"{runs}-gate").touch()
    assert clusterfn.attach(job_id, "near").result(150) == 20
