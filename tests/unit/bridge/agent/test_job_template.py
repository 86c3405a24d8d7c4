"""A template that does not fork, for whatever reason, costs a job time and nothing else. (`tests/e2e/test_spare.py`)"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl")

from tests.fakes.agent_client import Client, adopt_nothing, wait_for
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux adopts orphans")

# What the agent hears of a template, with its socket, and the words that say how this one behaves.
TEMPLATE = """
import os, socket, sys
control = socket.socket(fileno=0)
def say(text): os.write(2, text + b"\\n")
folder, ways = sys.argv[2], sys.argv[2].split("/")[-1]
open(os.path.join(folder, "template"), "w").write(str(os.getpid()))
if "prints" in ways: os.write(1, b"hello")
say(b'{"trouble": "it starts threads"}' if "trouble" in ways else b'{"trouble": ""}')
while control.recv(1 << 16):
    open(os.path.join(folder, "asked"), "a").write("x")
    if "refuses" in ways: say(b'{"pid": 0}')
    elif "ends" in ways: break
"""


@pytest.fixture(autouse=True)
def adopts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_nothing(monkeypatch)


class Jobs:
    """Sends jobs whose script leaves a note, to an agent with a template of this kind."""

    def __init__(self, client: Client, folder: Path, kind: str) -> None:
        self.client, self.folder, self.count = client, folder / kind, 0
        self.folder.mkdir()
        (folder / "template.py").write_text(TEMPLATE)
        # An agent runs programs of its own Python as forks.
        (folder / "python").symlink_to(sys.executable)
        argv = [str(folder / "python"), "-I", "-S", str(folder / "template.py"), "template", str(self.folder)]
        self.template = {"argv": argv, "alike": "x", "folder": str(self.folder)}

    def send(self) -> int:
        self.count += 1
        argv = ["touch", str(self.folder / f"ran-{self.count}")]
        log = str(self.folder / "log")
        self.client.ask(id=self.count, do="spawn", argv=argv, cwd=str(self.folder), log=log, template=self.template)
        return self.count

    def run(self) -> dict[str, Any]:
        number = self.send()
        said: list[dict[str, Any]] = []
        until(lambda: said.append(self.client.answer_of(number)) or said[-1].get("end"))
        return said[-1]

    def template_pid(self) -> int:
        path = self.folder / "template"
        return int(until(lambda: self.client.turns(1) or (path.exists() and path.read_text())))


@pytest.mark.parametrize("kind", ["silent", "refuses", "ends", "prints", "trouble"])
def test_a_job_that_is_not_forked_starts_as_a_program(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    wait_for(monkeypatch, "template answers", 0.1)
    jobs = Jobs(client, tmp_path, kind)
    ended = [jobs.run(), jobs.run()]
    pid = jobs.template_pid()
    if kind in ("prints", "trouble"):
        until(lambda: client.turns(1) or not _lives(pid))
    else:
        client.turns(50)

    ended += [jobs.run(), jobs.run()]

    assert [each["status"] for each in ended] == [0] * 4
    assert all((jobs.folder / f"ran-{number}").exists() for number in range(1, 5))
    assert (jobs.folder / "asked").exists() == (kind not in ("prints", "trouble"))


def test_one_that_is_not_used_ends(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(monkeypatch, "template is used", 3.0)
    jobs = Jobs(client, tmp_path, "refuses")
    # The machine may be busy for longer than that.
    until(lambda: jobs.run() and jobs.run() and client.turns(5) is None and (jobs.folder / "template").exists())
    pid = jobs.template_pid()

    until(lambda: client.turns(1) or not _lives(pid))


def test_a_job_that_is_cancelled_while_it_is_forked_does_not_start(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(monkeypatch, "template answers", 0.3)
    jobs = Jobs(client, tmp_path, "silent")
    jobs.run(), jobs.run()
    jobs.template_pid()
    client.turns(50)
    number = jobs.send()
    until(lambda: client.turns(1) or (jobs.folder / "asked").exists())

    client.ask(id=99, do="stop", target=number)

    assert client.answer_of(number)["ok"]
    assert not (jobs.folder / f"ran-{number}").exists()


def test_a_client_that_is_lost_ends_the_template_and_starts_what_it_has_not_forked(
    client: Client, tmp_path: Path
) -> None:
    jobs = Jobs(client, tmp_path, "silent")
    jobs.run(), jobs.run()
    pid = jobs.template_pid()
    client.turns(50)
    number = jobs.send()
    until(lambda: client.turns(1) or (jobs.folder / "asked").exists())

    client.agent.templates.close()

    until((jobs.folder / f"ran-{number}").exists)
    until(lambda: client.turns(1) or not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
