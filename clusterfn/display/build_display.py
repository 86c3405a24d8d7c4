"""Show how far the build of an environment is: one line that moves, or few lines that stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterfn.bridge.builder.progress import in_words
from clusterfn.display import console
from clusterfn.display.pace import Pace

if TYPE_CHECKING:
    from clusterfn.hosts.environment_builder import BuildProgress

_QUARTERS = 4


class BuildDisplay(console.StatusLine):
    """How far a build is: one bar for each stage on a terminal, elsewhere a line for each quarter of a stage.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began = clock()
        self._stage = ""
        self._pace = Pace(clock, self._began)
        self._quarter = ""

    def show(self, progress: BuildProgress) -> None:
        """Show how far it is."""
        done, of, words = progress.get("bytes") or 0, progress.get("size") or 0, in_words(progress)
        if not of:
            done, of = progress.get("done") or 0, progress.get("of") or 0
        if progress["stage"] != self._stage:
            self._stage, self._pace = progress["stage"], Pace(self._clock, self._began)
        # The text of a transfer has the remaining time already.
        left = "" if progress.get("text") else self._pace.left(done, of)
        if console.can_redraw():
            share = (done, of) if of > 1 else None
            self.redraw(", ".join(filter(None, [words, self._pace.elapsed(), left])), share)
        elif (quarter := f"{self._stage} {done * _QUARTERS // (of or 1)}") != self._quarter:
            self._quarter = quarter
            console.tell(words)

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line:
            self.redraw("")
