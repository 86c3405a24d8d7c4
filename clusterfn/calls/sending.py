"""Sends what a job needs, and starts it: what the host lacks, the job's folder, and its start, in one write.

The agent starts each request when those that it names have succeeded, so nothing here waits for an answer. Single
calls, the elements of a group and the calls of a session all go this way. `describe` shows it without sending.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.calls import job_display
from clusterfn.display import console
from clusterfn.hosts import bridge_bundle
from clusterfn.hosts.connection import Needed, Reply, TreeFile
from clusterfn.hosts.rpc.file_requests import FileHead
from clusterfn.hosts.transfer import Sending
from clusterfn.packing.files import FileUpload
from clusterfn.scheduler import job_script

if TYPE_CHECKING:
    from clusterfn.calls.environment_upload import EnvironmentUpload
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.job_tracker import Tracker
    from clusterfn.calls.queue_place import QueuePlace
    from clusterfn.calls.run import Run
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.config.spec import Host, Interpreter
    from clusterfn.hosts.environment_choice import ResolvedEnvironment
    from clusterfn.hosts.host_state import HostState, Sends
    from clusterfn.packing.payload import Payload

# A smaller file is sent sooner than the host answers whether it has it. The host leaves a file that it has as it is.
_WORTH_ASKING = 64 << 10
REPORT_AFTER_S = 10.0
_EXECUTABLE, _READABLE, _PRIVATE = 0o700, 0o400, 0o600


def await_room(host: HostState) -> None:
    """Wait while much that was submitted has not left this machine: the host, or the way to it, takes no more."""
    connection, has_reported = host.connection, False
    while not connection.link.has_room(REPORT_AFTER_S):
        if not has_reported:
            has_reported, state = True, connection.link.state
            why = f"no connection ({state.cause})" if state.name != "connected" else "it takes them slowly"
            console.tell(f"waiting to send more calls to {host.settings.name}: {why}")


def submit_job(spec: JobSpec, payload: Payload, needs: Uploads, tracker: Tracker) -> None:
    """Put the job's folder and its start on the stream, after what it needs; its tracker gets a refusal later."""
    queue = tracker.run.queue
    folder = send_folder(queue, tracker.run, job_files(spec, payload), needs)
    queue.submit(tracker.host.scheduler.submission(spec), [folder], tracker)
    if needs.environment is not None:
        needs.environment.report_to(tracker.waits_for, tracker.cannot_have)


# what is sent


class Uploads(NamedTuple):
    """What a job needs on its host in addition to its own folder.

    Attributes:
        before: The requests that must succeed before it is started.
        uploads: By path, what sends it.
        bridge: The path of the bridge among these; "" without one.
        inputs: Requests of other jobs that must succeed first, and that go on if the sending of this one is stopped.
        environment: What tells a job that waits in a queue how far its environment is; None if there is none to make.
    """

    before: list[Reply[Any]]
    uploads: Sends
    bridge: str = ""
    inputs: Sequence[Reply[Any]] = ()
    environment: EnvironmentUpload | None = None


def send_needs(host: HostState, payload: Payload, environment: ResolvedEnvironment) -> Uploads:
    """Send what the host lacks: the environment, the bridge, modules, files, buffers; start a builder if need be."""
    await_room(host)
    made, upload, bridge = environment.made, None, host.bridge.folder
    contents = {**environment.folders, **_named_by_content(host.root, payload)}
    asked = [*_large(contents), *([made.ready] if made is not None else ())]
    with job_display.nothing_runs():
        missing = host.missing(asked)
        if made is not None and made.ready in missing:
            # The module takes time to import, and many calls make no environment.
            from clusterfn.calls import environment_upload

            # It comes first: its builder then works while the rest is on its way.
            with environment_upload.BuildDisplay() as display:
                upload = environment_upload.upload(host, made, display)
        uploads: Sends = {bridge: functools.partial(host.bridge.put, bridge), **_sends(host, contents)}
        before = [*_sent(host, uploads), *(upload.before if upload is not None else ())]
    # The values that a call takes come from jobs that may still be on their way.
    inputs = [request for reference in payload.inputs for request in reference.source.open_requests()]
    # Without a scheduler a job begins at once, and follows its builder itself.
    reporting = upload if host.scheduler.has_nodes else None
    return Uploads(before, uploads, bridge, inputs, reporting)


