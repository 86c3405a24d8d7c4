"""Run the commands of a host's environment builder (list, remove, repair), and follow the progress of a build."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import itertools
import json
import posixpath
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.config.host_text import Lines, count, json_object, reading, shaped
from clusterfn.environment.build_plan import EnvironmentPlan
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.project import GIT
from clusterfn.errors import ClusterfnError, EnvironmentBuildError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.rpc.requests import Followed

if TYPE_CHECKING:
    from clusterfn.hosts.connection import SpawnReply
    from clusterfn.hosts.host_state import HostState

BuildProgress = Mapping[str, Any]
"""One line of the builder: stage, done, of, bytes, size, text; the stage of the last is "done" or "failed"."""

_TIMEOUT_S = 60.0
_LONG_S = 3600.0
_ASK_S = 120.0
_EVIDENCE = 25
_LAST = ("done", "failed")


@dataclass(frozen=True)
class Built:
    """An environment on a host. Times are seconds since 1970, by the clock of this machine."""

    id: str
    about: str  # what the user named
    python: str
    cuda: str | None  # of its PyTorch, "12.8"; "" for a build without CUDA, None if it has no PyTorch
    size: int  # bytes of its files; environments share what they have in common
    files: int
    built: float
    used: float
    used_by: tuple[str, ...]  # ids of the jobs that use it now


def list_environments(host: HostState, root: str) -> list[Built]:
    """List the environments below a root, the one used last first; raise EnvironmentBuildError if the host cannot."""
    found = []
    for line in run_builder(host, "list", root):
        with reading(host.settings.name, "its list of environments"):
            cuda = None if line["torch_cuda"] is None else str(line["torch_cuda"])
            what = (str(line["id"]), str(line["about"]), str(line["python"]), cuda)
            sizes = (count(line["bytes"]), count(line["files"]))
            times = (host.here(float(line["built"])), host.here(float(line["used"])))
            found.append(Built(*what, *sizes, *times, tuple(map(str, line["used_by"]))))
    return sorted(found, key=lambda environment: -environment.used)


def remove_environment(host: HostState, root: str, env_id: str) -> BuildProgress:
    """Remove an environment unless jobs use it; return {"removed", "why", "used_by", "freed"}."""
    last = run_builder(host, "remove", root, env_id, timeout_s=_LONG_S)[-1:]
    with reading(host.settings.name, "what it has removed"):
        return dict(shaped(last[0], {"freed": int, "packages": int} if last[0]["removed"] is True else {"why": str}))


def remove_unused_environments(
    host: HostState, root: str, days: float, keep: int, *, dry: bool = False
) -> BuildProgress:
    """Remove environments not used for `days` days, except the `keep` used last; with `dry` only return what would go.

    Returns:
        {"removed", "kept", "freed"}, and without `dry` also "packages", the number that were removed.
    """
    last = run_builder(host, "gc-dry" if dry else "gc", root, str(days), str(keep), timeout_s=_LONG_S)[-1:]
    shape = {"removed": [str], "kept": [{"id": str, "why": str, "used_by": [str]}], "freed": int}
    with reading(host.settings.name, "what it has removed"):
        return dict(shaped(last[0], shape if dry else {**shape, "packages": int}))


def repair_environment(host: HostState, root: str, env_id: str) -> BuildProgress:
    """Restore the files that an environment has lost; return {"files", "relinked", "lost"}."""
    last = run_builder(host, "repair", root, env_id, timeout_s=_LONG_S)[-1:]
    with reading(host.settings.name, "what it has repaired"):
        # The builder built it again if too little was left of it.
        if "ready" in last[0]:
            built = shaped(last[0], {"ready": {"files": int}})["ready"]["files"]
            return {"files": built, "relinked": built, "lost": []}
        return dict(shaped(last[0], {"mended": {"files": int, "relinked": int, "lost": [str]}})["mended"])


class Lacking(NamedTuple):
    """The archives of a plan that a host lacks.

    Attributes:
        theirs: Those that it fetches itself.
        ours: Those that it must be sent.
        sizes: By their hashes, as far as the host knows them.
    """

    theirs: list[LockedPackage]
    ours: list[LockedPackage]
    sizes: Mapping[str, int]


def ask_lacking(host: HostState, plan: EnvironmentPlan) -> Lacking:
    """Ask the host which archives of a plan it lacks, and which of them it can fetch."""
    draft = json.dumps(plan.document).encode()
    lines = run_builder(host, "lacking", stdin=draft, timeout_s=_ASK_S)
    with reading(host.settings.name, "which archives it lacks"):
        lacking = shaped(lines[-1], {"missing": [str], "unreachable": [str], "sizes": {...: int}})
        missing = [plan.archives[sha256] for sha256 in lacking["missing"]]
    sent = set() if host.settings.making.fetch_on == "host" else set(lacking["unreachable"])
    sent |= {package.sha256 for package in missing if package.url.startswith(GIT)}
    theirs = [package for package in missing if package.sha256 not in sent]
    return Lacking(theirs, [package for package in missing if package.sha256 in sent], lacking["sizes"])


def start(host: HostState, root: str, plan: str, after: Reply[Any]) -> RemoteBuild:
    """Start the builder on the machine that ssh reaches, with the plan in that file, once `after` has succeeded."""
    build = RemoteBuild(host, posixpath.join(posixpath.dirname(plan), f"log-{secrets.token_hex(4)}"))
    build.spawn(host.bridge.words(layout.BUILD, "build", plan), root, [*host.bridge.lay_out(), after])
    return build


def run_builder(host: HostState, *words: str, timeout_s: float = _TIMEOUT_S, stdin: bytes = b"") -> list[BuildProgress]:
    """Run one command of the builder, and return the lines that it prints; may raise EnvironmentBuildError."""
    ran = host.bridge.run([layout.BUILD, *words], stdin=stdin, timeout_s=timeout_s)
    answer = ran.result(timeout_s + _TIMEOUT_S)
    lines = [line.decode("utf-8", "replace") for line in (answer.out + answer.err).splitlines()]
    found = [event for event in map(_parsed, lines) if event is not None]
    silent = {"message": f"the builder on the host ended with status {answer.rc}", "evidence": lines}
    if (found and found[-1].get("stage") == "failed") or (answer.rc and not found):
        raise build_error(found[-1] if found else silent, host.settings.name)
    return found


def build_error(last: BuildProgress, host: str) -> EnvironmentBuildError:
    """Make the error that a failed builder's last line describes."""
    reason = last.get("message") or last.get("text") or "the builder gave no reason"
    message = f"the environment could not be built: {reason}"
    evidence = [str(line) for line in last.get("evidence") or ()][-_EVIDENCE:]
    hint = last.get("hint") or "try again; clusterfn env list shows what exists"
    return EnvironmentBuildError(message, host=host, stage="environment", evidence=evidence, hint=hint)


