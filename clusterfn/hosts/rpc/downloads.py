"""Requests that bring files as they are: one in pieces, or many small ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.hosts.rpc.frames import Header
from clusterfn.hosts.rpc.requests import MalformedAnswer, MemorySink, OpenRequest, Sink, number, writer_of


class GetRequest(OpenRequest[int]):
    """A file's bytes; a second sending begins where the first one broke off."""

    def __init__(
        self, path: str, sink: Sink, offset: int, on_size: Callable[[int], Any] | None, until: int | None = None
    ) -> None:  # fmt: skip
        part = {} if until is None else {"until": until}
        super().__init__("get", {"path": path, "offset": offset, **part})
        self._write = writer_of(sink)
        self._memory = sink if isinstance(sink, MemorySink) else None
        self._on_size = on_size

    def header(self, still_open: Callable[[int], bool]) -> Header:
        # A file may grow between two tries, and each agent announces the size that it sees.
        self.reply.size = None
        return super().header(still_open)

    def takes_at_once(self, header: Header) -> bool:
        return self._memory is not None and self._memory.is_in_memory and self.reply.size is not None

    def take(self, header: Header, body: bytes) -> None:
        if self.reply.size is None:
            self.reply.size = number(header, "size")
            if "of" in header:
                # Send this identity of the file with a retry: a later agent must
                # not append bytes of another file of the same name.
                self.fields["of"] = header["of"]
            if self.reply.size > self.fields.get("until", self.reply.size):
                raise MalformedAnswer(f"size: {self.reply.size}, of a part that ends at {self.fields['until']}")
            if self._on_size is not None:
                self._on_size(self.reply.size)
        if self.fields["offset"] + len(body) > self.reply.size:
            raise MalformedAnswer(f"more bytes than the {self.reply.size} that it announced")
        self._write(body)
        self.fields["offset"] += len(body)
        self.reply.moved += len(body)

    def value(self, header: Header, body: bytes) -> int:
        """Return the offset that was reached: that of its end."""
        reached: int = self.fields["offset"]
        if number(header, "size") != reached or reached < (self.reply.size or 0):
            raise MalformedAnswer(f"size: {header['size']}, after {reached} bytes of {self.reply.size}")
        return reached


class GetEachRequest(OpenRequest[None]):
    """Small files below a folder, each whole; a second sending asks only for those that have not come.

    Args:
        sizes: How large each may be, by its name.
    """

    def __init__(
        self, folder: str, sizes: Mapping[str, int], on_file: Callable[[str, bytes | None], Any]
    ) -> None:  # fmt: skip
        super().__init__("get", {"path": folder, "files": [list(each) for each in sizes.items()]})
        self._on_file = on_file

    def take(self, header: Header, body: bytes) -> None:
        sizes, files = header.get("sizes"), self.fields["files"]
        if not isinstance(sizes, list) or not 0 < len(sizes) <= len(files):
            raise MalformedAnswer(f"sizes: {ascii(sizes)[:80]}, of {len(files)} files")
        begin = 0
        for size, (name, most) in zip(sizes, files):
            if size is not None and (type(size) is not int or not 0 <= size <= min(most, len(body) - begin)):
                raise MalformedAnswer(f"size: {ascii(size)[:80]}, of {ascii(name)[:80]}, which may have {most} bytes")
            self._on_file(name, None if size is None else body[begin : begin + size])
            begin += size or 0
        if begin < len(body):
            raise MalformedAnswer(f"{len(body) - begin} bytes of no file")
        del files[: len(sizes)]
        self.reply.moved += len(body)

    def value(self, header: Header, body: bytes) -> None:
        if self.fields["files"]:
            raise MalformedAnswer(f"its end, {len(self.fields['files'])} files before the last")
