"""What a quota leaves, by what `quota -w` and `lfs quota` print. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_KB = 1024
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d+)?)([KMGTP]?)\*?", re.IGNORECASE)


class QuotaLeft(NamedTuple):
    """What a quota leaves; None where it does not bound."""

    size: int | None
    files: int | None


def parse_quotas(lines: Iterable[str]) -> Iterator[tuple[str, QuotaLeft]]:
    """Yield each file system and what is left: blocks of 1 KB (or with a unit), two limits, then the same of files.

    `quota` names the device, and `lfs quota` the mount point. A long name is on a line of its own, before the rest.
    """
    name = ""
    for line in lines:
        words = line.split()
        if words and not _AMOUNT.fullmatch(words[0]):
            name, words = words[0], words[1:]
        if name and len(words) >= 3 and _AMOUNT.fullmatch(words[0]):
            # The other words are grace periods. Padding covers versions that print fewer columns.
            amounts = [word for word in words if _AMOUNT.fullmatch(word)] + ["0"] * 3
            yield name, QuotaLeft(_left(amounts[:3], _KB), _left(amounts[3:6], 1))
            name = ""
        elif words:
            name = ""


def _left(amounts: list[str], unit: int) -> int | None:
    """Return what is left to the hard limit, where writing fails; to the soft one if there is no other."""
    used, soft, hard = (_amount(text, unit) for text in amounts)
    limit = hard or soft
    return max(limit - used, 0) if limit else None


def _amount(text: str, unit: int) -> int:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return 0
    power = _UNITS[match[2].upper()]
    return int(float(match[1]) * (1024**power if match[2] else unit))
