"""Shows a summary that is updated in place, without another cell, until it is final.

One thread updates all of them: IPython may be updated from any thread, and a cell's own ends before the job does.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.notebook import summary_view

if TYPE_CHECKING:
    from clusterfn.calls.summary import Summary

_EVERY_S = 0.5
_LAST_OUTPUT_S = 2.0  # for what is printed at the end, which may come after the outcome


def show(summary: Callable[[], Summary], watch_output: Callable[[], None]) -> None:
    """Display a summary below the present cell, and update it until it is final.

    Args:
        summary: Returns the present one.
        watch_output: Begins to receive the output that a summary shows.

    Raises:
        NotImplementedError: It is final, or this is no notebook: IPython then takes the plain representation.
    """
    shell: Any = sys.modules["IPython"].get_ipython()
    if getattr(shell, "kernel", None) is None or summary().is_final:
        raise NotImplementedError
    watch_output()
    _updater.add(_LiveSummary(summary))


class _LiveSummary:
    def __init__(self, summary: Callable[[], Summary]) -> None:
        from IPython.display import display

        self._summary = summary
        self._display_id = f"clusterfn-{uuid.uuid4().hex}"
        self._bundle = summary_view.bundle(summary())
        self._final_for_s = 0.0
        display(self._bundle, raw=True, display_id=self._display_id)

    def update(self) -> bool:
        """Show the present state; whether it may change further."""
        from IPython.display import update_display

        now = self._summary()
        bundle = summary_view.bundle(now)
        if bundle != self._bundle:
            self._bundle = bundle
            update_display(bundle, raw=True, display_id=self._display_id)
        self._final_for_s += _EVERY_S if now.is_final else 0.0
        return self._final_for_s < _LAST_OUTPUT_S


class _Updater:
    """Updates what is shown, in a thread that lives as long as there is any."""

    def __init__(self) -> None:
        self._shown: list[_LiveSummary] = []
        self._changing = threading.Lock()
        self._wake = threading.Event()

    def add(self, shown: _LiveSummary) -> None:
        with self._changing:
            self._shown.append(shown)
            if len(self._shown) == 1:
                threading.Thread(target=self._run, name="clusterfn-notebook", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._wake.wait(_EVERY_S)
            over = [each for each in list(self._shown) if not each.update()]
            with self._changing:
                self._shown = [each for each in self._shown if each not in over]
                if not self._shown:
                    return


_updater = _Updater()
