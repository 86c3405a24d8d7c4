"""Read the value of an option as sbatch reads it: an array, a signal, nodes, memory, a time.

A ValueError has the words of sbatch; without a text, sbatch says no more than that the value is wrong.
"""

from __future__ import annotations

import re

_NODES = re.compile(r"(\d+)([km]?)(?:-(\d+)([km]?))?|(\d+)[\d,:-]*")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_UNITS_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1 << 20}
# The forms of a time: [days-]hours[:minutes[:seconds]] with days, else minutes, minutes:seconds, or all three.
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_UNLIMITED = ("0", "-1", "UNLIMITED", "INFINITE")
_SIGNAL = re.compile(r"(?:([BR]*):)?(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d{1,5}))?")
_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18,
    "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24,
}  # fmt: skip
_INDICES = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_MOST_TASKS = 100_000


def read_array(text: str) -> tuple[list[int], int | None]:
    """Read what sbatch takes as an array: 1-10, 0-15:4, 1,3,5 and %4 behind it."""
    listed, percent, most = text.partition("%")
    numbers: set[int] = set()
    for part in listed.strip("[]").split(","):
        match = _INDICES.fullmatch(part)
        first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (1, 0, 1)
        if first > last or not step or last - first >= _MOST_TASKS * step or (percent and not most.isdigit()):
            raise ValueError("Invalid job array specification")
        numbers.update(range(first, last + 1, step))
    return sorted(numbers), int(most or 0) or None


def read_signal(text: str) -> tuple[str, bool, str]:
    """Return the name of a signal, whether it is for the script alone, and how long before the end it comes."""
    match = _SIGNAL.fullmatch(text.upper())
    names = [name for name, number in _SIGNALS.items() if match and match[2] in (name, str(number))]
    if match is None or not names or int(match[3] or 0) > 0xFFFF:
        raise ValueError
    return f"SIG{names[0]}", "B" in (match[1] or ""), f"{match[3] or 60}s"


def read_least_nodes(text: str) -> int:
    match = _NODES.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a valid node count')
    units = {"": 1, "k": 1024, "m": 1024**2}
    least = int(match[1] or match[5]) * units[match[2] or ""]
    most = int(match[3] or least) * units[match[4] or ""]
    if most < least:
        raise ValueError(f"Maximum node count {most} is less than minimum node count {least}")
    if not least:
        raise ValueError("Node count specification invalid")
    return least


def read_megabytes(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError
    return float(match[1]) * _UNITS_MB[match[2].upper()]


def read_seconds(text: str) -> float:
    """Read sbatch's times: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 for no limit.

    Example:
        >>> read_seconds("90"), read_seconds("1-12"), read_seconds("02:00:00")
        (5400.0, 129600.0, 7200.0)
    """
    if text.upper() in _UNLIMITED:
        return 0.0
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    parts = [float(part) for part in match.groups()[1:] if part is not None]
    hours, minutes, seconds = [*([] if match[1] or len(parts) == 3 else [0.0]), *parts, 0.0, 0.0][:3]
    return float(match[1] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
