"""The text that survey.sh prints, taken apart at its marks. Pure; knows nothing of what the sections mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

NOT_THERE = 127
_COUNT = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Section:
    """One question's answer.

    Attributes:
        rc: None if it did not answer in time.
        lines: What came before the first part.
        parts: The lines after `MARK.name`, by name; those of a name that stands twice follow each other.
    """

    name: str
    rc: int | None = None
    lines: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def part(self, name: str) -> list[str]:
        """The lines of a part; none if there is no such part."""
        return self.parts.get(name, [])

    def first(self, name: str) -> str:
        """The first line of a part."""
        return next(iter(self.part(name)), "")


def number(text: str) -> int | None:
    """A count as programs write it; None for anything else, such as what is too long to be one."""
    return int(text) if _COUNT.fullmatch(text) else None


def sections(text: str, mark: str) -> dict[str, Section]:
    """Every section by its name, in the order of the text."""
    found: dict[str, Section] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(f"{mark} "):
            section = _begun(line.split())
            found[section.name] = section
            lines = section.lines
        elif line.startswith(f"{mark}.") and found:
            lines = section.parts.setdefault(line[len(mark) + 1 :], [])
        elif line.strip():
            lines.append(line)
    return found


def _begun(words: Sequence[str]) -> Section:
    return Section(words[1], number(words[2]) if len(words) > 2 else None)
