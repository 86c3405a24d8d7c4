"""Answers the questions of an ssh that we run: its SSH_ASKPASS is a small program that asks this process over a socket.

Only passwords, codes and passphrases. A yes-or-no question, such as that about an unknown host key, is rejected. Not on
Windows.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from clusterfn.hosts.transports import held_connections
from clusterfn.hosts.transports.prompts import AGAIN, Asker, LoginQuestion, NotAnswered

_WORDS = 65536
_YES_OR_NO = re.compile(r"\(yes/no", re.IGNORECASE)
_WHO = re.compile(r"\((\S+@\S+)\) ")
_PROGRAM = """\
import os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
words = [os.environ.get("SSH_ASKPASS_PROMPT", ""), *sys.argv[2:3]]
line.sendall(os.fsencode(chr(0).join(words)))
line.shutdown(socket.SHUT_WR)
answer = line.makefile("rb").read()
sys.stdout.buffer.write(answer[1:])
sys.exit(not answer)
"""


class AskPass:
    """Answers one ssh, and those that it starts for jump hosts.

    Args:
        who: Who asks, where ssh does not say it.

    Attributes:
        about: Returns what the person should read before the question.
        env: The environment variables of that ssh.
        spent_s: How long the person has taken for all answers so far.
        count: How many questions the person was asked.
    """

    def __init__(self, asker: Asker, who: str) -> None:
        self._asker, self._who = asker, who
        self.about: Callable[[], str] = lambda: ""
        self._last = ""
        self._calls: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        self.spent_s = 0.0
        self.count = 0
        self._folder, self._listener, self.env = _prepared()
        threading.Thread(target=self._accept, name="clusterfn-askpass", daemon=True).start()

    def __enter__(self) -> AskPass:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wake(self) -> None:
        """End a wait in `serve`."""
        self._calls.put(None)

    def serve(self, timeout_s: float) -> None:
        """Wait at most so long for one question, and have it answered in this thread."""
        try:
            call = self._calls.get(timeout=timeout_s)
        except queue.Empty:
            return
        if call is not None:
            began = time.monotonic()
            with call:
                self._answer(call)
            self.spent_s += time.monotonic() - began

    def _accept(self) -> None:
        while True:
            try:
                call, _ = self._listener.accept()
            except OSError:
                return
            self._calls.put(call)

    def _answer(self, call: socket.socket) -> None:
        hint, _, prompt = os.fsdecode(call.makefile("rb").read(_WORDS)).partition("\0")
        if hint or _YES_OR_NO.search(prompt):  # "confirm", or "none" for what needs no answer
            return
        who = _WHO.match(prompt)
        self.count += 1
        about = self.about() or (AGAIN if prompt == self._last else "")
        self._last = prompt
        question = LoginQuestion(prompt[who.end() :] if who else prompt, who[1] if who else self._who, about)
        with contextlib.suppress(NotAnswered, OSError):
            call.sendall(b"\n" + self._asker(question).encode(errors="surrogateescape") + b"\n")


def _prepared() -> tuple[Path, socket.socket, Mapping[str, str]]:
    """Make a folder with the socket and the program, or nothing.

    Raises:
        ConfigError: It cannot be made.
    """
    if sys.platform == "win32":
        raise NotImplementedError("ssh is not made to ask on Windows")
    folder = held_connections.scratch_folder("ask-")
    listener = socket.socket(socket.AF_UNIX)
    try:
        env = _variables(folder)
        listener.bind(str(folder / "s"))
        listener.listen()
    except OSError as error:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise held_connections.unwritable(error) from error
    return folder, listener, env


def _variables(folder: Path) -> Mapping[str, str]:
    """Write the program, a shell script because the path of Python may have spaces; return the variables for ssh."""
    program = folder / "ask"
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder / "s")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    # an ssh before 8.4 does not know REQUIRE: it asks so if there is a DISPLAY and no terminal, which it never has here
    display = os.environ.get("DISPLAY") or ":"
    return {"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": display}
