"""Write plan.json, by which the builder on a host makes an environment: `bridge/builder/plan.py` reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.environment import download
from clusterfn.environment.lock import WHEEL
from clusterfn.environment.project import GIT
from clusterfn.scheduler import job_script

if TYPE_CHECKING:
    from clusterfn.environment.lock import LockedPackage
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.hosts.host_state import HostState

# The version of what goes into the hash of a built wheel: a change here builds all of them again.
_FORMAT = 1


def document(
    session: HostState, environment: LockedEnvironment, fetch: bool, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return plan.json, as decision 14 describes it, with facts that only people read."""
    wheel, archives = zstd(session), environment.lock.archives(environment.platform)
    setup = job_script.modules_setup(session.host) if any(each.is_source for each in archives) else ""
    return {
        "format": layout.FORMAT, "id": environment.id, "root": environment.root, "platform": environment.platform,
        "python": list(environment.interpreter.version),
        "packages": [planned_package(each, environment, setup, sizes) for each in archives],
        "base": {"path": environment.base.path, "version": environment.base.version} if environment.base else None,
        "setup": setup, "fetch": fetch, "zstd": _entry(wheel) if wheel else None,
        "verify": ["torch"] if environment.has_torch else [], "timeout_s": session.host.making.timeout_s,
        "purged": session.host.making.purge_days is not None, "owners": list(session.host.owners),
        "about": environment.title, "wanted": list(environment.wanted), "cuda": environment.cuda,
        "why": environment.why, "virtual": environment.lock.virtual_packages(environment.platform),
    }  # fmt: skip


def zstd(session: HostState) -> LockedPackage | None:
    """Return the wheel by which the host's Python reads .conda archives, if there is one."""
    facts = session.connection.facts
    return download.zstandard_wheel(facts.version, facts.platform.partition("-")[2])


def planned_package(
    package: LockedPackage, environment: LockedEnvironment, setup: str, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return a package of a plan: a source distribution as the wheel that is built from it, whose hash says of what.

    Args:
        setup: Lines of shell that load the host's modules.
        sizes: Of archives, by their hashes.
    """
    entry = _entry(package, sizes)
    if not package.is_source:
        return entry
    # The hash covers all that the build sees. So a difference gives another wheel, and environments without a
    # difference share one.
    others = [each.sha256 for each in environment.lock.archives(environment.platform) if each.manager != WHEEL]
    builds = [each.sha256 for each in package.builds_with]
    base = environment.base.identity if environment.base else ()
    seen = [
        _FORMAT, environment.platform, package.sha256, sorted(builds), sorted(others), [*base],
        environment.glibc, setup,
    ]  # fmt: skip
    return {
        **entry, "file": f"{package.name}-{package.version}-built.whl", "url": "", "size": 0,
        "sha256": hashlib.sha256(json.dumps(seen).encode()).hexdigest(), "source": entry,
        "requires": [_entry(each, sizes) for each in package.builds_with],
    }  # fmt: skip


def _entry(package: LockedPackage, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    names = ("name", "version", "build", "manager", "file", "url", "sha256")
    entry = {name: getattr(package, name) for name in names}
    if package.url.startswith(GIT):
        # The host never reads repositories: this machine sends what it reads from them.
        entry["url"] = ""
    return entry if sizes is None else {**entry, "size": sizes.get(package.sha256, 0)}