def send_scripts(host: HostState, folders: Mapping[str, Mapping[str, bytes]]) -> list[Reply[bool]]:
    """Send these folders of an environment, whose files are programs."""
    return _sent(host, _sends(host, folders))


def send_contents(host: HostState, payload: Payload) -> Uploads:
    """Send the modules, files and large buffers that the host lacks: all of them are named by their content."""
    contents = _named_by_content(host.root, payload)
    host.missing(_large(contents))
    uploads = _sends(host, contents)
    return Uploads(_sent(host, uploads), uploads)


def _large(contents: Mapping[str, Any]) -> list[str]:
    """Return the paths of what the host is asked about before it is sent."""
    return [path for path, what in contents.items() if _size_of(what) > _WORTH_ASKING]


def _sends(host: HostState, contents: Mapping[str, Any]) -> Sends:
    return {path: functools.partial(_put, host, path, what) for path, what in contents.items()}


def _sent(host: HostState, uploads: Sends) -> list[Reply[bool]]:
    """Send what the host is not known to have; return what must succeed before all of it is there."""
    return [reply for path, upload in uploads.items() for reply in host.contents.send(path, upload)]


def is_in_place(host: Host, interpreter: Interpreter) -> bool:
    """Whether jobs run on this machine's files by this program's interpreter: what it imports they can import too."""
    return host.is_this_machine and interpreter.path == sys.executable


def module_folders(spec: JobSpec, payload: Payload) -> tuple[str, ...]:
    """Return the folders from which the call imports the user's own modules."""
    sent: tuple[str, ...] = ()
    if payload.sources:
        folder = layout.sources_dir(spec.root, payload.sources.digest)
        archives = sorted(name for name in payload.sources.files if "/" not in name and not name.endswith(".py"))
        sent = (folder, *(posixpath.join(folder, name) for name in archives))
    if not payload.compiled or not is_in_place(spec.host, spec.interpreter):
        return sent
    # Only folders of `sys.path` are passed on. Elsewhere a hook of this interpreter finds the module, in the job too.
    import_folders = {os.path.realpath(folder) for folder in sys.path}
    folders = dict.fromkeys(os.path.realpath(module.folder) for module in payload.compiled)
    return (*sent, *(folder for folder in folders if folder in import_folders))


def send_folder(
    place: QueuePlace, job: Run | GroupState, files: Sequence[TreeFile], needs: Uploads, durable: bool | None = None
) -> Reply[bool]:
    """Send the job's own folder, which appears as a whole once all it needs is there, and show how far all of that is.

    Args:
        durable: Whether it must survive a power cut; by default if the scheduler's queue does.
    """
    host = place.host
    sync = host.scheduler.has_nodes if durable is None else durable
    after = [*needs.inputs, *needs.before]
    # The host may find gone or damaged, when it gets the folder, what it has had.
    again = functools.partial(host.send_again, needs.uploads)
    needed = Needed(list(needs.uploads), [needs.bridge] if needs.bridge else [], again)
    folder = host.connection.put_tree(place.folder, files, sync=sync, after=after, needs=needed)
    place.laid_out = folder
    place.sending = Sending([*needs.before, folder])
    job.show_transfer(place.sending)
    return folder


def job_files(job: JobSpec, payload: Payload) -> list[TreeFile]:
    """Return the files of the job's own folder."""
    private = {layout.SPEC: job.to_json()}
    if payload.data:
        private[layout.PAYLOAD] = payload.data
    if job.secrets:
        private[layout.SECRETS] = json.dumps(dict(job.secrets)).encode()
    # A session ends when its program does, so its end is no news.
    if job.notify and job.serving is None and job.kernel is None:
        private[layout.NOTIFY] = json.dumps(dict(job.notify)).encode()
    script = job_script.job_script(job).encode("utf-8", "surrogateescape")
    files = [TreeFile(name, data, _PRIVATE) for name, data in private.items()]
    return [*files, TreeFile(layout.SCRIPT, script, _EXECUTABLE)]


