"""Uploads an environment's packages to a host that lacks them, and starts its builder there: nothing twice.

The host fetches what it can reach, and is sent the rest. The builder continues by itself; a job waits for it on the
host.
"""

from __future__ import annotations

import json
import posixpath
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.builder.plan import CLUSTERFN
from clusterfn.calls import console, download_notice, submit
from clusterfn.calls.resubmit import SubmissionListener
from clusterfn.environment import download
from clusterfn.environment.lock import CONDA
from clusterfn.errors import ConfigError, SubmitError, Unsatisfiable
from clusterfn.hosts import environment_builder
from clusterfn.hosts.environment_builder import BuildProgress, RemoteBuild
from clusterfn.hosts.rpc.requests import Data, FilePart
from clusterfn.hosts.transfer import Transfer
from clusterfn.scheduler import job_script

if TYPE_CHECKING:
    from clusterfn.environment.lock import LockedPackage
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

Say = Callable[[str], None]
Progress = Callable[[BuildProgress], None]
CannotHave = Callable[[str, Sequence[str], str], None]

FETCHING, SENDING = "download", "send"  # stages in addition to those of the builder

WHOLE_BYTES, PIECE_BYTES = 64 << 20, 32 << 20  # larger archives travel in pieces: a line that breaks costs one
_GROUP_READS = 0o640  # the root of environments may be a group's
_TIMEOUT_S = 120.0
_SELDOM_S = 5.0
_OFTEN_S = 0.5


@dataclass(frozen=True)
class EnvironmentUpload:
    """The requests that were sent for an environment.

    Attributes:
        before: Requests that must succeed before a job of it is started; none if the host has it.
        build: The builder that was started, if one was.
    """

    before: Sequence[Reply[Any]] = ()
    build: RemoteBuild | None = None

    def share(self) -> bool:
        """Let one more job take part in it; False if it is over, or some of it has failed."""
        is_sent = all(reply.done() for reply in self.before)
        if is_sent and (self.build is None or self.build.is_over()):
            return False
        return all(reply.share() or (reply.done() and reply.exception(0) is None) for reply in self.before)

    def report_to(self, waits_for: Callable[[str], None], cannot_have: CannotHave) -> None:
        """Report to a job that waits in a queue how far its environment is, and that there will be none.

        Args:
            waits_for: Called with what is being done; "" at the end.
            cannot_have: Called with the message, evidence and hint of a build that failed.
        """
        if self.build is not None:
            ended = self.build.listen(
                lambda told: waits_for(f"environment: {environment_builder.describe_progress(told)}")
            )
            ended.add_done_callback(lambda outcome: _report_end(waits_for, cannot_have, outcome))


def _report_end(waits_for: Callable[[str], None], cannot_have: CannotHave, outcome: Future[BuildProgress]) -> None:
    """Report how the build ended; a builder that was only stopped leaves the work to the job."""
    waits_for("")
    error = outcome.exception()
    told = outcome.result() if error is None else {}
    if isinstance(error, (SubmitError, Unsatisfiable)):
        cannot_have(f"its builder was rejected: {error.message}", error.evidence, error.hint or "")
    elif told.get("stage") == "failed" and told.get("at") != "stopped":
        cannot_have(environment_builder.message(told), environment_builder.evidence(told), told.get("hint") or "")


def upload_for(session: HostState, made: LockedEnvironment, job: submit.Sent, say: Say) -> EnvironmentUpload:
    """Upload it as `upload` does; print progress before the job is shown, then make it part of the job's state."""
    aloud = _seldom(say)

    def show(told: BuildProgress) -> None:
        if told["stage"] == FETCHING:
            aloud(told)
        else:
            job.on_state(job.state, f"environment: {environment_builder.describe_progress(told)}")

    return upload(session, made, say, show)


def build(session: HostState, made: LockedEnvironment, say: Say, on_progress: Progress) -> bool:
    """Have it built now, and wait for that; whether there was anything to do.

    Raises:
        EnvironmentBuildError, HostError: It cannot be made, or not be sent.
        ConfigError: The host builds in jobs alone.
    """
    making = session.host.making
    if making.build_on == "node" and not making.partition:
        raise ConfigError(
            f"{session.host.name} builds environments in the jobs that use them (build_on: node)",
            host=session.host.name, hint="call a function with it; or set build_partition: for jobs that only build",
        )  # fmt: skip
    shipped = upload(session, made, say, on_progress)
    if shipped.build is None:
        return False
    ended = shipped.build.listen(on_progress)
    for reply in shipped.before:
        reply.result(None)
    told = ended.result()
    if told["stage"] == "failed":
        raise environment_builder.build_error(told, session.host.name)
    return True


