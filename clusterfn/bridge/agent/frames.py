"""Frames: a header as JSON and a raw body, and how names of files travel in them. No I/O."""

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Tuple

    Header = Dict[str, Any]

FRAME = struct.Struct("!IQ")
UTF8_NAMES = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def native(value: "Any") -> "Any":
    """The wire's strings as this interpreter names files: in the C locale 3.6 makes surrogates of bytes over 127."""
    return value if UTF8_NAMES else recoded(value, lambda text: os.fsdecode(text.encode("utf-8", "surrogateescape")))


def on_wire(value: "Any") -> "Any":
    """The reverse of `native`."""
    return value if UTF8_NAMES else recoded(value, lambda text: os.fsencode(text).decode("utf-8", "surrogateescape"))


def recoded(value: "Any", code: "Callable[[str], str]") -> "Any":
    if isinstance(value, str):
        return code(value)
    if isinstance(value, dict):
        return {recoded(key, code): recoded(item, code) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [recoded(item, code) for item in value]
    return value


def pack(header: "Header", body: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(on_wire(header)).encode()
    return b"".join((FRAME.pack(len(text), len(body)), text, body))


class Inbox:
    """Frames out of whatever pieces the stream comes in."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, piece: bytes) -> "Iterator[Tuple[Header, bytes]]":
        self.data += piece
        while len(self.data) >= FRAME.size:
            head, body = FRAME.unpack_from(self.data)
            middle, end = FRAME.size + head, FRAME.size + head + body
            if len(self.data) < end:
                return
            with memoryview(self.data) as view:
                text, content = bytes(view[FRAME.size : middle]), bytes(view[middle:end])
            del self.data[:end]
            yield native(json.loads(text.decode("utf-8", "surrogateescape"))), content
