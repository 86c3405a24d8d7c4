"""`clusterfn jobs`: the jobs on one host, on several, or on all hosts at once.

`clusterfn usage`: what ended jobs asked for and used, and which smaller request would have been enough.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import RETURNED, SHORT
from clusterfn.bridge.supervisor.gpus import QUIET_MIB
from clusterfn.bridge.supervisor.text import counted, format_duration, format_size, shortened
from clusterfn.calls import history
from clusterfn.calls.remote_state import JobInfo
from clusterfn.cli import target
from clusterfn.cli.selection import filter_jobs, list_and_warn
from clusterfn.config import config_file
from clusterfn.config.units import exact_memory
from clusterfn.display import console, live
from clusterfn.display.usage_words import mean_cores, short_usage
from clusterfn.errors import ConfigError

_HEAD = ("ID", "NAME", "HOST", "STATE", "AGE", "RAN", "GPUS", "USE", "DETAIL")
_MESSAGE = 170
_NEWEST = 30


def jobs(args: argparse.Namespace) -> int:
    """Print the jobs, newest first; return 1 if one of several hosts could not list its own."""
    configuration, hosts = hosts_of(args, "jobs")
    listed, errors = list_and_warn(hosts)
    matching = filter_jobs(listed, args)
    # A program gets all of them.
    visible = matching if args.json or args.number is not None else matching[:_NEWEST]
    if args.json:
        print(console.as_json(list(map(asdict, visible))))
    elif visible:
        print(_table(visible))
    if len(visible) < len(matching):
        more = counted(len(matching) - len(visible), "older job")
        console.tell(f"{more} not shown: -n {len(matching)} shows all {len(matching)}")
    if not args.json:
        _say_what_is_not_shown(args, configuration, hosts, listed, visible)
    return 1 if errors else 0


def hosts_of(args: argparse.Namespace, command: str) -> tuple[config_file.Config, list[str]]:
    """Return the configuration, and the hosts that HOST… or --all-hosts means."""
    if not args.all_hosts:
        resolved = [target.hosts(name, command) for name in args.hosts or [None]]
        return resolved[0][0], list(dict.fromkeys(host.name for _, hosts, _ in resolved for host in hosts))
    if args.hosts:
        raise ConfigError("--all-hosts and a HOST contradict each other", hint="leave out one of them")
    configuration = config_file.load()
    return configuration, list(configuration.named or configuration.hosts)


def _table(jobs: Sequence[JobInfo]) -> str:
    """Return the table; its columns ARGUMENTS and INPUTS, jobs whose values it takes, are there if any job has them."""
    ids = [job.id for job in jobs] + [input_id for job in jobs for input_id in job.inputs]
    now = time.time()
    digits = shortest(ids)
    rows = []
    has_inputs = any(job.inputs for job in jobs)
    has_arguments = any(job.arguments for job in jobs)
    for job in jobs:
        ran = "-" if job.ran_s is None else format_duration(job.ran_s)
        use = short_usage(job.usage) or "-"
        facts = [format_duration(now - job.started), ran, str(job.gpus or "-"), use]
        inputs = [" ".join(input_id[:digits] for input_id in job.inputs) or "-"] if has_inputs else []
        arguments = [job.arguments or "-"] if has_arguments else []
        detail = shortened(job.detail, _MESSAGE)
        rows.append([job.id[:digits], job.name, *arguments, job.host, job.state, *facts, *inputs, detail])
    more, inputs = ["ARGUMENTS"] if has_arguments else [], ["INPUTS"] if has_inputs else []
    return live.table([*_HEAD[:2], *more, *_HEAD[2:-1], *inputs, _HEAD[-1]], rows)


def _say_what_is_not_shown(
    args: argparse.Namespace,
    configuration: config_file.Config,
    hosts: Sequence[str],
    listed: Sequence[JobInfo],
    visible: Sequence[JobInfo],
) -> None:
    if not listed:
        console.tell(f"no jobs on {', '.join(hosts)}")
    elif not visible:
        options = {"-n": args.number, "--state": args.state, "--since": args.since}
        filters = " and ".join(name for name, value in options.items() if value is not None)
        console.tell(f"none of {len(listed)} jobs on {', '.join(hosts)} matches {filters}")
    others = [name for name in history.hosts(configuration.path) if name in configuration.hosts and name not in hosts]
    if others and not args.hosts and not args.all_hosts:
        console.tell(f"other hosts with jobs: {', '.join(others)} (clusterfn jobs --all-hosts)")


def shortest(ids: Sequence[str]) -> int:
    """Count the digits that distinguish these ids; at least as many as every command wants.

    Example:
        >>> shortest(["7f3a11", "7f3a22", "90aa33"])
        5
    """
    return next((n for n in range(SHORT, 16) if len({job_id[:n] for job_id in ids}) == len(set(ids))), 16)


_USAGE_HEAD = ("NAME", "HOST", "JOBS", "CORES", "MEMORY", "GPU", "TIME", "SUGGESTION")
# A suggestion exceeds the highest use by these factors.
_MARGIN = {"cores": 1.2, "memory": 1.25, "time": 1.5}
# Suggest an amount only if it is at most this part of the request.
_WORTH = 0.7
# The use of GPUs is measured now and then, and a short job may use one in between.
_SAMPLED_S = 60.0
# Only luck saved a job that used this part of its limit from being killed, so suggest more.
_NEAR = 0.95
_LIMIT = "its limit"
# Round suggestions up to multiples of these bytes and seconds, by their size.
_MEMORY_STEPS = (2**28, 2**30, 4 * 2**30, 16 * 2**30)
_TIME_STEPS = (60.0, 600.0, 3600.0)


def usage(args: argparse.Namespace) -> int:
    """Print a line for each function and request; return 1 if one of several hosts could not list its jobs."""
    _, hosts = hosts_of(args, "usage")
    listed, errors = list_and_warn(hosts)
    rows = reports_on([job for job in filter_jobs(listed, args) if job.ended is not None and job.usage])
    if args.json:
        print(console.as_json(rows))
    elif rows:
        print(live.table(_USAGE_HEAD, map(_row, rows)))
    else:
        console.tell(f"no job that has ended on {', '.join(hosts)} has said what it used")
    return 1 if errors else 0


def reports_on(jobs: Sequence[JobInfo]) -> list[dict[str, Any]]:
    """Return what the jobs of each function used that asked for the same, those with the most time first."""
    alike: dict[Any, list[JobInfo]] = {}
    for job in jobs:
        alike.setdefault((job.name, job.host, *sorted(job.asked.items())), []).append(job)
    reports = [_report(group) for group in alike.values()]
    return sorted(reports, key=lambda report: -report["wall_s"])


def _report(jobs: Sequence[JobInfo]) -> dict[str, Any]:
    used = [job.usage for job in jobs]
    requested = jobs[0].asked
    gpus = [gpu for record in used for gpu in record.get("gpus") or ()]
    use = [gpu["mean_use_percent"] for gpu in gpus if gpu.get("mean_use_percent") is not None]
    gpu_memory = [gpu["peak_memory_bytes"] for gpu in gpus if gpu.get("peak_memory_bytes") is not None]
    report = {
        "name": jobs[0].name,
        "host": jobs[0].host,
        "jobs": len(jobs),
        "asked": dict(requested),
        "wall_s": sum(record.get("wall_s") or 0.0 for record in used),
        "cores": max((cores for cores in map(mean_cores, used) if cores is not None), default=None),
        "memory_bytes": max((record.get("peak_memory_bytes") or 0 for record in used), default=0) or None,
        "gpu_use_percent": sum(use) / len(use) if use else None,
        "gpu_memory_bytes": max(gpu_memory, default=None),
        "longest_s": max((record.get("longest_s") or record.get("wall_s") or 0.0 for record in used), default=0.0),
    }
    advice = suggestions(report, requested, {job.kind for job in jobs})
    # A job that failed may have needed more than it had the time to use. A map says how many items have returned.
    has_returned = any(job.state == RETURNED or " returned" in job.message for job in jobs)
    return {**report, "suggestions": [line for line in advice if has_returned or line.endswith(_LIMIT)]}


def suggestions(used: Mapping[str, Any], requested: Mapping[str, Any], kinds: Collection[str] = ()) -> list[str]:
    """Say what to ask for the next time, given the kinds of outcomes too.

    Example:
        >>> suggestions({"cores": 1.4, "memory_bytes": 3 * 2**30}, {"cores": 8, "memory_bytes": 2**35})
        ['cores=2', 'memory="4GB"']
    """
    advice = []
    cores, memory, limit_s = requested.get("cores"), requested.get("memory_bytes"), requested.get("time_s")
    if cores and used.get("cores") is not None:
        enough = max(1, math.ceil(used["cores"] * _MARGIN["cores"]))
        advice += [f"cores={enough}"] if enough <= _WORTH * cores else []
    # What ran out of memory or time reached its limit, even if it was last measured before that.
    most = max(used.get("memory_bytes") or 0, memory if memory and layout.MEMORY in kinds else 0)
    if memory and most:
        enough = _rounded_up(most * _MARGIN["memory"], _MEMORY_STEPS)
        advice += _if_worth_it(f'memory="{exact_memory(enough)}"', memory, most, enough)
    filled = (used.get("gpu_memory_bytes") or 0) > QUIET_MIB << 20
    # The job must have run long enough for its GPUs to be measured.
    was_measured = (used.get("longest_s") or 0.0) >= _SAMPLED_S
    if requested.get("gpus") and used.get("gpu_use_percent") == 0 and not filled and was_measured:
        advice.append("gpus=0: its GPUs did nothing")
    longest_s = max(used.get("longest_s") or 0.0, limit_s if limit_s and layout.TIME in kinds else 0.0)
    if limit_s and longest_s:
        enough = _rounded_up(longest_s * _MARGIN["time"], _TIME_STEPS)
        advice += _if_worth_it(f'time="{math.ceil(enough / 60)}min"', limit_s, longest_s, enough)
    return advice


def _if_worth_it(option: str, requested: float, used: float, enough: float) -> list[str]:
    """Return the option if what was used came close to what was asked for, or if much less is enough."""
    if used >= _NEAR * requested:
        return [f"{option}: it {'reached' if used >= requested else 'was close to'} {_LIMIT}"]
    return [option] if enough <= _WORTH * requested else []


def _rounded_up(amount: float, steps: Sequence[float]) -> int:
    """Round up to a multiple of the largest step that is at most half of the amount, or of the smallest.

    Example:
        >>> _rounded_up(3.75 * 2**30, _MEMORY_STEPS) / 2**30
        4.0
    """
    step = max((size for size in steps if 2 * size <= amount), default=steps[0])
    return int(math.ceil(amount / step) * step)


def _row(report: Mapping[str, Any]) -> Sequence[str]:
    requested, memory = report["asked"], report["memory_bytes"]
    cores = "-" if report["cores"] is None else f"{report['cores']:.1f}"
    gpu = "-" if report["gpu_use_percent"] is None else f"{report['gpu_use_percent']:.0f} %"
    limit = f" of {format_duration(requested['time_s'])}" if requested.get("time_s") else ""
    of_cores = f"{cores} of {requested['cores']}" if requested.get("cores") else cores
    of_memory = f" of {format_size(requested['memory_bytes'])}" if requested.get("memory_bytes") else ""
    used = (of_cores, f"{format_size(memory) if memory else '-'}{of_memory}", gpu)
    last = (format_duration(report["longest_s"]) + limit, ", ".join(report["suggestions"]) or "-")
    return (report["name"], report["host"], str(report["jobs"]), *used, *last)
