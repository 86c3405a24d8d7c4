"""df, quota and lfs quota read into volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterfn.hosts.survey.answers import Section, number
from clusterfn.hosts.survey.site import Volume

_DF = re.compile(r"(.+?)\s+(?:(\S+)\s+)?(\d+)\s+(-?\d+|-)\s+(-?\d+|-)\s+(\d+%|-)\s+(/.*)")
_SHARED = re.compile(
    r"(fuse\.)?(nfs|lustre|gpfs|beegfs|fhgfs|ceph|weka|panfs|cifs|smb|afs|gluster|pvfs|orangefs|quobyte|juicefs"
    r"|gfs2|ocfs2|9p|sshfs)"
)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d+)?)([KMGTP]?)\*?", re.IGNORECASE)
_FULL = ("no space", "quota")
_KB = 1024


@dataclass(frozen=True)
class Left:
    """What a quota leaves; None where it does not bound."""

    size: int | None
    files: int | None


def volume(section: Section, quotas: dict[str, Left]) -> Volume | None:
    """The volume that a section of survey.sh tells of; None if it is no folder, or too slow to be told.

    Args:
        quotas: As `quotas` read them.
    """
    path, df = section.first("path"), _DF.fullmatch(_last(section.part("df")))
    if not path or df is None:
        return None
    device, kind, _, _, free, _, _ = df.groups()
    left = _smallest([*lustre(section.part("lfs")), quotas.get(device, Left(None, None))])
    said = " ".join(section.part("write")).lower()
    return Volume(
        name=next(iter(section.lines), path),
        path=path,
        kind=kind or "",
        free_bytes=_number(free, _KB),
        free_files=_inodes(section.part("inodes")),
        quota_bytes=0 if "quota" in said else left.size,
        quota_files=left.files,
        shared=bool(_SHARED.match(kind or "")),
        noexec="run" in section.parts and "yes" not in section.part("run"),
        writable="write" in section.parts and (not said or any(word in said for word in _FULL)),
        device=device,
        mode=section.first("mode"),
        links="yes" in section.part("link") if "link" in section.parts else None,
    )


def _last(lines: Sequence[str]) -> str:
    """What df says of the folder, below its heading; some break the line after a long device although they must not."""
    heading = max((place for place, line in enumerate(lines) if line.startswith("Filesystem")), default=-1)
    return " ".join(lines[heading + 1 :]).strip()


def _inodes(lines: Sequence[str]) -> int | None:
    """The third number; btrfs and others count no files and say 0 or "-"."""
    df = _DF.fullmatch(_last(lines))
    if df is None or df[3] == "0":
        return None
    return _number(df[5], 1)


def _number(text: str, unit: int) -> int | None:
    amount = number(text)
    return None if amount is None else max(amount, 0) * unit


def quotas(lines: Iterable[str]) -> dict[str, Left]:
    """What `quota -w` says, by device: blocks of 1 KB (or with a unit), their two limits, then the same of files."""
    return {device: _left_of(words) for device, words in _rows(lines)}


def lustre(lines: Iterable[str]) -> list[Left]:
    """What `lfs quota -q` says of a user, his group and the folder's project: the columns are those of quota."""
    return [_left_of(words) for _, words in _rows(lines)]


def _left_of(words: Sequence[str]) -> Left:
    used, soft, hard, *files = [word for word in words if _AMOUNT.fullmatch(word)] + ["0"] * 3  # the rest is of grace
    return Left(_left(used, soft, hard, _KB), _left(files[0], files[1], files[2], 1))


def _rows(lines: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    """Each file system with its words; a long name stands on a line of its own, before the rest."""
    device = ""
    for line in lines:
        words = line.split()
        if words and not _AMOUNT.fullmatch(words[0]):
            device, words = words[0], words[1:]
        if device and len(words) >= 3 and _AMOUNT.fullmatch(words[0]):
            yield device, words
            device = ""
        elif words:
            device = ""


def _left(used: str, soft: str, hard: str, unit: int) -> int | None:
    """To the hard limit, where writing ends; to the soft one if there is no other."""
    limit = _amount(hard, unit) or _amount(soft, unit)
    return max(limit - _amount(used, unit), 0) if limit else None


def _amount(text: str, unit: int) -> int:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return 0
    power = _UNITS[match[2].upper()]
    return int(float(match[1]) * (1024**power if match[2] else unit))


def _smallest(all_of_them: Sequence[Left]) -> Left:
    sizes = [each.size for each in all_of_them if each.size is not None]
    files = [each.files for each in all_of_them if each.files is not None]
    return Left(min(sizes, default=None), min(files, default=None))
