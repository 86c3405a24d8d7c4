"""Takes the calls of a session in their order, until it is closed or nobody has called for so long.

A call comes as a whole folder, `calls/<n>`, by one rename.
"""

from __future__ import annotations

import os
from typing import Any

from ..layout import CALLS, CLOSE
from ..supervisor import syscalls
from .call import Call
from .signs import Signs
from .warming import Warming


def serve(job: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Serve until there is an end; how many calls it served, and why it ended: "closed" or "idle"."""
    folder = os.path.join(job, CALLS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    syscalls.become_subreaper()
    session = Session(folder, spec)
    why = session.until_over()
    return {"calls": session.served, "why": why, "loaded beforehand": session.loaded}


class Session:
    """The calls of one session.

    Attributes:
        served: How many ran.
        loaded: Modules that calls find loaded.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.served = 0
        self.loaded: list[str] = []
        self._folder = folder
        self._spec = spec
        self._last = 0
        self._warming = Warming()
        self._signs = Signs(folder)

    def until_over(self) -> str:
        """Serve; why there is an end."""
        while True:
            number = self._next()
            if number is not None:
                self._serve(number)
                self._signs.busy()
            elif os.path.exists(os.path.join(self._folder, CLOSE)):
                return "closed"
            elif self._signs.silent_s >= self._spec["session"]["idle_s"]:
                return "idle"
            else:
                self._signs.wait()

    def _next(self) -> int | None:
        """The call after the last one, if it is there; a network file system hears of it by listing."""
        return self._last + 1 if str(self._last + 1) in os.listdir(self._folder) else None

    def _serve(self, number: int) -> None:
        self._last = number
        call = Call(os.path.join(self._folder, str(number)), self._spec)
        if not call.take():
            call.give_up()
            return
        call.run()
        self.served += 1
        self.loaded += self._warming.load(call.loaded)
