"""Three accounts of one GPU server send 500, 50 and 1 jobs: who starts when, by what their journals say."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MINOR, REPOSITORY, give_to
from tests.lab import Lab, OwnBox
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

CARDS, LENGTH_S = 4, 5.0
SENDS = """
import sys, time
from clusterfn import cluster

def nap(seconds):
    time.sleep(seconds)

nap = cluster(host=sys.argv[1], gpus=1)(nap)
jobs = [nap.submit(float(sys.argv[3])) for _ in range(int(sys.argv[2]))]
print("sent", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Turn:
    """A job that has begun; until: None while it runs."""

    user: str
    since: float
    until: float | None


class Sender:
    """One account, its root on the server, and the programs that it has started.

    Attributes:
        argv: Starts its interpreter, where it may be.
        host: The server's name for it.
    """

    def __init__(self, account: str, root: Path, argv: list[str], host: str, env: dict[str, str]) -> None:
        self.account, self.root, self._argv, self._host, self._env = account, root, argv, host, env
        self._programs: list[subprocess.Popen[str]] = []

    def send(self, count: int, seconds: float = LENGTH_S) -> None:
        """Start a program that submits so many jobs."""
        argv = [*self._argv, "-c", SENDS, self._host, str(count), str(seconds)]
        if argv[0] == "ssh":  # its words go through a shell
            argv[-4] = f"'{SENDS}'"
        pipe = subprocess.PIPE
        env = {**os.environ, **self._env}
        self._programs.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env))

    def sent(self) -> None:
        """Wait until all are submitted."""
        for program in self._programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "sent\n"

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()

    def tickets(self) -> int:
        return len(list(self.root.glob("machines/*/queue/*")))

    def events(self) -> list[dict[str, Any]]:
        """The journal."""
        texts = [path.read_text() for path in self.root.glob("machines/*/holds.jsonl")]
        return [json.loads(line) for text in texts for line in text.splitlines(True) if line.endswith("\n")]

    def waited_s(self) -> float:
        """How long its last job has been in the queue."""
        job = self.events()[-1]["job"]
        times = {line["event"]: line["t"] for line in self.events() if line["job"] == job}
        return float(times["taken"] - times.get("ticket", times["taken"]))

    def run_one(self) -> float:
        """Send one job, and wait for its end; how long it was in the queue."""
        before = len(self.turns())
        self.send(1)
        until(lambda: len(self.turns()) > before and self.turns()[-1].until)
        return self.waited_s()

    def turns(self) -> list[Turn]:
        events = self.events()
        over = {line["job"]: line["t"] for line in events if line["event"] == "released"}
        return [Turn(self.account, line["t"], over.get(line["job"])) for line in events if line["event"] == "taken"]

    def used(self, since: float, until: float) -> float:
        """GPU seconds between two times."""
        ends = [(turn.since, until if turn.until is None else turn.until) for turn in self.turns()]
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in ends)


@pytest.fixture
def box(lab: Lab) -> Iterator[OwnBox]:
    """A server with four cards, which nobody may use yet: each has memory in use by an unknown process."""
    with lab.own_gpubox() as own, own.cards.cards(CARDS), contextlib.ExitStack() as use:
        for card in range(CARDS):
            use.enter_context(own.cards.hidden_memory(card, 20_000))
        yield own


@pytest.fixture
def senders(
    request: pytest.FixtureRequest, lab: Lab, box: OwnBox, caller: Callable[[str], Path]
) -> Iterator[tuple[Sender, ...]]:
    """Three users of the server. "ssh": their programs run here; "local": on it."""
    folder, name = Path(tempfile.mkdtemp(prefix="clusterfn-fair-")), f"fair-{secrets.token_hex(4)}"
    folder.chmod(0o755)
    shutil.copytree(REPOSITORY / "clusterfn", folder / "clusterfn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "templates", folder / "clusterfn" / "templates")
    found = [_sender(request.param, lab, box, account, folder, name, caller(MINOR)) for account in ACCOUNTS]
    yield tuple(found)
    for each in found:
        each.close()
    box.cable.end()
    for place in (folder, *(each.root for each in found)):
        shutil.rmtree(place, ignore_errors=True)


ACCOUNTS = ("cfbash", "cfsecond", "cfdash")
EVERYWHERE = pytest.mark.parametrize("senders", ["ssh", "local"], indirect=True)


def _sender(how: str, lab: Lab, box: OwnBox, account: str, folder: Path, name: str, python: Path) -> Sender:
    root, alias = lab.home(account) / name, box.alias(account)
    lines = [f"root: ~/{name}", f'environment: "python:{lab.python(MINOR)}"', "limits: {cores: 64}"]
    if how == "ssh":
        lines += [f"address: {alias}", f"ssh_config: {lab.ssh_config}", "scheduler: bare"]
    else:
        lines += ["scheduler: local"]
    config = folder / f"{account}.yml"
    config.write_text("hosts:\n  server:\n" + "".join(f"    {line}\n" for line in lines))
    if how == "ssh":
        env = {"CLUSTERFN_CONFIG": str(config), "XDG_STATE_HOME": str(folder / account)}
        return Sender(account, root, [sys.executable], "server", env)
    state = folder / f"state-{account}"
    state.mkdir()
    give_to(account, state)
    env_words = [f"CLUSTERFN_CONFIG={config}", f"XDG_STATE_HOME={state}", f"PYTHONPATH={folder}"]
    argv = ["ssh", "-F", str(lab.ssh_config), "-o", "BatchMode=yes", alias, "env", *env_words, str(python)]
    return Sender(account, root, argv, "server", {})


def free(state: dict[str, Any]) -> dict[str, Any]:
    """The same cards with nothing on them."""
    return {**state, "cards": [{**card, "hidden_used_mib": 4} for card in state["cards"]]}


def length(*senders: Sender) -> float:
    """How long a job takes, from its turn to the end of it."""
    turns = [turn for sender in senders for turn in sender.turns()]
    return statistics.median(turn.until - turn.since for turn in turns if turn.until is not None)


def begun(*senders: Sender) -> list[float]:
    """When their jobs have begun, in order."""
    return sorted(turn.since for sender in senders for turn in sender.turns())


def queue_all(many: Sender, some: Sender) -> None:
    """Let one user submit 500 jobs and another 50; nothing starts meanwhile."""
    many.send(500)
    some.send(50)
    many.sent()
    some.sent()
    until(lambda: (many.tickets(), some.tickets()) == (500, 50))


@EVERYWHERE
def test_one_job_beside_500_and_50_starts_within_two_job_lengths_and_those_two_share_alike(
    box: OwnBox, senders: tuple[Sender, ...], table: Callable[[str], None]
) -> None:
    many, some, one = senders
    queue_all(many, some)
    box.cards.write(free(box.cards.read()))
    until(lambda: len(begun(many, some)) >= 2 * CARDS)

    waited = one.run_one()
    until(lambda: len(begun(many, some)) >= 10 * CARDS)  # a busy machine starts jobs later than cards are free
    first, *_, last = begun(many, some)[: 10 * CARDS]
    took, shares = length(many, some), [sender.used(first, last) for sender in (many, some)]
    wants_more = some.tickets()

    table(
        f"a job takes {took:.1f} s; the one job was in the queue for {waited:.1f} s; GPU seconds in the first ten "
        f"job lengths: {shares[0]:.0f} and {shares[1]:.0f}"
    )
    assert wants_more and many.tickets()
    assert waited <= 2 * took
    assert max(shares) <= 1.1 * min(shares)
