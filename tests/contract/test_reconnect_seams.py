"""A stream that breaks while a tree is sent or a job is followed, and an agent that hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from clusterfn.hosts import loop
from clusterfn.hosts.connection import Followed, HostConnection, TreeFile
from tests.contract.conftest import Break
from tests.turns import settle
from tests.waiting import WAIT_S, until


@pytest.mark.parametrize("kind", ["file", "tree"])
def test_a_large_upload_continues_with_what_is_there(
    there: HostConnection, broken: Break, folder: str, kind: str
) -> None:
    inodes: list[int] = []

    class Data(bytes):
        """Breaks the connection as it is sent. A look at what has been sent could come when all has."""

        def __getitem__(self, part: Any) -> Any:
            if part.start >= len(self) // 2 and not inodes:
                inodes.extend(path.stat().st_ino for path in Path(folder).glob("big.part-*"))
                broken()
            return super().__getitem__(part)

    data = Data(os.urandom(2**20) * 30)
    if kind == "file":
        put = there.put(f"{folder}/big", data, crc=zlib.crc32(data))
    else:
        put = there.put_tree(f"{folder}/big", [TreeFile("first", data), TreeFile("last", b"x")])
    put.result(WAIT_S)

    whole = Path(folder, "big")
    assert (whole if kind == "file" else whole / "first").read_bytes() == data
    assert inodes == [whole.stat().st_ino]
    assert [path.name for path in Path(folder).iterdir()] == ["big"]


def test_what_is_followed_loses_no_line_and_doubles_none(there: HostConnection, broken: Break, folder: str) -> None:
    seen, value = bytearray(), bytearray()
    breaks = iter([broken, broken])

    def on_value(piece: bytes) -> None:
        value.extend(piece)
        next(breaks, lambda: None)()

    out = Followed(f"{folder}/out", seen.extend)
    wait = there.follow([out], f"{folder}/outcome", [(f"{folder}/value", on_value)])
    script = (
        "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; head -c 9000000 /dev/urandom > value; "
        "echo {} > o; mv o outcome"
    )
    there.spawn(["sh", "-c", script], folder, f"{folder}/out").result(WAIT_S)
    until(lambda: seen)
    broken()

    assert wait.result(WAIT_S) == b"{}\n"
    assert seen.decode() == "".join(f"line {i}\n" for i in range(3000))
    assert bytes(value) == Path(folder, "value").read_bytes()


def test_an_agent_that_hangs_is_noticed_and_another_one_asked(there: HostConnection) -> None:
    stopped = there.facts.pid
    os.kill(stopped, signal.SIGSTOP)
    asked = there.run(["echo", "back"])
    now = time.monotonic()

    for passed in range(3, 49, 3):  # as it is checked
        loop.start(there.link.check(now + passed)).result(WAIT_S)
        settle()  # what it asks is sent, and answered by nobody

    assert asked.result(WAIT_S).out == b"back\n"
    assert there.facts.pid != stopped
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGKILL)
