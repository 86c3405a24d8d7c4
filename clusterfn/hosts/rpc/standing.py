"""How a link stands, and who is told when that changes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger("clusterfn")


@dataclass(frozen=True)
class State:
    """How the link stands, since when (time.time()), and why.

    "connected", "reconnecting", "waiting" (for a person, who has to log in again) or "closed".
    """

    name: str
    since: float
    cause: str = ""


class Standing:
    """The present state of the link to one host.

    Attributes:
        state: It.
    """

    def __init__(self, host: str) -> None:
        self.state = State("connected", time.time())
        self._host = host
        self._listeners: list[Callable[[State], None]] = []

    def listen(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Tell `listener` each change until the function that this returns is called."""
        self._listeners.append(listener)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return end

    def now(self, name: str, cause: str = "", since: float | None = None) -> None:
        """It is so from now on, or as it is since then; each listener is told, on this thread."""
        self.state = State(name, time.time() if since is None else since, cause)
        for listener in list(self._listeners):
            try:
                listener(self.state)
            except BaseException:  # noqa: BLE001 - the caller's own function: the others are told, the reader goes on
                _log.exception("a listener failed when it was told that the connection to %s is %s", self._host, name)
