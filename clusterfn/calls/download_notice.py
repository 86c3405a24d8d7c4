"""Say what is about to be downloaded for an environment: how much of it, by whom, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.environment import download

if TYPE_CHECKING:
    from clusterfn.environment.lock import LockedPackage
    from clusterfn.environment.resolve import LockedEnvironment

MUCH = 10**9  # bytes
_LARGEST = 3


def tell_download(
    made: LockedEnvironment,
    theirs: Sequence[LockedPackage],
    ours: Sequence[LockedPackage],
    sizes: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    """Say how many packages are downloaded, and how many bytes if they are many.

    Args:
        theirs: What the host fetches.
        ours: What this machine downloads and sends.
        sizes: By SHA-256, of what the host fetches.
    """
    host, count = made.host.name, len(made.lock.archives(made.platform))
    parts = [f"{host} fetches {len(theirs)}"] if theirs else []
    parts += [f"{len(ours)} are sent"] if ours else []
    parts += [f"{count - len(theirs) - len(ours)} are already there"] if len(theirs) + len(ours) < count else []
    base = f" on {host}'s own Python {made.base.version} ({made.base.path})" if made.base else ""
    say(f"{made.title}: environment {made.id[:8]} of {count} packages{base}: {', '.join(parts) or 'none to send'}")
    known = {**sizes, **download.download_sizes(ours)}
    total = sum(known.get(each.sha256, 0) for each in (*theirs, *ours))
    if total < MUCH:
        return
    by_size = sorted((*theirs, *ours), key=lambda each: -known.get(each.sha256, 0))[:_LARGEST]
    largest = ", ".join(f"{each.name} {known[each.sha256] / 1e9:.1f} GB" for each in by_size if each.sha256 in known)
    way = [f"{host} fetches {_gigabytes(theirs, known)}"] if theirs else []
    way += [f"this machine downloads and sends {_gigabytes(ours, known)}"] if ours else []
    least = "" if all(each.sha256 in known for each in (*theirs, *ours)) else "at least "
    say(f"{made.title}: {least}{total / 1e9:.1f} GB for {made.root} on {host}: {', '.join(way)} ({largest})")


def _gigabytes(packages: Sequence[LockedPackage], sizes: Mapping[str, int]) -> str:
    return f"{sum(sizes.get(each.sha256, 0) for each in packages) / 1e9:.1f} GB"
