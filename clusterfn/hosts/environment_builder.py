"""The host's builder of environments as seen from here: its commands with their answers, and a build's own words.

Makes and removes nothing itself.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.environment import cuda, torch_build
from clusterfn.environment.lock import LockedPackage
from clusterfn.errors import EnvironmentBuildError, HostError
from clusterfn.hosts.scheduler_watch import Seen, Silent
from clusterfn.scheduler.base import FINAL, PENDING

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

BuildProgress = Mapping[str, Any]
"""One line of the builder's, as decision 14 has it: stage, done, of, bytes, text; the last is "done" or "failed"."""

_TIMEOUT_S = 60.0
_LONG_S = 3600.0
_EVIDENCE = 25
_LOOKS = 2
_LAST = ("done", "failed")


@dataclass(frozen=True)
class Built:
    """An environment that lies on a host.

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
    """What lies below a root of environments, the one used last first.

    Raises:
        EnvironmentBuildError: The host cannot say.
    """
    found = [_built(told) for told in run_builder(session, "list", root)]
    return sorted(found, key=lambda each: -each.used)


def _built(told: BuildProgress) -> Built:
    packages = [LockedPackage(*each, *[""] * 4) for each in told["packages"]]
    torch = torch_build.find_torch(packages, cuda.load_table())
    return Built(
        told["id"], told["about"], told["python"], torch.cuda if torch else None, told["bytes"], told["files"],
        told["built"], told["used"], tuple(told["used_by"]),
    )  # fmt: skip


def remove_environment(session: HostState, root: str, env_id: str) -> BuildProgress:
    """Remove one, unless jobs use it: {"removed", "why", "used_by", "freed"}."""
    return run_builder(session, "remove", root, env_id, timeout_s=_LONG_S)[-1]


def remove_unused_environments(
    session: HostState, root: str, days: float, keep: int, *, dry: bool = False
) -> BuildProgress:
    """Remove those not used for so many days, but for the so many used last; `dry`: only tell what would go.

    Returns:
        {"removed", "kept", "freed"}, and "packages" of what was removed
    """
    return run_builder(session, "gc-dry" if dry else "gc", root, str(days), str(keep), timeout_s=_LONG_S)[-1]


def repair_environment(session: HostState, root: str, env_id: str) -> BuildProgress:
    """Put back files that it has lost: {"files", "missing", "relinked", "lost"}."""
    return run_builder(session, "holes", root, env_id, timeout_s=_LONG_S)[-1]


def run_builder(
    session: HostState, *words: str, timeout_s: float = _TIMEOUT_S, stdin: bytes = b""
) -> list[BuildProgress]:
    """The lines that one command of the builder says.

    Raises:
        EnvironmentBuildError: It failed; or it says nothing that can be read.
    """
    argv, before = [*session.builder, *words], session.lay_out_bridge()
    ran = session.connection.run(argv, stdin, unset=session.scheduler.unset, timeout_s=timeout_s, after=before)
    answer = ran.result(timeout_s + _TIMEOUT_S)
    lines = [line.decode("utf-8", "replace") for line in (answer.out + answer.err).splitlines()]
    told = [each for each in map(_parsed, lines) if each is not None]
    if told and told[-1].get("stage") == "failed":
        raise build_error(told[-1], session.host.name)
    if answer.rc and not told:
        silent = {"message": f"the builder there ended with status {answer.rc}", "evidence": lines}
        raise build_error(silent, session.host.name)
    return told


def build_error(told: BuildProgress, host: str) -> EnvironmentBuildError:
    """The error that a failed builder's last word means."""
    return EnvironmentBuildError(
        message(told), host=host, stage="environment", evidence=evidence(told), hint=told.get("hint") or _AGAIN
    )


_AGAIN = "try again; clusterfn env list says what is there"


def message(told: BuildProgress) -> str:
    """Why it failed, in a sentence."""
    return f"the environment could not be made: {told.get('message') or told.get('text') or 'nobody knows why'}"


def evidence(told: BuildProgress) -> list[str]:
    """Lines that show it."""
    return [str(line) for line in told.get("evidence") or ()][-_EVIDENCE:]


