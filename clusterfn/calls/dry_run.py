"""What a call would send and run, as text for a person: `f.script(...)`. Sends nothing."""

from __future__ import annotations

from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls import submit
from clusterfn.calls.payload import Payload
from clusterfn.config.spec import JobSpec
from clusterfn.hosts import bridge_bundle
from clusterfn.hosts.bridge_bundle import FileBundle
from clusterfn.hosts.environment_choice import ResolvedEnvironment
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler import job_script


def describe(session: HostState, job: JobSpec, payload: Payload, ready: ResolvedEnvironment) -> str:
    """The script, the commands, the files and their sizes, as a person would want to read them."""
    start = session.scheduler.submission(job)
    wanted = dict(submit.named_by_content(job.root, payload))
    missing = session.missing(list(wanted)) if wanted else set()
    lines = [
        f"# job {job.name} on {job.host.name} ({job.host.scheduler}), in {layout.job_dir(job.root, job.id)}",
        f"# environment: {job.interpreter.path} (Python {job.interpreter.version[0]}.{job.interpreter.version[1]})",
        "",
        "# files sent with the job",
        *(
            f"#   {_shown(len(file.data))}  {file.name}"
            for file in submit.job_files(job, payload)
            if isinstance(file.data, bytes)
        ),
        "# sent once, named by their content" if wanted else "# nothing else",
        *(f"#   {_described(path, what, path in missing)}" for path, what in wanted.items()),
        ""
        if session.has_bridge
        else f"#   {_shown(submit.size_of(bridge_bundle.bridge()))}  {session.bridge} (not there yet)",
        f"# started by: {job_script.command_line(start.argv)}",
        "",
        job_script.job_script(job),
    ]
    return "\n".join(lines)


def _described(path: str, what: Any, missing: bool) -> str:
    parts = (
        f" ({', '.join(sorted({name.partition('/')[0] for name in what.files}))})"
        if isinstance(what, FileBundle)
        else ""
    )
    return f"{_shown(submit.size_of(what))}  {path}{parts}{'' if missing else ' (there already)'}"


def _shown(size: float) -> str:
    for unit in ("B ", "KB", "MB"):
        if size < 1024:
            return f"{size:7.{0 if unit == 'B ' else 1}f} {unit}"
        size /= 1024
    return f"{size:7.1f} GB"
