"""Uploads an environment's packages to a host that lacks them, and starts its builder there: nothing twice.

The host fetches what it can reach, and is sent the rest. The builder continues by itself; a job waits for it on the
host. `environment/build_plan.py` says what it makes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import posixpath
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.builder.progress import in_words
from clusterfn.display import console
from clusterfn.environment import build_plan, download
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import environment_builder, loop
from clusterfn.hosts.environment_builder import BuildProgress, RemoteBuild
from clusterfn.hosts.transfer import Transfer
from clusterfn.scheduler import job_script
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

# These stages come in addition to those of the builder.
FETCHING, SENDING = "download", "send"

# The folder of environments may be shared with a Unix group.
_GROUP_READS = 0o640
_OFTEN_S = 0.5


@dataclass(frozen=True)
class EnvironmentUpload:
    """The requests that were sent for an environment."""

    before: Sequence[Reply[Any]] = ()  # they must succeed before a job of it is started; none if the host has it
    archives: Sequence[Reply[Any]] = ()  # those of them that send packages
    build: RemoteBuild | None = None  # the builder that was started, if one was

    def share(self) -> bool:
        """Let one more job take part in it; False if it is over, or some of it has failed."""
        is_sent = all(reply.done() for reply in self.before)
        if is_sent and (self.build is None or self.build.is_over()):
            return False
        return all(reply.share() or (reply.done() and reply.exception(0) is None) for reply in self.before)

    def report_to(self, waits_for: Callable[[str], None], cannot_have: Callable[[SchedulerVerdict], None]) -> None:
        """Report to a job that waits in a queue how far its environment is, and that there will be none.

        Args:
            waits_for: Called with what is being done; "" at the end.
            cannot_have: Called with the verdict on a job whose environment could not be built.
        """
        if self.build is None:
            return
        ended = self.build.listen(lambda progress: waits_for(f"environment: {in_words(progress)}"))

        async def report_end() -> None:
            with contextlib.suppress(ClusterfnError, concurrent.futures.CancelledError):
                await asyncio.wrap_future(ended)
            waits_for("")
            error = ended.exception()
            last = ended.result() if error is None else {}
            # A builder that was only stopped leaves the work to the job.
            if last.get("stage") == "failed" and last.get("at") != "stopped":
                failed = environment_builder.build_error(last, "")
                facts = failed.message, tuple(failed.evidence), last.get("hint") or "", "environment"
                cannot_have(SchedulerVerdict(layout.ENVIRONMENT, *facts, withdraw=True))

        loop.begin(report_end())


def build(host: HostState, environment: LockedEnvironment) -> bool:
    """Have it built now, show how far that is, and wait for it; whether there was anything to do.

    Raises:
        EnvironmentBuildError, HostError: It cannot be made, or not be sent.
        ConfigError: The host builds in jobs alone.
    """
    if host.settings.making.build_on == "node":
        problem = f"{host.settings.name} builds environments in the jobs that use them (build_on: node)"
        raise ConfigError(problem, host=host.settings.name, hint="call a function with it")
    if not host.missing([environment.ready]):
        return False
    with BuildDisplay() as display:
        shipped = upload(host, environment, display)
        if shipped.build is None:
            return False
        ended = shipped.build.listen(display.show_build)
        sending, of = Transfer(SENDING, shipped.archives), len(shipped.archives)
        for number, reply in enumerate(shipped.archives, 1):
            reply.result(None)
            display.show_build({"stage": SENDING, "done": number, "of": of, "text": sending.amounts()})
        for reply in shipped.before:
            reply.result(None)
        progress = ended.result()
    if progress["stage"] == "failed":
        raise environment_builder.build_error(progress, host.settings.name)
    return True


@dataclass
class _LastUpload:
    """The last upload of one environment to one host; the lock is held while another is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    upload: EnvironmentUpload = EnvironmentUpload()


# The keys are weak, so that the uploads go with the host's state.
_uploads: weakref.WeakKeyDictionary[HostState, dict[str, _LastUpload]] = weakref.WeakKeyDictionary()


def upload(host: HostState, environment: LockedEnvironment, display: BuildDisplay) -> EnvironmentUpload:
    """Send what the host lacks of it, as it lacks the whole, and start its builder: once, however many jobs ask.

    Raises as `upload_missing`.
    """
    last = _uploads.setdefault(host, {}).setdefault(environment.ready, _LastUpload())
    with last.lock:
        if environment.ready not in host.contents and not last.upload.share():
            last.upload = upload_missing(host, environment, display)
        # The environment may have become ready since the test above, and then nothing is to be waited for.
        return EnvironmentUpload() if environment.ready in host.contents else last.upload


def upload_missing(host: HostState, environment: LockedEnvironment, display: BuildDisplay) -> EnvironmentUpload:
    """Send what the host lacks of it, say what that is, show how far fetching is, and start its builder.

    Raises:
        EnvironmentBuildError: A package can be fetched neither by the host nor by this machine.
    """
    facts, setup = host.connection.facts, job_script.modules_setup(environment.host)
    plan = build_plan.plan_of(environment, facts.version, facts.platform.partition("-")[2], setup)
    # The host fetches some of what is missing, and the rest is sent.
    theirs, ours, known_sizes = environment_builder.ask_lacking(host, plan)
    # The host knows the sizes of what it can reach, and this machine those of the others.
    sizes = download.download_sizes(ours)
    build_plan.tell_download(environment, theirs, ours, {**known_sizes, **sizes}, console.tell)
    document = plan.completed(bool(theirs), known_sizes)
    fetched = functools.partial(display.show_fetched, sum(sizes.values()))
    # Each archive is sent as soon as it is here, while the others are fetched.
    sent = [
        host.connection.put(layout.blob(environment.root, sha256), path, mode=_GROUP_READS)
        for sha256, path in download.download_packages(ours, fetched, environment.indexes)
    ]
    path = posixpath.join(layout.build_dir(environment.root, environment.id), layout.PLAN)
    # The builder starts once the plan exists, so the plan must arrive after all that it names.
    planned = host.connection.put(path, document, mode=_GROUP_READS, after=sent)
    # From here, the builder continues on its own, even if this process ends. With `build_on: node`, each job builds.
    is_shared = host.settings.making.build_on != "node"
    build = environment_builder.start(host, environment.root, path, planned) if is_shared else None
    if build is not None:
        host.contents.expect(environment.ready, build.made)
    return EnvironmentUpload([*sent, planned], sent, build)


class BuildDisplay(console.Status):
    """How far a build is: a bar for each stage on a terminal, elsewhere a line for each, and now and then one more."""

    _stage, _due = "", 0.0

    def show_fetched(self, size: int, done: int, of: int, moved: int) -> None:
        """Show how far packages are fetched, of so many bytes: at most twice a second, and the end."""
        if done == of or self.clock() >= self._due:
            self._due = self.clock() + _OFTEN_S
            self.show_build({"stage": FETCHING, "done": done, "of": of, "bytes": moved, "size": size})

    def show_build(self, progress: BuildProgress) -> None:
        """Show how far it is."""
        done, of, words = progress.get("bytes") or 0, progress.get("size") or 0, in_words(progress)
        if not of:
            done, of = progress.get("done") or 0, progress.get("of") or 0
        if progress["stage"] != self._stage:
            self._stage, self.works_from = progress["stage"], None
        # The text of a transfer has the remaining time already.
        times = self.times(*((0, 0) if progress.get("text") else (done, of)))
        self.show(f"{words}, {times}", (done, of) if of > 1 else None, words=self._stage)
