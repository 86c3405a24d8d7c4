"""One call of a session, from its fork to its published end, laid out in `calls/<n>` as a job's only attempt is.

It classifies how its process ended as a supervisor does for its worker, and leaves no process behind: GPUs and memory
are the next call's. A process that asks about the GPUs is a child of the session's, and none of the call's.
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from typing import Any

from ..layout import (
    ATTEMPTS,
    CALL,
    CANCEL,
    CANCELLED,
    EVENTS,
    HOST_DISK,
    LOST,
    OUTCOME,
    RETURNED,
    TAKEN,
    WORK,
)
from ..supervisor import classify_exit, memory, process_tree, publish
from ..supervisor.gpus import GpuMonitor, monitored_gpus, without_askers
from ..supervisor.output import Pump
from ..supervisor.text import last_lines, masked, portable
from ..supervisor.verdict import Verdict, document
from .child import CallFolder, ForkedCall

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = "make room there, or point root: to another file system"


class SessionCall:
    """One call.

    Args:
        folder: `calls/<n>`.
        spec: The session's.

    Attributes:
        loaded: Top-level modules that it loaded.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self._place = CallFolder(folder, os.path.join(folder, ATTEMPTS, "1"), spec)
        self._stage = "start"
        self._notes: list[str] = []
        self._done: dict[str, Any] | None = None
        self._own: dict[int, str] = {}
        self._events = 0
        self._reserve: publish.Reserve | None = None
        self._peak = 0
        self._pumps: list[Pump] = []
        self.loaded: list[str] = []

    def take(self) -> bool:
        """Whether it is ours to run; false if it was withdrawn, if only its folder came, or if an earlier start of the
        session had it."""
        os.makedirs(self._place.path(WORK), mode=0o700, exist_ok=True)
        try:
            os.mkdir(os.path.join(self._place.folder, TAKEN), 0o700)
        except FileExistsError:
            return False
        return os.path.exists(os.path.join(self._place.folder, CALL))

    def run(self) -> None:
        """Run it, publish how it ended, and end what it left behind."""
        try:
            self._reserve = publish.Reserve(self._place.attempt)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self.publish(Verdict(HOST_DISK, "the disk of the host is full", hint=_ROOM))
            return
        self._event("starting", node=os.uname()[1], pid=os.getpid())
        with open(os.path.join(self._place.folder, CALL), encoding="utf-8") as file:
            own = json.load(file)
        measure = CallUsage(self._place.spec["resources"]["gpus"], self._notes)
        child = ForkedCall(replace(self._place, spec={**self._place.spec, "sys_path": own["sys_path"]}))
        self._pumps = child.pumps
        verdict = self._verdict(child, measure)
        self._notes += filter(None, map(_ended, child.pumps))
        said_cpu_s = ((self._done or {}).get("usage") or {}).get("cpu_s")
        self.publish(verdict, measure.usage(child, said_cpu_s, self._peak))
        measure.close()
        if self._done is not None:
            self._give_time(child)
        _end_tree(child)
        child.close()

    def give_up(self) -> None:
        """Publish what became of a call that was withdrawn, or that an earlier start of the session had begun.

        On a full disk that can wait: who has sent it knows, or hears of it at the session's end.
        """
        try:
            self._give_up()
        except OSError as error:
            if error.errno not in _FULL:
                raise

    def _give_up(self) -> None:
        if os.path.exists(os.path.join(self._place.folder, CANCEL)):
            self.publish(Verdict(CANCELLED, "the call was withdrawn before it started", stage="queue"))
        elif publish.read(self._place.attempt, OUTCOME) is None:
            self.publish(Verdict(LOST, "the session was started anew while the call ran", hint="call again"))

    def _verdict(self, child: ForkedCall, measure: CallUsage) -> Verdict:
        while self._done is None and child.ended is None:
            child.turn()
            self._take(child)
            measure.look()
            if os.path.exists(os.path.join(self._place.folder, CANCEL)):
                _end_tree(child)
                return Verdict(CANCELLED, "the call was stopped on request", stage=self._stage)
        child.turn()
        self._take(child)
        if self._done is not None:
            return classify_exit.classify_report(self._done)
        status = child.ended[0] if child.ended else 0
        return classify_exit.classify_silence(status, self._stage, 0, None, None, self._own)

    def _take(self, child: ForkedCall) -> None:
        """Heed what its process has said."""
        while child.heard:
            said = child.heard.pop(0)
            if "done" in said and self._done is None:
                self._done = said
            elif "loaded" in said:
                self.loaded, self._peak = said["loaded"], said["peak"]
            elif "own_signal" in said:
                self._own[said["own_signal"]] = said.get("sender", "")
            elif "note" in said:
                self._notes.append(said["note"])
            elif "stage" in said:
                self._stage = said["stage"]
                self._event("running" if self._stage == "function" else "stage", stage=self._stage)

    def _event(self, name: str, **facts: Any) -> None:
        self._events += 1
        line = {**portable(facts), "n": self._events, "event": name, "t": round(time.time(), 3)}
        try:
            with open(self._place.path(EVENTS), "a", encoding="utf-8", opener=_privately) as file:
                file.write(json.dumps(line) + "\n")
        except OSError:  # full: events are news, not the record
            return

    def publish(self, verdict: Verdict, usage: dict[str, Any] | None = None) -> None:
        """Let this verdict be the call's outcome, unless one stands; `usage` is that of its process, if it had one."""
        facts = {**verdict.facts, "node": os.uname()[1], "by": "supervisor", "notes": self._notes}
        facts["stage"] = facts.get("stage") or self._stage
        facts["usage"] = usage
        if verdict.kind != RETURNED:
            facts["hint"] = classify_exit.failed_rank(self._place.attempt) or facts.get("hint")
            facts["evidence"] = facts.get("evidence") or self._evidence()
        outcome = document(self._place.spec["id"], 1, verdict.kind or LOST, portable(facts))
        os.makedirs(self._place.attempt, mode=0o700, exist_ok=True)
        publish.publish(self._place.attempt, OUTCOME, (json.dumps(outcome) + "\n").encode(), self._reserve)

    def _evidence(self) -> list[str]:
        """The last lines of stderr, or of stdout where there are none."""
        secrets = [os.environ[name] for name in self._place.spec["secrets"] if name in os.environ]
        for pump in reversed(self._pumps):
            lines = masked(last_lines(pump.tail), secrets)
            if lines:
                return lines
        return []

    def _give_time(self, child: ForkedCall) -> None:
        """To its threads and exit functions, after its last word."""
        until = time.monotonic() + self._place.spec["grace_s"]
        while child.ended is None and time.monotonic() < until:
            child.turn()


