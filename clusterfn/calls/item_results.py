"""The results of the items of a group, from the journals of its elements: where each runs, how it ended, its value.

Lines and values arrive on the connection's reader thread, which must not wait: values are loaded in other threads,
because loading one runs code of the user's. Concludes nothing.
"""

from __future__ import annotations

import collections
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import DIED, FINAL, RETURNED, SHORT
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.config.host_text import Lines, count, json_object, reading
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, JobError, ResultError, ResultTooLarge
from clusterfn.hosts import loop, remote_files

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState


class ItemStream:
    """Pairs the lines of the journal of an element's attempt with their values; either file may arrive first.

    Attributes:
        values: The path of its values if each is fetched once its size is known; "" if all come as they are written.
        latest: The item that has begun last; -1 before the first.
    """

    def __init__(self, element: int, attempt: int) -> None:
        self.values, self.latest = "", -1
        self.element, self.attempt = element, attempt
        self.waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._lines, self._values, self._offset = Lines(), bytearray(), 0

    def lines(self, data: bytes) -> list[dict[str, Any]]:
        """Return the whole lines received so far; skip a line that a crash has cut."""
        return [entry for entry in map(_read_entry, self._lines.feed(data)) if entry]

    def ready(self, data: bytes, is_end: bool = False) -> Iterable[tuple[dict[str, Any], bytearray | None]]:
        """Add these bytes of values, and yield in order the lines whose values are complete, with them.

        At the end also yield the others, as after a crash of the machine, with the bytes there are.
        """
        self._values += data
        while self.waiting:
            size, value = (self.waiting[0].get("value") or {}).get("size"), None
            if size is not None:
                # A crash may leave bytes that belong to no line, so a value need not begin where the last one ended.
                begin = self.waiting[0]["at"] - self._offset
                if len(self._values) < begin + size and not is_end:
                    return
                value = self._values[max(0, begin) : begin + size]
                # Values that are handed on must not be kept here too, for a group may have thousands.
                if len(self._values) >= begin + size:
                    del self._values[: begin + size]
                    self._offset += begin + size
            yield self.waiting.popleft(), value


@dataclass
class ItemRecord:
    """The journal's line about an item that has ended, and the bytes of its value, or why they have not come."""

    element: int
    attempt: int
    line: dict[str, Any]
    value: bytearray | None
    error: BaseException | None = None


