"""The names of large buffers, which travel by themselves, once: what they contain decides."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import os
import zlib

_LEAF = 4 << 20
_HASHING_THREADS = 8


def name_of(view: memoryview) -> tuple[str, int]:
    """Return the name of a buffer by its content, and its CRC-32, computed on all cores.

    The name of up to 4 MB is their SHA-256. That of a larger buffer is the SHA-256 of a fixed text and the digests of
    its pieces of 4 MB.
    """
    if len(view) <= _LEAF:
        return hashlib.sha256(view).hexdigest(), zlib.crc32(view)
    leaves = [view[at : at + _LEAF] for at in range(0, len(view), _LEAF)]
    # hashlib and zlib release the GIL for large pieces, so the threads use several cores.
    threads = min(os.cpu_count() or 1, _HASHING_THREADS)
    try:
        with concurrent.futures.ThreadPoolExecutor(threads, "clusterfn-hash") as pool:
            try:
                hashing = pool.map(_sha256, leaves)
                # This thread computes the checksum, so Ctrl-C ends that by itself.
                checksum = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), leaves, 0)
                digests = list(hashing)
            finally:
                # After Ctrl-C the pool would otherwise hash all pieces.
                pool.shutdown(cancel_futures=True)
    except RuntimeError:
        # The program is ending, and starts no more threads.
        digests, checksum = list(map(_sha256, leaves)), zlib.crc32(view)
    return hashlib.sha256(b"clusterfn pieces of 4 MB\0" + b"".join(digests)).hexdigest(), checksum


def _sha256(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
