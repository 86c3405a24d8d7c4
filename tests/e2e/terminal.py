"""A person at a terminal of their own: a shell on a pty, what it shows, and what is typed into it."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROMPT = "ready> "
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A shell, started by `argv`, that waits for commands; its prompt is `PROMPT`."""

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        import pty  # of Unix, as the lab is

        self.seen = ""
        self._read_to = 0
        self.pid, self._tty = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], list(argv), {**env, "PS1": PROMPT})
        self.wait_for(PROMPT)

    def type(self, line: str) -> None:
        """A line, and Return."""
        os.write(self._tty, line.encode() + b"\n")

    def press(self, key: str) -> None:
        """A key such as "\\x03"."""
        os.write(self._tty, key.encode())

    def wait_for(self, *patterns: str, timeout_s: float = 150.0) -> str:
        """The first of these patterns that appears after what was waited for before; its text."""
        deadline = time.monotonic() + timeout_s
        wanted = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
        while (found := wanted.search(self.seen, self._read_to)) is None:
            if not self._reads(deadline):
                raise AssertionError(f"{patterns} did not appear in:\n{self.seen}")
        self._read_to = found.end()
        return found[0]

    def command(self, line: str, answers: Mapping[str, str], timeout_s: float = 200.0) -> str:
        """Run a command and answer what it asks; all that it showed.

        Args:
            answers: Patterns of questions, and what is typed then; each question may come again.
        """
        start = len(self.seen)
        self.type(line)
        self.wait_for(re.escape(line))
        while (shown := self.wait_for(PROMPT, *answers, timeout_s=timeout_s)) != PROMPT:
            self.type(next(typed for pattern, typed in answers.items() if re.fullmatch(pattern, shown)))
        return self.seen[start:]

    def _reads(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._tty], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._tty, 65536) if ready else b""
        except OSError:  # the shell has ended
            data = b""
        self.seen += _ESCAPES.sub("", data.decode(errors="replace")).replace("\r", "")
        return bool(data)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGHUP)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._tty)
