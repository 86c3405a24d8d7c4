"""How this builder ends: when SIGTERM or Ctrl-C asks it to, and its programs with it, even if it is killed.

Long steps look whether it was asked, and release their locks on the way. Programs carry a variable of the builder, and
a process of its own waits for the builder's end, so that no pip outlives it.
"""

import os
import signal
import threading

from ..supervisor import process_tree

_VARIABLE = "CLUSTERFN_BUILDER"
_asked = threading.Event()


class BuildStopped(Exception):
    """The builder was asked to end, or another of its threads failed."""


def begin() -> None:
    """Let signals ask this process to end, but those that it was started to ignore; have what it starts end with it.

    Call it while there is one thread.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: _asked.set())
    (variable,) = ["%s=%s" % each for each in identifying_variable().items()]
    # The system closes the writing end when this process ends, however it does.
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return
    try:
        # A signal to the group of the builder must not reach this process.
        os.setsid()
        os.chdir("/")
        os.close(writing)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.read(reading, 1)
        process_tree.end(lambda: process_tree.carrying(variable), lambda: None)
    finally:
        os._exit(0)


def check(*_: object) -> None:
    """Raise BuildStopped if it was asked to end."""
    if _asked.is_set():
        raise BuildStopped


def identifying_variable() -> "dict[str, str]":
    """Return the variable that every program of this process carries."""
    pid = os.getpid()
    return {_VARIABLE: "%d/%s" % (pid, process_tree.start_time(pid))}
