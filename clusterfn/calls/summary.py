"""What a job, a group, a session or a sweep says of itself in a notebook: facts, which `jupyter/` turns into HTML.

Making a summary asks no host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterfn.bridge.supervisor.text import duration
from clusterfn.config.spec import Resources
from clusterfn.config.units import shown_memory


class Summary(NamedTuple):
    """The facts that a display shows.

    Attributes:
        title: Such as "train on tensor01".
        id: 16 hex digits; "" for what has none.
        state: As `Job.state`; "" for what has none.
        reason: Why it is in that state, in one line.
        elapsed_s: Seconds since it was sent, or for which it ran; None if that is not known.
        progress: How many calls have ended, of how many.
        lines: Further facts, a line each.
        columns, rows: A table.
        output: The end of what it has printed.
        is_final: Whether it will not change any more.
    """

    title: str
    id: str = ""
    state: str = ""
    reason: str = ""
    elapsed_s: float | None = None
    progress: tuple[int, int] | None = None
    lines: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    output: bytes = b""
    is_final: bool = True


def describe_request(asked: Resources | None) -> list[str]:
    """Say in one line what a job asked for: cores, memory, GPUs."""
    if asked is None or asked == Resources():
        return []
    parts = [f"{asked.cores} core{'s' if asked.cores > 1 else ''}"]
    if asked.tasks_per_node > 1:
        parts[0] += f" for each of {asked.tasks_per_node} tasks"
    if asked.memory_bytes:
        parts.append(f"{shown_memory(asked.memory_bytes)} of memory")
    if asked.gpus:
        kind = f" ({asked.gpu_type})" if asked.gpu_type else ""
        parts.append(f"{asked.gpus} GPU{'s' if asked.gpus > 1 else ''}{kind}")
    if asked.nodes > 1:
        parts.append(f"on each of {asked.nodes} nodes")
    return [f"asked for {', '.join(parts)}"]


def describe_usage(usage: Mapping[str, Any]) -> list[str]:
    """Say what a job used, a line for its processes and one for each GPU."""
    lines, peak = [], usage.get("peak_memory_bytes")
    if usage:
        memory = f", peak memory {shown_memory(peak)}" if peak else ""
        lines.append(f"ran {duration(usage.get('wall_s') or 0.0)}{memory}")
    for each in usage.get("gpus") or ():
        peak, use = each.get("peak_memory_bytes"), each.get("mean_use_percent")
        memory = f", peak memory {shown_memory(peak)}" if peak else ""
        mean = f", {use:g} % busy" if use is not None else ""
        lines.append(f"GPU {each.get('name') or each.get('uuid')}{memory}{mean}")
    return lines