class _LastUpload:
    """The last upload of one environment to one host; the lock is held while another is made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.upload = EnvironmentUpload()


_uploads: weakref.WeakKeyDictionary[HostState, dict[str, _LastUpload]] = weakref.WeakKeyDictionary()


def upload(session: HostState, made: LockedEnvironment, say: Say, on_progress: Progress) -> EnvironmentUpload:
    """Send what the host lacks of it, and start its builder; once, however many jobs ask before it is there.

    Raises as `_upload`.
    """
    last = _uploads.setdefault(session, {}).setdefault(made.ready, _LastUpload())
    with last.lock:
        if made.ready not in session.contents and not last.upload.share():
            last.upload = _upload(session, made, say, on_progress)
        return EnvironmentUpload() if made.ready in session.contents else last.upload


def _upload(session: HostState, made: LockedEnvironment, say: Say, on_progress: Progress) -> EnvironmentUpload:
    """Send what the host lacks of it, and start its builder.

    Args:
        say: Called with a sentence about what the host lacks.
        on_progress: Called with how far fetching is, and later how far sending is, on the connection's thread.

    Raises:
        EnvironmentBuildError: A package can be fetched neither by the host nor by this machine.
    """
    if not session.missing([made.ready]):
        return EnvironmentUpload()
    wanted = json.dumps(_document(session, made, session.host.making.fetch_on != "client", {})).encode()
    lacking = environment_builder.run_builder(session, "lacking", stdin=wanted, timeout_s=_TIMEOUT_S)[-1]
    theirs, ours = _divide(session, made, lacking)
    download_notice.tell_download(made, theirs, ours, lacking["sizes"], say)
    sent = [*session.lay_out_bridge(), *_send(session, made, ours, on_progress)]
    plan = posixpath.join(layout.build_dir(made.root, made.id), layout.PLAN)
    document = json.dumps(_document(session, made, bool(theirs), lacking["sizes"])).encode()
    planned = session.connection.put(plan, document, mode=_GROUP_READS, after=sent)
    return EnvironmentUpload([*sent, planned], _start(session, made, plan, planned))


def _start(session: HostState, made: LockedEnvironment, plan: str, planned: Reply[bool]) -> RemoteBuild | None:
    """Start the builder on the machine that ssh reaches, or in a batch job; None if each job builds for itself."""
    making = session.host.making
    if making.build_on == "node" and not making.partition:
        return None
    log = posixpath.join(posixpath.dirname(plan), f"log-{secrets.token_hex(4)}")
    argv, build = (*session.builder, "build", plan), RemoteBuild(session, log)
    if making.build_on == "node" and session.scheduler.has_nodes:
        name = layout.job_name("environment", made.id)
        request = session.scheduler.errand(job_script.command_line(argv), name, log, making.partition or "")
        submit.start(session, request, [planned], _BuildSubmission(session, name, build))
    else:
        spawned = session.connection.spawn(argv, made.root, log, unset=session.scheduler.unset, after=[planned])
        spawned.add_done_callback(build.started)
        spawned.exited.add_done_callback(build.process_ended)
    return build


class _BuildSubmission(SubmissionListener):
    """The `SubmissionListener` of a builder that runs as a batch job."""

    def __init__(self, session: HostState, name: str, build: RemoteBuild) -> None:
        self._session, self._name, self._build = session, name, build

    def on_started(self, scheduler_id: str, doubt: SubmitError | None) -> None:
        self._session.watch.add(self._name, self._build.scheduler_said)
        self._build.when_over(lambda: self._session.unwatch(self._name))

    def on_not_started(self, error: BaseException) -> None:
        self._build.refused(error)

    def on_refused_for_now(self, reason: str) -> None:
        console.tell(f"the environment is not being built yet: {reason}")

    def on_queued(self) -> None:
        """Do nothing: the scheduler's queue is watched from the start."""

    def on_script_ended(self) -> None:
        """Do nothing: a batch job's end is seen in its log, and by the scheduler."""


def _divide(
    session: HostState, made: LockedEnvironment, lacking: BuildProgress
) -> tuple[list[LockedPackage], list[LockedPackage]]:
    """Divide the missing packages into those that the host fetches and those that are sent."""
    wheel = _zstd(session)
    wanted = {each.sha256: each for each in [*made.lock.archives(made.platform), *([wheel] if wheel else [])]}
    missing = [wanted[sha256] for sha256 in lacking["missing"]]
    ours = set() if session.host.making.fetch_on == "host" else set(lacking["unreachable"])
    return [each for each in missing if each.sha256 not in ours], [each for each in missing if each.sha256 in ours]


