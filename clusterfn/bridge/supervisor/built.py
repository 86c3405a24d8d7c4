"""Has a job's environment there before its worker starts: whole already, or made now by the builder.

The builder is the bridge's own `build.py`; it waits for another's build of the same environment and goes on after one
that died, so every job may start one. Called by `run`.
"""

import json
import os
import subprocess
import sys
import time

from ...layout import BUILD, ENVIRONMENT, PLAN, READY, build_dir, environment_dir
from ..builder import group, leases, progress
from ..builder.failure import Failed, of_system
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .attempt import Attempt
    from .job import Job
    from .watch import Watch

_LOOK_S = 0.1
_TELL_S = 1.0
_CONDA = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV")


def ready(job: "Job", attempt: "Attempt", watch: "Watch") -> None:
    """See that the environment is there, and learn what activating it sets.

    Raises:
        Verdict: It cannot be made, or the job was ended while it waited.
    """
    wanted = job.spec.get("building")
    if not wanted:
        return
    leases.add(wanted["root"], wanted["id"], job.home)  # before the look: what is held is not removed
    marker = _marker(wanted["root"], wanted["id"])
    if wanted["purged"] or not os.path.exists(marker):
        plan = os.path.join(build_dir(wanted["root"], wanted["id"]), PLAN)
        _have(_Builder(job, attempt, watch), "its environment is being made", ["build", plan])
    if wanted["node_root"]:
        marker = _marker(wanted["node_root"], wanted["id"])
        _have_on_node(wanted, marker, _Builder(job, attempt, watch))
    job.spec["activation"]["set"] = dict(_told(marker), **job.spec["activation"].get("set", {}))


def _marker(root: str, env_id: str) -> str:
    return os.path.join(environment_dir(root, env_id), READY)


def _have_on_node(wanted: "dict[str, Any]", marker: str, builder: "_Builder") -> None:
    """Unpacked into this node's own disk, from one archive that the first job makes."""
    try:
        group.own(wanted["node_root"])  # before the look: what stands there may be an attacker's
    except Failed as failed:
        raise _failed(failed.document(), 1) from failed
    except OSError as error:
        raise _failed(of_system(error, wanted["node_root"]).document(), 1) from error
    if os.path.exists(marker):
        return
    place = [wanted["root"], wanted["id"], wanted["node_root"]]
    _have(builder, "its environment is being packed for the nodes", ["pack"] + place)
    _have(builder, "its environment is being unpacked on the node", ["unpack"] + place)


def _told(marker: str) -> "dict[str, str]":
    """Variables that the environment's own scripts set, as the builder found when it made it."""
    with open(marker, encoding="utf-8") as file:
        told = json.load(file).get("told") or {}
    return {name: value for name, value in told.get("set", {}).items() if name not in _CONDA}


class _Builder:
    """Runs the builder's commands for a job that waits for them."""

    def __init__(self, job: "Job", attempt: "Attempt", watch: "Watch") -> None:
        self.said = attempt.path("builder.jsonl")
        self._job, self._attempt, self._watch = job, attempt, watch
        self._told, self._due = "", 0.0

    def run(self, reason: str, words: "list[str]") -> int:
        """One command, to its end; its lines lie in `said`. While it runs the job may be ended."""
        self._attempt.wait(reason)
        argv = [sys.executable, "-I", "-S", os.path.join(self._job.spec["bridge"], BUILD)] + words
        with open(self.said, "ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log)
        try:
            while process.poll() is None:
                self._watch.look()
                self._tell()
                time.sleep(_LOOK_S)
        finally:
            if process.poll() is None:  # the job ends: whoever else waits for this environment goes on with it
                process.terminate()
                process.wait()
        return process.returncode

    def _tell(self) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _TELL_S
        now = _in_words(progress.last(self.said))
        if now and now != self._told:
            self._told = now
            self._attempt.event("pending", reason="environment: " + now)


def _have(builder: _Builder, reason: str, words: "list[str]") -> None:
    status = builder.run(reason, words)
    if status:
        raise _failed(progress.last(builder.said), status)


def _in_words(line: "dict[str, Any]") -> str:
    if not line.get("stage"):
        return ""
    count = " %d of %d" % (line["done"], line["of"]) if line.get("of") else ""
    return "%s%s%s" % (line["stage"], count, ": " + line["text"] if line.get("text") else "")


def _failed(told: "dict[str, Any]", code: int) -> Verdict:
    why = told.get("message") or "its builder ended with exit status %d" % code
    return Verdict(
        ENVIRONMENT,
        "the environment could not be made: %s" % why,
        stage="environment",
        evidence=told.get("evidence") or [],
        hint=told.get("hint") or "call again; clusterfn env list says what is there",
    )