def _parsed(line: str | bytes) -> BuildProgress | None:
    found = json_object(line)
    if not found or not isinstance(found.get("evidence") or [], list):
        return None
    numbers = [found[name] for name in ("done", "of", "bytes", "size") if name in found]
    return found if all(type(number) is int and number < 1 << 63 for number in numbers) else None


class RemoteBuild:
    """A builder that was started on a host, followed by its log there, which no other builder writes.

    Its listeners get its progress, on the connection's reader thread.

    Attributes:
        made: Answered once the environment is complete; its error says that it will not be.
    """

    def __init__(self, host: HostState, log: str) -> None:
        self._host = host
        self._log = log
        self._outcome: Future[BuildProgress] = Future()
        self.made: Reply[bool] = Reply(lambda: None)
        self._lines = Lines()
        self.listeners: list[Callable[[BuildProgress], None]] = []
        self._joins = itertools.count()
        self._following: Reply[bytes] | None = None

    def spawn(self, argv: Sequence[str], folder: str, after: Sequence[Reply[Any]] = ()) -> None:
        """Start the builder as a process of the host."""
        unset = self._host.scheduler.unset
        spawned = self._host.connection.spawn(argv, folder, self._log, unset=unset, after=after)
        loop.begin(self._see_end(spawned, argv, folder))

    async def _see_end(self, spawned: SpawnReply, argv: Sequence[str], folder: str) -> None:
        """Await the end of the process.

        If the agent that would report it is gone, start one more: it waits for the first, and says how that ended.
        """
        try:
            await spawned
            status = await spawned.exited
            if status is None and not self.is_over():
                self.spawn(argv, folder)
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            self.refused(error)
            return
        if status is not None:
            # Windows has no os.WIFSIGNALED to decode it.
            how = f"was ended by signal {status & 127}" if status & 127 else f"ended with {status >> 8}"
            await self._read_last_line(f"its builder {how}")

    def listen(self, on_progress: Callable[[BuildProgress], None]) -> Future[BuildProgress]:
        """Follow it from its first line on; return a future of its last. Many jobs may wait for one build."""
        self.listeners.append(on_progress)
        # `next` is atomic: of the threads whose jobs wait for one build, only one gets the 0 and starts to follow it.
        if next(self._joins) == 0:
            self._following = self._host.connection.follow([Followed(self._log, self._receive)])
            loop.begin(self._follow(self._following))
            if self.is_over():
                self._stop()
        return self._outcome

    async def _follow(self, following: Reply[bytes]) -> None:
        """Await an error, which ends the build, too; `_stop` cancels this wait."""
        error = await following.error()
        if error is not None:
            self.refused(error)
        # The log stays if the connection has ended.
        with contextlib.suppress(HostError):
            self._host.connection.run(["rm", "-f", "--", self._log])

    def is_over(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome.done()

    def refused(self, error: BaseException) -> None:
        """End the build with an error: it was never started."""
        self.made.reject(error)
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_exception(error)
        self._stop()

    async def _read_last_line(self, how: str) -> None:
        """Read the log to its end: the last line may be missing, or not yet followed."""
        text = io.BytesIO()
        # `how` says all that is known if the log cannot be read.
        with contextlib.suppress(ClusterfnError, concurrent.futures.CancelledError):
            await self._host.connection.get(self._log, text.write)
        lines = [line.decode("utf-8", "replace") for line in text.getvalue().splitlines()]
        parsed = [(line, _parsed(line)) for line in lines]
        said = [event for _, event in parsed if event and event.get("stage") in _LAST]
        # What is no progress may be a traceback.
        others = [line for line, event in parsed if event is None][-_EVIDENCE:]
        self._end(said[-1] if said else {"stage": "failed", "at": "stopped", "message": how, "evidence": others})

    def _receive(self, data: bytes) -> None:
        for line in filter(None, map(_parsed, self._lines.feed(data))):
            if line.get("stage") in _LAST:
                self._end(line)
            elif "stage" in line and not self._outcome.done():
                for listener in list(self.listeners):
                    listener(line)

    def _end(self, last: BuildProgress) -> None:
        if last["stage"] == "done":
            self.made.resolve(True)
        else:
            self.made.reject(build_error(last, ""))
        # The log and the process both say that it has ended.
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_result(last)
        self._stop()

    def _stop(self) -> None:
        """Follow it and look for it no longer: its outcome is known."""
        if self._following is not None:
            self._following.cancel()
