"""Report the queue of this machine: why each of a user's jobs waits, who has which GPU, and what runs for whom.

The spooler writes the reasons; `supervise.py queue ROOT` prints them, and starts a spooler if none runs.
`supervise.py gpus ROOT` prints one look at the GPUs as a JSON object, and changes nothing. The journal says which
GPUs the user's own jobs have. For others, it follows from the names of their leases and the processes on a GPU.
`look_at_jobs` lists the jobs of all users. Everybody can read the names that those jobs hold, so it needs no rights.
"""

import contextlib
import json
import os
import sys
import time

from ..layout import HOLDS, QUEUE_STATUS, SPEC, UNSATISFIABLE, job_dir, job_name
from ..supervisor import gpus, publish
from ..supervisor.eligible_gpus import describe_request
from ..supervisor.job import NUMBER, WHOLE, DamagedFile, parse_record
from ..supervisor.process_tree import user_name
from ..supervisor.text import format_size, portable
from ..supervisor.verdict import AttemptEnded
from . import launch, lease_names, machine, tickets
from .lease import Leases
from .tickets import Queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

    from ..supervisor.gpus import GpuLoad, GpuProcess
    from .tickets import Ticket

_STARTS = "its turn has come"


def print_queue(root: str, bridge: str) -> int:
    """Print a line for each job that waits, in order: NAME.ID|STATE|REASON."""
    launch.revive_spooler(root, bridge)
    for line in waiting_jobs(root):
        text = "%s|PENDING|%s\n" % (job_name(line["name"], line["job"]), line["reason"])
        # The bytes are written directly, because the locale of the host may not be able to encode the names.
        sys.stdout.buffer.write(portable(text).encode("utf-8", "replace"))
    return 0


def waiting_jobs(root: str) -> "list[dict[str, Any]]":
    """Return `job`, `name`, `reason`, `submitted`, `asked` of each that waits, the next first.

    Jobs that came after the spooler's last report are behind the others. The file of each ticket holds more, and takes
    a second of CPU time to read for ten thousand.
    """
    waiting = Queue(root)
    names = set(waiting.names())
    reported = _reported(root)
    new = sorted(ticket for ticket in map(waiting.of, names.difference(reported)) if ticket is not None)
    return [line for job, line in reported.items() if job in names] + [_line(ticket, None) for ticket in new]


def _line(ticket: "Ticket", reason: "Optional[str]") -> "dict[str, Any]":
    reason = reason or ticket.reason or "waiting for its turn"
    asked = dict(ticket.asked._asdict())
    return {
        "job": ticket.job,
        "name": ticket.name,
        "reason": reason,
        "submitted": ticket.submitted,
        "asked": asked,
        "since": ticket.written,
    }


_STATUS_LINE: "dict[str, Any]" = {
    "job": str,
    "name": str,
    "reason": str,
    "submitted": WHOLE,
    "since": NUMBER,
    "asked": {"gpus": WHOLE, "cores": WHOLE, "memory_mb": WHOLE},
}
# The report that was read last, and the version of the file. A list of thousands of jobs asks for each of them.
_last_read = (("", 0, 0), {})  # type: tuple[tuple[str, int, int], dict[str, dict[str, Any]]]


def _reported(root: str) -> "dict[str, dict[str, Any]]":
    """Return the lines of the spooler's last report, by job."""
    global _last_read
    path = _status_file(root)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            version = path, status.st_mtime_ns, status.st_ino
            if _last_read[0] != version:
                lines = [parse_record(line, _STATUS_LINE, QUEUE_STATUS) for line in file]
                _last_read = version, {line["job"]: line for line in lines}
    except (OSError, DamagedFile):
        # No spooler has written the file yet, or it holds something else. Then the tickets' own reasons are shown.
        return {}
    return _last_read[1]


def reason_of(root: str, job: str) -> str:
    """Return why a job waits; "" if it does not."""
    return _reason(root, Queue(root).of(job))


def reason_of_elements(root: str, group: str) -> str:
    """Return why the elements of a group wait, which of them does first; "" if none waits here."""
    waiting = Queue(root)
    elements = [waiting.of(name) for name in waiting.names() if name.startswith(group + ".")]
    return _reason(root, min((ticket for ticket in elements if ticket is not None), default=None))


def _reason(root: str, ticket: "Optional[Ticket]") -> str:
    return "" if ticket is None else str((_reported(root).get(ticket.job) or _line(ticket, None))["reason"])


def write_reasons(root: str, tickets: "list[Ticket]", reasons: "dict[str, str]") -> None:
    """Write why each of them waits."""
    lines = [_line(ticket, reasons.get(ticket.job, _STARTS)) for ticket in tickets]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    # A full disk does no harm: the reasons are only news, and the queue works without them.
    with contextlib.suppress(OSError):
        publish.replace(_status_file(root), text.encode(), sync=False, mode=0o666)


def _status_file(root: str) -> str:
    return os.path.join(machine.folder(root), QUEUE_STATUS)


# Only the end of the journal is read. A GPU that was taken before that is still shown as held, without its job.
_OF_THE_JOURNAL = 1 << 20


def print_gpus(root: str) -> int:
    """Print one look at the GPUs."""
    sys.stdout.write(json.dumps(portable(look_at_gpus(root))) + "\n")
    return 0


