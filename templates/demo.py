# ruff: noqa: T201  (it is a script for people: it prints)
"""What clusterfn does, in six steps on this machine. `clusterfn demo` runs it; you may also copy and run it yourself.

Each part is a function below: its text is printed, then it runs, then what came back is checked.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from clusterfn import Executor, File, KilledBySignal, cluster

ROWS: list[tuple[str, object, str, float]] = []  # function, process, Python, seconds


def a_value():
    """A decorated function runs in another process, and its value comes back."""

    @cluster(cores=1)
    def average(numbers):
        return sum(numbers) / len(numbers), os.getpid(), platform.python_version()

    value, pid, python = average([3, 4, 8])
    print(f"average([3, 4, 8]) is {value}; process {pid} found it, and this is process {os.getpid()}")

    note("average", pid, python)
    expect(value == 5.0, "the value is right")
    expect(pid != os.getpid(), "another process found it")


def live_output():
    """What the function prints appears here while it runs."""

    @cluster(cores=1, memory="1GB")
    def train(epochs):
        for epoch in range(epochs):
            time.sleep(0.5)
            print(f"epoch {epoch + 1}, loss {1 / (epoch + 2):.2f}")
        return os.getpid(), platform.python_version()

    with timed_lines() as arrived:
        pid, python = train(epochs=3)

    note("train", pid, python)
    expect(len(arrived) == 3, "three lines arrived")
    expect(arrived[-1] - arrived[0] > 0.5, "they arrived one by one, not all at the end")


def an_exception():
    """What the function raises is raised here as itself, with its own cause and the traceback of the other side."""

    @cluster(cores=1)
    def load(settings):
        print("process", os.getpid(), platform.python_version())
        try:
            return 1 / settings["lr"]
        except KeyError as error:
            raise ValueError("settings need a learning rate") from error

    job, caught = load.submit({"epochs": 3}), None
    try:
        job.result()
    except ValueError as error:  # no class of clusterfn: the one that the function raised
        caught = error
        print(f"caught {error!r}, caused by {error.__cause__!r}; the other side wrote:")
        print(textwrap.indent(remote_traceback(error), "  "))

    note("load", *printed_by(job))
    expect(isinstance(caught, ValueError), "it is a ValueError")
    expect(isinstance(caught and caught.__cause__, KeyError), "its cause is the KeyError")
    expect("in load" in remote_traceback(caught), "the traceback names the function")


def files():
    """A file travels with the call, and a file that the function writes comes back."""
    Path("sales.csv").write_text("apples,3\npears,4\nplums,8\n")

    @cluster(cores=1, outputs=["total.txt"])
    def add_up(table):
        amounts = [int(line.split(",")[1]) for line in table.read_text().splitlines()]
        Path("total.txt").write_text(f"{sum(amounts)}\n")
        return os.getpid(), platform.python_version()

    pid, python = add_up(File("sales.csv"))
    total = Path("total.txt").read_text()
    print(f"total.txt came back; it holds {total.strip()}")

    note("add_up", pid, python)
    expect(total == "15\n", "the file is right")


def several_at_once():
    """Calls that are submitted run side by side; each gives a Future. Here each call waits until all three run."""

    def meet(number, place):
        (place / str(number)).touch()
        until = time.time() + 60
        while len(os.listdir(place)) < 3 and time.time() < until:
            time.sleep(0.1)
        return number**2, len(os.listdir(place)), os.getpid(), platform.python_version()

    place = Path(tempfile.mkdtemp())
    with Executor(cores=1) as executor:
        jobs = [executor.submit(meet, number, place) for number in (2, 3, 4)]
    met = [job.result() for job in jobs]
    shutil.rmtree(place)
    print(f"three calls met after {seconds():.1f} s; their values are {[each[0] for each in met]}")

    for number, each in zip((2, 3, 4), met):
        note(f"meet({number})", each[2], each[3])
    expect([each[0] for each in met] == [4, 9, 16], "the values are right")
    expect(len({each[2] for each in met}) == 3, "each ran in a process of its own")
    expect([each[1] for each in met] == [3, 3, 3], "all three ran at the same time")


def a_killed_process():
    """A process that dies without a word is no riddle: the error says what ended it, and shows what was seen."""

    @cluster(cores=1)
    def unlucky():
        print("process", os.getpid(), platform.python_version(), "is about to be killed")
        os.kill(os.getpid(), 9)  # as the kernel does when memory runs out

    job = unlucky.submit()
    error = job.exception()
    print(textwrap.indent(f"{type(error).__name__}: {error}", "  "))

    note("unlucky", *printed_by(job))
    expect(isinstance(error, KilledBySignal), "it is a KilledBySignal")
    expect("SIGKILL" in str(error), "it names the signal")
    expect("is about to be killed" in str(error), "it shows the last lines of the output")


PARTS = (a_value, live_output, an_exception, files, several_at_once, a_killed_process)


# What follows is only the stage.

WRONG: list[str] = []


def expect(right: object, what: str) -> None:
    """Note what is not as it should be; the demo then fails."""
    print(f"  {'ok' if right else 'NOT OK'}: {what}")
    if not right:
        WRONG.append(what)


BEGAN = [0.0]


def seconds() -> float:
    """How long the present part has run."""
    return time.monotonic() - BEGAN[0]


def note(function: str, pid: object, python: str) -> None:
    """A line for the table at the end."""
    ROWS.append((function, pid, python, seconds()))


def printed_by(job) -> tuple[str, str]:
    """Process and Python of a job that printed both, and could not return them."""
    words = [*job.logs().split(), "", "", ""]
    return words[1], words[2]


class _Timed:
    """A stream that says when each line came."""

    def __init__(self, stream, arrived):
        self.stream, self.arrived, self.began = stream, arrived, time.monotonic()

    def write(self, text):
        for line in text.splitlines():
            self.arrived.append(time.monotonic() - self.began)
            self.stream.write(f"  after {self.arrived[-1]:.2f} s: {line}\n")
        return len(text)

    def flush(self):
        self.stream.flush()


@contextlib.contextmanager
def timed_lines():
    """Print each line with the time at which it came; gives the list of those times."""
    arrived: list[float] = []
    with contextlib.redirect_stdout(_Timed(sys.stdout, arrived)):
        yield arrived


def remote_traceback(error: BaseException | None) -> str:
    """The last exception of a chain that came from a job."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().strip('"').strip("\n")


