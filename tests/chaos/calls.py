"""What the jobs of these tests run. `lane` loads this file as `__main__`, so that it travels by value."""

import fcntl
import os
import subprocess
import sys
import time
import zlib

VALUE = 42


def _slowly(seconds):
    time.sleep(seconds)
    return seconds


class SlowToLoad:
    """An argument that takes its time while it is loaded on the host."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        return _slowly, (self.seconds,)


class SlowToKeep:
    """A part of a value that takes its time while it is written on the host."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        time.sleep(self.seconds)
        return float, (self.seconds,)


def note_run(path):
    """One line per run, however it ends."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, f"{os.environ['CLUSTERFN_JOB']} {os.getpid()}\n".encode())
    os.close(fd)


def work(path, loading, seconds, keeping, size):
    """Run, with a child that would stay for ten minutes; a value of `size` bytes and more."""
    note_run(path)
    subprocess.Popen(["setsid", "sleep", "600"])
    time.sleep(seconds)
    return {"value": VALUE, "late": SlowToKeep(keeping), "data": b"x" * size}


def speak(path, lines, every, over=""):
    """Number the lines of stdout, the last one once the file `over` is there, if one is named."""
    note_run(path)
    until = time.monotonic() + 150  # a test that fails must leave no job that holds a core
    for number in range(lines):
        while over and number == lines - 1 and not os.path.exists(over) and time.monotonic() < until:
            time.sleep(0.05)
        sys.stdout.write(f"line {number} {'.' * 60}\n")
        sys.stdout.flush()
        time.sleep(every)
    return lines


def restarted(path, seconds):
    """So many seconds in its first attempt; the attempt's number."""
    note_run(path)
    attempt = int(os.environ["CLUSTERFN_JOB"].split("/")[1])
    time.sleep(seconds if attempt == 1 else 0)
    return attempt


def hold(path, seconds, gpus, witness):
    """Be on `gpus` cards for so long, with a lock on each that another job would run into; their numbers."""
    note_run(path)
    cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    if len(set(cards)) != gpus:
        raise AssertionError(f"{gpus} cards were asked for, and {cards} given")
    locks = [os.open(os.path.join(witness, card), os.O_RDONLY) for card in cards]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(seconds)
    for lock in locks:
        os.close(lock)
    return cards


def stay(path, over):
    """Be on the cards until a file is there; their numbers."""
    note_run(path)
    while not os.path.exists(over):
        time.sleep(0.05)
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",")


def storm(path, number, seconds, size, ending, ballast=b""):
    """Note the run, take so long, and end as `ending` says; a value of `size` bytes in which each number differs."""
    note_run(path)
    if ending == "flaky" and os.environ["CLUSTERFN_JOB"].endswith("/1"):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    time.sleep(seconds)
    if ending == "raises":
        raise ValueError(f"call {number} fails on purpose")
    if ending == "exits":
        os._exit(3)
    return {"value": number * 7 + 3 + zlib.crc32(ballast), "data": number.to_bytes(4, "big") * (size // 4)}
