"""List all jobs below a root, one JSON line each: what `clusterfn jobs` shows.

Reads the jobs' own files alone and changes nothing. Started through the agent (`supervise.py list ROOT [AFTER]`), which
passes on 4 MB: jobs come in the order of their ids, a page at a time. The last line of a page that is not the last is
`{"after": ID}`, and AFTER asks for the jobs behind that id.
"""

import glob
import json
import os
import sys
import time

from ..job_states import DIED, FINAL, HAS_NOT_STARTED, PENDING, RUNNING, STARTING, SUSPENDED, UNKNOWN, seen_state
from ..layout import ATTEMPTS, ELEMENTS, HEARTBEAT, OUTCOME, OWNER, REFUSED, REFUSED_FOR_S, SPEC, STALE_AFTER_S, VERDICT
from ..queue import report
from . import group, publish
from .attempt import Attempt
from .dependencies import Dependencies
from .job import DAMAGED, JobFolder, dependencies_of, job_folders
from .text import duration, in_one_line, portable, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_EVENTS = {"pending": PENDING, "starting": STARTING, "running": RUNNING, "suspended": SUSPENDED}
_PAGE_BYTES = 2 * 1024 * 1024


def listing(root: str, after: str = "", page_bytes: int = _PAGE_BYTES) -> int:
    """Print a line for each job behind that id; one that is damaged is UNKNOWN, and does not hide the others."""
    left, last = page_bytes, after
    for folder in job_folders(root):
        if os.path.basename(folder) <= after:
            continue
        if left <= 0:
            sys.stdout.write(json.dumps({"after": last}) + "\n")
            break
        try:
            job = JobFolder(folder)
            started = os.stat(os.path.join(folder, SPEC)).st_mtime
            state, message, since, ran_s = state_of(job)
            asked = job.spec["resources"]
            told = {"id": job.id, "name": job.spec["name"], "host": job.spec["host"]}
            told.update(state=state, message=message, started=started, since=since, ran_s=ran_s)
            told.update(gpus=asked.get("gpus", 0) * asked.get("nodes", 1))
            told.update(inputs=[each.job for each in dependencies_of(job.spec)])
        except DAMAGED as error:
            told = _describe_damaged(folder, error)
        last, line = told["id"], json.dumps(portable(told)) + "\n"
        left -= len(line)
        sys.stdout.write(line)
    return 0


def _describe_damaged(folder: str, error: Exception) -> "dict[str, Any]":
    try:
        started = os.stat(folder).st_mtime
    except OSError:  # it was removed meanwhile
        started = 0.0
    message = "its folder is damaged: %s" % _first_line("%s: %s" % (type(error).__name__, error))
    told = {"id": os.path.basename(folder), "name": "?", "host": None, "state": UNKNOWN, "ran_s": None, "gpus": None}
    return dict(told, message=message, started=started)


def state_of(job: JobFolder) -> "tuple[str, str, Optional[float], Optional[float]]":
    """Return the state of a job, a line about it, since when, and for how many seconds it has run, or ran."""
    numbers, sent = job.attempts(), _written(job.path(SPEC))
    if not numbers and job.spec.get("group"):
        begun, now = _begun_of_items(job), time.time()
        state, message = _of_items(job)
        return state, message, sent if state == PENDING else begun, None if begun is None else max(0.0, now - begun)
    if not numbers:
        wanted = dependencies_of(job.spec)
        waits = Dependencies(job.root).describe_open(wanted) if wanted else ""
        why = report.reason_of(job.root, job.id) or _refused(job) or waits or HAS_NOT_STARTED
        return PENDING, why, sent, None
    attempts = [Attempt(job, number) for number in numbers]
    for attempt in attempts:
        outcome = attempt.outcome()
        if outcome is not None and outcome["final"]:
            ran_s, ended = (outcome.get("usage") or {}).get("wall_s"), _written(attempt.path(OUTCOME))
            begun = _begun_of_items(job) if job.spec.get("group") else None
            if begun is not None and ended is not None:
                ran_s = max(0.0, ended - begun)
            return FINAL.get(outcome["kind"], DIED), _first_line(outcome.get("message")), ended, ran_s
    last = attempts[-1].outcome()
    if last is not None:  # the job is to be started again
        reason = report.reason_of(job.root, job.id) or _first_line(last.get("message"))
        return PENDING, reason, _written(attempts[-1].path(OUTCOME)), None
    return _of_events(attempts[-1])


