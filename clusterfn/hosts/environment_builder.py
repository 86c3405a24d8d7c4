"""Run the commands of a host's environment builder (list, remove, repair), and follow the progress of a build."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.environment import cuda, torch_build
from clusterfn.environment.lock import LockedPackage
from clusterfn.errors import EnvironmentBuildError, HostError
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler.base import PENDING

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

BuildProgress = Mapping[str, Any]
"""One line of the builder: stage, done, of, bytes, text; the stage of the last is "done" or "failed"."""

_TIMEOUT_S = 60.0
_LONG_S = 3600.0
_EVIDENCE = 25
_LOOKS = 2
_LAST = ("done", "failed")


@dataclass(frozen=True)
class Built:
    """An environment on a host.

    Attributes:
        about: What the user named.
        cuda: Of its PyTorch, "12.8"; "" for a build without CUDA, None if it has no PyTorch or that is not known.
        size: Bytes of its files; environments share what they have in common.
        built, used: Seconds since 1970.
        used_by: Ids of the jobs that use it now.
    """

    id: str
    about: str
    python: str
    cuda: str | None
    size: int
    files: int
    built: float
    used: float
    used_by: tuple[str, ...]


def list_environments(session: HostState, root: str) -> list[Built]:
    """List the environments below a root, the one used last first.

    Raises:
        EnvironmentBuildError: The host cannot list them.
    """
    found = []
    for line in run_builder(session, "list", root):
        packages = [LockedPackage(*each, *[""] * 4) for each in line["packages"]]
        torch = torch_build.find_torch(packages, cuda.load_table())
        built = Built(
            line["id"], line["about"], line["python"], torch.cuda if torch else None, line["bytes"], line["files"],
            line["built"], line["used"], tuple(line["used_by"]),
        )  # fmt: skip
        found.append(built)
    return sorted(found, key=lambda each: -each.used)


def remove_environment(session: HostState, root: str, env_id: str) -> BuildProgress:
    """Remove an environment unless jobs use it; return {"removed", "why", "used_by", "freed"}."""
    return run_builder(session, "remove", root, env_id, timeout_s=_LONG_S)[-1]


def remove_unused_environments(
    session: HostState, root: str, days: float, keep: int, *, dry: bool = False
) -> BuildProgress:
    """Remove environments not used for `days` days, except the `keep` used last; with `dry` only return what would go.

    Returns:
        {"removed", "kept", "freed"}, and without `dry` also "packages", the number that were removed.
    """
    return run_builder(session, "gc-dry" if dry else "gc", root, str(days), str(keep), timeout_s=_LONG_S)[-1]


def repair_environment(session: HostState, root: str, env_id: str) -> BuildProgress:
    """Restore the files that an environment has lost; return {"files", "missing", "relinked", "lost"}."""
    return run_builder(session, "holes", root, env_id, timeout_s=_LONG_S)[-1]


def run_builder(
    session: HostState, *words: str, timeout_s: float = _TIMEOUT_S, stdin: bytes = b""
) -> list[BuildProgress]:
    """Run one command of the builder; return the lines that it prints.

    Raises:
        EnvironmentBuildError: It failed, or it prints nothing that can be read.
    """
    argv, before = [*session.builder, *words], session.lay_out_bridge()
    ran = session.connection.run(argv, stdin, unset=session.scheduler.unset, timeout_s=timeout_s, after=before)
    answer = ran.result(timeout_s + _TIMEOUT_S)
    lines = [line.decode("utf-8", "replace") for line in (answer.out + answer.err).splitlines()]
    told = [each for each in map(_parsed, lines) if each is not None]
    if told and told[-1].get("stage") == "failed":
        raise build_error(told[-1], session.host.name)
    if answer.rc and not told:
        silent = {"message": f"the builder on the host ended with status {answer.rc}", "evidence": lines}
        raise build_error(silent, session.host.name)
    return told


def build_error(told: BuildProgress, host: str) -> EnvironmentBuildError:
    """Make the error that a failed builder's last line describes."""
    return EnvironmentBuildError(
        message(told), host=host, stage="environment", evidence=evidence(told),
        hint=told.get("hint") or "try again; clusterfn env list shows what exists",
    )  # fmt: skip


def message(told: BuildProgress) -> str:
    """Say in a sentence why a build failed."""
    return (
        f"the environment could not be built: {told.get('message') or told.get('text') or 'the builder gave no reason'}"
    )


def evidence(told: BuildProgress) -> list[str]:
    return [str(line) for line in told.get("evidence") or ()][-_EVIDENCE:]


