"""What the builder on a host is to make of a locked environment: plan.json, which `bridge/builder/plan.py` reads there.

Decision 14 describes it. It also has facts that only people read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.environment.lock import WHEEL, LockedPackage, file_name
from clusterfn.environment.project import GIT

if TYPE_CHECKING:
    from clusterfn.environment.resolve import LockedEnvironment

# The version of what goes into the hash of a built wheel: a change here builds all of them again.
_WHEEL_FORMAT = 1
_ZSTD_TABLE = Path(__file__).with_name("zstd.yml")
# The user hears of downloads of this many bytes and more.
MUCH = 10**9


class EnvironmentPlan(NamedTuple):
    """The document of plan.json, without sizes of archives, and all archives that it takes, by their hashes."""

    document: Mapping[str, Any]
    archives: Mapping[str, LockedPackage]

    def completed(self, fetch: bool, sizes: Mapping[str, int]) -> bytes:
        """Return plan.json, with whether the host fetches some archives itself, and with their sizes by hash."""

        def sized(entry: Mapping[str, Any]) -> dict[str, Any]:
            more: dict[str, Any] = {"size": sizes.get(entry["sha256"], 0)}
            if "source" in entry:
                more |= {"source": sized(entry["source"]), "requires": [sized(build) for build in entry["requires"]]}
            return {**entry, **more}

        packages = [sized(package) for package in self.document["packages"]]
        return json.dumps({**self.document, "fetch": fetch, "packages": packages}).encode()


def plan_of(environment: LockedEnvironment, python: tuple[int, ...], machine: str, setup: str) -> EnvironmentPlan:
    """Return the plan of an environment for the host's own Python, which runs the builder, and its processor.

    Args:
        setup: Lines of shell that load the host's modules.
    """
    host, base, zstd = environment.host, environment.base, _zstandard_wheel(python, machine)
    lock, platform = environment.lock, environment.platform
    archives, builds, virtual = lock.archives(platform), lock.builds(platform), lock.virtual_packages(platform)
    setup = setup if any(package.is_source for package in archives) else ""
    document = {
        "format": layout.FORMAT,
        "id": environment.id,
        "root": environment.root,
        "platform": platform,
        "python": list(environment.interpreter.version),
        "packages": [planned_package(package, environment, setup) for package in archives],
        "base": {"path": base.path, "version": base.version} if base else None,
        "setup": setup,
        "fetch": host.making.fetch_on != "client",
        "zstd": _entry(zstd) if zstd else None,
        "verify": ["torch"] if environment.has_torch else [],
        "timeout_s": host.making.timeout_s,
        "purged": host.making.purge_days is not None,
        "owners": list(host.owners),
        "about": environment.title,
        "wanted": list(environment.wanted),
        "cuda": environment.cuda,
        "why": environment.why,
        "virtual": virtual,
    }
    needed = [*archives, *builds, *([zstd] if zstd else [])]
    return EnvironmentPlan(document, {package.sha256: package for package in needed})


def tell_download(
    environment: LockedEnvironment,
    theirs: Sequence[LockedPackage],
    ours: Sequence[LockedPackage],
    sizes: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    """Say how many packages the host fetches (`theirs`), and how many this machine sends (`ours`).

    Say how many bytes these have, too, if they are many. `sizes` are by SHA-256, as far as they are known.
    """
    host, count = environment.host.name, len(environment.lock.archives(environment.platform))
    parts = [f"{host} fetches {len(theirs)}"] if theirs else []
    parts += [f"{len(ours)} are sent"] if ours else []
    parts += [f"{count - len(theirs) - len(ours)} are already there"] if len(theirs) + len(ours) < count else []
    base = f" on {host}'s own Python {environment.base.version} ({environment.base.path})" if environment.base else ""
    of = counted(count, "package")
    say(f"{environment.title}: environment {environment.id[:8]} of {of}{base}: {', '.join(parts) or 'none to send'}")
    fetched, sent = (sum(sizes.get(package.sha256, 0) for package in packages) for packages in (theirs, ours))
    if fetched + sent < MUCH:
        return
    way = [f"{host} fetches {format_size(fetched)}"] if theirs else []
    way += [f"this machine downloads and sends {format_size(sent)}"] if ours else []
    is_known = all(package.sha256 in sizes for package in (*theirs, *ours))
    size = f"{'' if is_known else 'at least '}{format_size(fetched + sent)}"
    say(f"{environment.title}: {size} for {environment.root} on {host}: {', '.join(way)}")


def planned_package(package: LockedPackage, environment: LockedEnvironment, setup: str) -> dict[str, Any]:
    """Return a package of a plan: a source distribution as the wheel that is built from it, whose hash says of what.

    Args:
        setup: Lines of shell that load the host's modules.
    """
    entry = _entry(package)
    if not package.is_source:
        return entry
    # The hash covers all that the build sees. So a difference gives another wheel, and environments without a
    # difference share one.
    archives = environment.lock.archives(environment.platform)
    others = sorted(archive.sha256 for archive in archives if archive.manager != WHEEL)
    builds = sorted(build.sha256 for build in package.builds_with)
    base = environment.base.identity if environment.base else ()
    seen = [_WHEEL_FORMAT, environment.platform, package.sha256, builds, others, [*base], environment.glibc, setup]
    return {
        **entry,
        "file": f"{package.name}-{package.version}-built.whl",
        "url": "",
        "sha256": hashlib.sha256(json.dumps(seen).encode()).hexdigest(),
        "source": entry,
        "requires": [_entry(build) for build in package.builds_with],
    }


def _entry(package: LockedPackage) -> dict[str, Any]:
    names = ("name", "version", "build", "manager", "file", "url", "sha256")
    entry: dict[str, Any] = {name: getattr(package, name) for name in names}
    if package.url.startswith(GIT):
        # The host never reads repositories: this machine sends what it reads from them.
        entry["url"] = ""
    return {**entry, "size": 0}


def _zstandard_wheel(python: tuple[int, ...], machine: str) -> LockedPackage | None:
    """Return the wheel with which a host's old Python reads .conda packages; None if `zstd.yml` has none for it."""
    for address in yaml.safe_load(_ZSTD_TABLE.read_text(encoding="utf-8")):
        url, _, sha256 = address.partition("#sha256=")
        if f"-cp{python[0]}{python[1]}-" in url and url.endswith(f"_{machine}.whl"):
            return LockedPackage("zstandard", file_name(url).split("-")[1], "pip", url, sha256, machine)
    return None
