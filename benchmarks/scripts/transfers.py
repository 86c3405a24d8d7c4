"""A large value, or many files, to the host argv[1] and back: argv[2] MB, or argv[3] files, made below argv[4].

Prints one JSON object: seconds of each way. Bytes cannot be compressed, and are new each time. The time in which a
function makes its result does not count: ssh sends a file that is there. It comes as the first bytes of the result.
"""

import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

from clusterfn import Directory, cluster

host = sys.argv[1]


@cluster(host=host)
def length_of(data) -> int:  # type: ignore[no-untyped-def]
    return len(data)


def kept(data: object) -> object:
    """What a buffer becomes where it is loaded: itself, without a copy, as an array does."""
    return data


def buffer(length: int) -> object:
    import os
    import pickle

    class Buffer(bytearray):
        def __reduce_ex__(self, protocol: object) -> object:
            return kept, (pickle.PickleBuffer(self),)

    filled, piece = Buffer(length), os.urandom(2**20)
    for begin in range(0, length, len(piece)):
        filled[begin : begin + len(piece)] = piece
    return filled


@cluster(host=host)
def made(length: int) -> object:
    began = time.monotonic()
    result = buffer(length)
    struct.pack_into("d", result, 0, time.monotonic() - began)  # type: ignore[arg-type]
    return result


@cluster(host=host)
def files_in(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


@cluster(host=host)
def leave(number: int) -> None:
    for each in range(number):
        with Path(f"{each}.txt").open("w", encoding="ascii") as file:
            file.write(f"{each}\n" * 50)


def timed(work) -> float:  # type: ignore[no-untyped-def]
    os.sync()  # what was written or removed before costs neither ssh nor us
    bytearray(b"\1") * 2**30  # as `use_free_memory` of benchmarks.measure, which would be sent with the functions
    began = time.monotonic()
    work()
    return time.monotonic() - began


def check(met: bool) -> None:
    if not met:
        raise SystemExit("not all of it has arrived")


def large(megabytes: int) -> dict[str, float]:
    size = megabytes * 2**20
    length_of(b"")
    data = buffer(size)
    took = {"argument": timed(lambda: check(length_of(data) == size))}
    took["again"] = timed(lambda: check(length_of(data) == size))
    results: list[bytes] = []
    took["result"] = timed(lambda: results.append(made(size)))  # type: ignore[arg-type]
    check(len(results[0]) == size)
    took["result"] -= struct.unpack_from("d", results.pop())[0]
    return took


def small(count: int) -> dict[str, float]:
    leave(0)
    folder = tempfile.mkdtemp(dir=sys.argv[4])
    there, back = Path(folder, "there"), Path(folder, "back")
    there.mkdir()
    for each in range(count):
        there.joinpath(f"{each}.txt").write_text(f"{os.urandom(8).hex()}\n" * 10, encoding="ascii")
    took = {"files there": timed(lambda: check(files_in(Directory(there)) == count))}
    job = leave.submit(count)
    job.result()
    took["files back"] = timed(lambda: check(len(job.download("*.txt", to=back)) == count))
    return took


megabytes, count = map(int, sys.argv[2:4])
print(json.dumps(small(count) if count else large(megabytes)), flush=True)
