"""Has a job's environment there before its worker starts: whole already, or made now by the builder.

The builder is the bridge's own `build.py`; it waits for another's build of the same environment and goes on after one
that died, so every job may start one. Called by `run`.
"""

import json
import os
import subprocess
import sys
import time

from ...layout import BUILD, ENVIRONMENT, OUTCOME, PLAN, PROGRESS, READY, build_dir, environment_dir
from ..builder import leases, progress
from . import publish
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
    leases.add(wanted["root"], wanted["id"], job.folder)  # before the look: what is held is not removed
    marker = os.path.join(environment_dir(wanted["root"], wanted["id"]), READY)
    if wanted["purged"] or not os.path.exists(marker):
        _build(job, attempt, watch)
    job.spec["activation"]["set"] = dict(_told(marker), **job.spec["activation"].get("set", {}))


def _told(marker: str) -> "dict[str, str]":
    """Variables that the environment's own scripts set, as the builder found when it made it."""
    with open(marker, encoding="utf-8") as file:
        told = json.load(file).get("told") or {}
    return {name: value for name, value in told.get("set", {}).items() if name not in _CONDA}


def _build(job: "Job", attempt: "Attempt", watch: "Watch") -> None:
    wanted = job.spec["building"]
    folder = build_dir(wanted["root"], wanted["id"])
    attempt.wait("its environment is being made")
    argv = [sys.executable, "-I", "-S", os.path.join(job.spec["bridge"], BUILD), "build", os.path.join(folder, PLAN)]
    builder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _follow(builder, os.path.join(folder, PROGRESS), attempt, watch)
    finally:
        if builder.poll() is None:  # the job ends: whoever else waits for this environment goes on with it
            builder.terminate()
            builder.wait()
    if builder.returncode != 0:
        raise _failed(folder, builder.returncode)


def _follow(builder: "subprocess.Popen[bytes]", path: str, attempt: "Attempt", watch: "Watch") -> None:
    said, due = "", 0.0
    while builder.poll() is None:
        watch.look()
        if time.monotonic() >= due:
            due = time.monotonic() + _TELL_S
            now = _in_words(progress.last(path))
            if now and now != said:
                said = now
                attempt.event("pending", reason="environment: " + said)
        time.sleep(_LOOK_S)


def _in_words(line: "dict[str, Any]") -> str:
    if not line.get("stage"):
        return ""
    count = " %d of %d" % (line["done"], line["of"]) if line.get("of") else ""
    return "%s%s%s" % (line["stage"], count, ": " + line["text"] if line.get("text") else "")


def _failed(folder: str, code: int) -> Verdict:
    data = publish.read(folder, OUTCOME)
    told = json.loads(data.decode()) if data else {}
    why = told.get("message") or "its builder ended with exit status %d" % code
    return Verdict(
        ENVIRONMENT,
        "the environment could not be made: %s" % why,
        stage="environment",
        evidence=told.get("evidence") or [],
        hint=told.get("hint") or "call again; clusterfn env list says what is there",
    )