def _refused(job: JobFolder) -> str:
    """Return why its scheduler refuses it for now, so that its program submits it later; "" otherwise."""
    reason = in_one_line((publish.read(job.home, REFUSED) or b"").decode("utf-8", "replace"))
    silent_s = time.time() - (_written(os.path.join(job.home, REFUSED)) or 0.0)
    if not reason or silent_s < REFUSED_FOR_S:
        return reason
    return "never submitted: the program that was to do so has been silent for %s" % duration(silent_s)


def _begun_of_items(job: JobFolder) -> "Optional[float]":
    """Return when the first element began; None if none has begun."""
    pattern = os.path.join(glob.escape(job.home), ELEMENTS, "*", ATTEMPTS, "1", OWNER)
    begun = [os.stat(path).st_mtime for path in glob.glob(pattern)]
    return min(begun) if begun else None


def _of_items(job: JobFolder) -> "tuple[str, str]":
    spec = job.spec["group"]
    counts = group.in_words(group.kinds(job.home), spec["count"])
    folder = job.path(ELEMENTS)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    elements = [JobFolder(os.path.join(folder, name)) for name in names if name.isdecimal()]
    begun = [each for each in elements if each.attempts() and not os.path.exists(each.path(VERDICT))]
    going = [element for element in begun if not _has_ended(element)]
    waits = {element.id: report.reason_of(element.root, element.id) for element in going}
    running = [element for element in going if not waits[element.id]]
    seen = [_of_events(Attempt(each, each.attempts()[-1])) for each in running]
    if seen and all(state == SUSPENDED for state, *_ in seen):
        return SUSPENDED, "%s; %s" % (counts, seen[0][1])
    if seen and all(state == UNKNOWN for state, *_ in seen):
        return UNKNOWN, counts + "; no heartbeat from their processes for more than %d s" % STALE_AFTER_S
    if running:
        return RUNNING, counts
    if job.cancelled():
        return PENDING, counts + "; it was stopped, and attaching to it concludes the rest"
    if going:
        return PENDING, "%s; %s" % (counts, waits[going[0].id])
    if len(begun) < spec["elements"]:
        wanted = dependencies_of(job.spec)
        inputs = Dependencies(job.root).describe_open(wanted) if wanted else ""
        waits_for = report.reason_of_elements(job.root, job.id) or inputs
        return PENDING, "; ".join(filter(None, [counts, _refused(job), waits_for]))
    return PENDING, counts + "; the rest runs once you attach to it"


def _has_ended(job: JobFolder) -> bool:
    outcomes = [Attempt(job, number).outcome() for number in job.attempts()]
    return any(outcome is not None and outcome["final"] for outcome in outcomes)


def _first_line(text: "Any") -> str:
    lines = str(text or "").splitlines()
    return shortened(lines[0], 200) if lines else ""


def _written(path: str) -> "Optional[float]":
    """Return when a file was written; None without it."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _of_events(attempt: Attempt) -> "tuple[str, str, Optional[float], Optional[float]]":
    state, before, message, ran_s, since = STARTING, STARTING, "", None, _written(attempt.path(OWNER))
    for event in attempt.events():
        if event["event"] == "resumed":
            state, message, since = before, event.get("reason") or "", event["t"]
            ran_s = None if ran_s is None else max(0.0, ran_s - event.get("stopped_s", 0.0))
        elif event["event"] in _EVENTS:
            before = state if event["event"] == "suspended" else before
            state, message = _EVENTS[event["event"]], event.get("reason") or event.get("node") or message
            since = event["t"]
            ran_s = max(0.0, time.time() - event["t"]) if state == RUNNING else ran_s
    try:
        silent_s = time.time() - os.stat(attempt.path(HEARTBEAT)).st_mtime
    except FileNotFoundError:
        silent_s = 0.0
    if attempt.job.scheduler.has_nodes and silent_s <= STALE_AFTER_S:
        silent_s = 0.0  # a node's clock may be another one, and a network file system shows a file's time later
    state, message = seen_state(state, message, silent_s)
    return state, message, since, None if state == UNKNOWN else ran_s
