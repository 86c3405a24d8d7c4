"""Amounts of memory, durations and types of GPUs as people write them, with what to write instead of a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from clusterfn.errors import ConfigError

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")
# All patterns limit the number of digits, so no text makes Python compute with a huge number.
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT])i?B", re.IGNORECASE)
_MEMORY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TIME_PART = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)\s*(d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?![a-z])",
    re.IGNORECASE,
)
_TIME_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TIME_WORDS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,3}):(\d{2}):(\d{2})")


def is_on(value: str) -> bool:
    """Whether the value of a variable such as $CLUSTERFN_QUIET turns something on."""
    return value.lower() not in ("", "0", "false", "no", "off")


def parse_memory(value: object, name: str = "memory") -> int:
    """Bytes in a text such as "16GB" (16 * 2**30), "512MB" or "1.5 TiB".

    Raises:
        ConfigError: No unit, an unknown unit, zero or not a text.

    Example:
        >>> parse_memory("2GB")
        2147483648
    """
    match = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(match[1]) * _MEMORY_UNITS[match[2].upper()]) if match else 0
    if size <= 0:
        hint = f'write it with a unit: {name}="16GB" or {name}="512MB"; it is more than zero'
        raise ConfigError(f"{name}={value!r} is not an amount of memory", hint=hint)
    return size


def exact_memory(size: int) -> str:
    """Format an amount of memory as an option takes it, without rounding.

    Example:
        >>> exact_memory(1500 * 2**10), exact_memory(3 * 2**29)
        ('1500KB', '1.5GB')
    """
    for unit in "TGMK":
        # Use a unit only if two decimals give the exact amount.
        text = f"{round(size / _MEMORY_UNITS[unit], 2):.15g}{unit}B"
        if size >= _MEMORY_UNITS[unit] and parse_memory(text) == size:
            return text
    return f"{size} bytes"


def exact_time(seconds: float) -> str:
    """Format a duration as an option takes it, in the largest unit that says it in whole numbers.

    Example:
        >>> exact_time(5400.0)
        '90min'
    """
    whole = (f"{seconds / size:.0f}{unit}" for unit, size in _TIME_WORDS if seconds % size == 0)
    return next(whole, f"{seconds:g}s")


def parse_time(value: object, name: str = "time") -> float:
    """Seconds in a text with units ("90min", "2 hours", "1d 12h", "02:00:00", "1-00:00:00") or a timedelta.

    Raises:
        ConfigError: No unit, an unknown unit, zero or another type.

    Example:
        >>> parse_time("1h 30min")
        5400.0
    """
    seconds = _seconds(value)
    if seconds is None or seconds <= 0:
        hint = f'write it with a unit: {name}="90min" or {name}="02:00:00"; it is more than zero'
        raise ConfigError(f"{name}={value!r} is not a duration", hint=hint)
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return None
    clock = _CLOCK.fullmatch(value.strip())
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if _TIME_PART.sub("", value).strip():
        return None
    return sum(float(number) * _TIME_UNITS[unit[0].lower()] for number, unit in _TIME_PART.findall(value))


def free_memory(swap: bool = False) -> int | None:
    """Bytes that this process may still take, as Linux says; None elsewhere.

    A memory group (cgroup) can leave it less than the machine has: that of a container, or of a user of a login node.

    Args:
        swap: Whether those on the disk count.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines)
    fields = ("MemAvailable", "SwapFree") if swap else ("MemAvailable",)
    if "MemAvailable" not in facts:
        return None
    # The smallest amount counts: memory that one of these limits does not allow cannot be used at all.
    return min([sum(int(facts.get(name, "0").split()[0]) for name in fields) << 10, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """Yield what each memory group of this process, and each above it, has left; files that it has read do not count.

    The names are in the kernel's admin-guide/cgroup-v1/memory.rst and admin-guide/cgroup-v2.rst.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount, kind = "/sys/fs/cgroup/memory", "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif not controllers:
            mount, kind = "/sys/fs/cgroup", ""
            limit, usage = "memory.max", "memory.current"
        else:
            continue
        names = [name for name in path.split("/") if name]
        for depth in range(len(names) + 1):
            group = Path("/".join([mount, *names[:depth]]))
            try:
                most, used = (int((group / name).read_text(encoding="ascii")) for name in (limit, usage))
                stat = dict(entry.split() for entry in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                yield most - used + sum(int(stat[f"{kind}{prefix}active_file"]) for prefix in ("", "in"))
            except (OSError, ValueError, KeyError):
                # The group has no limit ("max"), or the container hides the files.
                continue
