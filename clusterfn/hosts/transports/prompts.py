"""Ask the person: on the terminal itself, or through a notebook's own channel; never on stdin.

In a pipe, under cron, in the background, or in a kernel whose front end cannot ask, `person()` is None. Answers are
passed on and kept nowhere.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.bridge.supervisor.text import printable
from clusterfn.errors import AuthenticationError

if sys.platform != "win32":
    import termios

# The most characters of a question that are shown: a host chooses the text, and could fill the terminal.
_LONGEST = 4000


# The same words as ssh's own.
AGAIN = "Permission denied, please try again."


class NotAnswered(Exception):
    """The person closed the question (Ctrl-D) instead of answering."""


class LoginQuestion(NamedTuple):
    """What a host (or a key) wants to know.

    Attributes:
        text: The prompt, in the words of who asks.
        who: Who asks, such as "ada@tensor01".
        about: What was said before it: a menu, or instructions.
        secret: Whether the answer stays unseen.
    """

    text: str
    who: str
    about: str = ""
    secret: bool = True

    def __str__(self) -> str:
        """Put who asks into the line in which the answer is typed: the host chooses all text before it."""
        menu, _, text = printable(self.text)[:_LONGEST].rstrip("\n").rpartition("\n")
        about = printable(self.about)[:_LONGEST]
        before = "".join(f"{part}\n" for piece in (about, menu) if (part := piece.strip("\n")))
        return f"{before}({self.who}) {text}"


Asker = Callable[[LoginQuestion], str]


def person() -> Asker | None:
    """Return how the person at this process can be asked; None if there is no person."""
    module = sys.modules.get("multiprocessing.process")
    if module is not None and module.parent_process() is not None:
        # The children of multiprocessing share the terminal of their parent, and would all ask at once.
        return None
    if "ipykernel.kernelapp" in sys.modules:
        # While a cell runs, getpass is a method of the kernel. At other times, the kernel would drop an answer.
        kernel = getattr(getpass.getpass, "__self__", None)
        return functools.partial(_in_notebook, kernel) if getattr(kernel, "_allow_stdin", False) else None
    return _ask_on_terminal if _has_terminal() else None


def needs_you(host_name: str, *, can_hold: bool = True) -> AuthenticationError:
    """Return the error for a login that needed a person, and is not repeated without one.

    Args:
        can_hold: Whether `clusterfn login` can hold a connection to the host.
    """
    login = f"clusterfn login {host_name}"
    how = login if can_hold else "the next call or attach asks again"
    message = f"connection to {host_name} needs you: {how}; your jobs keep running"
    hint = login if can_hold else None
    return AuthenticationError(message, host=host_name, hint=hint, retryable=True)


def _in_notebook(kernel: Any, question: LoginQuestion) -> str:
    try:
        return str(kernel.getpass(str(question)) if question.secret else kernel.raw_input(str(question)))
    except EOFError as error:
        raise NotAnswered from error


# Threads ask one after another, because two questions would mix on one terminal.
_asking = threading.Lock()


def is_asking() -> bool:
    """Whether a question on the terminal waits for its answer."""
    return _asking.locked()


def _has_terminal() -> bool:
    if sys.platform == "win32":
        return sys.stdin is not None and sys.stdin.isatty()
    with contextlib.suppress(OSError):
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        try:
            # A process in the background would be stopped as soon as it reads from the terminal.
            return os.tcgetpgrp(tty) == os.getpgrp()
        finally:
            os.close(tty)
    return False


if sys.platform == "win32":

    def _ask_on_terminal(question: LoginQuestion) -> str:
        with _asking:
            if question.secret:
                return getpass.getpass(str(question))
            with Path("CONOUT$").open("w", encoding="utf-8") as out, Path("CONIN$").open(encoding="utf-8") as console:
                out.write(str(question))
                out.flush()
                return _answer(console.readline())

else:

    def _ask_on_terminal(question: LoginQuestion) -> str:
        text = str(question).encode(errors="replace")
        with _asking:
            tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            try:
                before = termios.tcgetattr(tty)
                quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
                try:
                    if question.secret:
                        # TCSAFLUSH also drops what was typed before the question, which is not meant as a password.
                        termios.tcsetattr(tty, termios.TCSAFLUSH, quiet)
                    os.write(tty, text)
                    data = b""
                    while not data.endswith(b"\n") and (piece := os.read(tty, 1024)):
                        data += piece
                finally:
                    if question.secret:
                        termios.tcsetattr(tty, termios.TCSAFLUSH, before)
                        os.write(tty, b"\n")
            finally:
                os.close(tty)
        return _answer(data.decode(errors="surrogateescape"))


def _answer(line: str) -> str:
    if not line:
        raise NotAnswered
    return line.rstrip("\r\n")
