"""List all jobs below a root, one JSON line each: what `clusterfn jobs` shows.

Reads the jobs' own files alone and changes nothing. Times are those of files and events, so the clocks of a cluster
must agree. Started through the agent (`supervise.py list ROOT [AFTER]`), which passes on 4 MB: jobs come in the order
of their ids, a page at a time. The last line of a page that is not the last is `{"after": ID}`, and AFTER asks for the
jobs behind that id.
"""

import contextlib
import glob
import json
import os
import sys
import time
from collections import namedtuple

from .. import layout
from ..job_states import (
    DIED,
    FINAL,
    HAS_NOT_STARTED,
    OF_EVENT,
    PENDING,
    RUNNING,
    STARTING,
    SUSPENDED,
    UNKNOWN,
    seen_state,
)
from ..queue import report
from ..removal import date_of
from . import group, notify, publish
from .attempt import Attempt, final_attempt, read_events, read_live_usage
from .dependencies import Dependencies
from .job import DamagedFile, JobFolder, dependencies_of, describe_damage, job_folders
from .text import format_duration, in_one_line, portable, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_ENDED = frozenset(FINAL.values()) | {DIED}
_ASKED = ("cores", "memory_bytes", "gpus", "time_s", "nodes", "tasks_per_node")
_PAGE_BYTES = 2 * 1024 * 1024

# A job's state, a line about it, since when, for how many seconds, what it has used, and its outcome's kind or "".
Seen = namedtuple("Seen", ("state", "message", "since", "ran_s", "usage", "kind"))


def listing(root: str, after: str = "", page_bytes: int = _PAGE_BYTES) -> int:
    """Print a line for each job behind that id; one that is damaged is UNKNOWN, and does not hide the others."""
    left = page_bytes
    last = after
    for folder in job_folders(root):
        if os.path.basename(folder) <= after:
            continue
        if left <= 0:
            sys.stdout.write(json.dumps({"after": last}) + "\n")
            break
        shown = describe(folder)
        last = shown["id"]
        line = json.dumps(portable(shown)) + "\n"
        left -= len(line)
        sys.stdout.write(line)
    return 0


def describe(folder: str) -> "dict[str, Any]":
    """Return what is shown of a job: its state, what it asked for, and what it has used, or uses now."""
    try:
        job = JobFolder(folder)
        started = os.stat(os.path.join(folder, layout.SPEC)).st_mtime
        state, message, since, ran_s, usage, kind = _seen(job)
        if state in _ENDED and os.path.exists(job.path(layout.NOTIFIED)):
            message = "; ".join(filter(None, [message, notify.failure_in_words(job.home)]))
        asked = job.spec["resources"]
        shown: "dict[str, Any]" = {"id": job.id, "name": job.spec["name"], "host": job.spec["host"]}
        shown.update(state=state, message=message, started=started, since=since, ran_s=ran_s)
        shown.update(ended=since if state in _ENDED else None, usage=usage or {}, kind=kind)
        shown.update(gpus=(asked.get("gpus") or 0) * (asked.get("nodes") or 1))
        shown.update(asked={name: value for name, value in asked.items() if name in _ASKED and value is not None})
        shown.update(inputs=[dependency.job for dependency in dependencies_of(job.spec)])
        shown.update(arguments=str(job.spec.get("arguments") or ""))
    except (OSError, DamagedFile) as error:
        message = "its folder is damaged: %s" % _first_line(describe_damage(error))
        started = 0.0
        # The folder may have been removed meanwhile.
        with contextlib.suppress(OSError):
            started = os.stat(folder).st_mtime
        shown = {"id": os.path.basename(folder), "name": "?", "host": None, "state": UNKNOWN, "ran_s": None}
        shown.update(gpus=None, message=message, started=started)
    return shown


def state_of(job: JobFolder) -> str:
    state: str = _seen(job).state
    return state


def _seen(job: JobFolder) -> Seen:
    numbers = job.attempts()
    sent = date_of(job.path(layout.SPEC))
    if not numbers and job.spec.get("group"):
        begun = _begun_of_items(job)
        now = time.time()
        state, message, usage = _of_items(job)
        ran = None if begun is None else max(0.0, now - begun)
        return Seen(state, message, sent if state == PENDING else begun, ran, usage, "")
    if not numbers:
        wanted = dependencies_of(job.spec)
        waits = Dependencies(job.root).describe_open(wanted) if wanted else ""
        why = report.reason_of(job.root, job.id) or _refused(job) or waits or HAS_NOT_STARTED
        return Seen(PENDING, why, sent, None, None, "")
    attempt = final_attempt(job) or Attempt(job, numbers[-1])
    outcome = attempt.outcome()
    if outcome is None:
        return _of_events(attempt)._replace(usage=read_live_usage(attempt.path(layout.USAGE)))
    ended = date_of(attempt.path(layout.OUTCOME))
    # The job is to be started again.
    if not outcome["final"]:
        why = report.reason_of(job.root, job.id) or _first_line(outcome.get("message"))
        return Seen(PENDING, why, ended, None, None, "")
    usage = outcome.get("usage") or {}
    begun = _begun_of_items(job) if job.spec.get("group") else None
    ran_s = usage.get("wall_s")
    if begun is not None and ended is not None:
        ran_s = max(0.0, ended - begun)
    kind = outcome["kind"]
    return Seen(FINAL.get(kind, DIED), _first_line(outcome.get("message")), ended, ran_s, usage, kind)


