"""What the elements of a group say of its items: where each runs or ran, and how it ended, with its value.

Lines and values come on the connection's reader thread, so nothing waits there; values are loaded in a thread of its
own, as that runs code of the user's. Concludes nothing. Made by `gathering`.
"""

from __future__ import annotations

import collections
import posixpath
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls import files, job_display, outcome
from clusterfn.calls.array_tasks import Element, Record, Stream
from clusterfn.calls.group_state import Ended, GroupState, state_of
from clusterfn.calls.job import DIED, RETURNED
from clusterfn.errors import JobError, ResultError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import HostConnection


class Accounts:
    """The items of one group.

    Args:
        group: Whom to tell.
        folder: The group's on the host.
        when_all: Called in the loading thread when each item has ended, or nothing more can be heard.
    """

    def __init__(self, group: GroupState, folder: str, when_all: Callable[[], None]) -> None:
        self._group = group
        self._folder = folder
        self._when_all = when_all
        self._places: dict[int, tuple[int, int, dict[str, Any]]] = {}
        self._heard: collections.Counter[tuple[int, int]] = collections.Counter()
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._loading = threading.Thread(target=self._load_all, name="clusterfn-group", daemon=True)

    def listen(self) -> None:
        """Load what comes, from now on."""
        if not self._loading.is_alive():
            self._loading.start()

    def close(self) -> None:
        """Nothing more will come."""
        self._records.put(None)

    def ended(self) -> int:
        """How many items have their line, loaded or not."""
        return sum("index" in line for _, _, line in list(self._places.values()))

    def on_lines(self, element: Element, stream: Stream, data: bytes) -> None:
        """Lines of a journal have come."""
        for line in stream.lines(data):
            if max(line.get(name, 0) for name in ("begin", "retry", "index")) >= len(self._group):
                continue  # nobody sent such an item
            if "begin" in line:
                self._places[line["begin"]] = (element.number, stream.attempt, line)
                self._group.on_begin(line["begin"])
            elif "retry" in line:
                job_display.say(f"clusterfn: {self._group.label(line['retry'])}: {line.get('told')}\n")
            elif "index" in line:
                known = self._places.get(line["index"], (0, 0, {}))[2]
                self._places[line["index"]] = (element.number, stream.attempt, {**known, **line})
                stream.waiting.append(line)
        self.on_values(element, stream, b"")
        self._heard[element.number, stream.attempt] += len(data)

    def has_heard(self, journals: Mapping[tuple[int, int], int]) -> bool:
        """Whether so many bytes have come of the journals of these elements and attempts."""
        return all(self._heard[which] >= size for which, size in journals.items())

    def on_values(self, element: Element, stream: Stream, data: bytes) -> None:
        """Values have come; those that are whole are loaded."""
        for line, value in stream.ready(data):
            self._records.put(Record(element.number, stream.attempt, line, value))

    def on_last(self, element: Element, stream: Stream) -> None:
        """All has come of an attempt; a value that is not whole now never will be."""
        for line, value in stream.left():
            self._records.put(Record(element.number, stream.attempt, line, value))

    def _load_all(self) -> None:
        record = self._records.get()
        while record is not None:
            self._take(record)
            record = self._records.get() if not self._group.done() else None
        self._when_all()

    def _take(self, record: Record) -> None:
        """Load one item's value or exception; what cannot be loaded is told as that."""
        line, index = record.line, record.line["index"]
        name = f"{self._group.id}[{index}]"
        place = outcome.Place(self._group.host, name, layout.element_dir(self._folder, record.element))
        published = {**dict.fromkeys(("stage", "message", "node")), **line, "attempt": record.attempt}
        try:
            outcome.checked(published)
        except ValueError as damaged:
            message = f"the item has ended, but its line in {layout.JOURNAL} is damaged: {damaged}"
            self._group.on_end(index, Ended(DIED, None, JobError(message, host=place.host, job=name, stage="result")))
            return
        usage = line.get("usage") or {}
        try:
            value = None
            if line["kind"] == layout.RETURNED:
                value = files.as_given(outcome.value_of(published, record.value, place), self._group.given)
        except ResultError as error:
            error.hint = (error.hint or "").replace(name, self._group.id)
            self._group.on_end(index, Ended(RETURNED, None, error, usage))
            return
        failure = None if line["kind"] == layout.RETURNED else outcome.exception_of(published, record.value, place)
        self._group.on_end(index, Ended(state_of(line["kind"]), value, failure, usage, line["kind"]))

    # what a user asks of one item

    def logs(self, connection: HostConnection, index: int, stream: str) -> str:
        """What it has printed."""
        if stream not in (layout.STDOUT, layout.STDERR):
            raise ValueError(f"{stream!r}: an item has stdout and stderr")
        if index not in self._places:
            return ""
        line = self._places[index][2]
        at = line.get("out" if stream == layout.STDOUT else "err", 0)
        begin, size = at if isinstance(at, list) else (at, None)
        return remote_files.read_part(connection, posixpath.join(self._attempt_folder(index), stream), begin, size)

    def element_folder(self, index: int) -> str:
        """That of the element which runs it, or ran it."""
        return layout.element_dir(self._folder, self._places.get(index, (1, 1, {}))[0])

    def work_folder(self, index: int) -> str:
        """Where it runs, or ran."""
        return posixpath.join(self._attempt_folder(index), layout.WORK, str(index))

    def _attempt_folder(self, index: int) -> str:
        number, attempt, _ = self._places.get(index, (1, 1, {}))
        return layout.attempt_dir(layout.element_dir(self._folder, number), attempt)
