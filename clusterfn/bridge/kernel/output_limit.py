"""Drop kernel output that no client receives, in whole messages, and put a note in its place.

A kernel may print for hours while its client is away. Output and displays beyond the limit are dropped; what clients
rely on is not: status, results and errors. Without `idle` a cell would run for ever in the client.
"""

from .zmtp import COMMAND, GREETING_BYTES, LONG, MORE, MessageReader, message, signed_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

_DROPPED = (b"stream.", b"display_data", b"update_display_data")
_LONGEST_TOPIC = 255
# The parts of a message are: topic, delimiter, signature, header, parent header, metadata, content.
_PARENT = 4


class OutputLimit:
    """Passes on the bytes of one iopub connection, without the messages that are to be dropped.

    Args:
        key: With it the note about what was dropped is signed.
        scheme: As "hmac-sha256".
    """

    def __init__(self, key: str, scheme: str) -> None:
        self._key = key.encode()
        self._scheme = scheme
        # The beginning of a frame of which too little has arrived to judge it.
        self._data = bytearray()
        # Bytes of the current frame that are still to come. The greeting counts as the first frame.
        self._left = GREETING_BYTES
        self._is_first, self._is_last, self._is_dropping = True, False, False
        self._dropped = MessageReader(0)
        self._dropped_bytes = 0
        self._parent = b"{}"

    def passed(self, data: bytes, is_full: bool) -> bytes:
        """Return what to send of these bytes, and the note once there is room again.

        Args:
            is_full: Whether the limit is reached: messages that begin now may be dropped.
        """
        self._data += data
        passed: "List[bytes]" = []
        while True:
            if self._left:
                if not self._data:
                    break
                self._take(min(self._left, len(self._data)), passed)
            elif not self._begin_frame(is_full, passed):
                break
        return b"".join(passed)

    def _begin_frame(self, is_full: bool, passed: "List[bytes]") -> bool:
        """Judge the next frame; False as long as too little of it is there."""
        if self._is_first and self._dropped_bytes and not is_full:
            passed.append(self._note())
        if len(self._data) < 2 or (self._data[0] & LONG and len(self._data) < 9):
            return False
        flags, start = self._data[0], 9 if self._data[0] & LONG else 2
        size = int.from_bytes(self._data[1:9], "big") if flags & LONG else self._data[1]
        if self._is_first and is_full and not flags & COMMAND and size <= _LONGEST_TOPIC:
            if len(self._data) < start + size:
                return False
            self._is_dropping = bytes(self._data[start : start + size]).startswith(_DROPPED)
        if not flags & COMMAND:
            self._is_first = self._is_last = not flags & MORE
        self._left = start + size
        return True

    def _take(self, size: int, passed: "List[bytes]") -> None:
        piece = bytes(self._data[:size])
        del self._data[:size]
        self._left -= size
        if not self._is_dropping:
            passed.append(piece)
            return
        self._dropped_bytes += size
        for parts in self._dropped.feed(piece):
            if len(parts) > _PARENT:
                self._parent = parts[_PARENT]
        if self._is_last and not self._left:
            self._is_dropping = False

    def _note(self) -> bytes:
        """Return a message of the kernel's stderr that says how much was dropped."""
        text = "\n[clusterfn: %d bytes of output were not kept for the client]\n" % self._dropped_bytes
        self._dropped_bytes = 0
        content = {"name": "stderr", "text": text}
        return message([b"stream.stderr", *signed_message(self._key, self._scheme, "stream", self._parent, content)])
