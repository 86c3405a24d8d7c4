"""What IPython asks of a job, a group, a session or a sweep that a cell shows. What it shows is loaded only then.

Apart from `summary`, whose facts the loaded side reads: one file for both would be a cycle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterfn.display.summary import Summary


class NotebookDisplay:
    """What IPython asks of an object that a cell shows. A class has `_summary`, and the rest follows from it."""

    def _summary(self) -> Summary:
        raise NotImplementedError

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        # The module needs IPython, and only IPython asks.
        from clusterfn.display import summary_view

        return summary_view.bundle(self._summary())

    def _ipython_display_(self) -> None:
        from clusterfn.display import summary_view

        summary_view.show(self._summary)
