"""Many calls of one function as their user sees them: what each is doing and leaves behind, stopping, and retrying.

Has only names that a user may call; the state is in `group_state.GroupState`, which `state_of_group` gives.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from clusterfn.bridge.job_states import CANCELLED, RUNNING, SHORT, UNKNOWN
from clusterfn.calls import failed_items, leaving, map_display, remote_state
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.job import deadline_of
from clusterfn.display.notebook import NotebookDisplay
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import remote_files
from clusterfn.packing.dependencies import ArgumentSource, JobArgument, JobPart, Reference
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from clusterfn.calls.group_run import GroupRun
    from clusterfn.calls.item_results import ItemResults
    from clusterfn.hosts.connection import Reply

    P = ParamSpec("P")
_ANSWER_S = 30.0
T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E")  # what `results()` may have in the place of a value: Exception, or nothing with on_error="raise"


class JobGroup(Generic[R, E], JobArgument, NotebookDisplay):
    """The calls of one `map`. `len(group)` is their number.

    As an argument of another call on that host it means the list of its values, which stay there; `group[3]` means that
    of one item. `f.map(group)` calls `f` with each.

    Iterating gives the values in the order of the items. It raises the exception of a call
    that failed at its place, unless `on_error="collect"` was given. Waiting, or giving up waiting, never touches them.

    Attributes:
        id: 16 hex digits; four are enough where they are unambiguous. A retry has an id of its own.
        name: The function's name.
        host: The host's name.
        folder: The group's folder on the host.
    """

    _as_argument = "pass the values of its calls: group.results()"
    _value = ".results()"

    def __init__(self, known: GroupState, run: GroupRun | None = None) -> None:
        # What was sent, if anything was.
        self._known, self._run = known, run
        self.id, self.name, self.host, self.folder = known.id, known.name, known.host, known.folder

    def __len__(self) -> int:
        return len(self._known)

    @property
    def hosts(self) -> list[str]:
        """The host of each call: that on which it runs or ran, or waits."""
        return [self.host] * len(self)

    def done(self) -> bool:
        """Whether each call has ended."""
        return self._known.done()

    @public_api
    def results(self, timeout: float | None = None) -> list[R | E]:
        """The values in the order of the items, waiting for them and showing, once, how far they are.

        An exception takes the place of a value; with `on_error="raise"` the first one is raised, and the others can
        still be read.

        Args:
            timeout: Seconds; None for as long as it takes.

        Raises:
            MapError: Every call of the map failed; it lists the most frequent causes with their counts.
            TimeoutError: Not all have ended within `timeout`; they continue.
            KeyboardInterrupt: After Ctrl-C; they continue, unless it is pressed twice.
            Exception: With `on_error="raise"`, that of the first call that failed.
        """
        map_display.show_until_done(self._known, timeout)
        return failed_items.results_of(self._known)

    @public_api
    def result(self, index: int, timeout: float | None = None) -> R:
        """The value of one call, waiting for it without a word; a negative index counts from the end, as everywhere.

        Args:
            index: Which.
            timeout: Seconds; None for as long as it takes.

        Raises:
            IndexError: There is no such item.
            TimeoutError: It has not ended within `timeout` seconds; it continues.
            Exception: What it raised, or one of `clusterfn.errors`.
        """
        until = deadline_of(timeout)
        ended = self._known.end_of(self._known.at(index), until)
        return cast(R, failed_items.result_of(ended, raises=True))

    @public_api
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until each call has ended, without showing each; whether they have after `timeout` seconds."""
        try:
            if len(self):
                self._known.ended_after(len(self) - 1, deadline_of(timeout))
        except concurrent.futures.TimeoutError:
            return False
        return True

    @public_api
    def as_completed(self, timeout: float | None = None) -> Iterator[tuple[int, R | E]]:
        """`(index, result)` of each call as it ends.

        Raises:
            TimeoutError: Of the iterator: not all have ended within `timeout` seconds.
            Exception: Of the iterator: with `on_error="raise"`, that of the first call that failed.
        """
        return _as_they_end(self._known, deadline_of(timeout))

    @public_api
    def __iter__(self) -> Iterator[R]:
        known = self._known
        for index in range(len(known)):
            ended = _awaited(known, functools.partial(known.end_of, index, None))
            yield cast(R, failed_items.result_of(ended, raises=known.on_error != "collect"))

    # With __getitem__ and __len__, `reversed` would give what means the values.
    __reversed__ = None

    @property
    def failed(self) -> dict[int, BaseException]:
        """The exceptions of the calls that have failed so far, by index."""
        return self._known.failed

    def __contains__(self, value: object) -> bool:
        raise TypeError("a JobGroup does not say what is in it: look at group.results()")

    @property
    def outputs_to(self) -> Path | None:
        """The folder on this machine in which item n has the folder n with its files; None without `outputs=`."""
        return self._known.outputs_to

    @property
    def states(self) -> list[str]:
        """The state of each call, as `Job.state`."""
        return self._known.states

    @property
    def state(self) -> str:
        """PENDING, RUNNING, UNKNOWN; once all have ended, RETURNED, or how one failed: CANCELLED, DIED, RAISED."""
        return self._known.state

    @property
    def reason(self) -> str:
        """Why it waits, if there is something to say."""
        return self._known.reason

    @property
    def status(self) -> str:
        """State and counts in one line, such as "RUNNING (37 of 100 ended: 35 returned, 2 raised)"."""
        return self._known.status

    @public_api
    def usage(self, index: int) -> Mapping[str, Any]:
        """Return what one call used: wall_s, cpu_s, peak_memory_bytes, gpus. Empty until it has ended."""
        ended = self._known.ended(self._known.at(index))
        return {} if ended is None else ended.usage

    @public_api
    def logs(self, index: int, stream: str = "stdout") -> str:
        """Return what one call has printed so far.

        Args:
            index: Which.
            stream: "stdout" or "stderr".
        """
        which, results = self._sent(index)
        return results.read_log(which, stream)

    @public_api
    def stack(self, index: int) -> str:
        """Where one call is now: the stack of every thread of its Python processes. It continues.

        Raises:
            ClusterfnError: It does not run, or does not answer.
        """
        said, index = None, self._known.at(index)
        if self.states[index] == RUNNING:
            results = self._sent(index)[1]
            said = remote_state.request_stack_dump(
                results.host.connection,
                results.element_folder(index),
                lambda waited_s: waited_s < _ANSWER_S and self.states[index] == RUNNING,
            )
        if said is None:
            message = f"there are no stacks of {self.label(index)}: it is {self.states[index]}"
            raise ClusterfnError(message, host=self.host, job=self.id, hint="ask while it is running")
        return said

    @public_api
    def files(self, index: int) -> list[remote_files.RemoteFile]:
        """List the files that one call left in its folder."""
        which, results = self._sent(index)
        return remote_files.list_files(results.host.connection, results.work_folder(which), item=which)

    @public_api
    def download(self, index: int, pattern: str = "*", to: str | Path = ".") -> list[Path]:
        """Fetch files that one call left in its folder; as `Job.download`."""
        which, results = self._sent(index)
        return remote_files.fetch(results.host.connection, results.work_folder(which), pattern, Path(to), which)

    @public_api
    def checkpoint(self, index: int) -> remote_files.CheckpointFolder:
        """Return what one call has saved in `clusterfn.checkpoint()`; as `Job.checkpoint`."""
        which, results = self._sent(index)
        folder = results.checkpoint_folder(which)
        return remote_files.CheckpointFolder(results.host.connection, folder, f"group.checkpoint({which})")

    def _sent(self, index: int) -> tuple[int, ItemResults]:
        """Return the number of an item, counted from the start, and what knows where it ran."""
        which = self._known.at(index)
        return which, self._run_of(which).results_of(which)

    def _run_of(self, index: int) -> GroupRun:
        """Return what was sent of an item, and what runs of it; raise `ClusterfnError` if nothing was."""
        if self._run is None:
            raise ClusterfnError("nothing of this group was sent")
        return self._run

    @public_api
    def stop(self) -> None:
        """End all calls that have not ended, with all their processes. Their results are then `Cancelled`."""
        self._known.stop()

    @public_api
    def withdraw(self) -> None:
        """Keep calls from starting that no process has taken yet; those that run, and what was taken, continue."""
        if not self.done() and self._run is not None:
            self._run.withdraw()

    @public_api
    def cancel(self) -> bool:
        """Stop it as `stop` does; return whether it is cancelled, or ends now. False: it has ended by itself."""
        if self.done():
            return self.state == CANCELLED
        self.stop()
        return True

    @public_api
    def retry_failed(self) -> JobGroup[R, E]:
        """Call the failed items again, and return at once; the other items keep their values.

        Each item keeps its index and its label, so `results()` then has the values of both tries. The group has a new
        id; `attach` finds all items by it.

        Returns:
            This group.

        Raises:
            ClusterfnError: Not all calls have ended.

        Example:
            >>> group.results()
            >>> group.retry_failed().results()
        """
        if not self.done():
            raise ClusterfnError("not all items have ended", host=self.host, job=self.id, hint="wait: group.results()")
        failed = sorted(self.failed)
        if self._run is not None and failed:
            from clusterfn.calls.retry import retry_items

            self._run = retry_items(self._run, failed)
            self._known = self._run.group
            self.id, self.folder = self._known.id, self._known.folder
        return self

    @public_api
    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each item: its label, state, arguments, usage, result or error.

        Each argument has a column with the name of the function's parameter, `argument_…` where there is one of that
        name. One with named fields, such as a dict or a dataclass, also has a column for each of them: `cfg.lr`.
        Objects stay as they are in the process that sent them, if they are small; elsewhere a text describes them.
        A result that is a dict fills a column for each of its keys, `result_…` where there is one of that name.

        Raises:
            ModuleNotFoundError: pandas is not installed here.
        """
        return map_display.to_dataframe(self._known)

    @public_api
    def label(self, index: int) -> str:
        """Return the name of an item for people."""
        return self._known.label(self._known.at(index))

    def _shown_lines(self) -> list[str]:
        return map_display.summary(self._known)

    def _may_change(self) -> bool:
        return not self.done() and self.state != UNKNOWN

    def __getitem__(self, index: int) -> JobPart:
        """Return what means the value of this item, as an argument of another call."""
        return JobPart(self._reference()._replace(item=self._known.at(index)))

    def _reference(self) -> Reference:
        # A retry has the values of its own items alone in its folder: those of the others come from here.
        whole = self._run is not None and self._run.spec.count == len(self)
        return Reference(GroupSource(self), self.id, self.name, self.host, self.folder if whole else "")

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"this is the JobGroup {self.id} itself, which belongs to this process: pickle its values, or its id, and "
            f'write clusterfn.attach("{self.id[:SHORT]}") where you need it'
        )

    def __repr__(self) -> str:
        return f"<JobGroup {self.id} {self.name} on {self.host}: {self.status}>"


def _awaited(known: GroupState, end: Callable[[], T]) -> T:
    """Wait for an end, and say at Ctrl-C what becomes of the group."""
    try:
        return end()
    except KeyboardInterrupt:
        leaving.interrupted(known, known.on_interrupt, "results()")
        raise


@public_api
def _as_they_end(known: GroupState, until: float | None) -> Iterator[tuple[int, Any]]:
    """`(index, result)` of each item as it ends, waiting until that moment of the monotonic clock."""
    for given in range(len(known)):
        index, ended = _awaited(known, functools.partial(known.ended_after, given, until))
        yield index, failed_items.result_of(ended, raises=known.on_error == "raise")


class GroupSource(ArgumentSource):
    """A group whose values other calls take."""

    argument: JobGroup[Any, Any]

    def has_ended(self) -> bool:
        return self.argument.done()

    def items_left(self) -> tuple[int, int] | None:
        known = self.argument._known
        return len(known) - len(known.ends()), len(known)

    def value_here(self, item: int | None, timeout: float | None = None) -> Any:
        group = self.argument
        return group.result(item, timeout) if item is not None else [group.result(index) for index in range(len(group))]

    def await_end(self) -> None:
        self.argument.wait()

    def open_requests(self) -> Sequence[Reply[Any]]:
        return run_of_group(self.argument).queue.open_requests()


def state_of_group(group: JobGroup[Any, Any]) -> GroupState:
    """Return the state behind a `JobGroup`, for other parts of the library."""
    return group._known


def run_of_group(group: JobGroup[Any, Any], index: int = 0) -> GroupRun:
    """Return what was sent of an item of a `JobGroup`, and what runs of it; raise `ClusterfnError` if nothing was."""
    return group._run_of(index)