def show(part) -> None:
    """The text of a part, up to the lines that check it."""
    lines = inspect.getsource(part).splitlines()[2:]
    checks = next(number for number, line in enumerate(lines) if line.strip().startswith(("note(", "for number")))
    for line in textwrap.dedent("\n".join(lines[:checks])).strip("\n").splitlines():
        print(f"  | {line}".rstrip())
    print()


def table() -> None:
    """What ran where."""
    print(f"{'function':10} {'process':>8}  {'Python':8} {'seconds':>7}")
    for name, pid, python, taken in ROWS:
        print(f"{name:10} {pid!s:>8}  {python:8} {taken:7.2f}")
    print(f"{'this demo':10} {os.getpid():8}  {platform.python_version()}")


def main() -> int:
    for number, part in enumerate(PARTS, 1):
        print(f"\n{number}. {part.__doc__}\n")
        show(part)
        BEGAN[0] = time.monotonic()
        part()
    print("\nWhat ran where\n")
    table()
    if WRONG:
        print(f"\nNot as expected: {'; '.join(WRONG)}")
        return 1
    print(
        "\nWhat next\n"
        '  1. clusterfn init ADDRESS    asks a few questions, and sets your server up (README.md, "Your own server").\n'
        "  2. clusterfn check HOST      tests every step on it, and shows how to fix what fails.\n"
        '  3. @cluster(host="HOST")     on your own function: that is all.'
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
