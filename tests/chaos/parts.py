"""What lies on the hosts of an order of the storm: one job or group, or the parts of a map that several hosts share.

Read from the files alone (docs/reference/job-directory.md). It imports nothing of clusterfn.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.judge import WITHDRAWN

_DIGITS = 16


class Part(NamedTuple):
    """One job or group on a host; `items` are its items by their numbers in the whole."""

    folder: Path
    host: str
    items: list[int]

    def has_begun(self) -> bool:
        return any(self.folder.glob("claim")) or any(self.folder.glob("elements/*/claim"))


def parts_of(roots: Iterable[Path], stem: str, count: int) -> list[Part]:
    """All whose ids begin so, then those that a host got later; a group of `count` items that nobody shares has all."""
    pattern = "jobs/" + stem + "?" * (_DIGITS - len(stem))
    first = [folder for root in roots for folder in sorted(root.glob(pattern))]
    later = [folder.parent / name.name.partition("-")[2] for folder in first for name in sorted(folder.glob("more/*"))]
    return [_part(folder, count) for folder in [*first, *later] if (folder / "spec.json").exists()]


def _part(folder: Path, count: int) -> Part:
    def read(name: str, default: Any) -> Any:
        path = folder / name
        return json.loads(path.read_bytes()) if path.exists() else default

    spec, shared, start = read("spec.json", {}), {}, 0
    for _, job_id, size in spec.get("shared", ()):
        shared[job_id] = list(range(start, start + size))
        start += size
    items = read("retried.json", {"items": shared.get(folder.name, list(range(count)))})["items"]
    return Part(folder, spec["host"], items)


def ends_of_items(parts: Iterable[Part]) -> dict[int, list[tuple[Part, dict[str, Any]]]]:
    """Each line with the end of an item, and whose it is. That it was given up counts if nothing else is said of it."""
    found: dict[int, list[tuple[Part, dict[str, Any]]]] = collections.defaultdict(list)
    for part in parts:
        for path in sorted(part.folder.glob("elements/*/attempts/*/journal.jsonl")):
            is_given_up = (path.parents[2] / "moved.json").exists()
            for line in path.read_bytes().split(b"\n")[:-1]:
                try:
                    told = json.loads(line)
                except ValueError:  # torn by a kill, and gone on behind it
                    continue
                if "index" in told:
                    end = {**told, "kind": WITHDRAWN} if is_given_up else told
                    found[part.items[told["index"]]].append((part, end))
    for index, ends in found.items():
        found[index] = [end for end in ends if end[1]["kind"] != WITHDRAWN] or ends
    return found
