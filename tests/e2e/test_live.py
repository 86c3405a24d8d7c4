"""What a function prints appears here while it runs: soon, in order, whole, and in the thread that waits for it."""

from __future__ import annotations

import bisect
import io
import itertools
import re
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest

from clusterfn import cluster
from tests.e2e.conftest import ON_BARE, give_to

pytestmark = pytest.mark.lab
LINES = 20
LINE = re.compile(r"(line \d+) (\d+\.\d+)")


@pytest.fixture
def seen(hosts, tmp_path):
    """A folder that the jobs see too, with a file for each line that has been shown here."""
    hosts.root.mkdir(mode=0o700, exist_ok=True)
    folder = give_to("cfbash", hosts.root) / f"seen-{tmp_path.name}"
    folder.mkdir()
    return give_to("cfbash", folder)


class Arrivals(io.TextIOBase):
    """A stream that notes when each piece of text came, and from which thread; each line becomes a file in `seen`."""

    def __init__(self, seen=None):
        self.pieces = []
        self.seen = seen

    def write(self, text):
        self.pieces.append((time.time(), text, threading.current_thread()))
        for line in LINE.finditer(self.text) if self.seen else ():
            (self.seen / line[1]).touch()
        return len(text)

    @property
    def text(self):
        return "".join(text for _, text, _ in self.pieces)

    def stamped(self):
        """(time at which its last character arrived, time it was printed, what) of each line that ends in its time."""
        ends = list(itertools.accumulate(len(text) for _, text, _ in self.pieces))
        found = []
        for line in LINE.finditer(self.text):
            arrival = self.pieces[bisect.bisect_left(ends, line.end())][0]
            found.append((arrival, float(line[2]), line[1]))
        return found


def speak(count, pause, seen=""):
    """A function that prints so many lines; with a folder, each only once the one before has been seen."""
    folder = str(seen)

    def function():
        import os
        import subprocess
        import sys
        import time

        for n in range(count):
            if n == 7:
                subprocess.run([sys.executable, "-c", "import time; print('line 7', time.time())"], check=True)
            elif n == 13:
                os.write(1, f"line 13 {time.time()}\n".encode())
            else:
                print("line", n, time.time())
            time.sleep(pause)
            deadline = time.monotonic() + 100
            while folder and not os.path.exists(f"{folder}/line {n}"):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody saw line {n}")
                time.sleep(0.01)

    return function


def check_shown_meanwhile(stamped, count):
    """Each was seen, or the function would have raised; a busy machine may be slow to show most of them, not all."""
    assert [what for _, _, what in stamped] == [f"line {n}" for n in range(count)]
    late = [arrival - stamp for arrival, stamp, _ in stamped]
    assert sorted(late)[2] < 1.0, late  # two may come soon by chance if this side looks only now and then
    assert sorted(late)[count // 2] < 20.0, late


@ON_BARE
def test_lines_arrive_as_they_are_printed(hosts, host, seen):
    with redirect_stdout(Arrivals(seen)) as arrivals:
        cluster(host=host)(speak(LINES, 0.1, seen))()

    check_shown_meanwhile(arrivals.stamped(), LINES)


@ON_BARE
def test_a_bar_without_newlines_moves(hosts, host, seen):
    @cluster(host=host)
    def bar(folder):
        import os
        import sys
        import time

        for n in range(12):
            sys.stderr.write(f"\rline {n} {time.time()}")
            sys.stderr.flush()
            time.sleep(0.1)
            deadline = time.monotonic() + 100
            while not os.path.exists(f"{folder}/line {n}"):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody saw line {n}")
                time.sleep(0.01)

    with redirect_stderr(Arrivals(seen)) as arrivals:
        bar(str(seen))

    arrivals.pieces = [piece for piece in arrivals.pieces if "clusterfn:" not in piece[1]]
    check_shown_meanwhile(arrivals.stamped(), 12)
    assert "\n" not in arrivals.text


def test_a_character_torn_in_two_arrives_whole(hosts, capsys):
    @cluster(host="tensor01")
    def torn():
        import os
        import time

        for byte in "漢":
            for part in byte.encode():
                os.write(1, bytes([part]))
                time.sleep(0.2)

    torn()

    assert capsys.readouterr().out == "漢"


def test_binary_output_does_no_harm(hosts, capsys):
    @cluster(host="tensor01")
    def binary():
        import os

        os.write(1, bytes(range(256)))
        print("after")
        return 5

    assert binary() == 5
    out = capsys.readouterr().out
    assert "ABC" in out and "\ufffd" in out and out.endswith("after\n")


def test_two_threads_do_not_get_each_others_lines(hosts):
    @cluster(host="tensor01")
    def say(word):
        import time

        for _ in range(10):
            print(word)
            time.sleep(0.02)

    with redirect_stdout(Arrivals()) as arrivals:
        threads = [threading.Thread(target=say, args=(word,), name=word) for word in ("ping", "pong")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)

    for word in ("ping", "pong"):
        said = "".join(text for _, text, thread in arrivals.pieces if thread.name == word)
        assert said == f"{word}\n" * 10


def test_nothing_breaks_without_a_stderr(hosts, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)

    assert cluster(host="tensor01")(lambda: 3)() == 3
