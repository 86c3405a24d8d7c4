"""`clusterfn pull ID`: fetch the files that jobs have left in their folders."""

from __future__ import annotations

import argparse
import posixpath
from pathlib import Path
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import counted
from clusterfn.calls.attach import find_job
from clusterfn.calls.group import JobGroup
from clusterfn.cli.output import AnyJob, facts_of, print_each
from clusterfn.cli.selection import select
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, read_spec
from clusterfn.display import console
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import remote_files

_EVERYTHING = "**/*"


def pull(args: argparse.Namespace) -> int:
    """Fetch the files of each job: those that match --only, else those of its outputs=, else all of them."""
    selection = select(args, "pull")

    def fetch(job: AnyJob) -> list[Path]:
        # Several jobs may have files of the same name, so each of them gets a folder.
        folder = Path(args.to) if selection.single else Path(args.to, job.id)
        return _fetch(job, args.only or _outputs_of(job) or [_EVERYTHING], folder)

    def show(job: AnyJob) -> None:
        paths = fetch(job)
        print("".join(f"{path}\n" for path in paths), end="")
        count, are = counted(len(paths), "file"), "is" if len(paths) == 1 else "are"
        console.tell(f"{count} of {job.id} {job.name} on {job.host} {are} in {args.to}")

    def tell(job: AnyJob) -> dict[str, Any]:
        return {**facts_of(job), "files": [str(path) for path in fetch(job)]}

    return print_each(selection, args.json, show, tell)


def _outputs_of(job: AnyJob) -> list[str]:
    """Return the patterns that the job was sent with."""
    session, folder = find_job(job.id, job.host)
    spec = remote_files.read_bytes(session.connection, posixpath.join(folder, layout.SPEC))
    with reading(session.host.name, SPEC_OF_JOB):
        return list(read_spec(spec)["outputs"])


def _fetch(job: AnyJob, patterns: list[str], to: Path) -> list[Path]:
    """Fetch what matches; of a group into a folder for each item that has left something.

    Raises:
        ClusterfnError: There is nothing, or nothing with such a name.
    """
    if not isinstance(job, JobGroup):
        return [path for pattern in patterns for path in job.download(pattern, to)]
    paths: list[Path] = []
    for index in range(len(job)):
        if job.files(index):
            paths += (path for pattern in patterns for path in job.download(index, pattern, to / str(index)))
    if not paths:
        raise ClusterfnError(f"no item of {job.id} has left a file", host=job.host, job=job.id)
    return paths
