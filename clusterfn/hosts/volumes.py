"""Read what a survey printed of file systems: by df, quota and lfs quota, and by attempts to use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clusterfn.scheduler.site import Section

_COUNT = re.compile(r"-?\d{1,18}", re.ASCII)
_DF = re.compile(r"(.+?)\s+(?:(\S+)\s+)?(\d+)\s+(-?\d+|-)\s+(-?\d+|-)\s+(\d+%|-)\s+(/.*)")
_SHARED = re.compile(
    r"(fuse\.)?(nfs|lustre|gpfs|beegfs|fhgfs|ceph|weka|panfs|cifs|smb|afs|gluster|pvfs|orangefs|quobyte|juicefs"
    r"|gfs2|ocfs2|9p|sshfs)"
)
_FULL = ("no space", "quota")
_KB = 1024
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d+)?)([KMGTP]?)\*?", re.IGNORECASE)


@dataclass(frozen=True)
class Volume:
    """One folder in which a user could keep files, and its file system.

    Attributes:
        name: As the host names it: "$HOME", "$SCRATCH", "/scratch/ann".
        path: Absolute, resolved.
        kind: Of the file system: "nfs4", "lustre", "xfs", "tmpfs".
        free_bytes, free_files: What the file system has left.
        quota_bytes, quota_files: What the user's own quota leaves, where there is one.
        shared: Whether other machines see it, judged by its kind.
        noexec: Whether programs there cannot be started.
        writable: Whether this user may write there.
        device: What is mounted there: "/dev/sda1", "filer:/home".
        mode: As ls shows it: "drwx------".
        links: Whether a file there can have two names; None if none could be made to try.
    """

    name: str
    path: str
    kind: str
    free_bytes: int | None
    free_files: int | None
    quota_bytes: int | None = None
    quota_files: int | None = None
    shared: bool = False
    noexec: bool = False
    writable: bool = True
    device: str = ""
    mode: str = ""
    links: bool | None = None

    @property
    def room_bytes(self) -> int | None:
        """The bytes that can be written: the smaller of the two, None if neither is known."""
        return _smaller(self.free_bytes, self.quota_bytes)

    @property
    def room_files(self) -> int | None:
        """The files that can be made: the smaller of the two, None if neither is known."""
        return _smaller(self.free_files, self.quota_files)


def _smaller(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def parse_count(text: str) -> int | None:
    """Parse a count; None for anything else, such as what is too long to be one."""
    return int(text) if _COUNT.fullmatch(text) else None


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


def _df(lines: list[str]) -> re.Match[str] | None:
    """Parse what df prints below its heading, as one line: some versions break it after a long device."""
    heading = max((place for place, line in enumerate(lines) if line.startswith("Filesystem")), default=-1)
    # Rows of blanks, which its columns need not, would take the pattern for ever.
    return _DF.fullmatch(" ".join(" ".join(lines[heading + 1 :]).split()))


def read_volume(section: Section, quotas: Mapping[str, QuotaLeft]) -> Volume | None:
    """Parse a volume's section; None if it is no folder or too slow. `quotas`: what is left, by device."""
    path, df = _first(section, "path"), _df(section.part("df"))
    if not path or df is None:
        return None
    device, kind, _, _, free, _, _ = df.groups()
    # `lfs quota -q` prints quotas of the user, the group and the folder's project, in the same columns as `quota`.
    bounds = [*(left for _, left in parse_quotas(section.part("lfs"))), quotas.get(device, QuotaLeft(None, None))]
    sizes = [bound.size for bound in bounds if bound.size is not None]
    files = [bound.files for bound in bounds if bound.files is not None]
    inodes = _df(section.part("inodes"))
    refusal = " ".join(section.part("write")).lower()
    return Volume(
        name=next(iter(section.lines), path),
        path=path,
        kind=kind or "",
        free_bytes=_bytes_or_files(free, _KB),
        # Some file systems, such as btrfs, do not count files, and print 0 or "-".
        free_files=None if inodes is None or inodes[3] == "0" else _bytes_or_files(inodes[5], 1),
        quota_bytes=0 if "quota" in refusal else min(sizes, default=None),
        quota_files=min(files, default=None),
        shared=bool(_SHARED.match(kind or "")),
        noexec="run" in section.parts and "yes" not in section.part("run"),
        writable="write" in section.parts and (not refusal or any(word in refusal for word in _FULL)),
        device=device,
        mode=_first(section, "mode"),
        links="yes" in section.part("link") if "link" in section.parts else None,
    )


def _first(section: Section, name: str) -> str:
    return next(iter(section.part(name)), "")


def _bytes_or_files(text: str, unit: int) -> int | None:
    amount = parse_count(text)
    return None if amount is None else max(amount, 0) * unit
