"""Which of a site's volumes suits `root:` best. Pure; `Site.proposed_root` calls it.

The home if it has plenty, as it is kept and backed up; else whichever has most room. With SLURM the compute nodes must
see it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterfn.hosts.survey.site import Volume

PLENTY_BYTES = 20 * 2**30
PLENTY_FILES = 200_000
_HOME = "$HOME"
_UNITS = (("TB", 2**40), ("GB", 2**30), ("MB", 2**20))


def proposed_root(volumes: Sequence[Volume], slurm: bool) -> tuple[Volume, str] | None:
    """The best volume and the reason; None if there is none that can be used."""
    usable = [each for each in volumes if each.writable and not each.noexec and not _is_everybodys(each.mode)]
    shared = [each for each in usable if each.shared]
    home = next((each for each in usable if each.name == _HOME), None)
    if slurm and not shared:
        why = "none here is a network file system as far as its kind tells; compute nodes must see it"
        return (home, f"the home; {why}") if home else None
    candidates = shared if slurm else usable
    if home in candidates and home is not None and _has_plenty(home):
        return home, f"the home has plenty: {_room(home)}"
    best = max(candidates, key=_rank, default=None)
    return (best, _reason(best, home)) if best else None


def _is_everybodys(mode: str) -> bool:
    """Whether everybody could replace what lies there, by what `ls -l` shows: clusterfn refuses such a root."""
    return mode[8:9] == "w" and mode[9:10] not in ("t", "T")


def _has_plenty(volume: Volume) -> bool:
    enough = [
        room is None or room >= plenty
        for room, plenty in ((volume.room_bytes, PLENTY_BYTES), (volume.room_files, PLENTY_FILES))
    ]
    return all(enough)


def _rank(volume: Volume) -> tuple[bool, bool, int]:
    """With plenty of files before most bytes: an environment has 100 000 files. Memory is lost at the next start."""
    files = volume.room_files
    return volume.kind != "tmpfs", files is None or files >= PLENTY_FILES, volume.room_bytes or 0


def _reason(best: Volume, home: Volume | None) -> str:
    if home is None or best is home:
        return f"it has most room: {_room(best)}"
    return f"it has most room: {_room(best)}; the home has {_room(home)}"


def _room(volume: Volume) -> str:
    files = "" if volume.room_files is None else f" and {volume.room_files} files"
    return f"{_size(volume.room_bytes)}{files}"


def _size(amount: int | None) -> str:
    if amount is None:
        return "an unknown amount"
    unit, length = next(((unit, length) for unit, length in _UNITS if amount >= length), ("KB", 1024))
    return f"{amount / length:.1f} {unit}"
