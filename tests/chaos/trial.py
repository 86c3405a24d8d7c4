"""One kill: a job is sent, somebody is killed at a named stage, and what must hold of every job is looked at.

`Plan` says what to do, `Trial` does it, `allowed` says how it may end.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos.calls import VALUE
from tests.chaos.lanes import Lane
from tests.chaos.onhost import JobOnHost, session_of, until, until_none
from tests.chaos.world import World

STAGES = ("submit", "queue", "start", "lease", "environment", "load", "function", "result", "supervisor", "published")
VICTIMS = ("client", "agent", "sshd", "script", "supervisor", "worker")
NEVER = "never began"
STARTS_S = 240.0  # other tests may have taken a node of SLURM away for a while
ENDS_S = 240.0
LOOK_S = 0.005
TAGGED_S = 40.0  # what a job may leave for so long; what only concludes for it, for as long again
BEGINS_S = 120.0  # after its client has died
_OUTSIDE = frozenset(["client", "agent", "sshd"])
_BEFORE_WORKER = ("submit", "queue", "start", "lease")
_UNTIL_FUNCTION = ("start", "environment", "load", "function")
_CLASSES = {"lost": "WorkerLost", "signal": "KilledBySignal", "node": "NodeFailed"}


@dataclass(frozen=True)
class Plan:
    """Whom to kill when. `after_s`: how long after the stage was seen."""

    stage: str
    victims: tuple[str, ...]
    scheduler: str
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.scheduler} {self.stage} {'+'.join(self.victims)}"

    @property
    def host(self) -> str:
        """The host on which that stage lasts long enough to be hit."""
        if self.stage == "submit":
            return "slow-sbatch" if self.scheduler == "slurm" else "bare"
        special = {"queue": "slurm-held", "lease": "gpu", "start": f"{self.scheduler}-setup"}
        return special.get(self.stage, self.scheduler)


def possible(plan: Plan) -> bool:
    """Whether there is such a stage on that host, and such a victim at that stage."""
    if (plan.stage, plan.scheduler) in (("queue", "bare"), ("lease", "slurm")):
        return False
    if plan.stage == "start" and plan.scheduler == "bare" and {"client", "script"} == set(plan.victims):
        return False  # see test_submission_line: nobody is left who knows the script's pid
    there = set(_OUTSIDE)
    if plan.stage not in ("submit", "queue", "lease"):  # who waits for a card is a ticket
        there |= {"script", "supervisor"}
    if plan.stage not in _BEFORE_WORKER:
        there.add("worker")
    return set(plan.victims) <= there


def any_plan(rng: random.Random) -> Plan:
    """One of all possible plans."""
    while True:
        count = rng.choice((1, 1, 2))
        victims = tuple(rng.sample(VICTIMS, count))
        scheduler = rng.choice(("bare", "bare", "slurm"))
        after_s = rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.4)))
        plan = Plan(rng.choice(STAGES), victims, scheduler, after_s)
        if possible(plan) and set(victims) != {"agent", "sshd"}:
            return plan


def allowed(plan: Plan) -> set[str]:
    """The kinds of outcomes that tell the truth. Whoever only listens or carries changes nothing."""
    lethal = set(plan.victims) - _OUTSIDE
    late = plan.stage in ("result", "supervisor", "published") or plan.after_s > 0.2
    kinds: set[str] = set()
    if "worker" in lethal:
        kinds |= {"signal"}
    if "supervisor" in lethal:
        kinds |= {"lost"}
    if "script" in lethal and (plan.scheduler == "slurm" or plan.stage == "start"):
        kinds |= {"lost"}
    # SLURM ends a job whose script is gone, but a function that returns meanwhile has returned.
    survives = not lethal or lethal == {"script"}
    if survives or late:
        kinds |= {"returned"}
    if "client" in plan.victims and plan.stage == "submit":
        kinds |= {NEVER}
    return kinds


@dataclass
class Result:
    """How it went.

    Attributes:
        kind: The final outcome's kind, or `NEVER`.
        seconds: From the kill to the outcome.
        wrong: What does not hold; empty if all does.
    """

    plan: Plan
    job: JobOnHost
    kind: str = ""
    seconds: float = 0.0
    wrong: list[str] | None = None


class Trial:
    """One plan being carried out; `new_lane` makes another client when `lane` has died."""

    def __init__(self, world: World, plan: Plan, lane: Lane, new_lane: Callable[[], Lane]) -> None:
        self.world = world
        self.plan = plan
        self.lane = lane
        self.new_lane = new_lane
        self.job = JobOnHost(world.root, secrets.token_hex(8), world.runs)
        self.wrong: list[str] = []
        self._agent = 0
        self._published: dict[str, bytes] = {}

    def run(self) -> Result:
        """Do it and look."""
        plan, result = self.plan, Result(self.plan, self.job)
        with self._card_taken():
            self._submit()
            if not self._await_stage():
                result.wrong = [f"the stage was never reached: {self.lane.hear(self.job.id, 'state', 1)}"]
                return result
            self._kill()
            killed = time.monotonic()
            if plan.stage == "queue":
                self._release()
        told = self._told()
        result.seconds = time.monotonic() - killed
        result.kind = self._check(told)
        self._left_behind(is_published=result.kind == "returned")
        result.wrong = self.wrong
        return result

    def again(self) -> list[str]:
        """What has changed since: nothing may."""
        return [] if self.job.outcomes() == self._published else ["the outcome has changed"]

    def _say(self, wrong: str) -> None:
        self.wrong.append(wrong)

    def _submit(self) -> None:
        stage = self.plan.stage
        # A job that loses one of these ends at once: until then it lasts, however late its killer comes.
        ends = bool({"supervisor", "worker"} & set(self.plan.victims))
        arguments = {
            "path": str(self.job.runs_file),
            "loading": 0.6 if stage == "load" else 0.0,
            "seconds": 60.0 if ends and stage in _UNTIL_FUNCTION else 5.0 if stage == "function" else 0.1,
            "keeping": (10.0 if ends else 0.5) if stage == "result" else 0.0,
            "size": 3_000_000 if stage in ("result", "supervisor") else 1000,
        }
        options = {"gpus": 1} if self.plan.host == "gpu" else {}
        self.lane.order("submit", self.job.id, self.plan.host, call="work", args=arguments, options=options)
        if stage == "submit":
            self._agent = (self.lane.hear(self.job.id, "ready") or {}).get("agent", 0)

    def _await_stage(self) -> bool:
        stage, job = self.plan.stage, self.job
        if stage == "queue":
            return bool(until(self._is_queued, 150, 0.1))
        wanted = stage if stage != "start" or "supervisor" not in self.plan.victims else "claimed"
        return bool(until(lambda: job.is_at(wanted), STARTS_S, LOOK_S))

    def _is_queued(self) -> bool:
        argv = ("squeue", "-h", "--states=all", "-o", "%j")
        return f"work.{self.job.id}" in self.world.lab.slurm.run(*argv).stdout.split()

    def _release(self) -> None:
        argv = ("squeue", "-h", "--states=PENDING", "-o", "%i %j")
        for line in self.world.lab.slurm.run(*argv).stdout.splitlines():
            number, name = line.split()
            if name == f"work.{self.job.id}":
                self.world.lab.slurm.run("scontrol", "release", number)

    def _kill(self) -> None:
        pids = self._pids()
        if self.plan.after_s:
            time.sleep(self.plan.after_s)
        for victim in self.plan.victims:
            if victim == "client":
                self.lane.kill()
                continue
            for pid in pids.get(victim, ()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not pids.get(victim):
                self._missed(victim)

    def _missed(self, victim: str) -> None:
        if self.plan.stage not in ("supervisor", "published", "start"):
            self._say(f"no {victim} was found to kill")

    def _pids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        if set(self.plan.victims) & {"agent", "sshd"}:
            agent = self._agent or (self.lane.hear(self.job.id, "ready") or {}).get("agent", 0)
            found |= {"agent": [agent], "sshd": session_of(agent)}
        inside = set(self.plan.victims) - _OUTSIDE
        if inside and self.plan.stage == "start":
            found |= {name: [pid] for name, pid in (until(lambda: self._all(inside), 20, 0.02) or {}).items()}
        elif inside:
            found |= {name: [pid] for name, pid in self.job.by_event().items()}
        # 0 and 1 stand for somebody who is gone; to kill them would hit our own group, or init.
        return {name: [pid for pid in pids if pid > 1] for name, pids in found.items()}

    def _all(self, wanted: set[str]) -> dict[str, int] | None:
        pids = self.job.pids()
        return pids if wanted <= set(pids) else None

    @contextlib.contextmanager
    def _card_taken(self) -> Any:
        """Somebody holds the only card until the kill."""
        if self.plan.host != "gpu":
            yield
            return
        with _CARD, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
            assert until(lambda: _bound(held, self.world.card), 150, 0.05), "the card was never free"
            held.listen(8)
            yield

    def _told(self) -> dict[str, Any]:
        """What a client hears of the job: the one that sent it, or after its death a new one."""
        if "client" not in self.plan.victims:
            return self.lane.hear(self.job.id, "state", ENDS_S) or {}
        self.lane.process.wait()
        self.lane = self.new_lane()
        if self.plan.stage == "submit" and not self._began():
            return {"state": NEVER}
        self.lane.order("attach", self.job.id, self.plan.host)
        return self.lane.hear(self.job.id, "state", ENDS_S) or {}

    def _began(self) -> bool:
        def began() -> bool:
            return (self.job.folder / "claim").exists()

        return bool(until(began, BEGINS_S))

    def _check(self, told: dict[str, Any]) -> str:
        self._published = self.job.outcomes()
        finals, runs = self.job.finals(), self.job.runs()
        if len(runs) != len(set(runs)) or len(runs) > max(1, len(self.job.attempts())):
            self._say(f"the function ran {len(runs)} times: {runs}")
        if told.get("state") == NEVER:
            if runs or finals:
                self._say("it began after all")
            return NEVER
        if not told:
            self._say(f"no client heard of an end within {ENDS_S:g} s")
        if len(finals) != 1:
            self._say(f"there are {len(finals)} final outcomes")
            return "none" if not finals else "several"
        kind = str(finals[0]["kind"])
        if kind not in allowed(self.plan):
            self._say(f"{kind} is not among {sorted(allowed(self.plan))}")
        self._same(kind, told, runs)
        return kind

    def _same(self, kind: str, told: dict[str, Any], runs: list[str]) -> None:
        """The client tells what the host has published."""
        if kind == "returned":
            if len(runs) != 1:
                self._say(f"it returned, and ran {len(runs)} times")
            if told.get("value") != {"value": VALUE}:
                self._say(f"it returned, and the client says {told}")
        elif told.get("error", {}).get("type") != _CLASSES[kind]:
            self._say(f"it is {kind}, and the client says {told}")

    def _left_behind(self, is_published: bool) -> None:
        # Where it is published and nobody is left to end its daemons, they stay. SLURM ends them, but the lab has
        # proctrack/linuxproc, which knows processes by their parents: it misses one whose parents were just killed.
        nobody = {"script", "supervisor"} <= set(self.plan.victims)
        spares = nobody and (is_published or self.plan.scheduler == "bare")

        def others(there: list[str]) -> list[str]:
            return [each for each in there if not (spares and "sleep" in each)]

        until(lambda: not others(self.job.tagged()), TAGGED_S, 0.2)
        left = others(self.job.tagged()) or until_none(lambda: others(self.job.processes()), TAGGED_S)
        if left:
            self._say(f"left behind: {left}")


_CARD = threading.Lock()


def _bound(held: socket.socket, card: str) -> bool:
    try:
        held.bind(b"\0clusterfn/gpu/" + card.encode())
    except OSError:  # the job before still holds it
        return False
    return True


def describe(result: Result) -> str:
    """For a failed assertion."""
    shown = [f"{result.plan} (after {result.plan.after_s:.3f} s): {result.kind}", *(result.wrong or [])]
    return "\n".join([*shown, result.job.history()])
