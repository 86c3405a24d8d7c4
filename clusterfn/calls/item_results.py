"""The results of the items of a group, from the journals of its elements: where each runs, how it ended, its value.

Lines and values arrive on the connection's reader thread, which must not wait: `ItemLoader` has the values loaded in
other threads, because loading one runs code of the user's. Concludes nothing.
"""

from __future__ import annotations

import collections
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import DIED, FINAL, RETURNED, SHORT
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.group_items import GroupItems, ItemOutcome
from clusterfn.config.host_text import Lines, count, reading
from clusterfn.display import console
from clusterfn.errors import JobError, ResultError, ResultTooLarge
from clusterfn.hosts import loop, remote_files

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

    # Its arguments are the path, what takes the bytes, and where they begin and end.
    Fetch = Callable[[str, Callable[[bytes], Any], int, int], Reply[int]]


class ItemStream:
    """Pairs the lines of one attempt's journal with their values; either file may arrive ahead of the other.

    Args:
        element: The number of the element whose attempt it is.
        attempt: Which attempt.

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

    def ready(self, data: bytes) -> Iterable[tuple[dict[str, Any], bytearray | None]]:
        """Add these bytes of values, and yield in order the lines whose values are complete, with them."""
        self._values += data
        while self.waiting:
            size = (self.waiting[0].get("value") or {}).get("size")
            if size is None:
                yield self.waiting.popleft(), None
                continue
            # A crash may leave bytes that belong to no line, so a value need not begin where the last one ended.
            begin = self.waiting[0]["at"] - self._offset
            if len(self._values) < begin + size:
                return
            value = self._values[begin : begin + size]
            # Values that are handed on must not be kept here too, for a group may have thousands.
            del self._values[: begin + size]
            self._offset += begin + size
            yield self.waiting.popleft(), value

    def incomplete(self) -> Iterable[tuple[dict[str, Any], bytearray]]:
        """Yield the lines whose values stay incomplete, as after a crash of the machine, with the bytes there are."""
        while self.waiting:
            line = self.waiting.popleft()
            yield line, self._values[max(0, line.get("at", 0) - self._offset) :]


@dataclass
class ItemRecord:
    """The journal's line about an item that has ended, and the bytes of its value.

    Attributes:
        error: Why the value has not come, if it was to be fetched by itself.
    """

    element: int
    attempt: int
    line: dict[str, Any]
    value: bytearray | None
    error: BaseException | None = None


class ItemLoader:
    """Loads records in threads, one batch after another. No thread waits while none comes.

    Args:
        load: Loads one, and raises nothing.
        is_done: Whether no more are to be loaded.
        when_over: Called once in the loop, when that is so, or when all is loaded after `close`. Must not wait.
    """

    def __init__(
        self, load: Callable[[ItemRecord], None], is_done: Callable[[], bool], when_over: Callable[[], None]
    ) -> None:
        self._load, self._is_done, self._when_over = load, is_done, when_over
        self._records: collections.deque[ItemRecord] = collections.deque()
        # Whether the loop was asked to load what waits. Any thread sets it, so that many records wake the loop once.
        self._is_asked = False
        # The loop alone touches these.
        self._is_loading = self._is_closed = self._is_over = False

    def put(self, record: ItemRecord) -> None:
        """Have a record loaded, from any thread."""
        self._records.append(record)
        if not self._is_asked:
            self._is_asked = True
            loop.call(self._begin)

    def close(self) -> None:
        """Take note that no more records come."""
        loop.call(self._begin, True)

    def _begin(self, is_closed: bool = False) -> None:
        self._is_closed = self._is_closed or is_closed
        if not self._is_loading and not self._is_over:
            self._is_loading = True
            loop.begin(self._load_all())

    async def _load_all(self) -> None:
        self._is_asked = False
        while self._records and not self._is_done():
            await loop.in_thread(self._load_waiting, "clusterfn-group")
            # The flag comes before the next look: a record that comes after that asks for another one.
            self._is_asked = False
        self._is_loading = False
        self._is_over = self._is_closed or self._is_done()
        if self._is_over:
            self._when_over()

    def _load_waiting(self) -> None:
        while self._records and not self._is_done():
            self._load(self._records.popleft())


class ItemResults:
    """The results of the items of one group.

    Args:
        items: Receive them.
        numbers: The index in `items` of each item that the host has.
        folder: The group's on the host.
        on_ended: Called in the loading thread with the index of an item and the kind of its outcome, before that is
            known.
        when_all: Called once in the loop, when each item has ended, or nothing more can be received. Must not wait.
        place: Where the group ran, and what is accepted of its values.
        fetch: Sends for the part of a file between two places of it.
    """

    def __init__(
        self,
        items: GroupItems,
        numbers: Sequence[int],
        place: outcome.JobLocation,
        on_ended: Callable[[int, str], None],
        when_all: Callable[[], None],
        fetch: Fetch,
    ) -> None:
        self._items = items
        self._numbers = numbers
        self._on_host = {number: item for item, number in enumerate(numbers)}
        self._place, self._fetch, self._on_ended = place, fetch, on_ended
        self._said_quiet = False
        self._places: dict[int, tuple[int, int, dict[str, Any]]] = {}
        # The line about the item that has begun next in the same place.
        self._next: dict[int, dict[str, Any]] = {}
        self._received: collections.Counter[tuple[int, int]] = collections.Counter()
        self._loader = ItemLoader(self._load_record, items.done, when_all)

    def close(self) -> None:
        """Take note that nothing more can be received; what has been received is still loaded."""
        self._loader.close()

    def count_ended(self) -> int:
        """Return the number of items whose end was received, loaded or not."""
        # The list is a copy, because the event loop adds items while this thread counts them.
        return sum("index" in line for _, _, line in list(self._places.values()))

    def take_lines(self, stream: ItemStream, data: bytes) -> None:
        """Take more bytes of a journal."""
        for line in stream.lines(data):
            if max(line.get(name, 0) for name in ("begin", "retry", "index")) >= len(self._numbers):
                # The group has no such item: the line is damaged or false.
                continue
            if "begin" in line:
                self._next[stream.latest], stream.latest = line, line["begin"]
                # It may have begun before, elsewhere.
                self._next.pop(line["begin"], None)
                self._places[line["begin"]] = (stream.element, stream.attempt, line)
                self._items.begin_item(self._numbers[line["begin"]])
            elif "retry" in line:
                console.tell(f"{self._items.label(self._numbers[line['retry']])}: {line.get('told')}")
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

    def take_values(self, stream: ItemStream, data: bytes) -> None:
        """Take more bytes of values, and have those loaded that are complete."""
        for line, value in stream.ready(data):
            self._loader.put(ItemRecord(stream.element, stream.attempt, line, value))

    def take_end(self, stream: ItemStream) -> None:
        """Take the end of an attempt: a value that is incomplete now stays so."""
        for line, value in stream.incomplete():
            self._loader.put(ItemRecord(stream.element, stream.attempt, line, value))

    def _send_for(self, stream: ItemStream, line: dict[str, Any]) -> None:
        """Have the value of an item come, unless it has none that is to be read; then take the line."""
        described, value = line.get("value") or {}, bytearray()
        is_unread = line.get("kind") != layout.RETURNED and self._place.results.data_only
        if not described or is_unread or outcome.is_too_large(line, self._place.results):
            self._loader.put(ItemRecord(stream.element, stream.attempt, line, None))
            return
        coming = self._fetch(stream.values, value.extend, line["at"], line["at"] + described["size"])
        loop.begin(self._receive(coming, ItemRecord(stream.element, stream.attempt, line, value)))

    async def _receive(self, coming: Reply[int], record: ItemRecord) -> None:
        record.error = await coming.error()
        self._loader.put(record)

    def say_quiet(self, item: str, why: str) -> None:
        """Say that an item has made no progress for long; only of the first such item."""
        if not self._said_quiet:
            self._said_quiet = True
            known = item.isdecimal() and len(item) < 10 and int(item) < len(self._numbers)
            which = self._items.label(self._numbers[int(item)]) if known else f"an item of {self._items.id[:SHORT]}"
            console.warn(f"{which} has {why}: clusterfn stack {self._items.id[:SHORT]} shows where it waits")

    def _load_record(self, record: ItemRecord) -> None:
        index = self._numbers[record.line["index"]]
        try:
            self._items.end_item(index, self._end_of(record, index))
        except Exception as error:  # noqa: BLE001 - loading a value runs the user's code
            # This is the outermost frame of its thread: those who wait must get an error.
            refused = ResultError(
                f"the item has ended, but its result could not be received: {type(error).__name__}: {error}",
                host=self._place.host,
                job=f"{self._items.id}[{index}]",
                stage="result",
            )
            refused.__cause__ = error
            self._items.end_item(index, ItemOutcome(DIED, None, refused))

    def _end_of(self, record: ItemRecord, index: int) -> ItemOutcome:
        """Load one item's value or exception; if that fails, its result is the error."""
        line, name = record.line, f"{self._items.id}[{index}]"
        place = self._place._replace(job=name, folder=layout.element_dir(self._place.folder, record.element))
        published = {**dict.fromkeys(("stage", "message", "node")), **line, "attempt": record.attempt}
        try:
            outcome.checked(published)
        except ValueError as damaged:
            message = f"the item has ended, but its line in {layout.JOURNAL} is damaged: {damaged}"
            return ItemOutcome(DIED, None, JobError(message, host=place.host, job=name, stage="result"))
        usage, value, failure = line.get("usage") or {}, None, None
        if record.error is not None and line["kind"] == layout.RETURNED:
            return ItemOutcome(RETURNED, None, record.error, usage)
        try:
            if line["kind"] == layout.RETURNED:
                if large := outcome.too_large(published, place):
                    raise large
                value = outcome.value_of(published, record.value, place, self._items.given)
        except ResultError as error:
            if not isinstance(error, ResultTooLarge):
                error.hint = (error.hint or "").replace(name, self._items.id)
            return ItemOutcome(RETURNED, None, error, usage)
        self._on_ended(index, line["kind"])
        if line["kind"] != layout.RETURNED:
            failure = outcome_errors.exception_of(published, record.value, place)
        return ItemOutcome(FINAL.get(line["kind"], DIED), value, failure, usage, line["kind"])

    # what a user asks about one item, by its index in the group

    def has(self, index: int) -> bool:
        """Whether it is one of these items."""
        return index in self._on_host

    def numbers_on_host(self, indices: Iterable[int]) -> list[int]:
        """Return the numbers that these items have on the host."""
        return [self._on_host[index] for index in indices]

    def read_log(self, connection: HostConnection, index: int, stream: str) -> str:
        """Read what an item has printed to one stream."""
        if stream not in (layout.STDOUT, layout.STDERR):
            raise ValueError(f"{stream!r}: an item has stdout and stderr")
        if self._on_host[index] not in self._places:
            return ""
        path = posixpath.join(self._attempt_folder(index), stream)
        return remote_files.read_part(connection, path, *self._part_of(index, stream)).decode("utf-8", "replace")

    def read_output(self, connection: HostConnection, index: int) -> list[tuple[str, bytes]]:
        """Read what an item has printed to both streams, in the order in which it came."""
        if self._on_host[index] not in self._places:
            return []
        out, err = self._part_of(index, layout.STDOUT), self._part_of(index, layout.STDERR)
        return remote_files.read_output(connection, self._attempt_folder(index), out, err)

    def _part_of(self, index: int, stream: str) -> tuple[int, int | None]:
        """Return where the output of an item begins in that of its element, and its size; None is to the end."""
        name = "out" if stream == layout.STDOUT else "err"
        at, following = self._places[self._on_host[index]][2].get(name, 0), self._next.get(self._on_host[index])
        with reading(self._place.host, "where the output of an item is"):
            begin, size = (count(at[0]), count(at[1])) if isinstance(at, list) else (count(at), None)
            # Threads and exit functions print after the item's own end, and before the next one begins.
            if following is not None and size is not None:
                size = max(size, count(following.get(name, 0)) - begin)
            elif self._items.done():
                size = None
        return begin, size

    def element_folder(self, index: int) -> str:
        """Return the folder of the element that runs or ran the item."""
        return layout.element_dir(self._place.folder, self._places.get(self._on_host[index], (1, 1, {}))[0])

    def work_folder(self, index: int) -> str:
        """Return the folder in which the item runs or ran."""
        return posixpath.join(self._attempt_folder(index), layout.WORK, str(self._on_host[index]))

    def checkpoint_folder(self, index: int) -> str:
        """Return the item's own folder in the checkpoint of its group."""
        return posixpath.join(self._place.folder, layout.CHECKPOINT, str(self._on_host[index]))

    def _attempt_folder(self, index: int) -> str:
        number, attempt, _ = self._places.get(self._on_host[index], (1, 1, {}))
        return layout.attempt_dir(layout.element_dir(self._place.folder, number), attempt)


def _read_entry(line: bytes) -> dict[str, Any]:
    """Return what a line says of one item, with the place of its value if it has one; {} of a damaged line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict):
        return {}
    value = entry.get("value")
    numbers = [entry[name] for name in ("begin", "retry", "index") if name in entry]
    place = [] if value is None else [entry.get("at"), value.get("size") if type(value) is dict else -1]
    return entry if numbers and all(type(number) is int and number >= 0 for number in numbers + place) else {}
