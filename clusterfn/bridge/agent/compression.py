"""Compress the pieces of a transfer on slow links. Client and agent both use this."""

import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple, Union

# No piece has more bytes, so a compressed one cannot unpack to gigabytes.
LONGEST = 256 * 1024
# Compressing a smaller piece is not worth the time.
LEAST = 16 * 1024
_LEVEL = 1
# The time of one piece says nothing about the link: pipes and TCP windows take the first ones at once.
_PIECES = 4
# Seconds per byte. Level 1 of zlib is not worth its time on a link that is faster than 32 MB/s.
_SLOW = 1 / (32 * 1024 * 1024)
_GAIN = 0.9
# A decision holds for this many pieces. The number doubles each time, so a steady link is measured less and less often.
_HOLDS = 16
_MOST_COMPRESSED, _MOST_PLAIN = 1024, 128


class Compressor:
    """Decides for each piece of one transfer.

    Pieces go as they are until some of them took long to leave. Then one is compressed, and if that took less time than
    it saves, the next ones are too. After a number of pieces the link is measured again. One piece that took too long
    decides nothing: a busy machine may have stopped the compressor in the middle of it.

    Args:
        taken: Returns how many bytes the link has taken, of all transfers: they take turns.
        clock: Returns seconds.
    """

    def __init__(self, taken: "Callable[[], int]", clock: "Callable[[], float]" = time.monotonic) -> None:
        self._taken = taken
        self._clock = clock
        self._left: "List[Tuple[float, int]]" = []
        # Seconds per byte of the link while pieces are compressed; 0 while they go as they are.
        self._link = 0.0
        # The decision that `_link` states holds for this many further pieces.
        self._pieces = 0
        self._holds = self._pauses = _HOLDS
        # Compression stops after two late pieces in a row: a busy machine may stop this process within one of them.
        self._was_late = False

    def compress(self, *parts: "Union[bytes, memoryview]") -> "Optional[bytes]":
        """Return a piece compressed, or None if it is to be sent as it is. Call it once the last piece has left."""
        size = sum(map(len, parts))
        if size < LEAST or not (self._link or self._is_slow()):
            return None
        began = self._clock()
        compressor = zlib.compressobj(_LEVEL)
        compressed = b"".join([compressor.compress(part) for part in parts] + [compressor.flush()])
        took = self._clock() - began
        self._pieces -= 1
        is_smaller = len(compressed) < _GAIN * size
        was_late, self._was_late = self._was_late, took + self._link * len(compressed) >= _GAIN * self._link * size
        if not is_smaller or (was_late and self._was_late):
            self._link, self._pieces, self._was_late = 0.0, self._pauses, False
            self._pauses = min(2 * self._pauses, _MOST_PLAIN)
        elif not self._pieces:
            self._link = 0.0
        # A late piece is still sent compressed, because its time is spent already.
        return compressed if is_smaller else None

    def rest(self) -> None:
        """Take note that there is nothing to send: the time until the next piece is not that of the link."""
        self._left.clear()

    def _is_slow(self) -> bool:
        """Whether the last pieces, none of which was compressed, took long."""
        if self._pieces:
            self._pieces -= 1
            return False
        self._left = self._left[-_PIECES:] + [(self._clock(), self._taken())]
        if len(self._left) <= _PIECES:
            return False
        (began, before), (now, taken) = self._left[0], self._left[-1]
        link = (now - began) / max(1, taken - before)
        if link < _SLOW:
            return False
        self._link, self._pieces = link, self._holds
        self._holds = min(2 * self._holds, _MOST_COMPRESSED)
        self._left.clear()
        return True


def decompress(small: bytes) -> bytes:
    """Return a piece as it was.

    Raises:
        ValueError: It is none, or longer than any piece.
    """
    decompressor = zlib.decompressobj()
    try:
        piece = decompressor.decompress(small, LONGEST)
    except zlib.error as error:
        raise ValueError("a compressed piece cannot be read: %s" % error) from error
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("a compressed piece is not whole, or longer than %d bytes" % LONGEST)
    return piece
