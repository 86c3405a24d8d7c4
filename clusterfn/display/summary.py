"""What a job, a group, a session or a sweep says of itself in a notebook: facts, which `summary_view` turns into HTML.

Making a summary waits for no host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from clusterfn.bridge.supervisor.text import format_duration, format_size
from clusterfn.config.spec import Resources
from clusterfn.config.units import exact_memory

_SHORTEST_S = 1.0


class Summary(NamedTuple):
    """The facts that a display shows.

    Attributes:
        title: Such as "train on tensor01".
        id: 16 hex digits; "" for what has none.
        state: As `Job.state`; "" for what has none.
        reason: Why it is in that state, in one line.
        elapsed_s: Seconds since it was sent, or for which it ran; None if that is not known.
        progress: How many calls have ended, of how many, and perhaps how many have failed.
        lines: Further facts, a line each.
        columns, rows: A table.
        output: The end of what it has printed.
        is_final: Whether it will not change any more.
        watch_output: Begins to receive what it prints, for later summaries; None where it prints nothing.
    """

    title: str
    id: str = ""
    state: str = ""
    reason: str = ""
    elapsed_s: float | None = None
    progress: tuple[int, ...] | None = None
    lines: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    output: bytes = b""
    is_final: bool = True
    watch_output: Callable[[], object] | None = None


def describe_request(resources: Resources | None) -> list[str]:
    """Say in one line what a job asked for: cores, memory, GPUs."""
    if resources is None or resources == Resources():
        return []
    parts = [f"{resources.cores} core{'s' if resources.cores > 1 else ''}"]
    if resources.tasks_per_node > 1:
        parts[0] += f" for each of {resources.tasks_per_node} tasks"
    if resources.memory_bytes:
        parts.append(f"{exact_memory(resources.memory_bytes)} of memory")
    if resources.gpus:
        kind = f" ({resources.gpu_type})" if resources.gpu_type else ""
        parts.append(f"{resources.gpus} GPU{'s' if resources.gpus > 1 else ''}{kind}")
    if resources.nodes > 1:
        parts.append(f"on each of {resources.nodes} nodes")
    return [f"asked for {', '.join(parts)}"]


def short_usage(usage: Mapping[str, Any]) -> str:
    """Say in a few words what a job uses now, or what it used on average; "" if nothing is known.

    Example:
        >>> short_usage({"wall_s": 10.0, "cpu_s": 39.0, "peak_memory_bytes": 3 * 2**30, "gpus": []})
        '3.9 cores, peak 3 GB'
        >>> short_usage({"now": {"cores": 3.9, "memory_bytes": 2**30, "gpus": [{"use_percent": 97}]}})
        '3.9 cores, 1 GB, GPU 97 %'
    """
    now = usage.get("now")
    if now is None:
        cores, memory, gpus = mean_cores(usage), usage.get("peak_memory_bytes"), usage.get("gpus")
    else:
        cores, memory, gpus = now.get("cores"), now.get("memory_bytes"), now.get("gpus")
    parts = [] if cores is None else [f"{cores:.1f} cores"]
    if memory:
        parts.append(f"{'' if now is not None else 'peak '}{format_size(memory)}")
    use = [each.get("mean_use_percent" if now is None else "use_percent") for each in gpus or ()]
    values = [each for each in use if each is not None]
    if values:
        parts.append(f"GPU {sum(values) / len(values):.0f} %")
    return ", ".join(parts)


def mean_cores(usage: Mapping[str, Any]) -> float | None:
    """Return how many cores a job kept busy, on average; None if it was too short to say."""
    wall_s, cpu_s = usage.get("wall_s") or 0.0, usage.get("cpu_s")
    return cpu_s / wall_s if cpu_s is not None and wall_s >= _SHORTEST_S else None


def describe_usage(usage: Mapping[str, Any]) -> list[str]:
    """Say what a job uses or used, a line for its processes and one for each GPU."""
    now = usage.get("now")
    if now is not None:
        return _describe_now(now, usage.get("gpus") or ())
    lines, peak = [], usage.get("peak_memory_bytes")
    if usage:
        memory = f", peak memory {format_size(peak)}" if peak else ""
        lines.append(f"ran {format_duration(usage.get('wall_s') or 0.0)}{memory}")
    for each in usage.get("gpus") or ():
        peak, use = each.get("peak_memory_bytes"), each.get("mean_use_percent")
        memory = f", peak memory {format_size(peak)}" if peak else ""
        mean = f", {use:g} % busy" if use is not None else ""
        lines.append(f"GPU {each.get('name') or each.get('uuid')}{memory}{mean}")
    return lines


def _describe_now(now: Mapping[str, Any], named: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {each.get("uuid"): each.get("name") for each in named}
    lines = [f"uses {short}"] if (short := short_usage({"now": {**now, "gpus": []}})) else []
    for each in now.get("gpus") or ():
        used, use = each.get("memory_bytes"), each.get("use_percent")
        parts = [f"{format_size(used)} in use"] if used is not None else []
        parts += [f"{use:g} % busy"] if use is not None else []
        if parts:
            lines.append(f"GPU {names.get(each.get('uuid')) or each.get('uuid')}: {', '.join(parts)}")
    return lines
