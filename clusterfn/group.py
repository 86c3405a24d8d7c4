"""Many calls of one function as their user sees them: results in order or as they come, failures beside them.

Holds no protocol: `gathering` tells it what happens on the host. Made by `mapping` and `lookup`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from clusterfn import download, outcome, overview, whereabouts
from clusterfn.edge import edge
from clusterfn.errors import ClusterfnError
from clusterfn.job import CANCELLED, DIED, FINAL, PENDING, RETURNED, RUNNING, UNKNOWN

if TYPE_CHECKING:
    import asyncio

    from clusterfn.gathering import Gathering

R = TypeVar("R")
_TURN_S = 1.0
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How one item ended.

    Attributes:
        state: As `Job.state`.
        value: What it returned; None if it failed.
        error: Why it has no value; None if it has.
        usage: wall_s, cpu_s, peak_memory_bytes, gpus.
    """

    state: str
    value: Any = None
    error: BaseException | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> Any:
        """The value, or the exception in its place."""
        return self.value if self.error is None else self.error


class JobGroup(Generic[R]):
    """The calls of one `map`. `len(group)` is their number.

    Iterating, with `for` or `async for`, gives `(index, result)` as each call ends. Waiting, or giving up waiting,
    never touches them.

    Attributes:
        id: 16 hex digits; four are enough where they are unambiguous.
        name: The function's name.
        host: The host's name.
        folder: The group's folder on the host.
        shown: How many ends have been shown to the user.
        sent_here: Whether this process has sent it, and saw all of it.
    """

    def __init__(
        self, group_id: str, name: str, host: str, folder: str, count: int, on_error: str = "collect",
        labels: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.id = group_id
        self.name = name
        self.host = host
        self.folder = folder
        self.submitted_at = time.monotonic()
        self.gathering: Gathering | None = None
        self.on_interrupt = "detach"
        self._on_error = on_error
        self._labels = labels
        self._states = [PENDING] * count
        self._ended: dict[int, Ended] = {}
        self._order: list[int] = []
        self._begun: dict[int, None] = {}  # in the order in which they began
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.shown = 0
        self.sent_here = True
        self._lost: ClusterfnError | None = None
        self._reason = ""
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._states)

    # what a user asks

    def done(self) -> bool:
        """Whether each call has ended."""
        return len(self._ended) == len(self)

    @edge
    def results(self, timeout: float | None = None) -> list[R]:
        """The values in the order of the items, waiting for them and showing, once, a line for each that ends.

        With `on_error="collect"` an exception stands in the place of a value; with "raise" the first one is raised, and
        the others can still be read.

        Args:
            timeout: Seconds; None for as long as it takes.

        Raises:
            SweepError: Every call failed; it lists each distinct cause with its count.
            TimeoutError: Not all have ended within `timeout`; they go on.
            KeyboardInterrupt: After Ctrl-C; they go on, unless it is pressed twice.
            Exception: With "raise", that of the first call that failed.
        """
        from clusterfn import progress

        progress.until_done(self, timeout)
        self._raise_if_none_succeeded()
        return [self._ended[index].result for index in range(len(self))]

    @edge
    def result(self, index: int, timeout: float | None = None) -> R:
        """The value of one call, waiting for it without a word.

        Raises:
            TimeoutError: It has not ended within `timeout` seconds; it goes on.
            Exception: What it raised, or one of `clusterfn.errors`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._await(lambda: index in self._ended, until, f"item {index} has not ended")
        ended = self._ended[index]
        if ended.error is not None:
            raise ended.error
        return cast(R, ended.value)

    @edge
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until each call has ended, without a word; whether they have after `timeout` seconds."""
        try:
            if len(self):
                self.ended_after(len(self) - 1, None if timeout is None else time.monotonic() + timeout)
        except concurrent.futures.TimeoutError:
            return False
        return True

    def as_completed(self, timeout: float | None = None) -> Iterator[tuple[int, R]]:
        """`(index, result)` of each call as it ends.

        Raises:
            TimeoutError: Not all have ended within `timeout` seconds.
            Exception: With `on_error="raise"`, that of the first call that failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        given = 0
        while given < len(self):
            index, ended = self.ended_after(given, until)
            given += 1
            if ended.error is not None and self._on_error == "raise":
                raise ended.error
            yield index, cast(R, ended.result)

    def __iter__(self) -> Iterator[tuple[int, R]]:
        return self.as_completed()

    async def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        import asyncio

        changed, given = asyncio.Event(), self.as_completed()
        wake = functools.partial(_wake, asyncio.get_running_loop(), changed)
        self._listeners.append(wake)
        try:
            for before in range(len(self)):
                while len(self._ended) <= before and self._lost is None:
                    changed.clear()
                    await changed.wait()
                yield next(given)
        finally:
            self._listeners.remove(wake)

    @property
    def failed(self) -> dict[int, BaseException]:
        """The exceptions of the calls that have failed so far, by index."""
        return {index: each.error for index, each in sorted(self._ended.items()) if each.error is not None}

    @property
    def states(self) -> list[str]:
        """The state of each call, as `Job.state`."""
        return list(self._states)

    @property
    def state(self) -> str:
        """PENDING, RUNNING, CANCELLED (all have ended, one at least was cancelled), RETURNED (one has a value), DIED or
        UNKNOWN."""
        known = collections.Counter(self._states)
        if self._lost is not None and not self.done():
            return UNKNOWN
        if not self.done():
            return RUNNING if known[PENDING] < len(self) else PENDING
        if known[CANCELLED]:
            return CANCELLED
        return RETURNED if known[RETURNED] or not len(self) else DIED

    @property
    def reason(self) -> str:
        """Why it waits, if there is something to say."""
        return self._reason

    @property
    def status(self) -> str:
        """State and counts in one line, such as "RUNNING (37 of 100 ended: 35 returned, 2 raised)"."""
        known = collections.Counter(each.state for each in list(self._ended.values()))
        counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(known.items(), reverse=True))
        told = f"{sum(known.values())} of {len(self)} ended{f': {counts}' if counts else ''}"
        return f"{self.state} ({'; '.join(filter(None, [told, '' if self.done() else self._reason]))})"

    def usage(self, index: int) -> Mapping[str, Any]:
        """What one call used: wall_s, cpu_s, peak_memory_bytes, gpus. Empty until it has ended."""
        return self._ended[index].usage if index in self._ended else {}

    def logs(self, index: int, stream: str = "stdout") -> str:
        """What one call has printed so far.

        Args:
            index: Which.
            stream: "stdout" or "stderr".
        """
        gathering = self._of_host()
        return gathering.accounts.logs(gathering.connection, index, stream)

    def stack(self, index: int) -> str:
        """Where one call is now: the stack of every thread of its Python processes. It goes on.

        Raises:
            ClusterfnError: It does not run, or nobody there answers.
        """
        said = None
        if self._states[index] == RUNNING:
            gathering = self._of_host()
            folder = gathering.accounts.element_folder(index)
            said = whereabouts.ask(gathering.connection, folder, lambda waited_s: self._may_answer(index, waited_s))
        if said is None:
            raise ClusterfnError(
                f"there are no stacks of {self.label(index)}: it is {self._states[index]}", host=self.host, job=self.id,
                hint="ask while it runs",
            )  # fmt: skip
        return outcome.own_files(said)

    def _may_answer(self, index: int, waited_s: float) -> bool:
        return self._states[index] == RUNNING and waited_s < _ANSWER_S

    def files(self, index: int) -> list[download.RemoteFile]:
        """The files that one call left in its folder."""
        gathering = self._of_host()
        return download.list_files(gathering.connection, gathering.accounts.work_folder(index))

    def download(self, index: int, pattern: str = "*", to: str | Path = ".") -> list[Path]:
        """Fetch files that one call left in its folder; as `Job.download`."""
        gathering = self._of_host()
        return download.fetch(gathering.connection, gathering.accounts.work_folder(index), pattern, Path(to))

    def stop(self) -> None:
        """End all calls that have not ended, with all their processes. Their results are then `Cancelled`."""
        if not self.done() and self.gathering is not None:
            self.gathering.stop()

    def withdraw(self) -> None:
        """Keep calls from starting that no process has taken yet; those that run, and what was taken, go on."""
        if not self.done() and self.gathering is not None:
            self.gathering.withdraw()

    def cancel(self) -> bool:
        """As `stop`; whether there was anything to end."""
        if self.done():
            return False
        self.stop()
        return True

    def retry_failed(self) -> JobGroup[R]:
        """Call the failed items once more, as a new group; item n of it is the n-th of `failed`.

        Raises:
            ClusterfnError: Not all calls have ended.
        """
        from clusterfn import mapping

        if not self.done():
            raise ClusterfnError("not all items have ended", host=self.host, job=self.id, hint="wait: group.results()")
        return mapping.again(self, sorted(self.failed), self._on_error)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each item: its arguments as a label, state, what it used, result or error.

        A result that is a dict fills a column for each of its keys, `result_…` where there is one of that name.

        Raises:
            ModuleNotFoundError: pandas is not installed here.
        """
        return overview.table(self)

    def label(self, index: int) -> str:
        """What a person calls an item."""
        return self._labels[index] if self._labels else f"item {index}"

    def __repr__(self) -> str:
        return f"<JobGroup {self.id} {self.name} on {self.host}: {self.status}>"

    def _of_host(self) -> Gathering:
        if self.gathering is None:
            raise ClusterfnError("nothing of this group was sent")
        return self.gathering

    def _raise_if_none_succeeded(self) -> None:
        errors = list(self.failed.values())
        if errors and len(errors) == len(self):
            raise overview.none_succeeded(self, errors)

    # what shows it, and what `gathering` tells

    def ended(self, index: int) -> Ended | None:
        """How one call ended; None if it has not."""
        return self._ended.get(index)

    @property
    def raises(self) -> bool:
        """Whether the first failure is to be raised."""
        return self._on_error == "raise"

    @edge
    def ended_after(self, given: int, until: float | None) -> tuple[int, Ended]:
        """The item that ended after `given` others, waiting for it until that moment of the monotonic clock.

        Raises:
            TimeoutError: It has not.
            ClusterfnError: Nothing more can be heard of the group.
        """
        with self._changed:
            late = f"{len(self) - given} of {len(self)} items have not ended"
            self._await(lambda: len(self._ended) > given, until, late)
            index = self._order[given]
            return index, self._ended[index]

    @property
    def one_by_one(self) -> bool:
        """Whether its items run one after another."""
        return len(self) > 1 and self.gathering is not None and self.gathering.spec.at_once == 1

    def begun_after(self, given: int, until: float | None) -> int | None:
        """The item that began after `given` others, waiting for it as `ended_after`; None if as many ended without."""
        with self._changed:
            late = f"{len(self) - given} of {len(self)} items have not ended"
            self._await(lambda: len(self._begun) > given or len(self._ended) > given, until, late)
            return list(self._begun)[given] if len(self._begun) > given else None

    def _await(self, true: Callable[[], bool], until: float | None, late: str) -> None:
        """Wait, with `_changed` held, until that is so."""
        if os.getpid() != self._pid and not self.done():
            raise RuntimeError(f"group {self.id} was sent by another process: clusterfn.attach({self.id!r})")
        while not true():
            if self._lost is not None:
                raise self._lost
            left = _TURN_S if until is None else min(_TURN_S, until - time.monotonic())
            if left <= 0:
                raise concurrent.futures.TimeoutError(late)
            self._changed.wait(left)

    def on_begin(self, index: int) -> None:
        """An item runs."""
        if index not in self._ended:
            with self._changed:
                self._states[index] = RUNNING
                self._begun[index] = None
                self._changed.notify_all()

    def on_end(self, index: int, ended: Ended) -> None:
        """An item has ended; what comes after that of the same item is not heard."""
        with self._changed:
            if index not in self._ended:
                self._states[index] = ended.state
                self._ended[index] = ended
                self._order.append(index)
                self._changed.notify_all()
        self._tell()

    def on_state(self, state: str, reason: str = "") -> None:
        """What the group waits for, or what is being done for it."""
        self._reason = reason

    def on_connection(self, trouble: str) -> None:
        """Why nothing can be heard of it; "" while it can."""
        self._reason = trouble

    def on_refused(self, error: ClusterfnError) -> None:
        """Nothing more can come of it."""
        with self._changed:
            self._lost = self._lost or error
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(changed.set)


def state_of(kind: str) -> str:
    """The state for a kind of outcome."""
    return FINAL.get(kind, DIED)
