"""Uploads an environment's packages to a host that lacks them, and starts its builder there: nothing twice.

The host fetches what it can reach, and is sent the rest. The builder continues by itself; a job waits for it on the
host.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import posixpath
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.builder.progress import in_words
from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.calls import build_plan, console, submit
from clusterfn.calls.build_display import BuildDisplay
from clusterfn.calls.submission import WaitingJob
from clusterfn.environment import download
from clusterfn.environment.project import GIT
from clusterfn.errors import ClusterfnError, ConfigError, SubmitError, Unsatisfiable
from clusterfn.hosts import environment_builder, loop
from clusterfn.hosts.environment_builder import BuildProgress, RemoteBuild
from clusterfn.hosts.transfer import Transfer
from clusterfn.scheduler import job_script

if TYPE_CHECKING:
    from clusterfn.calls.entry import Entry
    from clusterfn.calls.group_state import GroupState
    from clusterfn.environment.lock import LockedPackage
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

Say = Callable[[str], None]
Progress = Callable[[BuildProgress], None]
CannotHave = Callable[[str, Sequence[str], str], None]

FETCHING, SENDING = "download", "send"  # stages in addition to those of the builder

_GROUP_READS = 0o640  # the root of environments may be a group's
_TIMEOUT_S = 120.0
_OFTEN_S = 0.5
MUCH = 10**9  # bytes of which the user hears
_LARGEST = 3


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
            ended = self.build.listen(lambda told: waits_for(_in_words(told)))
            loop.begin(_report_end(waits_for, cannot_have, ended))


async def _report_end(waits_for: Callable[[str], None], cannot_have: CannotHave, ended: Future[BuildProgress]) -> None:
    """Report how the build ended; a builder that was only stopped leaves the work to the job."""
    with contextlib.suppress(ClusterfnError, concurrent.futures.CancelledError):
        await asyncio.wrap_future(ended)
    waits_for("")
    error = ended.exception()
    told = ended.result() if error is None else {}
    if isinstance(error, (SubmitError, Unsatisfiable)):
        cannot_have(f"its builder was rejected: {error.message}", error.evidence, error.hint or "")
    elif told.get("stage") == "failed" and told.get("at") != "stopped":
        cannot_have(environment_builder.message(told), environment_builder.evidence(told), told.get("hint") or "")


def upload_for(session: HostState, made: LockedEnvironment, job: Entry | GroupState, say: Say) -> EnvironmentUpload:
    """Upload it as `upload` does; show progress before the job is shown, then make it part of the job's state."""
    with BuildDisplay() as display:

        def show(told: BuildProgress) -> None:
            if told["stage"] == FETCHING:
                display.show(told)
            else:
                job.set_state(job.state, _in_words(told))

        return upload(session, made, say, show)


