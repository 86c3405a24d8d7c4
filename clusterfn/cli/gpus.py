"""`clusterfn gpus HOST`: who holds which GPU, who uses one without a lease, and who waits.

A machine without a scheduler is asked by `supervise.py gpus`, a cluster by its scheduler's own commands, in one go.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo, is_called
from clusterfn.bridge.supervisor.text import counted, format_duration, format_size, in_one_line, last_lines, shortened
from clusterfn.cli import target
from clusterfn.cli.keys import ended_by_key
from clusterfn.cli.selection import ask_each
from clusterfn.config.host_text import reading
from clusterfn.config.spec import Host
from clusterfn.display import console
from clusterfn.display.live import TerminalLines, table
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import HostState, open_host
from clusterfn.scheduler.base import Question

_MACHINE_HEAD = ("GPU", "NAME", "MEMORY", "USE", "HELD BY")
_ALL_HEAD = ("HOST", *_MACHINE_HEAD)
_MACHINE_SPARE = ("NAME", "MEMORY", "USE")
_MACHINE_QUEUE_HEAD = ("", "WAITING", "FOR", "SINCE", "")
_REASON = 160
_FREE = "free"
_TIMEOUT_S = 60.0
_EVERY_S = 5.0


def ask_machine(host: HostState) -> dict[str, Any]:
    """`gpus` and `waiting`, as `supervise.py gpus` prints them.

    Raises:
        ClusterfnError: nvidia-smi exists, and reports only that something is wrong.
        HostError: The host cannot be reached.
    """
    answer = host.bridge.supervise("gpus", host.root).result(_TIMEOUT_S)
    if answer.rc != 0:
        message = "the host could not report its GPUs"
        raise ClusterfnError(message, host=host.settings.name, evidence=last_lines(answer.err, 5))
    with reading(host.settings.name, "the state of its GPUs"):
        report = dict(json.loads(answer.out))
        trouble = report.pop("trouble")
        add_allowed(report["gpus"], host)
        for job in report["waiting"]:
            job["since"] = host.here(job["since"])
        # Make the tables once, so that a malformed answer fails here, where the error names the host.
        machine_tables(report)
    if trouble:
        name = host.settings.name
        hint = "run nvidia-smi on the host: the driver must answer before a job can get a GPU"
        raise ClusterfnError(f"the GPUs of {name} cannot be seen: {trouble}", host=name, hint=hint)
    return report


def add_allowed(gpus: Sequence[dict[str, Any]], host_state: HostState) -> None:
    """Note at each GPU whether `gpus: {only: …}` of the host lets jobs have it, and who holds it by our own clock."""
    host = host_state.settings
    for gpu in gpus:
        if gpu["holder"] is not None and gpu["holder"]["since"] is not None:
            gpu["holder"]["since"] = host_state.here(gpu["holder"]["since"])
        gpu["allowed"] = not host.gpus_only or any(
            is_called(GpuInfo(gpu["index"], gpu["uuid"], "", None, False, False, None), name) for name in host.gpus_only
        )


def machine_tables(report: Mapping[str, Any], room: int | None = None) -> str:
    """Format both tables, in so many columns of a terminal."""
    rows = [_machine_row(gpu) for gpu in report["gpus"]]
    free = sum(_held_by(gpu) == _FREE for gpu in report["gpus"])
    queue = []
    for place, job in enumerate(report["waiting"], 1):
        since = format_duration(time.time() - job["since"])
        request = job["asked"]
        wanted = counted(request["gpus"], "GPU") if request["gpus"] else counted(request["cores"], "core")
        queue.append((str(place), _holder_name(job), wanted, since, shortened(job["reason"], _REASON)))
    lost = [f"a GPU does not answer: {in_one_line(line)}" for line in report.get("lost", ())]
    parts = [f"{free} of {len(rows)} GPUs free", table(_MACHINE_HEAD, rows, room, _MACHINE_SPARE), *lost]
    return "\n\n".join([*parts, *([table(_MACHINE_QUEUE_HEAD, queue)] if queue else [])])


def _machine_row(gpu: Mapping[str, Any]) -> Sequence[str]:
    use = "?" if gpu["use_percent"] is None else f"{gpu['use_percent']} %"
    used, total = ("?" if gpu[key] is None else format_size(gpu[key] << 20) for key in ("used_mib", "total_mib"))
    memory = f"{used} of {total}{', shared with the CPU' if gpu.get('unified') else ''}"
    return str(gpu["index"]), gpu["name"], memory, use, _held_by(gpu)


def _held_by(gpu: Mapping[str, Any]) -> str:
    if gpu["holder"] is not None:
        since = gpu["holder"]["since"]
        return _holder_name(gpu["holder"]) + ("" if since is None else f", {format_duration(time.time() - since)}")
    if gpu["without_lease"]:
        return f"in use without a lease: {', '.join(gpu['without_lease'])}"
    return _FREE if gpu.get("allowed", True) else "not for your jobs: gpus: {only: …} in clusterfn.yml"


def _holder_name(holder: Mapping[str, Any]) -> str:
    """Return the user; of one's own jobs their name and id."""
    if not holder["own"]:
        return str(holder["user"])
    job = f"({holder['job'][:SHORT]})" if holder["job"] else ""
    return f"you: {holder['name'] or 'a job'} {job}".rstrip()


_NODES_HEAD = ("NODE", "STATE", "TYPE", "FREE")
_CLUSTER_QUEUE_HEAD = ("WAITING", "", "FOR", "SUBMITTED", "")