class ItemResults:
    """The results of those items of a group that have no end yet. Batches of them are loaded in threads.

    Args:
        when_all: Called once in the loop, when each item has ended, or nothing more can be received. Must not wait.

    Attributes:
        host: Where they come from.
        on_host: The numbers that the host has for these items, by their indices.
    """

    def __init__(self, host: HostState, job: JobSpec, group: GroupState, when_all: Callable[[], None]) -> None:
        self.host, self._job, self._group, self._when_all = host, job, group, when_all
        self._indices = [index for index in range(len(group)) if group.ended(index) is None]
        self.on_host = {index: number for number, index in enumerate(self._indices)}
        folder = layout.job_dir(job.root, job.id)
        self._place = outcome.JobLocation(host.settings.name, job.id, folder, job.results)
        self._said_quiet = False
        self._places: dict[int, tuple[int, int, dict[str, Any]]] = {}
        # The line about the item that has begun next in the same place.
        self._next: dict[int, dict[str, Any]] = {}
        self._received: collections.Counter[tuple[int, int]] = collections.Counter()
        self._records: collections.deque[ItemRecord] = collections.deque()
        # Whether the loop was asked to load what waits. Any thread sets it, so that many records wake the loop once.
        self._is_asked = self._is_closed = self._is_over = False
        self._loading = loop.Single(self._load_all)

    def close(self) -> None:
        """Take note that nothing more can be received; what has been received is still loaded."""
        self._is_closed = True
        loop.call(self._loading.begin)

    def _put(self, record: ItemRecord) -> None:
        """Have a record loaded, from any thread."""
        self._records.append(record)
        if not self._is_asked:
            self._is_asked = True
            loop.call(self._loading.begin)

    async def _load_all(self) -> None:
        self._is_asked = False
        if self._is_over:
            return
        while self._records and not self._group.done():
            await loop.in_thread(self._load_waiting, "clusterfn-group")
            # The flag comes before the next look: a record that comes after that asks for another one.
            self._is_asked = False
        self._is_over = self._is_closed or self._group.done()
        if self._is_over:
            self._when_all()

    def count_ended(self) -> int:
        """Return the number of items whose end was received, loaded or not."""
        # The list is a copy, because the event loop adds items while this thread counts them.
        return sum("index" in line for _, _, line in list(self._places.values()))

    def take_lines(self, stream: ItemStream, data: bytes) -> None:
        for line in stream.lines(data):
            if max(line.get(name, 0) for name in ("begin", "retry", "index")) >= len(self._indices):
                # The group has no such item: the line is damaged or false.
                continue
            if "begin" in line:
                self._next[stream.latest], stream.latest = line, line["begin"]
                # It may have begun before, elsewhere.
                self._next.pop(line["begin"], None)
                self._places[line["begin"]] = (stream.element, stream.attempt, line)
                self._group.begin_item(self._indices[line["begin"]])
            elif "retry" in line:
                console.tell(f"{self._group.label(self._indices[line['retry']])}: {line.get('told')}")
            elif "index" in line:
                earlier = self._places.get(line["index"], (0, 0, {}))[2]
                self._places[line["index"]] = (stream.element, stream.attempt, {**earlier, **line})
                if stream.values:
                    self._send_for(stream, line)
                else:
                    stream.waiting.append(line)
        self.take_values(stream, b"")
        self._received[stream.element, stream.attempt] += len(data)

    def is_caught_up(self, journals: Mapping[tuple[int, int], int]) -> bool:
        """Whether so many bytes of the journals of these elements and attempts have been received."""
        return all(self._received[which] >= size for which, size in journals.items())

    def take_values(self, stream: ItemStream, data: bytes, is_end: bool = False) -> None:
        """Take more bytes of values, and have those loaded that are complete; at an attempt's end, the others too."""
        for line, value in stream.ready(data, is_end):
            self._put(ItemRecord(stream.element, stream.attempt, line, value))

    def _send_for(self, stream: ItemStream, line: dict[str, Any]) -> None:
        """Have the value of an item come, unless it has none that is to be read; then take the line."""
        record, results = ItemRecord(stream.element, stream.attempt, line, None), self._place.results
        is_unread = line.get("kind") != layout.RETURNED and results.data_only
        if not line.get("value") or is_unread or outcome.is_too_large(line, results):
            self._put(record)
            return
        record.value = value = bytearray()
        begin, end = line["at"], line["at"] + line["value"]["size"]
        loop.begin(self._receive(self.host.connection.get(stream.values, value.extend, begin, until=end), record))

    async def _receive(self, coming: Reply[int], record: ItemRecord) -> None:
        record.error = await coming.error()
        self._put(record)

    def say_quiet(self, item: str, why: str) -> None:
        """Say that an item has made no progress for long; only of the first such item."""
        if not self._said_quiet:
            self._said_quiet = True
            known = item.isdecimal() and len(item) < 10 and int(item) < len(self._indices)
            which = self._group.label(self._indices[int(item)]) if known else f"an item of {self._group.id[:SHORT]}"
            console.warn(f"{which} has {why}: clusterfn stack {self._group.id[:SHORT]} shows where it waits")

    def _load_waiting(self) -> None:
        while self._records and not self._group.done():
            record = self._records.popleft()
            index = self._indices[record.line["index"]]
            try:
                self._group.end_item(index, self._end_of(record, index))
            except Exception as error:  # noqa: BLE001 - loading a value runs the user's code
                # This is the outermost frame of its thread: those who wait must get an error.
                message = f"the item has ended, but its result could not be received: {type(error).__name__}: {error}"
                refused = ResultError(message, host=self._place.host, job=f"{self._group.id}[{index}]", stage="result")
                refused.__cause__ = error
                self._group.end_item(index, ItemOutcome(DIED, None, refused))

    def _end_of(self, record: ItemRecord, index: int) -> ItemOutcome:
        """Load one item's value or exception; if that fails, its result is the error."""
        line, name, kind = record.line, f"{self._group.id}[{index}]", str(record.line.get("kind"))
        place = self._place._replace(job=name, folder=layout.element_dir(self._place.folder, record.element))
        published = {**dict.fromkeys(("stage", "message", "node")), **line, "attempt": record.attempt}
        try:
            outcome.checked(published)
        except ValueError as damaged:
            message = f"the item has ended, but its line in {layout.JOURNAL} is damaged: {damaged}"
            return ItemOutcome(DIED, None, JobError(message, host=place.host, job=name, stage="result"))
        usage = line.get("usage") or {}
        if kind != layout.RETURNED:
            # The host has removed what is damaged, so the next call must send it again.
            if kind == layout.PAYLOAD_BROKEN:
                self.host.contents.distrust()
            failure = outcome_errors.exception_of(published, record.value, place)
            return ItemOutcome(FINAL.get(kind, DIED), None, failure, usage, kind)
        if record.error is not None:
            return ItemOutcome(RETURNED, None, record.error, usage)
        try:
            if large := outcome.too_large(published, place):
                raise large
            value = outcome.value_of(published, record.value, place, self._group.given)
        except ResultError as error:
            if not isinstance(error, ResultTooLarge):
                error.hint = (error.hint or "").replace(name, self._group.id)
            return ItemOutcome(RETURNED, None, error, usage)
        self._fetch_outputs(index)
        return ItemOutcome(RETURNED, value, None, usage, kind)

    def _fetch_outputs(self, index: int) -> None:
        """Fetch the files that `outputs=` names of an item that has returned; say what cannot be fetched."""
        group, to = self._group, self._group.outputs_to
        for pattern in self._job.outputs if to is not None else ():
            folder, own = self.work_folder(index), cast(Path, to) / str(index)
            try:
                remote_files.fetch(self.host.connection, folder, pattern, own, index, group.show_transfer)
            except (ClusterfnError, OSError) as failed:
                console.tell(remote_files.not_fetched(failed, pattern, group.id, index))

    # what a user asks about one item, by its index in the group

    def read_log(self, index: int, stream: str) -> str:
        if stream not in (layout.STDOUT, layout.STDERR):
            raise ValueError(f"{stream!r}: an item has stdout and stderr")
        if self.on_host[index] not in self._places:
            return ""
        path = posixpath.join(self._attempt_folder(index), stream)
        printed = remote_files.read_part(self.host.connection, path, *self._part_of(index, stream))
        return printed.decode("utf-8", "replace")

    def read_output(self, index: int) -> list[tuple[str, bytes]]:
        """Read what an item has printed to both streams, in the order in which it came."""
        if self.on_host[index] not in self._places:
            return []
        out, err = self._part_of(index, layout.STDOUT), self._part_of(index, layout.STDERR)
        return remote_files.read_output(self.host.connection, self._attempt_folder(index), out, err)

    def _part_of(self, index: int, stream: str) -> tuple[int, int | None]:
        """Return where the output of an item begins in that of its element, and its size; None is to the end."""
        name = "out" if stream == layout.STDOUT else "err"
        at, following = self._place_of(index)[2].get(name, 0), self._next.get(self.on_host[index])
        with reading(self._place.host, "where the output of an item is"):
            begin, size = (count(at[0]), count(at[1])) if isinstance(at, list) else (count(at), None)
            # Threads and exit functions print after the item's own end, and before the next one begins.
            if following is not None and size is not None:
                size = max(size, count(following.get(name, 0)) - begin)
            elif self._group.done():
                size = None
        return begin, size

    def element_folder(self, index: int) -> str:
        return layout.element_dir(self._place.folder, self._place_of(index)[0])

    def work_folder(self, index: int) -> str:
        return posixpath.join(self._attempt_folder(index), layout.WORK, str(self.on_host[index]))

    def checkpoint_folder(self, index: int) -> str:
        return posixpath.join(self._place.folder, layout.CHECKPOINT, str(self.on_host[index]))

    def _attempt_folder(self, index: int) -> str:
        return layout.attempt_dir(self.element_folder(index), self._place_of(index)[1])

    def _place_of(self, index: int) -> tuple[int, int, dict[str, Any]]:
        """Return which element runs or ran the item, in which attempt, and its line in the journal."""
        return self._places.get(self.on_host[index], (1, 1, {}))


def _read_entry(line: bytes) -> dict[str, Any]:
    """Return what a line says of one item, with the place of its value if it has one; {} of a damaged line."""
    entry = json_object(line)
    value = entry.get("value")
    numbers = [entry[name] for name in ("begin", "retry", "index") if name in entry]
    place = [] if value is None else [entry.get("at"), value.get("size") if type(value) is dict else -1]
    return entry if numbers and all(type(number) is int and number >= 0 for number in numbers + place) else {}
