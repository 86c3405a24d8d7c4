"""Show a summary in a notebook: as HTML for light and dark themes, as plain text, and updated until it is final.

Every text is escaped: hosts and jobs wrote it. Threads of ours update the summaries, as IPython allows: the cell's own
thread ends before the job does.
"""

from __future__ import annotations

import asyncio
import html
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.supervisor.text import in_one_line, last_lines, padded, width
from clusterfn.display.cell_status import FONT, GREY, progress_bar
from clusterfn.display.console import as_clock
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.display.summary import Summary

# Each of these colours can be read on white and on black.
_COLORS = {
    "PENDING": "#8a8a8a", "STARTING": "#2f81f7", "RUNNING": "#2f81f7", "SUSPENDED": "#b8860b",
    "RETURNED": "#2a9d4a", "RAISED": "#d9534f", "DIED": "#d9534f", "CANCELLED": "#b8860b", "UNKNOWN": "#b8860b",
}  # fmt: skip
# So many lines of the output.
_LINES = 12
_ROWS = 50
_CELL = "text-align: left; padding: 0 1em 0 0"
_EVERY_S = 0.5
# What is printed at the end may come this long after the outcome.
_LAST_OUTPUT_S = 2.0


def bundle(shown: Summary) -> dict[str, str]:
    """Return what IPython takes for a display."""
    tail = last_lines(shown.output, _LINES)
    return {"text/plain": _plain(shown, tail), "text/html": _html(shown, tail)}


def _clock(shown: Summary) -> str:
    return "" if shown.elapsed_s is None else as_clock(shown.elapsed_s)


def _plain(shown: Summary, tail: Sequence[str]) -> str:
    ended, total = (shown.progress or (0, 0))[:2]
    counted = f"{ended}/{total}" if shown.progress else ""
    reason = f"({shown.reason})" if shown.reason else ""
    title = f"{shown.title}:" if shown.state else shown.title
    head = " ".join(filter(None, [shown.id, title, shown.state, counted, _clock(shown), reason]))
    lines = [head, *(f"  {line}" for line in shown.lines), *_plain_table(shown), *(f"  | {line}" for line in tail)]
    return "\n".join(in_one_line(line) for line in lines)


def _plain_table(shown: Summary) -> list[str]:
    if not shown.rows:
        return []
    table = [shown.columns, *shown.rows[:_ROWS]]
    widths = [max(width(row[column]) for row in table) for column in range(len(shown.columns))]
    lines = ["  ".join(map(padded, row, widths)).rstrip() for row in table]
    return lines + _more(shown)


def _more(shown: Summary) -> list[str]:
    return [f"and {len(shown.rows) - _ROWS} more"] if len(shown.rows) > _ROWS else []


def _html(shown: Summary, tail: Sequence[str]) -> str:
    color = _COLORS.get(shown.state, "#8a8a8a")
    parts = [_head(shown, color)]
    if shown.progress is not None:
        ended, total = shown.progress[:2]
        parts.append(f"<div>{progress_bar(*shown.progress)} {ended} of {total}</div>")
    parts += [f'<div style="color: {GREY}">{_escaped(line)}</div>' for line in shown.lines]
    if shown.rows:
        parts.append(_html_table(shown))
    if tail:
        text = "\n".join(map(html.escape, tail))
        style = f"margin: 0.3em 0 0; max-height: 16em; overflow: auto; font-family: {FONT}; white-space: pre-wrap"
        parts.append(f'<pre style="{style}">{text}</pre>')
    edge = f"border-left: 3px solid {color}; padding-left: 0.7em; line-height: 1.5"
    return f'<div style="{edge}">{"".join(parts)}</div>'


def _head(shown: Summary, color: str) -> str:
    parts = [f"<b>{_escaped(shown.title)}</b>"]
    if shown.id:
        parts.append(f'<code style="color: {GREY}">{_escaped(shown.id)}</code>')
    if shown.state:
        parts.append(f'<b style="color: {color}">{_escaped(shown.state)}</b>')
    parts += filter(None, [_clock(shown)])
    if shown.reason:
        parts.append(f'<span style="color: {GREY}">{_escaped(shown.reason)}</span>')
    return f"<div>{' &nbsp; '.join(parts)}</div>"


def _html_table(shown: Summary) -> str:
    head = "".join(f'<th style="{_CELL}">{_escaped(column)}</th>' for column in shown.columns)
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_escaped(text)}</td>' for text in row) + "</tr>"
        for row in shown.rows[:_ROWS]
    )
    more = "".join(f'<div style="color: {GREY}">{line}</div>' for line in _more(shown))
    return f'<table style="margin: 0.3em 0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}'


def _escaped(text: str) -> str:
    return html.escape(in_one_line(text))


def show(summary: Callable[[], Summary]) -> None:
    """Display a summary below the present cell, and update it until it is final.

    Args:
        summary: Returns the present one.

    Raises:
        NotImplementedError: It is final, or this is no notebook: IPython then takes the plain representation.
    """
    shell: Any = sys.modules["IPython"].get_ipython()
    if getattr(shell, "kernel", None) is None or (first := summary()).is_final:
        raise NotImplementedError
    if first.watch_output is not None:
        first.watch_output()
    loop.begin(_keep_updated(_LiveSummary(summary)))


async def _keep_updated(shown: _LiveSummary) -> None:
    may_change = True
    while may_change:
        await asyncio.sleep(_EVERY_S)
        # IPython may block, and the loop must not.
        may_change = await loop.in_thread(shown.update, "clusterfn-notebook")


class _LiveSummary:
    def __init__(self, summary: Callable[[], Summary]) -> None:
        from IPython.display import display

        self._summary = summary
        self._display_id = f"clusterfn-{uuid.uuid4().hex}"
        self._bundle = bundle(summary())
        self._final_for_s = 0.0
        display(self._bundle, raw=True, display_id=self._display_id)

    def update(self) -> bool:
        """Show the present state; whether it may change further."""
        from IPython.display import update_display

        now = self._summary()
        changed = bundle(now)
        if changed != self._bundle:
            self._bundle = changed
            update_display(changed, raw=True, display_id=self._display_id)
        self._final_for_s += _EVERY_S if now.is_final else 0.0
        return self._final_for_s < _LAST_OUTPUT_S
