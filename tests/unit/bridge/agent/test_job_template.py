"""A template that does not fork, for whatever reason, costs a job time and nothing else. (`tests/e2e/test_spare.py`)"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl")

from tests.fakes.agent_client import Client, wait_for
from tests.waiting import WAIT_S, until

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
while control.recvmsg(1 << 16, socket.CMSG_SPACE(4))[0]:
    open(os.path.join(folder, "asked"), "a").write("x")
    if "ends" in ways: break
    if "answers" in ways: say(b'{"pid": 1}')
"""


class Jobs:
    """Asks an agent that has a template of this kind for the keepers of jobs."""

    def __init__(self, client: Client, folder: Path, kind: str) -> None:
        self.client, self.folder = client, folder / kind
        self.folder.mkdir()
        (folder / "template.py").write_text(TEMPLATE)
        # An agent runs programs of its own Python as forks.
        (folder / "python").symlink_to(sys.executable)
        argv = [str(folder / "python"), "-I", "-S", str(folder / "template.py"), "template", str(self.folder)]
        self.header = {"argv": ["sh"], "template": {"argv": argv, "alike": "x", "folder": str(self.folder)}}

    def ask(self) -> int:
        return self.client.agent.templates.keeper_for(self.header)

    def keeper(self) -> int:
        """The socket of one, once the agent has heard that the template is ready."""
        return until(lambda: self.client.turns(1) or max(self.ask(), 0))

    def template_pid(self) -> int:
        path = self.folder / "template"
        return int(until(lambda: self.client.turns(1) or (path.exists() and path.read_text())))


@pytest.fixture(autouse=True)
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that should end for another cause does not end because nobody uses it."""
    wait_for(monkeypatch, "template is used", 600.0)


@pytest.mark.parametrize("kind", ["prints", "trouble"])
def test_one_that_is_unfit_ends_and_is_asked_for_nothing(client: Client, tmp_path, kind: str):
    jobs = Jobs(client, tmp_path, kind)
    assert [jobs.ask(), jobs.ask()] == [-1, -1], "the second starts it"
    pid = jobs.template_pid()

    until(lambda: client.turns(1) or not _lives(pid))

    assert [jobs.ask() for _ in range(3)] == [-1] * 3
    assert not (jobs.folder / "asked").exists()


@pytest.mark.parametrize("kind", ["silent", "ends"])
def test_one_that_does_not_answer_ends_and_its_supervisor_hears_of_it(client: Client, tmp_path, monkeypatch, kind: str):
    wait_for(monkeypatch, "template answers", 0.1)
    jobs = Jobs(client, tmp_path, kind)
    jobs.ask(), jobs.ask()
    pid = jobs.template_pid()

    keeper = jobs.keeper()

    until(lambda: client.turns(1) or not _lives(pid))
    assert select.select([keeper], [], [], WAIT_S)[0] and os.read(keeper, 1) == b""
    os.close(keeper)


def test_one_that_is_not_used_ends(client: Client, tmp_path, monkeypatch):
    wait_for(monkeypatch, "template is used", 1.0)
    jobs = Jobs(client, tmp_path, "answers")
    until(lambda: jobs.ask() and jobs.ask() and client.turns(5) is None and (jobs.folder / "template").exists())
    pid = jobs.template_pid()

    until(lambda: client.turns(1) or not _lives(pid))


def test_a_client_that_is_lost_ends_it(client: Client, tmp_path):
    jobs = Jobs(client, tmp_path, "answers")
    jobs.ask(), jobs.ask()
    pid = jobs.template_pid()
    os.close(jobs.keeper())

    client.agent.templates.close()

    until(lambda: client.turns(1) or not _lives(pid))
    assert jobs.ask() == -1


def test_a_job_whose_bridge_is_not_loaded_or_that_would_hold_much_memory_starts_by_its_script(client: Client, tmp_path):
    header: dict[str, Any] = Jobs(client, tmp_path, "answers").header
    header["template"]["argv"][0] = sys.executable

    assert client.agent.forked_job(header) is None
    client.agent.out.size = 5 << 20
    assert client.agent.forked_job(header) is None
    client.agent.out.size = 0


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
