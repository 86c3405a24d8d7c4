"""`clusterfn logs`, `result`, `attach`, `stack` and `pull`: what an earlier job, or one of another program, leaves.

It leaves what it prints, its value, and files in its folder.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import os
import posixpath
import queue
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, PENDING, RUNNING, SHORT
from clusterfn.bridge.supervisor.text import counted, in_one_line, printable
from clusterfn.calls.attach import attach as find
from clusterfn.calls.attach import find_job
from clusterfn.calls.group import JobGroup, run_of_group, state_of_group
from clusterfn.calls.job import Job, run_of, shown_to_end
from clusterfn.calls.outcome_errors import in_a_line
from clusterfn.cli.command_line import error_facts
from clusterfn.cli.run import written
from clusterfn.cli.selection import select_one
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, read_spec
from clusterfn.display import console, live
from clusterfn.display.console import STREAMS, OutputWriter
from clusterfn.errors import Cancelled, ClusterfnError, ConfigError, JobError, MapError
from clusterfn.hosts import remote_files, spoken_wait

AnyJob = Union[Job[Any], JobGroup[Any, Any]]
# The time that a host gets to report the outcome of a job that has ended already.
_MOMENT_S = 1.0


def logs(args: argparse.Namespace) -> int:
    """Print what a job has printed; with --follow until it ends."""
    if args.follow and args.stream == "scheduler":
        raise ConfigError("what the scheduler wrote cannot be followed", hint="leave out -f")
    if args.follow and args.json:
        raise ConfigError("--json prints one object, and cannot follow a job", hint="leave out -f or --json")
    job = find(*select_one(args, "logs"), live=args.follow)
    streams = STREAMS if args.stream is None else (args.stream,)
    if args.json:
        print(console.as_json(_output_as_facts(job, streams)))
    elif isinstance(job, JobGroup):
        if args.follow or args.stream == "scheduler":
            attach = f"clusterfn attach {job.id[:SHORT]} follows it; without -f its items' output is shown"
            hint = attach if args.follow else "leave out --scheduler"
            raise ConfigError(f"{job.id} is a group of {len(job)} items", hint=hint)
        for index, state, printed in _items(job, streams):
            if any(data for _, data in printed):
                print(f"==> item {index}: {in_one_line(job.label(index))} ({state.lower()}) <==", flush=True)
                _write(streams, printed)
    elif args.follow and not job.done():
        _follow(job, streams)
    else:
        printed = _printed(job, streams)
        _write(streams, printed)
        if args.stream is None and job.done() and not any(data for _, data in printed):
            console.tell(f"the job printed nothing; `clusterfn result {job.id[:SHORT]}` shows how it ended")
    return 0


def _output_as_facts(job: AnyJob, streams: Sequence[str]) -> dict[str, Any]:
    if not isinstance(job, JobGroup):
        return {**facts_of(job), **{stream: job.logs(stream) for stream in streams}}
    items = []
    for index, state, printed in _items(job, streams):
        texts = {stream: b"".join(data for name, data in printed if name == stream) for stream in streams}
        decoded = {stream: text.decode("utf-8", "replace") for stream, text in texts.items()}
        items.append({"index": index, "label": job.label(index), "state": state, **decoded})
    return {**facts_of(job), "items": items}


def facts_of(job: AnyJob) -> dict[str, Any]:
    """Return what `--json` says of every job."""
    return {"id": job.id, "name": job.name, "host": job.host, "state": job.state}


def _printed(job: Job[Any], streams: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return what a job has printed; where both streams are asked for, in the order in which it came."""
    if streams != STREAMS:
        return [(stream, job.logs(stream).encode()) for stream in streams]
    at = run_of(job).at
    return remote_files.read_output(at.connection, layout.attempt_dir(at.folder, at.attempt))


def _write(streams: Sequence[str], printed: Iterable[tuple[str, bytes]]) -> None:
    """Write the function's output as it is; what the scheduler or the host's shell said, without escapes."""
    writer = OutputWriter()
    for stream, data in printed:
        if stream == "scheduler":
            live.write(sys.stdout, printable(data.decode()))
        else:
            # A stream that was chosen by itself is what a pipe gets.
            writer.write(stream if len(streams) > 1 else layout.STDOUT, data)


