"""`clusterfn jobs`, `logs`, `result`, `attach`, `stack` and `cancel`: jobs that were started earlier, or elsewhere."""

from __future__ import annotations

import argparse
import codecs
import concurrent.futures
import os
import queue
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clusterfn.bridge.supervisor.text import in_one_line, printable, shortened
from clusterfn.calls import console, history, job_display
from clusterfn.calls.attach import JobInfo
from clusterfn.calls.attach import attach as find
from clusterfn.calls.attach import jobs as list_jobs
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import CANCELLED, PENDING, RUNNING, SHORT, Job
from clusterfn.cli import screen, target
from clusterfn.cli.run import written
from clusterfn.errors import ClusterfnError, ConfigError

_HEAD = ("ID", "NAME", "HOST", "STATE", "AGE", "DETAIL")
_MESSAGE = 130
_MOMENT_S = 1.0  # for the outcome of a job that had ended before we asked
_END_S = 60.0


def jobs(given: argparse.Namespace) -> int:
    """Print the jobs of a host, newest first."""
    known, host, _ = target.host(given.host, "jobs")
    found = list_jobs(host.name)
    if given.json:
        print(screen.as_json([asdict(job) for job in found]))
    elif found:
        print(screen.table(_HEAD, _rows(found)))
    else:
        print(f"clusterfn: no jobs on {host.name}", file=sys.stderr)
    others = [name for name in history.hosts(known.path) if name in known.hosts and name != host.name]
    if others and not given.host and not given.json:
        print(f"clusterfn: jobs were sent to {', '.join(others)} too: clusterfn jobs {others[0]}", file=sys.stderr)
    return 0


def _rows(found: Sequence[JobInfo]) -> list[list[str]]:
    now, digits = time.time(), shortest([job.id for job in found])
    words = [shortened(job.message, _MESSAGE) for job in found]
    return [
        [job.id[:digits], job.name, job.host, job.state, screen.age(now - job.started), message]
        for job, message in zip(found, words)
    ]


def shortest(ids: Sequence[str]) -> int:
    """Count the digits that tell these ids apart; at least as many as every command wants.

    Example:
        >>> shortest(["7f3a11", "7f3a22", "90aa33"])
        5
    """
    return next((n for n in range(SHORT, 16) if len({each[:n] for each in ids}) == len(set(ids))), 16)


def logs(given: argparse.Namespace) -> int:
    """Print what a job has printed; with --follow until it ends."""
    if given.follow and given.stream == "scheduler":
        raise ConfigError("the scheduler's words cannot be followed", hint="leave out -f")
    job = find(given.id, given.host, live=given.follow)
    if isinstance(job, JobGroup):
        _logs_of_items(job, given)
    elif given.follow:
        _follow(job, given.stream)
    else:
        _write(job.logs(given.stream), given.stream)
    return 0


def _write(text: str, stream: str) -> None:
    """Write the function's output as it is; what the scheduler or the host's shell said, without escapes."""
    sys.stdout.write(printable(text) if stream == "scheduler" else text)


def _logs_of_items(group: JobGroup[Any, Any], given: argparse.Namespace) -> None:
    """Print what each item has printed, one after another."""
    if given.follow or given.stream == "scheduler":
        attach = f"clusterfn attach {group.id[:SHORT]} follows it; without -f its items' output is shown"
        hint = attach if given.follow else "leave out --scheduler"
        raise ConfigError(f"{group.id} is a group of {len(group)} items", hint=hint)
    group.wait(_MOMENT_S)
    for index, state in enumerate(group.states):
        printed = "" if state == PENDING else group.logs(index, given.stream)
        if printed:
            print(f"==> item {index}: {in_one_line(group.label(index))} ({state.lower()}) <==")
            _write(printed, given.stream)


def _follow(job: Job[Any], stream: str) -> None:
    """Copy one stream of a job to stdout until the job has ended."""
    told: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    job.listen(lambda kind, what: told.put((kind, what)))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    kind, what = told.get()
    while kind != "done":
        if kind == stream:
            sys.stdout.write(decoder.decode(what))
            sys.stdout.flush()
        kind, what = told.get()


def result(given: argparse.Namespace) -> int:
    """Print the value of a job, as repr or as JSON; wait for it."""
    _modules_of_this_folder()
    job = find(given.id, given.host)
    if not _ended(job):
        console.say(f"clusterfn: {job.id} {job.name} on {job.host} is {job.status}; waiting for it\n")
    print(written(job.results() if isinstance(job, JobGroup) else job.result(), given.json))
    return 0


def attach(given: argparse.Namespace) -> int:
    """Follow a job until its end; the exit code says how it ended."""
    _modules_of_this_folder()
    job = find(given.id, given.host, live=True)
    if isinstance(job, JobGroup):
        job.results()
    else:
        job_display.result(job, f"{job.name} on {job.host}")
    how = f"has ended: {job.status}" if isinstance(job, JobGroup) else "has returned"
    console.say(f"clusterfn: {job.id} {how}; clusterfn result {job.id[:SHORT]} prints its value\n")
    return 0


def stack(given: argparse.Namespace) -> int:
    """Print the stack of every thread of a running job."""
    job = find(given.id, given.host)
    if isinstance(job, JobGroup):
        return _stacks_of_items(job)
    sys.stdout.write(job.stack())
    return 0


def _stacks_of_items(group: JobGroup[Any, Any]) -> int:
    """Those of each item that runs; the exit code says whether there was one."""
    group.wait(_MOMENT_S)
    running = [index for index, state in enumerate(group.states) if state == RUNNING]
    if not running:
        console.say(f"clusterfn: no item of {group.id} runs: it is {group.status}\n")
    for index in running:
        print(f"==> item {index}: {in_one_line(group.label(index))} <==")
        try:
            sys.stdout.write(group.stack(index))
        except ClusterfnError as error:  # it has ended meanwhile
            console.warn(error.message)
    return 0 if running else 1


def cancel(given: argparse.Namespace) -> int:
    """Withdraw each job that has not started, or end a running one or a group; says which it was."""
    failed = False
    for job_id in given.ids:
        try:
            failed = not _cancel(find(job_id, given.host)) or failed
        except ClusterfnError as error:
            if len(given.ids) == 1:
                raise
            console.warn(f"{job_id}: {error}")  # the others are ended all the same
            failed = True
    return 1 if failed else 0


def _cancel(job: Job[Any] | JobGroup[Any, Any]) -> bool:
    """Whether it has ended then."""
    if isinstance(job, Job) and job.cancel():
        done = "was withdrawn before it started"
    elif _ended(job):
        done = f"had ended already: {job.status}"
    else:
        job.stop()
        if isinstance(job, JobGroup):
            job.wait(_END_S)
        else:
            concurrent.futures.wait([job], _END_S)
        done = "was told to stop, and has not ended yet"
        if job.done():
            done = f"{'was stopped' if job.state == CANCELLED else 'has ended meanwhile'}: {job.status}"
    console.say(f"clusterfn: {job.id} {job.name} on {job.host} {in_one_line(done)}\n")
    return job.done()


def _ended(job: Job[Any] | JobGroup[Any, Any]) -> bool:
    """Whether it has ended, after a moment in which the host can say so."""
    if isinstance(job, JobGroup):
        return job.wait(_MOMENT_S)
    return bool(concurrent.futures.wait([job], _MOMENT_S).done)


def _modules_of_this_folder() -> None:
    """Let values of the user's own classes be loaded: the same modules as for `python -m`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