def given_paths(root: str, payload: Payload) -> dict[str, PurePath]:
    """Return, by the path on the host, the caller's own path of each File and Directory."""
    return {posixpath.join(root, layout.FILES, name): path for name, path in payload.given.items()}


def _named_by_content(root: str, payload: Payload) -> dict[str, Any]:
    """Return what is sent once, by its path on the host: large buffers, modules, files and folders."""
    named: dict[str, Any] = {
        layout.blob(root, digest): (payload.crcs[digest], data) for digest, data in payload.blobs.items()
    }
    if payload.sources:
        named[layout.sources_dir(root, payload.sources.digest)] = payload.sources
    return {**named, **{posixpath.join(root, layout.FILES, item.digest, item.name): item for item in payload.shipments}}


def _put(host: HostState, path: str, what: Any) -> Reply[bool]:
    connection = host.connection
    if isinstance(what, Mapping):
        # Programs of an environment.
        return connection.put_tree(path, [TreeFile(name, data, _EXECUTABLE) for name, data in what.items()])
    if isinstance(what, bridge_bundle.FileBundle):
        return connection.put_tree(path, [TreeFile(name, data, _PRIVATE) for name, data in what.files.items()])
    if not isinstance(what, FileUpload):
        crc, data = what
        # A job on a machine without a scheduler begins at once, so nothing waits until the disk has the buffer. A job
        # that finds it damaged, after a power cut, removes it.
        return connection.put(path, data, mode=_READABLE, crc=crc, sync=host.scheduler.has_nodes)
    # Files shared by their content are read-only; a program stays executable.
    files = []
    for member, crc in zip(what.contents.files, what.crcs):
        mode = _READABLE | (stat.S_IXUSR & member.facts.st_mode)
        files.append(TreeFile(member.name, FileHead(member.path, member.facts.st_size), mode, crc))
    if what.is_directory:
        return connection.put_tree(path, files, folders=what.contents.folders, links=what.contents.links)
    return connection.put(path, files[0].data, mode=files[0].mode, crc=files[0].crc)


def _size_of(what: Any) -> int:
    if isinstance(what, FileUpload):
        return what.size
    if isinstance(what, bridge_bundle.FileBundle):
        return sum(map(len, what.files.values()))
    return sum(map(len, what.values())) if isinstance(what, Mapping) else len(what[1])


# the same as text


def describe(host: HostState, job: JobSpec, payload: Payload) -> str:
    """Describe for a person what would be sent and run: the script, the commands, the files and their sizes."""
    contents = _named_by_content(job.root, payload)
    missing = host.missing(list(contents)) if contents else set()
    lines = [
        f"# job {job.name} on {job.host.name} ({job.host.scheduler}), in {layout.job_dir(job.root, job.id)}",
        f"# environment: {job.interpreter.title} (Python {job.interpreter.version[0]}.{job.interpreter.version[1]})",
        "",
        "# files sent with the job",
    ]
    for file in job_files(job, payload):
        if isinstance(file.data, bytes):
            lines.append(f"#   {format_size(len(file.data)):>10}  {file.name}")
    lines.append("# sent once, named by their content" if contents else "# nothing else")
    for path, what in contents.items():
        parts = ""
        if isinstance(what, bridge_bundle.FileBundle):
            parts = f" ({', '.join(sorted({name.partition('/')[0] for name in what.files}))})"
        there = "" if path in missing else " (there already)"
        lines.append(f"#   {format_size(_size_of(what)):>10}  {path}{parts}{there}")
    if host.bridge.is_there:
        lines.append("")
    else:
        size = format_size(_size_of(bridge_bundle.bridge()))
        lines.append(f"#   {size:>10}  {host.bridge.folder} (not there yet)")
    started_by = job_script.command_line(host.scheduler.submission(job).argv)
    return "\n".join([*lines, f"# started by: {started_by}", "", job_script.job_script(job)])