def _items(group: JobGroup[Any, Any], streams: Sequence[str]) -> Iterator[tuple[int, str, list[tuple[str, bytes]]]]:
    group.wait(_MOMENT_S)
    for index, state in enumerate(group.states):
        if state == PENDING:
            yield index, state, []
        elif streams == STREAMS:
            yield index, state, run_of_group(group, index).results_of(index).read_output(index)
        else:
            yield index, state, [(stream, group.logs(index, stream).encode()) for stream in streams]


def _has_value(job: AnyJob) -> bool:
    """Whether it is run for its value, and not a command for what it prints."""
    return (state_of_group(job) if isinstance(job, JobGroup) else run_of(job)).has_value


def _follow(job: Job[Any], streams: Sequence[str]) -> None:
    """Show what a job prints, as it comes, until the job has ended.

    Raises:
        ClusterfnError: Its host has lost the job, or cannot be reached any more: there may be more than was shown.
    """
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    run_of(job).listen(lambda kind, what: events.put((kind, what)))
    writer = OutputWriter()
    first: list[tuple[str, Any]] = []

    def comes(seconds: float | None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while not first or first[-1][0] not in (*streams, "done"):
                first.append(events.get(timeout=None if until is None else max(0.0, until - time.monotonic())))
            return True
        return False

    spoken_wait.wait(comes, lambda: f"{job.id[:SHORT]} has printed nothing yet: it is {job.status_since}")
    kind, what = first[-1]
    while kind != "done":
        if kind in streams:
            writer.write(kind if len(streams) > 1 else layout.STDOUT, what)
        elif kind == "connection" and what:
            console.tell(f"{job.id[:SHORT]} {what}")
        kind, what = events.get()
    error = None if job.cancelled() else job.exception(0)
    if isinstance(error, ClusterfnError) and not isinstance(error, JobError):
        raise error


def result(args: argparse.Namespace) -> int:
    """Print the value of a job, as repr or as JSON; wait for it. Return 1 if an item of a map has none."""
    _modules_of_this_folder()
    job = find(*select_one(args, "result"))
    if not has_ended(job):
        console.tell(f"{job.id} {job.name} on {job.host} is {described(job)}; waiting for it")
    value = _values_of_map(job, args.json) if isinstance(job, JobGroup) else job.result()
    if args.json or _has_value(job):
        print(written(value, args.json))
    else:
        # Only commands have no value: users run them for what they print.
        short = job.id[:SHORT]
        console.tell(f"{job.id} has returned, without a value: clusterfn logs {short} shows what it printed")
    return 1 if isinstance(job, JobGroup) and job.failed else 0


def attach(args: argparse.Namespace) -> int:
    """Follow a job until its end; the exit code says how it ended."""
    _modules_of_this_folder()
    job_id, host = select_one(args, "attach")
    job = find(job_id, host, live=True)
    if isinstance(job, JobGroup):
        _values_of_map(job, False)
    else:
        shown_to_end(job, f"{job.name} on {job.host}")
    how = f"has ended: {job.status}" if isinstance(job, JobGroup) else "has returned"
    more = f"; clusterfn result {job.id[:SHORT]} prints its value" if _has_value(job) else ""
    console.tell(f"{job.id} {how}{more}")
    return 1 if isinstance(job, JobGroup) and job.failed else 0


def stack(args: argparse.Namespace) -> int:
    """Print the stack of every thread of a running job; of a group, that of each item that runs."""
    job_id, host = select_one(args, "stack")
    job = find(job_id, host)
    if isinstance(job, JobGroup):
        return _stacks_of_items(job, args.json)
    text = job.stack()
    if args.json:
        print(console.as_json({**facts_of(job), "stack": text}))
    else:
        sys.stdout.write(text)
    return 0


def _stacks_of_items(group: JobGroup[Any, Any], as_json: bool) -> int:
    """Print those of each item that runs; return 1 if there was none."""
    group.wait(_MOMENT_S)
    running = [index for index, state in enumerate(group.states) if state == RUNNING]
    if not running:
        console.tell(f"no item of {group.id} is running: it is {group.status}")
    stacks = []
    for index in running:
        try:
            text = group.stack(index)
        except ClusterfnError as error:
            # The item may have ended since the states were read.
            console.warn(error.message)
            continue
        stacks.append({"index": index, "label": group.label(index), "stack": text})
        if not as_json:
            print(f"==> item {index}: {in_one_line(group.label(index))} <==")
            sys.stdout.write(text)
    if as_json:
        print(console.as_json({**facts_of(group), "items": stacks}))
    return 0 if running else 1


def described(job: AnyJob) -> str:
    """Say its state, since when, and why; of a group how many items have ended."""
    return job.status_since if isinstance(job, Job) else job.status


def has_ended(job: AnyJob) -> bool:
    """Whether it has ended, after a moment in which the host can say so."""
    if isinstance(job, JobGroup):
        return job.wait(_MOMENT_S)
    return bool(concurrent.futures.wait([job], _MOMENT_S).done)


def _modules_of_this_folder() -> None:
    """Let values of the user's own classes be loaded: the same modules as for `python -m`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


class _NoValue:
    """Print the reason in place of the value that an item does not have."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "<cancelled>" if isinstance(self.error, Cancelled) else f"<{in_a_line(self.error)}>"


def _values_of_map(group: JobGroup[Any, Any], as_json: bool) -> list[Any]:
    """Wait for a map, and return what to print in the place of each item; say how many have no value.

    Raises:
        Cancelled: No item has a value, and all were cancelled.
        MapError: No item has a value.
    """
    advice = f"clusterfn logs {group.id[:SHORT]} shows what each item printed"
    try:
        values = group.results()
    except MapError as error:
        # The hint of this error names Python calls, so replace it by a command.
        if all(isinstance(error, Cancelled) for error in group.failed.values()):
            message = f"{in_one_line(group.name)} was cancelled before any of its {len(group)} items returned"
            raise Cancelled(message, host=group.host, job=group.id, log=error.log) from None
        error.hint = advice
        raise
    failed = group.failed
    if failed:
        cancelled = " was cancelled" if group.state == CANCELLED else ""
        have = f"{len(failed)} of {len(group)} items {'has' if len(failed) == 1 else 'have'} no value"
        console.warn(f"{group.id[:SHORT]} {in_one_line(group.name)} on {group.host}{cancelled}: {have}; {advice}")
    for index, why in failed.items():
        values[index] = {"error": error_facts(why)} if as_json else _NoValue(why)
    return values


_EVERYTHING = "**/*"


def pull(args: argparse.Namespace) -> int:
    """Fetch the files of a job: those that match --only, else those of its outputs=, else all of them."""
    job = find(*select_one(args, "pull"))
    paths = _fetch(job, args.only or _outputs_of(job) or [_EVERYTHING], Path(args.to))
    if args.json:
        print(console.as_json({**facts_of(job), "files": [str(path) for path in paths]}))
        return 0
    print("".join(f"{path}\n" for path in paths), end="")
    count = counted(len(paths), "file")
    are = "is" if len(paths) == 1 else "are"
    console.tell(f"{count} of {job.id} {job.name} on {job.host} {are} in {args.to}")
    return 0


def _outputs_of(job: AnyJob) -> list[str]:
    """Return the patterns that the job was sent with."""
    # A map on several hosts has the id of its first part.
    host, folder = find_job(job.id, job.host.partition(", ")[0])
    spec = remote_files.read_bytes(host.connection, posixpath.join(folder, layout.SPEC))
    with reading(host.settings.name, SPEC_OF_JOB):
        return list(read_spec(spec)["outputs"])


def _fetch(job: AnyJob, patterns: list[str], to: Path) -> list[Path]:
    """Fetch what matches one of them; each item of a group into a folder. Raise ClusterfnError if nothing does."""
    sources = [(functools.partial(job.download), to)] if isinstance(job, Job) else []
    if isinstance(job, JobGroup):
        left = [item for item in range(len(job)) if job.files(item)]
        sources = [(functools.partial(job.download, item), to / str(item)) for item in left]
    paths: list[Path] = []
    matched: set[str] = set()
    missed: dict[str, ClusterfnError] = {}
    for (download, folder), pattern in itertools.product(sources, patterns):
        try:
            paths += download(pattern, folder)
            matched.add(pattern)
        except remote_files.NothingMatches as error:
            if error.names:
                error.hint = f'clusterfn pull {job.id[:SHORT]} --only "**" fetches what it left'
            missed[pattern] = error
    if not paths:
        nothing = ClusterfnError(f"no item of {job.id} has left a file", host=job.host, job=job.id)
        raise next(iter(missed.values()), nothing)
    for pattern in missed:
        if pattern not in matched:
            console.warn(missed[pattern].message)
    return paths
