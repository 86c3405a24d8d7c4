"""What a job asked for and what it uses, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.config.spec import Resources
from clusterfn.config.units import exact_memory

_SHORTEST_S = 1.0


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
    use = [gpu.get("mean_use_percent" if now is None else "use_percent") for gpu in gpus or ()]
    values = [percent for percent in use if percent is not None]
    if values:
        parts.append(f"GPU {sum(values) / len(values):.0f} %")
    return ", ".join(parts)


def mean_cores(usage: Mapping[str, Any]) -> float | None:
    """Return how many cores a job kept busy, on average; None if it was too short to say."""
    wall_s, cpu_s = usage.get("wall_s") or 0.0, usage.get("cpu_s")
    return cpu_s / wall_s if cpu_s is not None and wall_s >= _SHORTEST_S else None
