"""`clusterfn jobs`: the jobs on one host, on several, or on all hosts at once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from clusterfn.bridge.job_states import SHORT, clock
from clusterfn.bridge.supervisor.text import shortened
from clusterfn.calls import console, history
from clusterfn.calls.attach import JobInfo
from clusterfn.cli import screen, target
from clusterfn.cli.complaint import describe_error
from clusterfn.cli.selection import ACTIVE, ask_each, list_on, narrowed
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.errors import ConfigError
from clusterfn.hosts.host_state import open_session

_HEAD = ("ID", "NAME", "HOST", "STATE", "AGE", "RAN", "GPUS", "SIZE", "DETAIL")
_MESSAGE = 170
_TIMEOUT_S = 60.0
_AT_ONCE = 1000


def jobs(given: argparse.Namespace) -> int:
    """Print the jobs, newest first; return 1 if one of several hosts could not list its own."""
    known, hosts = _hosts(given)
    found, failed = list_on(hosts)
    for name, error in failed.items():
        if len(hosts) == 1:
            raise error
        complaint = describe_error(error)
        console.warn(f"no jobs of {name} are shown: {complaint.text if complaint else error}")
    shown = narrowed(found, given)
    sizes = _sizes(shown)
    if given.json:
        print(screen.as_json([{**asdict(job), "bytes": sizes.get(job.id)} for job in shown]))
    elif shown:
        print(_table(shown, sizes))
    if not given.json:
        _say_what_is_not_shown(given, known, hosts, found, shown)
    return 1 if failed else 0


def _hosts(given: argparse.Namespace) -> tuple[config_file.Config, list[str]]:
    if not given.all_hosts:
        names = given.hosts or [None]
        resolved = [target.host(name, "jobs") for name in names]
        return resolved[0][0], list(dict.fromkeys(host.name for _, host, _ in resolved))
    if given.hosts:
        raise ConfigError("--all-hosts and a HOST contradict each other", hint="leave out one of them")
    known = config_file.load()
    return known, list(known.named or known.hosts)


def _sizes(shown: Sequence[JobInfo]) -> dict[str, int]:
    """Ask the hosts how large the jobs are that will be shown; a host measures for ten seconds at most."""
    ids: dict[str, list[str]] = {}
    for job in shown:
        ids.setdefault(job.host, []).append(job.id)

    def measure(name: str) -> dict[str, int]:
        session = open_session(config_file.load().resolve(name)[0])
        sizes: dict[str, int] = {}
        for first in range(0, len(ids[name]), _AT_ONCE):
            part = ids[name][first : first + _AT_ONCE]
            answer = session.supervise("sizes", session.root, *part, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
            with reading(name, "the sizes of its jobs"):
                told = json.loads(answer.out) if answer.rc == 0 else {}
                sizes.update(
                    {str(job): size for job, size in told.items() if type(size) is int and 0 <= size < 1 << 63}
                )
        return sizes

    measured = ask_each(list(ids), measure).values()
    return {job_id: size for each in measured if isinstance(each, dict) for job_id, size in each.items()}


def _table(found: Sequence[JobInfo], sizes: Mapping[str, int]) -> str:
    """Return the table; it has a column INPUTS if one of the jobs takes the value of another."""
    now, digits = time.time(), shortest([job.id for job in found] + [each for job in found for each in job.inputs])
    rows, has_inputs = [], any(job.inputs for job in found)
    for job in found:
        ran = "-" if job.ran_s is None else screen.age(job.ran_s)
        size = screen.size(sizes[job.id]) if job.id in sizes else "-"
        facts = [screen.age(now - job.started), ran, str(job.gpus or "-"), size]
        inputs = [" ".join(each[:digits] for each in job.inputs) or "-"] if has_inputs else []
        detail = job.message
        if job.state in ACTIVE and job.since is not None:
            detail = f"since {clock(job.since)}{f': {job.message}' if job.message else ''}"
        rows.append([job.id[:digits], job.name, job.host, job.state, *facts, *inputs, shortened(detail, _MESSAGE)])
    return screen.table([*_HEAD[:-1], *(["INPUTS"] if has_inputs else []), _HEAD[-1]], rows)


def _say_what_is_not_shown(
    given: argparse.Namespace, known: config_file.Config, hosts: Sequence[str], found: Sequence[JobInfo],
    shown: Sequence[JobInfo],
) -> None:  # fmt: skip
    if not found:
        console.tell(f"no jobs on {', '.join(hosts)}")
    elif not shown:
        options = {"-n": given.number, "--state": given.state, "--since": given.since}
        asked = " and ".join(name for name, value in options.items() if value is not None)
        console.tell(f"none of {len(found)} jobs on {', '.join(hosts)} matches {asked}")
    others = [name for name in history.hosts(known.path) if name in known.hosts and name not in hosts]
    if others and not given.hosts and not given.all_hosts:
        console.tell(f"other hosts with jobs: {', '.join(others)} (clusterfn jobs --all-hosts)")


def shortest(ids: Sequence[str]) -> int:
    """Count the digits that distinguish these ids; at least as many as every command wants.

    Example:
        >>> shortest(["7f3a11", "7f3a22", "90aa33"])
        5
    """
    return next((n for n in range(SHORT, 16) if len({each[:n] for each in ids}) == len(set(ids))), 16)
