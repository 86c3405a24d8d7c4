"""The other end of `lane`: starts clients, gives them orders, waits for what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Lane:
    """One client, by its process."""

    def __init__(self, config: Path, state: Path) -> None:
        self.heard: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "lane.py"), str(HERE / "calls.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "CLUSTERFN_CONFIG": str(config), "XDG_STATE_HOME": str(state)},
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.heard.append(json.loads(line))
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()

    def order(self, do: str, job: str, host: str, **more: Any) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "id": job, "host": host, **more}) + "\n")
        self.process.stdin.flush()

    def hear(self, job: str, name: str, limit_s: float = 150.0) -> dict[str, Any] | None:
        """The first word about a job that has this name; None if the client is dead or says nothing."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while True:
                found = [word for word in self.heard if word["id"] == job and name in word]
                if found:
                    return found[0]
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    return None
                self._changed.wait(min(left, 1.0))

    def alive(self) -> bool:
        """Whether it can be given orders."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let it end as a client does that reaches its last line."""
        if self.alive() and self.process.stdin is not None:
            self.process.stdin.close()
            try:
                self.process.wait(150)
            except subprocess.TimeoutExpired:
                self.kill()
                self.process.wait()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what it was still to be told
                if pipe is not None:
                    pipe.close()