def _refused(job: JobFolder) -> str:
    """Return why its scheduler refuses it for now, so that its program submits it later; "" otherwise."""
    reason = in_one_line((publish.read(job.home, layout.REFUSED) or b"").decode("utf-8", "replace"))
    silent_s = time.time() - (date_of(os.path.join(job.home, layout.REFUSED)) or 0.0)
    if not reason or silent_s < layout.REFUSED_FOR_S:
        return reason
    return "never submitted: the program that was to do so has been silent for %s" % format_duration(silent_s)


def _begun_of_items(job: JobFolder) -> "Optional[float]":
    """Return when the first element began; None if none has begun."""
    pattern = os.path.join(glob.escape(job.home), layout.ELEMENTS, "*", layout.ATTEMPTS, "1", layout.OWNER)
    begun = [os.stat(path).st_mtime for path in glob.glob(pattern)]
    return min(begun) if begun else None


def _of_items(job: JobFolder) -> "tuple[str, str, Optional[dict[str, Any]]]":
    """Return the state of a group that has not ended, a line about it, and what its running items use."""
    spec = job.spec["group"]
    counts = group.in_words(group.kinds(job.home), spec["count"])
    tried = [element for element in job.elements() if element.attempts()]
    begun = [element for element in tried if not os.path.exists(element.path(layout.VERDICT))]
    going = [element for element in begun if final_attempt(element) is None]
    waits = {element.id: report.reason_of(element.root, element.id) for element in going}
    running = [element for element in going if not waits[element.id]]
    seen = [_of_events(Attempt(element, element.attempts()[-1])) for element in running]
    if seen and all(element.state == SUSPENDED for element in seen):
        return SUSPENDED, "%s; %s" % (counts, seen[0].message), None
    if seen and all(element.state == UNKNOWN for element in seen):
        return UNKNOWN, counts + "; no heartbeat from their processes for more than %d s" % layout.STALE_AFTER_S, None
    if running:
        return RUNNING, counts, group.usage_of_running_items(running)
    if job.cancelled():
        return PENDING, counts + "; it was stopped, and attaching to it concludes the rest", None
    if going:
        return PENDING, "%s; %s" % (counts, waits[going[0].id]), None
    if len(begun) < (spec.get("elements") or 0):
        wanted = dependencies_of(job.spec)
        inputs = Dependencies(job.root).describe_open(wanted) if wanted else ""
        waits_for = report.reason_of_elements(job.root, job.id) or inputs
        return PENDING, "; ".join(filter(None, [counts, _refused(job), waits_for])), None
    return PENDING, counts + "; the rest runs once you attach to it", None


def _first_line(text: "Any") -> str:
    lines = str(text or "").splitlines()
    return shortened(lines[0], 200) if lines else ""


def _of_events(attempt: Attempt) -> Seen:
    state = before = STARTING
    message = ""
    ran_s = None
    since = date_of(attempt.path(layout.OWNER))
    for event in read_events(attempt):
        if event["event"] == "resumed":
            state, message, since = before, event.get("reason") or "", event["t"]
            ran_s = None if ran_s is None else max(0.0, ran_s - event.get("stopped_s", 0.0))
        elif event["event"] in OF_EVENT:
            before = state if event["event"] == "suspended" else before
            state, message = OF_EVENT[event["event"]], event.get("reason") or event.get("node") or message
            since = event["t"]
            ran_s = max(0.0, time.time() - since) if state == RUNNING else ran_s
    beat = date_of(attempt.path(layout.HEARTBEAT))
    silent_s = 0.0 if beat is None else time.time() - beat
    if attempt.job.scheduler.has_nodes and silent_s <= layout.STALE_AFTER_S:
        # A network file system shows the time of a file later.
        silent_s = 0.0
    state, message = seen_state(state, message, silent_s)
    return Seen(state, message, since, None if state == UNKNOWN else ran_s, None, "")
