"""One large buffer to the host argv[1] or from it (argv[2]: up, down, none), of argv[3] MB: seconds of each try, peak.

Prints {"seconds": [...], "peak_mb": ...}: the peak is this process's own VmHWM, as ru_maxrss would be inherited.
"""

import json
import sys
import time
from pathlib import Path

from clusterfn import cluster

host, way, size = sys.argv[1], sys.argv[2], int(sys.argv[3]) * 2**20


def buffer(length: int):  # type: ignore[no-untyped-def]
    if host != "arrays":  # whose environment need not have numpy, though it may be here
        return b"\7" * length
    import numpy

    return numpy.full(length, 7, "u1")


@cluster(host=host)
def length_of(data) -> int:  # type: ignore[no-untyped-def]
    return len(data)


@cluster(host=host)
def made(length: int):  # type: ignore[no-untyped-def]
    return buffer(length)


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


length_of(b"")
data = buffer(size) if way == "up" else b""
seconds = []
for _ in range(2):
    began = time.monotonic()
    if way == "up":
        assert length_of(data) == size
    else:
        assert len(made(size if way == "down" else 0)) == (size if way == "down" else 0)
    seconds.append(time.monotonic() - began)
print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}), flush=True)