def _parsed(line: str | bytes) -> BuildProgress | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def describe_progress(told: BuildProgress) -> str:
    """How far a build is.

    Example:
        >>> in_words({"stage": "unpack", "done": 3, "of": 16, "bytes": 5 << 20})
        'unpack 3 of 16, 5 MB'
    """
    count = f" {told['done']} of {told['of']}" if told.get("of", 0) > 1 else ""
    size = f", {told['bytes'] >> 20} MB" if told.get("bytes", 0) >> 20 else ""
    return f"{told['stage']}{count}{size}{': ' + told['text'] if told.get('text') else ''}"


class RemoteBuild:
    """A builder that was started there, heard by what it writes into its log.

    Its callbacks run on the connection's reader thread.

    Args:
        log: The log on the host; this builder's alone.
    """

    def __init__(self, session: HostState, log: str) -> None:
        self._session = session
        self._log = log
        self._outcome: Future[BuildProgress] = Future()
        self._partial = b""
        self._on_progress: Callable[[BuildProgress], None] = lambda _: None
        self._following: Reply[Any] | None = None
        self._unseen = 0

    def listen(self, on_progress: Callable[[BuildProgress], None]) -> Future[BuildProgress]:
        """Hear it from its first word on; the future holds its last."""
        self._on_progress = on_progress
        self._following = self._session.connection.follow(self._log, self._came)
        self._following.add_done_callback(self.started)
        self._outcome.add_done_callback(lambda _: self._leave())
        return self._outcome

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` once nothing more is to be heard."""
        self._outcome.add_done_callback(lambda _: then())

    def started(self, reply: Reply[Any]) -> None:
        """Whether it could be started, and can be heard."""
        error = reply.exception(0)
        if error is not None:
            self.refused(error)

    def refused(self, error: BaseException) -> None:
        """It was never started."""
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_exception(error)

    def process_ended(self, reply: Reply[int | None]) -> None:
        """Its process is gone, if anybody saw that."""
        status = None if reply.exception(0) else reply.result(0)
        if status is not None:
            self._gone(f"its builder {_how(status)}")

    def scheduler_said(self, seen: Seen) -> None:
        """What the scheduler said at one look of the batch job that it is."""
        if isinstance(seen, Silent) or self._outcome.done():
            return
        if seen is not None and seen.phase == PENDING:
            self._on_progress({"stage": "queue", "text": self._session.scheduler.in_words(seen)})
        self._unseen = self._unseen + 1 if seen is None or seen.phase == FINAL else 0
        if self._unseen == _LOOKS:
            self._gone(f"its builder's batch job ended ({seen.state if seen else 'the scheduler does not know it'})")

    def _gone(self, how: str) -> None:
        """Its last word may still be on its way, or never come."""
        text = io.BytesIO()
        rest = self._session.connection.get(self._log, text)
        rest.add_done_callback(lambda _: self._conclude(text.getvalue(), how))

    def _conclude(self, text: bytes, how: str) -> None:
        lines = [line.decode("utf-8", "replace") for line in text.splitlines()]
        said = [told for told in map(_parsed, lines) if told and told.get("stage") in _LAST]
        last = {"stage": "failed", "at": "stopped", "message": how, "evidence": list(_unread(lines))}
        self._end(said[-1] if said else last)

    def _came(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for told in filter(None, map(_parsed, lines)):
            if told.get("stage") in _LAST:
                self._end(told)
            elif "stage" in told and not self._outcome.done():
                self._on_progress(told)

    def _end(self, told: BuildProgress) -> None:
        with contextlib.suppress(InvalidStateError):  # both ways tell of its end
            self._outcome.set_result(told)

    def _leave(self) -> None:
        if self._following is not None:
            self._following.cancel()
        with contextlib.suppress(HostError):  # the connection has ended: the log stays
            self._session.connection.run(["rm", "-f", "--", self._log])


def _how(status: int) -> str:
    """In words, what waitpid said there; Windows cannot read it."""
    return f"was ended by signal {status & 127}" if status & 127 else f"ended with {status >> 8}"


def _unread(lines: Sequence[str]) -> Iterator[str]:
    """Lines that are no words of the builder's, such as a traceback."""
    yield from [line for line in lines if _parsed(line) is None][-_EVIDENCE:]