def ask_cluster(host: HostState) -> dict[str, Any]:
    """`nodes` and `waiting`; both questions go out at once.

    Raises:
        ClusterfnError: Its scheduler does not answer, or cannot say.
        HostError: The host cannot be reached.
    """
    questions = host.scheduler.gpus()
    nodes, queue = questions.nodes, questions.queue
    if nodes is None or queue is None:
        hint = f"run `qhost -F` on {host.settings.name}"
        raise ClusterfnError(f"clusterfn does not list the GPUs of {host.scheduler.title}", hint=hint)
    replies = [_ask(host, nodes), _ask(host, queue)]
    node_answer, waiting = (reply.result(_TIMEOUT_S) for reply in replies)
    jobs = queue.read(_text(host, waiting))
    user = host.connection.facts.user
    return {
        "nodes": [node._asdict() for node in nodes.read(_text(host, node_answer))],
        "waiting": [{**job._asdict(), "own": job.user == user} for job in jobs],
    }


def _ask(host: HostState, question: Question[Any]) -> Reply[Completed]:
    return host.connection.run(question.argv, unset=host.scheduler.unset, timeout_s=_TIMEOUT_S)


def _text(host: HostState, answer: Completed) -> str:
    if answer.rc != 0:
        message = f"{host.scheduler.title} did not report its nodes and jobs"
        evidence = last_lines(answer.err, 5)
        raise ClusterfnError(message, host=host.settings.name, evidence=evidence, hint="try again later")
    return answer.out.decode("utf-8", "replace")


def cluster_tables(report: Mapping[str, Any], room: int | None = None) -> str:
    """Format both tables, in so many columns of a terminal."""
    nodes = report["nodes"]
    rows = []
    queue = []
    for node in nodes:
        left = "?" if node["used"] is None else node["total"] - node["used"]
        rows.append((node["node"], node["state"], node["type"] or "-", f"{left} of {node['total']}"))
    for job in report["waiting"]:
        owner = f"you: {job['name']}" if job["own"] else str(job["user"])
        queue.append((owner, job["id"], job["wants"], job["submitted"], job["reason"]))
    used = [node["used"] for node in nodes]
    free = "?" if None in used else sum(node["total"] for node in nodes) - sum(used)
    parts = [f"{free} of {sum(node['total'] for node in nodes)} GPUs free", table(_NODES_HEAD, rows)]
    return "\n\n".join([*parts, *([table(_CLUSTER_QUEUE_HEAD, queue, room, ("SUBMITTED",))] if queue else [])])


def gpus(args: argparse.Namespace) -> int:
    """Print the GPUs of a host and their queue, or of several hosts all GPUs; return 1 if one of these cannot say."""
    _, hosts, _ = target.hosts(args.host, "gpus")
    if args.watch or len(hosts) > 1:
        return _gpus_of_all({host.name: host for host in hosts}, args.json, args.watch)
    report = _report(hosts[0])
    if args.json:
        print(console.as_json(report))
    elif report.get("nodes"):
        print(cluster_tables(report))
    elif report.get("gpus"):
        print(machine_tables(report))
    if not report.get("nodes", report.get("gpus")):
        none = "no node has a gres named gpu" if "nodes" in report else "nvidia-smi is missing, or lists none"
        console.tell(f"no GPUs on {hosts[0].name}: {none}")
    return 0


def _report(settings: Host) -> dict[str, Any]:
    host = open_host(settings)
    asked = ask_cluster(host) if host.scheduler.has_nodes else ask_machine(host)
    return {"host": settings.name, "scheduler": settings.scheduler, **asked}


def _gpus_of_all(hosts: Mapping[str, Host], as_json: bool, watch: bool) -> int:
    """Print the GPUs of all hosts in one table, or show it again and again."""
    shown = TerminalLines(sys.stdout)
    with ended_by_key() if watch else contextlib.nullcontext():
        while True:
            answers = ask_each(list(hosts), lambda name: _report(hosts[name]))
            errors = {name: answer.message for name, answer in answers.items() if isinstance(answer, ClusterfnError)}
            lacking = [f"no GPUs of {name} are shown: {in_one_line(message)}" for name, message in errors.items()]
            reports = [answer for answer in answers.values() if not isinstance(answer, ClusterfnError)]
            if not watch:
                for sentence in lacking:
                    console.warn(sentence)
                print(console.as_json(reports) if as_json else tables_of_all(reports))
                return 1 if lacking else 0
            shown.show("\n".join([tables_of_all(reports), *lacking]))
            time.sleep(_EVERY_S)
    return 0


def tables_of_all(reports: Sequence[Mapping[str, Any]]) -> str:
    """Format the GPUs of several hosts as one table, the free ones first, after a line of sums."""
    rows: list[tuple[int, int, Sequence[str]]] = []
    sums = []
    for report in reports:
        host = report["host"]
        found = [(int(_held_by(gpu) == _FREE), 1, (host, *_machine_row(gpu))) for gpu in report.get("gpus", ())]
        for node in report.get("nodes", ()):
            left = 0 if node["used"] is None else node["total"] - node["used"]
            free = f"{'?' if node['used'] is None else left} of {node['total']} free, {node['state']}"
            found.append((left, node["total"], (host, node["node"], node["type"] or "-", "-", "-", free)))
        sums.append(f"{host} {_sum(found)}")
        rows += found
    first = f"{_sum(rows)} GPUs free: {', '.join(sums)}"
    shown = [cells for _, _, cells in sorted(rows, key=lambda row: not row[0])]
    return f"{first}\n\n{table(_ALL_HEAD, shown)}" if shown else first


def _sum(rows: Sequence[tuple[int, int, Sequence[str]]]) -> str:
    return f"{sum(free for free, _, _ in rows)} of {sum(total for _, total, _ in rows)}"
