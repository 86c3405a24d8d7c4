"""One call's files and commands, put on the stream in one write: what the host lacks, the job's folder, the start.

The agent starts each request when those that it names have succeeded, so nothing waits for an answer here.
"""

from __future__ import annotations

import json
import posixpath
import stat
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import layout
from clusterfn.calls import job_display
from clusterfn.calls.files import FileUpload
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.payload import Payload
from clusterfn.config.spec import JobSpec
from clusterfn.errors import Cancelled, ClusterfnError, HostError, SubmitError
from clusterfn.hosts import bridge_bundle
from clusterfn.hosts.connection import Completed, HostConnection, Reply, SpawnReply, TreeFile
from clusterfn.hosts.environment_choice import ResolvedEnvironment
from clusterfn.hosts.exit_flush import await_at_exit, remove_folder
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.transfer import Sending
from clusterfn.scheduler import job_script
from clusterfn.scheduler.base import Answer

if TYPE_CHECKING:
    from clusterfn.calls.environment_upload import EnvironmentUpload

_WORTH_ASKING = 64 << 10  # what is smaller is sooner sent than asked for; what is there already is left as it is
_EXECUTABLE, _READABLE, _PRIVATE = 0o700, 0o400, 0o600


def send(
    session: HostState, job: JobSpec, payload: Payload, ready: ResolvedEnvironment, made: Job[Any], tracker: Tracker,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Put everything on the stream; `made` hears of a refusal later, and `say` now of an environment to be made."""
    connection = session.connection
    with job_display.nothing_runs():
        shipped = _environment(session, ready, made, say)
        before = [*lay_out(session, ready), *contents(session, payload), *(shipped.before if shipped else ())]
    queued = session.scheduler.has_nodes  # outlives a power cut, so its files must; elsewhere nothing would read them
    place, files = layout.job_dir(job.root, job.id), job_files(job, payload)
    folder = tracker.laid_out = connection.put_tree(place, files, sync=queued, after=before)
    tracker.sending = Sending([*before, folder])
    made.on_transfer(tracker.sending)
    start = session.scheduler.submission(job)
    if start.do == "spawn":
        spawned = connection.spawn(start.argv, start.cwd, start.log, unset=start.unset, after=[folder])
        spawned.add_done_callback(lambda reply: _spawned(tracker, made, reply))
        finish_before_exit(spawned, tracker)
    else:
        ran = connection.run(start.argv, cwd=start.cwd, unset=start.unset, timeout_s=start.timeout_s, after=[folder])
        ran.add_done_callback(lambda reply: _submitted(tracker, made, reply))
        finish_before_exit(ran, tracker)
        if shipped:  # elsewhere the job begins at once, and follows its builder itself
            shipped.report_to(lambda what: tracker.waits_for(made, what), tracker.cannot_have)


class SubmittedJob(Protocol):
    """What knows the request that starts it."""

    submission: Reply[Any] | None


def finish_before_exit(start: Reply[Any], tracker: SubmittedJob) -> None:
    """A script may end right after `submit()`: its jobs must have been started by then."""
    tracker.submission = start
    await_at_exit(start)


def lay_out(session: HostState, ready: ResolvedEnvironment) -> list[Reply[bool]]:
    """The bridge, and folders that the environment wants."""
    replies = session.lay_out_bridge()
    for path, folder in ready.folders.items():
        if path not in session.there:
            files = [TreeFile(name, data, _EXECUTABLE) for name, data in folder.items()]
            replies.append(session.remember(path, session.connection.put_tree(path, files)))
    return replies


def _environment(
    session: HostState, ready: ResolvedEnvironment, made: Job[Any], say: Callable[[str], None]
) -> EnvironmentUpload | None:
    """Packages that the environment still needs, and the start of its builder; None if it need not be made."""
    if ready.made is None:
        return None
    from clusterfn.calls import environment_upload  # takes time to import

    return environment_upload.upload_for(session, ready.made, made, say)


def contents(session: HostState, payload: Payload) -> list[Reply[bool]]:
    """Modules, files and large buffers that the host lacks: all of them named by their content."""
    wanted = dict(named_by_content(session.root, payload))
    asked = [path for path, what in wanted.items() if size_of(what) > _WORTH_ASKING]
    missing = session.missing(asked) | (wanted.keys() - session.there - set(asked))
    return [session.remember(path, _put(session.connection, path, wanted[path])) for path in missing]


def named_by_content(root: str, payload: Payload) -> list[tuple[str, Any]]:
    """What is sent once, by its path there: modules, files, folders and large buffers."""
    named: list[tuple[str, Any]] = [
        (layout.blob(root, digest), (digest, data)) for digest, data in payload.blobs.items()
    ]
    if payload.sources:
        named.append((layout.sources_dir(root, payload.sources.digest), payload.sources))
    named += [(shipment_path(root, item), item) for item in payload.shipments]
    return named


def shipment_path(root: str, item: FileUpload) -> str:
    """Where a File or Directory lies on the host."""
    return posixpath.join(root, layout.FILES, item.digest, item.name)


def given_paths(root: str, payload: Payload) -> dict[str, PurePath]:
    """Path on the host -> the caller's own, of each File and Directory."""
    return {posixpath.join(root, layout.FILES, name): path for name, path in payload.given.items()}


def _put(connection: HostConnection, path: str, what: Any) -> Reply[bool]:
    if isinstance(what, bridge_bundle.FileBundle):
        return connection.put_tree(path, [TreeFile(name, data, _PRIVATE) for name, data in what.files.items()])
    if isinstance(what, FileUpload):
        return _put_shipment(connection, path, what)
    digest, data = what
    return connection.put(path, data, mode=_READABLE, sha256=digest)


def _put_shipment(connection: HostConnection, path: str, item: FileUpload) -> Reply[bool]:
    if item.is_directory:
        return connection.put_tree(path, [TreeFile(name, source, _read_mode(source)) for name, source in item.members])
    source = item.members[0][1]
    return connection.put(path, source, mode=_read_mode(source), sha256=item.digest)


def _read_mode(source: Path) -> int:
    """Files shared by their content are read-only; a program stays executable."""
    return _READABLE | (stat.S_IXUSR & source.stat().st_mode)


def job_files(job: JobSpec, payload: Payload) -> list[TreeFile]:
    """The job's own folder as it is sent."""
    files = [
        TreeFile(layout.SPEC, job.to_json(), _PRIVATE),
        TreeFile(layout.PAYLOAD, payload.data, _PRIVATE),
        TreeFile(layout.SCRIPT, job_script.job_script(job).encode("utf-8", "surrogateescape"), _EXECUTABLE),
    ]
    if job.secrets:
        files.append(TreeFile(layout.SECRETS, json.dumps(dict(job.secrets)).encode(), _PRIVATE))
    return files


def _spawned(tracker: Tracker, made: Job[Any], reply: SpawnReply) -> None:
    tracker.submission = None
    error = reply.exception()
    if error is not None:
        made.on_refused(_refused(error, tracker))
        tracker.end()
        return
    process = reply.result(0)
    scheduler_id = tracker.session.scheduler.submitted(Answer(pid=process.pid, starttime=process.starttime))
    tracker.started(made, scheduler_id)
    reply.exited.add_done_callback(lambda exited: _script_ended(tracker, made, exited))


def _script_ended(tracker: Tracker, made: Job[Any], exited: Reply[int | None]) -> None:
    """Ignore the end of a connection that was closed on purpose: it must not be opened again to ask."""
    if exited.exception() is not None:
        return
    if tracker.session.scheduler.waits(exited.result(0)):
        tracker.queued(made)
    else:
        tracker.liveness.process_ended()


def _submitted(tracker: Tracker, made: Job[Any], reply: Reply[Completed]) -> None:
    tracker.submission = None
    scheduler, scheduler_id = tracker.session.scheduler, ""
    try:
        answer = answer_of(reply)
        scheduler_id = scheduler.submitted(answer)
    except SubmitError as refusal:
        if not scheduler.ambiguous(answer):
            made.on_refused(_refused(refusal, tracker))
            tracker.end()
            return
        tracker.doubt = refusal
    except ClusterfnError as error:
        made.on_refused(_refused(error, tracker))
        tracker.end()
        return
    tracker.started(made, scheduler_id)


def answer_of(reply: Reply[Completed]) -> Answer:
    """What sbatch said; one that was killed because it took too long may have submitted all the same."""
    try:
        ran = reply.result(0)
    except HostError as error:
        if getattr(error, "kind", "") != "timeout":
            raise
        return Answer(None, "", error.message)
    return Answer(ran.rc, ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace"))


def _refused(error: BaseException, tracker: Tracker) -> ClusterfnError:
    """The refusal with its place; the folder of a job that never was is removed.

    Only on the host's own word: one that can no longer be asked may have started the job.
    """
    if tracker.sending is not None and tracker.sending.dropped:
        message = f"the job was stopped while it was sent: nothing of it ran on {tracker.session.host.name}"
        return Cancelled(message, host=tracker.session.host.name, stage="submit")
    refused = error if isinstance(error, ClusterfnError) else SubmitError(str(error), stage="submit")
    refused.host, refused.stage = tracker.session.host.name, refused.stage or "submit"
    if isinstance(error, SubmitError) or (isinstance(error, HostError) and error.kind):
        remove_folder(tracker.connection, tracker.folder)
    return refused


def size_of(what: Any) -> int:
    """Bytes of one thing of `named_by_content`."""
    if isinstance(what, bridge_bundle.FileBundle):
        return sum(map(len, what.files.values()))
    return what.size if isinstance(what, FileUpload) else len(what[1])