def look_at_gpus(root: str) -> "dict[str, Any]":
    """Return `gpus`, `waiting`, what is said of GPUs that do not answer, and in `trouble` the error of nvidia-smi."""
    trouble = ""
    held: "dict[str, Optional[int]]" = {}
    try:
        held = Leases().binders()
        loads, lost = gpus.gpu_loads()
        processes = gpus.gpu_processes()
    except AttemptEnded as ended:
        loads = []
        lost = []
        processes = {}
        trouble = "" if ended.verdict.kind == UNSATISFIABLE else ended.verdict.message
    names = lease_names.HeldNames(held, machine.now_s())
    holders = gpu_holders(root, names, os.getuid())
    shown = [_gpu_facts(load, holders.get(load.uuid), processes.get(load.uuid, [])) for load in loads]
    return {"gpus": shown, "lost": lost, "waiting": _waiting_for_gpus(root, names), "trouble": trouble}


def _gpu_facts(load: "GpuLoad", holder: "Optional[dict[str, Any]]", processes: "list[GpuProcess]") -> "dict[str, Any]":
    facts = dict(load._asdict(), holder=holder, without_lease=[])
    if holder is None:
        quiet = processes or load.used_mib is None or load.used_mib <= gpus.QUIET_MIB
        unseen = [] if quiet else ["%s in use by an unknown process" % format_size(load.used_mib << 20)]
        facts["without_lease"] = [gpus.describe_process(process) for process in processes] + unseen
    return facts


def gpu_holders(root: str, names: lease_names.HeldNames, own: int) -> "dict[str, dict[str, Any]]":
    """Return `user`, `job`, `name`, `since` (seconds since 1970) of each held GPU; None for what is not known.

    Args:
        root: Of this user's jobs.
        names: The names of one look.
        own: The uid of this user.
    """
    running = {job.job for job in names.running if job.uid == own}
    taken = {uuid: taking for uuid, taking in _taken_gpus(root).items() if taking[0] in running}
    holders: "dict[str, dict[str, Any]]" = {}
    for uuid, uid in names.holders(names.gpus).items():
        job, since = taken.get(uuid, (None, None))
        is_own = uid == own or job is not None
        holder = own if is_own else uid
        user = user_name(holder) if holder >= 0 else "an unknown user"
        name = None if job is None else _name_of(root, job)
        holders[uuid] = {"user": user, "own": is_own, "job": job, "name": name, "since": since}
    return holders


def _taken_gpus(root: str) -> "dict[str, tuple[str, float]]":
    """Return which job took each GPU last and has not released it, and when, by the journal."""
    taken: "dict[str, tuple[str, float]]" = {}
    for row in publish.last_bytes(os.path.join(machine.folder(root), HOLDS), _OF_THE_JOURNAL).split(b"\n"):
        try:
            line = json.loads(row.decode())
        except ValueError:
            # The first line may be cut off, and the last may not be complete yet.
            continue
        if line.get("event") == tickets.TAKEN:
            taken.update((uuid, (line["job"], line["t"])) for uuid in line["cards"])
        elif line.get("event") == tickets.RELEASED:
            for uuid in line["cards"]:
                taken.pop(uuid, None)
    return taken


def _name_of(root: str, job: str) -> "Optional[str]":
    whole, _, element = job.partition(".")
    try:
        with open(os.path.join(job_dir(root, whole), SPEC), encoding="utf-8") as file:
            name = json.load(file)["name"]
    except (OSError, ValueError, KeyError):
        # The folder of the job is gone.
        return None
    return "%s, element %s" % (name, element) if element else str(name)


def _waiting_for_gpus(root: str, names: lease_names.HeldNames) -> "list[dict[str, Any]]":
    """List jobs that wait for GPUs, the next first: all own jobs, and of others those that are next in their line."""
    now_s = time.time()
    now_ms = machine.now_ns() // 10**6
    uid = os.getuid()
    order = [job for _, job in names.in_order()]
    places = {(job.uid, job.job): place for place, job in enumerate(order)}
    own = waiting_jobs(root)
    waiting = []
    place = len(order)
    for line in own:
        # A job without a name of its own comes after the one before it in the list.
        place = places.get((uid, line["job"]), place)
        if line["asked"]["gpus"]:
            facts = {key: line[key] for key in ("job", "name", "reason", "asked", "since")}
            waiting.append((place, dict(facts, own=True, user=gpus.user_name(uid))))
    tickets = {line["job"] for line in own}
    for place, other in enumerate(order):
        if other.asked.gpus and (other.uid != uid or other.job not in tickets):
            asked = describe_request(other.asked.gpus, other.kind.type, other.kind.memory_mb << 20)
            line = {
                "own": other.uid == uid,
                "user": gpus.user_name(other.uid),
                "job": other.job,
                "name": None,
                "reason": "waiting for %s; what becomes free is reserved for it" % asked,
                "asked": dict(other.asked._asdict()),
                "since": now_s - (now_ms - other.ms) / 1000.0,
            }
            waiting.append((place, line))
    return [line for _, line in sorted(waiting, key=lambda placed: placed[0])]


def look_at_jobs(names: "Iterable[str]", now_s: int) -> "list[dict[str, Any]]":
    """Return `user`, `job`, `state` and what it asked for, of each job that runs or is next in its user's line.

    Those that wait are in the order in which they come.
    """
    held_names = lease_names.HeldNames(names, now_s)
    jobs: "list[tuple[str, Any]]" = [("RUNNING", job) for job in sorted(held_names.running)]
    jobs += [("PENDING", job) for _, job in held_names.in_order()]
    return [dict(job.asked._asdict(), user=user_name(job.uid), job=job.job, state=state) for state, job in jobs]
