"""`clusterfn top HOST`: a screen that shows what runs, what it uses, and who is next, until `q`, Esc or Ctrl-C.

One program on the host looks, and sends what it sees (`bridge/queue/overview`). Anybody may look.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SHORT, clock
from clusterfn.bridge.supervisor.text import format_size, in_one_line, shortened
from clusterfn.calls import remote_state
from clusterfn.cli import gpus, target
from clusterfn.cli.keys import ended_by_key
from clusterfn.config.host_text import Lines, reading
from clusterfn.display import console, live
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.host_state import HostState

_OWN_HEAD = ("JOB", "NAME", "STATE", "RAN", "LEFT", "CORES", "MEMORY", "GPU", "")
_OWN_SPARE = ("LEFT", "MEMORY", "CORES", "GPU", "", "RAN", "NAME")
_HEAD = ("USER", "JOB", "STATE", "GPUS", "CORES", "MEMORY")
_SPARE = ("MEMORY", "JOB", "CORES", "GPUS")
_EVERY_S = 2.0
# The controller of a cluster serves all users, so ask it less often.
_SCHEDULER_EVERY_S = 10.0
_AGAIN_S = 5.0
_MESSAGE = 100
_TIMEOUT_S = 60.0
_NONE = "none of your jobs waits or runs"


def top(args: argparse.Namespace) -> int:
    """Show what runs on a host: again and again on a terminal, else once."""
    host = target.host_state(args.host, "top")
    if args.json or args.once or not console.is_terminal(sys.stdout):
        look = next(looks(host, 1), None)
        if look is None:
            name = host.settings.name
            raise HostError(f"{name} did not say what runs there", host=name, hint="try again")
        if host.scheduler_rules.has_nodes:
            _ask_scheduler(host, look)
        print(console.as_json({"host": host.settings.name, **look}) if args.json else text(host, look))
        return 0
    with ended_by_key():
        _watch(host)
    return 0


def _watch(host: HostState) -> None:
    """Refresh the screen; while the host cannot be reached, say so in its place, and try again."""
    shown = live.TerminalLines(sys.stdout)
    answer = dict[str, Any]()
    asked_at = float("-inf")
    while True:
        try:
            for look in looks(host):
                if host.scheduler_rules.has_nodes:
                    if time.monotonic() >= asked_at + max(_SCHEDULER_EVERY_S, host.settings.poll_floor_s):
                        answer, asked_at = _ask_scheduler(host, look), time.monotonic()
                    look.update(answer["gpus"])
                    for job in look["own"]:
                        job["message"] = answer["why"].get(job["id"], job["message"]) if job["state"] == PENDING else ""
                shown.show(text(host, look, live.size().columns))
        except HostError as error:
            shown.show(f"{host.settings.name}, {time.strftime('%H:%M:%S')}\n{in_one_line(error.message)}")
        time.sleep(_AGAIN_S)


def _ask_scheduler(host: HostState, look: dict[str, Any]) -> dict[str, Any]:
    """Add what only a scheduler knows: why own jobs wait, and the GPUs of its nodes; return both."""
    remote_state.say_why_they_wait(host, look["own"])
    try:
        found = gpus.ask_cluster(host)
    except ClusterfnError as error:
        found = {"trouble": error.message}
    look.update(found)
    return {"why": {job["id"]: job["message"] for job in look["own"]}, "gpus": found}


def looks(host: HostState, count: int = 0) -> Iterator[dict[str, Any]]:
    """Yield what a host sends, for `count` looks or until the connection is lost; may raise HostError."""
    came: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for reply in host.bridge.lay_out():
        reply.result(_TIMEOUT_S)
    nodes = "1" if host.scheduler_rules.has_nodes else ""
    argv = host.bridge.words(layout.SUPERVISE, "top", host.root, nodes, f"{_EVERY_S:g}", str(count))
    running = host.connection.converse(argv, b"", came.put, host.scheduler.unset)
    # Wake the loop below when the program ends or the connection is lost.
    running.future.add_done_callback(lambda _: came.put(None))
    coming = Lines()
    try:
        # The screen shows when its last look was made, so only the first one is waited for in words.
        with loop.speaking(lambda: f"waiting for {host.settings.name} to say what runs there"):
            data = came.get()
        while data is not None:
            with reading(host.settings.name, "what runs there"):
                checked = [_checked(host, json.loads(line)) for line in coming.feed(data)]
            yield from checked
            if checked:
                # Confirm what was shown. The host sends no more to a terminal
                # that is stopped, which would fill its buffers.
                host.connection.write(running, b"\n" * len(checked))
            data = came.get()
    finally:
        running.cancel()
    running.result(0)


def _checked(host: HostState, facts: Any) -> dict[str, Any]:
    """Return a look, if a table can be made of it."""
    look = dict(facts)
    look["own"] = [remote_state.by_own_clock(host, remote_state.checked_job(dict(job))) for job in look["own"]]
    if "gpus" in look:
        gpus.add_allowed(look["gpus"], host)
    text(host, look)
    return look


def text(host: HostState, look: Mapping[str, Any], room: int | None = None) -> str:
    """Return one look as lines, in so many columns of a terminal."""
    parts = [f"{host.settings.name}, {time.strftime('%H:%M:%S')}{_busy(look.get('machine'))}"]
    if look.get("trouble"):
        parts.append(f"the GPUs cannot be seen: {in_one_line(look['trouble'])}")
    elif look.get("nodes"):
        parts.append(gpus.cluster_tables(look, room))
    elif look.get("gpus"):
        parts.append(gpus.machine_tables({**look, "waiting": []}, room))
    running_first = sorted(look["own"], key=lambda job: (job["state"] == PENDING, job["started"]))
    own = [_own_row(job) for job in running_first]
    parts.append(live.table(_OWN_HEAD, own, room, _OWN_SPARE) if own else _NONE)
    of_all = look.get("jobs", ())
    if any(row["user"] != host.connection.facts.user for row in of_all):
        parts.append(live.table(_HEAD, map(_row, of_all), room, _SPARE))
    return "\n\n".join([*parts, *filter(None, ["\n".join(map(in_one_line, notes_on(look)))])])


def _own_row(job: Mapping[str, Any]) -> Sequence[str]:
    requested, now = job.get("asked") or {}, (job.get("usage") or {}).get("now") or {}
    ran, limit = job.get("ran_s"), requested.get("time_s")
    detail = job["message"]
    cores = "" if now.get("cores") is None else f"{now['cores']:.1f}"
    if job["state"] == PENDING and job.get("since"):
        detail = f"since {clock(job['since'])}{f': {detail}' if detail else ''}"
    left = None if ran is None or limit is None else max(0.0, limit - ran)
    times = ("-" if ran is None else console.as_clock(ran), "-" if left is None else console.as_clock(left))
    used = (
        _of(cores, str(requested["cores"]) if requested.get("cores") else ""),
        _of(_memory(now.get("memory_bytes")), _memory(requested.get("memory_bytes"))),
        _gpus_in_words(now.get("gpus") or (), job.get("gpus") or 0),
    )
    return (job["id"][:SHORT], job["name"], job["state"], *times, *used, shortened(detail, _MESSAGE))


def _of(used: str, requested: str) -> str:
    return f"{used or '-'} of {requested}" if requested else used or "-"


def _memory(size: float | None) -> str:
    return "" if size is None else format_size(size)


def _gpus_in_words(gpus: Sequence[Mapping[str, Any]], requested: int) -> str:
    """Say how busy the GPUs of a job are, and how much of their memory is in use; else how many it asked for."""
    use = [gpu["use_percent"] for gpu in gpus if gpu.get("use_percent") is not None]
    memory = sum(gpu["memory_bytes"] for gpu in gpus if gpu.get("memory_bytes") is not None)
    if not use:
        return f"{requested}" if requested else "-"
    return f"{len(gpus)}: {' '.join(f'{percent:.0f} %' for percent in use)}, {format_size(memory)}"


def _busy(machine: Mapping[str, Any] | None) -> str:
    """Say how busy a machine is; "" if that is not known."""
    if not machine:
        return ""
    parts = [f"load {machine['load']:g} on {machine['cores']} cores"]
    if machine.get("used_bytes") is not None:
        used, total = format_size(machine["used_bytes"]), format_size(machine["memory_bytes"])
        parts.append(f"{used} of {total} of memory in use")
    return f": {', '.join(parts)}"


def _row(job: Mapping[str, Any]) -> Sequence[str]:
    memory = format_size(job["memory_mb"] << 20) if job["memory_mb"] else "-"
    return str(job["user"]), str(job["job"]), str(job["state"]), str(job["gpus"]), str(job["cores"]), memory


def notes_on(look: Mapping[str, Any]) -> Iterator[str]:
    """Say who is next on a machine."""
    # Waiting jobs come in the order of the queue, so the first one is next.
    for job in [row for row in look.get("jobs", ()) if row["state"] == PENDING][:1]:
        yield f"{job['user']} is next with {job['job']}"
