"""The pyplot backend of a cell that runs in a job: a figure becomes a picture below the cell."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from . import cell

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> None:
    """Display the open figures and close them: `pyplot.show()`."""
    cell.show_figures()