def _send(
    session: HostState, made: LockedEnvironment, packages: Sequence[LockedPackage], on_progress: Progress
) -> Iterator[Reply[Any]]:
    """Send each archive as soon as it is here, while the others are fetched."""
    fetched = _often(on_progress, FETCHING)
    sending = _Sending(on_progress)
    for sha256, path in download.download_packages(packages, fetched, made.indexes):
        for place, data in parts_to_send(session, made.root, sha256, path):
            sent = session.connection.put(place, data, mode=_GROUP_READS)
            sending.add(sent)
            yield sent


def parts_to_send(session: HostState, root: str, sha256: str, path: Path) -> Iterator[tuple[str, Data]]:
    """Yield what to send of an archive: all of it, or the missing pieces of a large one."""
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        yield layout.blob(root, sha256), path
        return
    count = -(-size // PIECE_BYTES)
    places = [posixpath.join(layout.pieces_dir(root, sha256), f"{n}-of-{count}") for n in range(count)]
    missing = session.missing(places)
    for number, place in enumerate(places):
        if place in missing:
            offset = number * PIECE_BYTES
            yield place, FilePart(path, offset, min(PIECE_BYTES, size - offset))


class _Sending:
    """Reports how many parts of archives have arrived, and how far all are, on the connection's reader thread."""

    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._transfer = Transfer(SENDING)
        self._of = self._count = 0
        self._due = 0.0

    def add(self, sent: Reply[Any]) -> None:
        """Add a part that is being sent."""
        self._of += 1
        self._transfer.add(sent)
        sent.add_done_callback(self._arrived)

    def _arrived(self, _: Reply[Any]) -> None:
        self._count += 1
        amounts = self._transfer.amounts()
        if self._count == self._of or time.monotonic() >= self._due:
            self._due = time.monotonic() + _OFTEN_S
            self._on_progress({"stage": SENDING, "done": self._count, "of": self._of, "text": amounts})


def _often(on_progress: Progress, stage: str) -> download.Progress:
    """Return a function that reports progress at most twice a second, and the end."""
    due = [0.0]

    def tell(done: int, of: int, size: int) -> None:
        if done == of or time.monotonic() >= due[0]:
            due[0] = time.monotonic() + _OFTEN_S
            on_progress({"stage": stage, "done": done, "of": of, "bytes": size})

    return tell


def _seldom(say: Say) -> Progress:
    """Return a function that says the progress every few seconds, for output whose lines stay."""
    due = [time.monotonic() + _SELDOM_S]

    def tell(told: BuildProgress) -> None:
        if time.monotonic() >= due[0]:
            due[0] = time.monotonic() + _SELDOM_S
            say(environment_builder.describe_progress(told))

    return tell


def _document(session: HostState, made: LockedEnvironment, fetch: bool, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return plan.json, as decision 14 describes it, with facts that only people read."""
    wheel, archives = _zstd(session), made.lock.archives(made.platform)
    of_conda = any(each.manager == CONDA for each in archives)
    return {
        "format": layout.FORMAT,
        "id": made.id,
        "root": made.root,
        "platform": made.platform,
        "python": list(made.interpreter.version),
        "packages": [{**_entry(each), "size": sizes.get(each.sha256, 0)} for each in archives],
        "base": {"path": made.base.path, "version": made.base.version} if made.base else None,
        "fetch": fetch,
        "zstd": _entry(wheel) if wheel else None,
        "verify": ["torch"] if made.has_torch else [],
        "timeout_s": session.host.making.timeout_s,
        "purged": session.host.making.purge_days is not None,
        "installer": session.host.making.installer if of_conda else CLUSTERFN,
        "owners": list(session.host.owners),
        "about": made.title,
        "wanted": list(made.wanted),
        "cuda": made.cuda,
        "why": made.why,
        "virtual": made.lock.virtual_packages(made.platform),
    }


def _zstd(session: HostState) -> LockedPackage | None:
    facts = session.connection.facts
    return download.zstandard_wheel(facts.version, facts.platform.partition("-")[2])


def _entry(package: LockedPackage) -> dict[str, Any]:
    names = ("name", "version", "build", "manager", "file", "url", "sha256")
    return {name: getattr(package, name) for name in names}
