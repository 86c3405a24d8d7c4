"""The end of a process that was forked for a call: each program here ends as such a process does."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = "import atexit, os, sys\nfrom clusterfn.bridge.worker import finish\n"
END = "\nfinish.end(lambda note: None, 2.0, finish.__name__, is_of_runner=True)\n"


@pytest.mark.parametrize(
    ("leaves", "prints"),
    [
        ("atexit.register(print, 'first'); atexit.register(sys.exit, 3)", "first\n"),
        ("class Tee:\n  def flush(self): pass\nprint('50%', end='')\nsys.stdout = Tee()", "50%"),
        # A pipe that is full, and that nobody reads.
        (
            "reads, fd = os.pipe(); os.set_blocking(fd, False)\n"
            "try:\n  while True: os.write(fd, bytes(4096))\n"
            "except BlockingIOError: os.set_blocking(fd, True)\n"
            "kept = open(fd, 'w'); kept.write('x')",
            "",
        ),
    ],
    ids=["an exit function that exits", "a stdout that does not flush", "a full pipe"],
)
def test_what_is_left_is_done_and_the_process_ends(leaves: str, prints: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + leaves + END], capture_output=True, text=True, timeout=100, check=False
    )

    assert (done.returncode, done.stdout) == (0, prints), done.stderr
