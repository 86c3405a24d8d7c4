"""What a job uses now and has used so far: of a job by itself, and of a group from what its items say.

Each supervisor measures its own attempt and writes that down (`attempt.UsageFile`); here it is only read and added up.
"""

import glob
import os

from ..layout import ATTEMPTS, ELEMENTS, USAGE, item_usage
from .attempt import Attempt, read_live_usage
from .journal import journal_lines
from .publish import numbers_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

    from .job import JobFolder

_ITEM_USAGE = item_usage(0).replace("0", "*")


def usage_of_attempt(attempt: Attempt) -> "Optional[dict[str, Any]]":
    """Return what an attempt that runs has used so far; None if it has not been measured yet."""
    return read_live_usage(attempt.path(USAGE))


def usage_of_running_items(elements: "Iterable[JobFolder]") -> "Optional[dict[str, Any]]":
    """Return what the items use that run now in these elements of a group; None without one."""
    found = []
    for element in elements:
        folder = os.path.join(glob.escape(element.path(ATTEMPTS)), str(element.attempts()[-1]))
        found += [read_live_usage(path) for path in glob.glob(os.path.join(folder, _ITEM_USAGE))]
    return sum_of_usages([usage for usage in found if usage is not None and usage.get("now") is not None])


def usage_of_ended_items(home: str) -> "Optional[dict[str, Any]]":
    """Return what the items of a group have used that have ended; None if none has said it."""
    lines = (line for element in numbers_in(os.path.join(home, ELEMENTS)) for line in journal_lines(home, element))
    return sum_of_usages([line["usage"] for line in lines if "index" in line and isinstance(line.get("usage"), dict)])


def sum_of_usages(usages: "list[dict[str, Any]]") -> "Optional[dict[str, Any]]":
    """Return the usage of several items as one; None for none.

    `items` counts them. Times are sums. `longest_s` and `peak_memory_bytes` are those of the largest item, as each
    item has its own time and memory.
    """
    if not usages:
        return None
    found = {
        "items": len(usages),
        "wall_s": round(sum(_number(each, "wall_s") for each in usages), 3),
        "cpu_s": round(sum(_number(each, "cpu_s") for each in usages), 3),
        "longest_s": max(_number(each, "wall_s") for each in usages),
        "peak_memory_bytes": max(_number(each, "peak_memory_bytes") for each in usages),
        "gpus": _gpus_of(usages),
    }  # type: dict[str, Any]
    now = [each["now"] for each in usages if isinstance(each.get("now"), dict)]
    if now:
        found["now"] = {
            "cores": round(sum(_number(each, "cores") for each in now), 2),
            "memory_bytes": sum(_number(each, "memory_bytes") for each in now),
            "gpus": [gpu for each in now for gpu in each.get("gpus") or []],
        }
    return found


def _gpus_of(usages: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """Return each GPU once, with its peaks, and its mean use over the time of all items that had it."""
    found = {}  # type: dict[str, dict[str, Any]]
    shares = {}  # type: dict[str, list[tuple[float, float]]]
    for usage in usages:
        for gpu in usage.get("gpus") or []:
            uuid = str(gpu.get("uuid"))
            known = found.setdefault(uuid, dict(gpu))
            for name in ("peak_memory_bytes", "peak_use_percent"):
                values = [each[name] for each in (known, gpu) if each.get(name) is not None]
                known[name] = max(values) if values else None
            if gpu.get("mean_use_percent") is not None:
                shares.setdefault(uuid, []).append((gpu["mean_use_percent"], _number(usage, "wall_s")))
    for uuid, parts in shares.items():
        whole = sum(seconds for _, seconds in parts)
        mean = sum(percent * seconds for percent, seconds in parts) / whole if whole else parts[0][0]
        found[uuid]["mean_use_percent"] = round(mean, 1)
    return list(found.values())


def _number(facts: "dict[str, Any]", name: str) -> float:
    return facts.get(name) or 0
