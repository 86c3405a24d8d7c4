"""A client in the test's own process: submits the functions of `calls`, and what a user would do by hand over ssh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterfn import ClusterFunction
from clusterfn.calls.call import prepare, send_call
from clusterfn.calls.job import Job, run_of
from clusterfn.config.options import parse_options
from clusterfn.hosts.host_state import HostState
from clusterfn.packing import payload as payloads
from tests.chaos.onhost import JobOnHost, until
from tests.chaos.world import World

_CALLS: dict[str, Any] = {"__name__": "__main__"}
_SOURCE = Path(__file__).parent / "calls.py"
exec(compile(_SOURCE.read_text(), str(_SOURCE), "exec"), _CALLS)


class Sent:
    """A job with both sides of it: as its user sees it, and as it lies on the host."""

    def __init__(self, job: Job[Any], host: str, world: World) -> None:
        self.job = job
        self.host = host
        self.world = world
        self.there = JobOnHost(world.root, job.id, world.runs)
        self.states: list[str] = []
        self.output = bytearray()
        run_of(job).listen(self._listen)

    def _listen(self, kind: str, what: Any) -> None:
        if kind == "stdout":
            self.output += what
        elif kind in ("state", "connection"):
            self.states.append(self.job.status)

    @property
    def host_state(self) -> HostState:
        """The client's side of its host."""
        return run_of(self.job).at.host

    @property
    def agent(self) -> int:
        """The pid of the agent that serves it now."""
        return self.host_state.connection.facts.pid

    @property
    def name(self) -> str:
        """As the scheduler knows it."""
        return f"{self.job.name}.{self.job.id}"

    def await_at(self, stage: str, limit_s: float = 150.0) -> None:
        """Until it has come so far."""
        assert until(lambda: self.there.is_at(stage), limit_s, 0.002), self.there.history()

    def in_slurm(self) -> dict[str, str]:
        """SLURM's jobs of its name: number -> state."""
        ran = self.world.lab.slurm.run("squeue", "-h", "--array", "--states=all", "-o", "%i %T %j")
        lines = [line.split() for line in ran.stdout.splitlines()]
        return {number: state for number, state, name in lines if name == self.name}

    def script(self) -> bytes:
        """job.sh, as soon as it lies there."""
        path = self.there.folder / "job.sh"
        return path.read_bytes() if path.exists() else b""

    def stands(self, runs: int = 1) -> dict[str, Any]:
        """So many runs, one final outcome, nothing left behind; the outcome."""
        assert len(self.there.runs()) == len(set(self.there.runs())) == runs, self.there.history()
        finals = self.there.finals()
        assert len(finals) == 1, self.there.history()
        assert until(lambda: not self.there.processes(), 150, 0.2), self.there.processes()
        assert json.dumps(self.there.finals()) == json.dumps(finals)
        return finals[0]


class Here:
    """Submits."""

    def __init__(self, world: World) -> None:
        self.world = world

    def submit(self, call: str, host: str, *, live: bool = False, **arguments: Any) -> Sent:
        """Send a call of `calls`; its run is noted in a file of the job's own."""
        function = ClusterFunction(_CALLS[call], parse_options({"host": host}))
        place = self.world.runs / "unknown"
        prepared = prepare(function.__wrapped__, (), {"path": str(place), **arguments}, function.options)
        arguments["path"] = str(self.world.runs / prepared.job.id)
        payload = payloads.pack(function.__wrapped__, (), arguments)
        return Sent(send_call(prepared._replace(payload=payload), live=live), host, self.world)