def _in_words(told: BuildProgress) -> str:
    return f"environment: {in_words(told)}"


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
        on_progress: Called with how far fetching is, and later how far sending is, in the loop.

    Raises:
        EnvironmentBuildError: A package can be fetched neither by the host nor by this machine.
    """
    if not session.missing([made.ready]):
        return EnvironmentUpload()
    wanted = json.dumps(build_plan.document(session, made, session.host.making.fetch_on != "client", {})).encode()
    lacking = environment_builder.run_builder(session, "lacking", stdin=wanted, timeout_s=_TIMEOUT_S)[-1]
    theirs, ours = _divide(session, made, lacking)
    sizes = download.download_sizes(ours)
    tell_download(made, theirs, ours, {**lacking["sizes"], **sizes}, say)
    sent = [*session.bridge.lay_out(), *_send(session, made, ours, sum(sizes.values()), on_progress)]
    plan = posixpath.join(layout.build_dir(made.root, made.id), layout.PLAN)
    document = json.dumps(build_plan.document(session, made, bool(theirs), lacking["sizes"])).encode()
    planned = session.connection.put(plan, document, mode=_GROUP_READS, after=sent)
    return EnvironmentUpload([*sent, planned], _start(session, made, plan, planned))


def _start(session: HostState, made: LockedEnvironment, plan: str, planned: Reply[bool]) -> RemoteBuild | None:
    """Start the builder on the machine that ssh reaches, or in a batch job; None if each job builds for itself."""
    making = session.host.making
    if making.build_on == "node" and not making.partition:
        return None
    log = posixpath.join(posixpath.dirname(plan), f"log-{secrets.token_hex(4)}")
    argv, build = session.bridge.words(layout.BUILD, "build", plan), RemoteBuild(session, log)
    if making.build_on == "node" and session.scheduler.has_nodes:
        name = layout.job_name("environment", made.id)
        request = session.scheduler.errand(job_script.command_line(argv), name, log, making.partition or "")
        submission = submit.start(session, request, [planned], _WaitingBuilder())
        loop.begin(_see_started(session, name, build, submission))
    else:
        build.spawn(argv, made.root, [planned])
    return build


class _WaitingBuilder(WaitingJob):
    """A builder that runs as a batch job, while the scheduler does not take it."""

    def refused_for_now(self, reason: str) -> None:
        console.tell(f"the environment is not being built yet: {reason}")


async def _see_started(session: HostState, name: str, build: RemoteBuild, submission: Reply[Any]) -> None:
    """Watch a builder that runs as a batch job, once the scheduler has taken it: its end is seen in its log, too."""
    try:
        await submit.await_start(session, submission)
    except (ClusterfnError, concurrent.futures.CancelledError) as error:
        build.refused(error)
        return
    build.watch_job(name)


def _divide(
    session: HostState, made: LockedEnvironment, lacking: BuildProgress
) -> tuple[list[LockedPackage], list[LockedPackage]]:
    """Divide the missing packages into those that the host fetches and those that are sent."""
    wheel, lock = build_plan.zstd(session), made.lock
    archives = [*lock.archives(made.platform), *lock.builds(made.platform), *([wheel] if wheel else [])]
    wanted = {each.sha256: each for each in archives}
    missing = [wanted[sha256] for sha256 in lacking["missing"]]
    ours = set() if session.host.making.fetch_on == "host" else set(lacking["unreachable"])
    ours |= {each.sha256 for each in missing if each.url.startswith(GIT)}
    return [each for each in missing if each.sha256 not in ours], [each for each in missing if each.sha256 in ours]


def tell_download(
    made: LockedEnvironment,
    theirs: Sequence[LockedPackage],
    ours: Sequence[LockedPackage],
    sizes: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    """Say how many packages are downloaded, and how many bytes if they are many.

    Args:
        theirs: What the host fetches.
        ours: What this machine downloads and sends.
        sizes: By SHA-256, as far as they are known.
    """
    host, count = made.host.name, len(made.lock.archives(made.platform))
    parts = [f"{host} fetches {len(theirs)}"] if theirs else []
    parts += [f"{len(ours)} are sent"] if ours else []
    parts += [f"{count - len(theirs) - len(ours)} are already there"] if len(theirs) + len(ours) < count else []
    base = f" on {host}'s own Python {made.base.version} ({made.base.path})" if made.base else ""
    of = counted(count, "package")
    say(f"{made.title}: environment {made.id[:8]} of {of}{base}: {', '.join(parts) or 'none to send'}")
    total = _sum((*theirs, *ours), sizes)
    if total < MUCH:
        return
    by_size = sorted((*theirs, *ours), key=lambda each: -sizes.get(each.sha256, 0))[:_LARGEST]
    largest = ", ".join(f"{each.name} {format_size(sizes[each.sha256])}" for each in by_size if each.sha256 in sizes)
    way = [f"{host} fetches {format_size(_sum(theirs, sizes))}"] if theirs else []
    way += [f"this machine downloads and sends {format_size(_sum(ours, sizes))}"] if ours else []
    least = "" if all(each.sha256 in sizes for each in (*theirs, *ours)) else "at least "
    say(f"{made.title}: {least}{format_size(total)} for {made.root} on {host}: {', '.join(way)} ({largest})")


def _sum(packages: Sequence[LockedPackage], sizes: Mapping[str, int]) -> int:
    return sum(sizes.get(each.sha256, 0) for each in packages)


def _send(
    session: HostState, made: LockedEnvironment, packages: Sequence[LockedPackage], size: int, on_progress: Progress
) -> Iterator[Reply[Any]]:
    """Send each archive as soon as it is here, while the others are fetched: so many bytes, as far as that is known."""
    tell_fetched, tell_sent = _seldom(on_progress), _seldom(on_progress)
    transfer = Transfer(SENDING)
    sent: list[Reply[Any]] = []

    def fetched(done: int, of: int, bytes: int) -> None:
        tell_fetched({"stage": FETCHING, "done": done, "of": of, "bytes": bytes, "size": size})

    async def report_arrival(reply: Reply[Any]) -> None:
        with contextlib.suppress(concurrent.futures.CancelledError):
            await reply.error()
        count = sum(reply.done() for reply in sent)
        tell_sent({"stage": SENDING, "done": count, "of": len(sent), "text": transfer.amounts()})

    for sha256, path in download.download_packages(packages, fetched, made.indexes):
        sent.append(session.connection.put(layout.blob(made.root, sha256), path, mode=_GROUP_READS))
        transfer.add(sent[-1])
        loop.begin(report_arrival(sent[-1]))
        yield sent[-1]


def _seldom(on_progress: Progress) -> Progress:
    """Return a function that reports at most twice a second, and the end."""
    due = [0.0]

    def tell(told: BuildProgress) -> None:
        if told["done"] == told["of"] or time.monotonic() >= due[0]:
            due[0] = time.monotonic() + _OFTEN_S
            on_progress(told)

    return tell