def _end_tree(child: ForkedCall) -> None:
    process_tree.end(call_processes, child.turn)


def _ended(pump: Pump) -> str | None:
    """End what a call has printed so far; a line about what is missing, if that is so."""
    pump.drain()
    return pump.close()


def _privately(path: str, flags: int) -> int:
    """The function's umask is the user's own, and this is its process's parent."""
    return os.open(path, flags, 0o600)


_KIB = 1024  # what wait4 counts in


class CallUsage:
    """One call's use.

    Args:
        gpus: How many cards the session has.
        notes: Where it says what it could not measure.
    """

    def __init__(self, gpus: int, notes: list[str]) -> None:
        self._began = time.monotonic()
        self._sampler = memory.Sampler(None)
        self._gauge = GpuMonitor(monitored_gpus(None, gpus, dict(os.environ)), notes)

    def look(self) -> None:
        """Take a sample, if it is time for one."""
        self._gauge.look()
        if self._sampler.due():
            began = time.process_time()
            self._sampler.over(call_processes(), began)

    def close(self) -> None:
        """Look no more."""
        self._gauge.close()

    def usage(self, child: ForkedCall, said_cpu_s: float | None, said_peak: int) -> dict[str, Any]:
        """As outcome.json has it.

        Args:
            child: The call's process.
            said_cpu_s: What it said itself of the time that it used.
            said_peak: And of its memory, in bytes; 0 if it came to no last word. Nobody else can tell while it exits.
        """
        ended = child.ended[1] if child.ended else None
        cpu_s = ended.ru_utime + ended.ru_stime if ended else 0.0
        largest = ended.ru_maxrss * _KIB if ended else said_peak or memory.peak_of(child.pid)
        return {
            "wall_s": round(time.monotonic() - self._began, 3),
            "cpu_s": round(cpu_s if said_cpu_s is None else said_cpu_s, 3),
            "peak_memory_bytes": max(self._sampler.peak, largest),
            "gpus": self._gauge.usage(),
        }


def call_processes() -> list[int]:
    """The processes of the call that runs."""
    return without_askers(process_tree.descendants(os.getpid()))
