"""Two users who share a box of cards: their clients, their jobs, and what both sides say of these at the end."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import holds
from tests.chaos.lanes import Lane
from tests.chaos.onhost import JobOnHost, processes_of, until_none
from tests.chaos.world import MINOR
from tests.lab import Lab, OwnBox

ACCOUNTS = {"ada": "cfbash", "bob": "cfsecond"}
CARDS = 8


@dataclass
class Sent:
    """One job as it was ordered."""

    id: str
    host: str
    lane: Lane
    gpus: int


@dataclass
class Sharing:
    """A box, who uses it, and what was sent.

    Attributes:
        accounts: Each host of clusterfn.yml is a user of the box -> the account.
        witness: A folder with a file per card, on which jobs lock what they were given.
        session: The name of the root in each home.
    """

    lab: Lab
    box: OwnBox
    accounts: dict[str, str]
    folder: Path
    session: str = field(default_factory=lambda: f"chaos-{secrets.token_hex(4)}")
    lanes: list[Lane] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runs, self.witness = self.folder / "runs", self.folder / "witness"
        for folder in (self.folder, self.runs, self.witness):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        for number, _ in enumerate(self.box.uuids()):
            (self.witness / str(number)).touch()
        self.config = self.folder / "clusterfn.yml"
        self.config.write_text("hosts:\n" + "".join(map(self._block, self.accounts)))

    def _block(self, host: str) -> str:
        lines = [
            f"address: {self.box.alias(self.accounts[host])}", f"ssh_config: {self.lab.ssh_config}",
            "scheduler: bare", "limits: {cores: 64}", f"root: ~/{self.session}",
            f'environment: "python:{self.lab.python(MINOR)}"',
        ]  # fmt: skip
        return f"  {host}:\n" + "".join(f"    {line}\n" for line in lines)

    def root(self, host: str) -> Path:
        """Where a host's jobs lie."""
        return self.lab.home(self.accounts[host]) / self.session

    def uid(self, host: str) -> int:
        """Its user's number."""
        return pwd.getpwnam(self.accounts[host]).pw_uid

    def new_lane(self) -> Lane:
        """A client in a process of its own."""
        self.lanes.append(Lane(self.config, self.folder / "state"))
        return self.lanes[-1]

    def send(self, lane: Lane, host: str, gpus: int, seconds: float) -> Sent:
        """Order a job that is on its cards for so long, and sees to it that nobody else is."""
        return self._order(lane, host, "hold", gpus, seconds=seconds, gpus=gpus, witness=str(self.witness))

    def send_until(self, lane: Lane, host: str, gpus: int, over: Path) -> Sent:
        """Order a job that is on its cards until that file is there."""
        return self._order(lane, host, "stay", gpus, over=str(over))

    def _order(self, lane: Lane, host: str, call: str, cards: int, **arguments: Any) -> Sent:
        job = Sent(secrets.token_hex(8), host, lane, cards)
        self.sent[job.id] = job
        arguments["path"] = str(self.runs / job.id)
        lane.order("submit", job.id, host, call=call, args=arguments, options={"gpus": cards})
        return job

    def there(self, job: Sent) -> JobOnHost:
        """The same job as it lies on the host."""
        return JobOnHost(self.root(job.host), job.id, self.runs)

    def turns(self) -> list[holds.Turn]:
        """What both users' journals say."""
        found = []
        for host in self.accounts:
            for path in self.root(host).glob("machines/*/holds.jsonl"):
                found += holds.turns(host, [json.loads(line) for line in path.read_text().splitlines()])
        return found

    def finals(self) -> dict[str, list[str]]:
        """Job -> the kinds of its final outcomes."""
        return {job.id: [final["kind"] for final in self.there(job).finals()] for job in self.sent.values()}

    def told(self, limit_s: float) -> dict[str, dict[str, Any]]:
        """Job -> what its client said at its end; jobs are missing of which nobody heard."""
        words = {job.id: job.lane.hear(job.id, "state", limit_s) for job in self.sent.values()}
        return {job: word for job, word in words.items() if word is not None}

    def left(self) -> list[str]:
        """Processes that still run for a job of theirs."""
        return processes_of(map(self.there, self.sent.values()))

    def names(self) -> set[str]:
        """Names of ours that are bound on the box."""
        return {name for name in self.box.cable.names() if name.startswith(holds.OURS)}

    def settles(self, limit_s: float = 150.0) -> list[str]:
        """What is still held or runs when that much time has passed; nothing as soon as there is none.

        The look that finds nothing is the last one: an element whose turn came before its group was complete may take
        its cards after that, find nothing to do, and give them back.
        """
        return until_none(lambda: [*holds.leaked(self.names()), *self.left()], limit_s)


@contextlib.contextmanager
def shared(lab: Lab) -> Iterator[Sharing]:
    """A box of the test's own with two users; everything goes with the block."""
    with lab.own_gpubox() as box:
        sharing = Sharing(lab, box, ACCOUNTS, Path(tempfile.mkdtemp(prefix="clusterfn-chaos-")))
        try:
            yield sharing
        finally:
            for lane in sharing.lanes:
                lane.kill()
                lane.close()
            box.cable.end()
            for path in (sharing.folder, *map(sharing.root, ACCOUNTS)):
                _remove(path)


def _remove(path: Path) -> None:
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)