def _parsed(line: str | bytes) -> BuildProgress | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or not isinstance(told.get("evidence") or [], list):
        return None
    numbers = [told[name] for name in ("done", "of", "bytes") if name in told]
    return told if all(type(each) is int and each < 1 << 63 for each in numbers) else None


def describe_progress(told: BuildProgress) -> str:
    """Say how far a build is.

    Example:
        >>> describe_progress({"stage": "unpack", "done": 3, "of": 16, "bytes": 5 << 20})
        'unpack 3 of 16, 5 MB'
    """
    count = f" {told['done']} of {told['of']}" if told.get("of", 0) > 1 else ""
    size = f", {told['bytes'] >> 20} MB" if told.get("bytes", 0) >> 20 else ""
    return f"{told['stage']}{count}{size}{': ' + told['text'] if told.get('text') else ''}"


class RemoteBuild:
    """A builder that was started on a host, followed by its log.

    Its callbacks run on the connection's reader thread.

    Args:
        log: The log on the host, which only this builder writes.
    """

    def __init__(self, session: HostState, log: str) -> None:
        self._session = session
        self._log = log
        self._outcome: Future[BuildProgress] = Future()
        self._partial = b""
        self._listeners: list[Callable[[BuildProgress], None]] = []
        self._looks = LookCounter()

    def listen(self, on_progress: Callable[[BuildProgress], None]) -> Future[BuildProgress]:
        """Follow it from its first line on; return a future of its last. Many jobs may wait for one build."""
        self._listeners.append(on_progress)
        if len(self._listeners) > 1:
            return self._outcome
        following = self._session.connection.follow(self._log, self._receive)
        following.add_done_callback(self.started)

        def stop_following(_: object) -> None:
            following.cancel()
            with contextlib.suppress(HostError):  # the connection has ended: the log stays
                self._session.connection.run(["rm", "-f", "--", self._log])

        self._outcome.add_done_callback(stop_following)
        return self._outcome

    def is_over(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome.done()

    def _on_progress(self, told: BuildProgress) -> None:
        for listener in list(self._listeners):
            listener(told)

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` once the outcome is known."""
        self._outcome.add_done_callback(lambda _: then())

    def started(self, reply: Reply[Any]) -> None:
        """Take the answer to the request that started or follows it: an error ends the build."""
        error = reply.exception(0)
        if error is not None:
            self.refused(error)

    def refused(self, error: BaseException) -> None:
        """End the build with an error: it was never started."""
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_exception(error)

    def process_ended(self, reply: Reply[int | None]) -> None:
        """Take the answer that its process has ended, with the raw wait status if the agent saw it."""
        status = None if reply.exception(0) else reply.result(0)
        if status is not None:  # Windows cannot decode it by os.WIFSIGNALED
            how = f"was ended by signal {status & 127}" if status & 127 else f"ended with {status >> 8}"
            self._read_last_line(f"its builder {how}")

    def scheduler_said(self, seen: Seen) -> None:
        """Take the scheduler's state of its batch job, if the build runs as one."""
        if isinstance(seen, Silent) or self._outcome.done():
            return
        if seen is not None and seen.phase == PENDING:
            self._on_progress({"stage": "queue", "text": self._session.scheduler.in_words(seen)})
        self._looks.count(seen, self._session.scheduler)
        if self._looks.gone == _LOOKS:
            self._read_last_line(
                f"its builder's batch job ended ({seen.state if seen else 'the scheduler does not know it'})"
            )

    def _read_last_line(self, how: str) -> None:
        """Read the log to its end: the last line may be missing, or not yet followed."""
        text = io.BytesIO()

        def conclude(_: object) -> None:
            lines = [line.decode("utf-8", "replace") for line in text.getvalue().splitlines()]
            said = [told for told in map(_parsed, lines) if told and told.get("stage") in _LAST]
            others = [line for line in lines if _parsed(line) is None][-_EVIDENCE:]  # such as a traceback
            last = {"stage": "failed", "at": "stopped", "message": how, "evidence": others}
            self._end(said[-1] if said else last)

        self._session.connection.get(self._log, text).add_done_callback(conclude)

    def _receive(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in filter(None, map(_parsed, lines)):
            if line.get("stage") in _LAST:
                self._end(line)
            elif "stage" in line and not self._outcome.done():
                self._on_progress(line)

    def _end(self, told: BuildProgress) -> None:
        with contextlib.suppress(InvalidStateError):  # its end is seen in two ways
            self._outcome.set_result(told)
