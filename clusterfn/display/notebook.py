"""What a cell shows of a job, a group or a session: lines, updated until they are final.

Making the lines waits for no host. Threads of ours update them, as IPython allows: the cell's own thread ends before
the job does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import in_one_line, last_lines
from clusterfn.display.console import as_clock
from clusterfn.display.live import CellLines
from clusterfn.hosts import loop

# So many lines of the output.
_LINES = 12
_EVERY_S = 0.5
# What is printed at the end may come this long after the outcome.
_LAST_OUTPUT_S = 2.0


class NotebookDisplay:
    """What IPython asks of an object that a cell shows. A class has `_shown_lines`, and the rest follows from it."""

    def _shown_lines(self) -> Sequence[str]:
        raise NotImplementedError

    def _may_change(self) -> bool:
        """Whether the lines may change; if so, what is printed is received from now on."""
        raise NotImplementedError

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        return {"text/plain": _text(self)}

    def _ipython_display_(self) -> None:
        """Show the lines below the present cell, and update them.

        Raises:
            NotImplementedError: They are final, or this is no notebook: IPython then takes `_repr_mimebundle_`.
        """
        shell: Any = sys.modules["IPython"].get_ipython()
        if getattr(shell, "kernel", None) is None or not self._may_change():
            raise NotImplementedError
        cell = CellLines()
        cell.show(_text(self))
        loop.begin(_keep_updated(self, cell))


async def _keep_updated(shown: NotebookDisplay, cell: CellLines) -> None:
    left_s = _LAST_OUTPUT_S
    while left_s > 0.0:
        left_s -= 0.0 if shown._may_change() else _EVERY_S
        await asyncio.sleep(_EVERY_S)
        # IPython may block, and the loop must not.
        await loop.in_thread(lambda: cell.show(_text(shown)), "clusterfn-notebook")


def _text(shown: NotebookDisplay) -> str:
    return "\n".join(map(in_one_line, shown._shown_lines()))


def headline(
    title: str, job_id: str, state: str, counted: str = "", elapsed_s: float | None = None, reason: str = ""
) -> str:
    """Return such as "7f3a train on tensor01: RUNNING 01:15 (why)"."""
    clock = "" if elapsed_s is None else as_clock(elapsed_s)
    return " ".join(filter(None, [job_id, f"{title}:", state, counted, clock, f"({reason})" if reason else ""]))


def end_of(output: bytes) -> list[str]:
    """Return the last lines of what a job has printed."""
    return [f"  | {line}" for line in last_lines(output, _LINES)]
