"""A small file of this user's own that remembers on which host a job was started from here.

A convenience for `attach`: the hosts know their jobs without it.
"""

from __future__ import annotations

import contextlib
import json
import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.config import config_file, places
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.errors import ConfigError

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.job_run import JobRun


# About thirty thousand jobs.
LARGEST_BYTES = 4 << 20


@dataclass(frozen=True)
class LedgerEntry:
    """Where a job was sent; entries of the same place are equal.

    Attributes:
        host: The host's name.
        config: The file that defines it; "" for a host that needs none.
        results: What is accepted of its value.
        id: The job's.
        at: When, in seconds since 1970.
        name: The job's.
        secrets: The names of the variables that it got from this machine as secrets.
    """

    host: str
    config: str
    id: str = field(compare=False)
    at: float = field(compare=False)
    results: ResultPolicy = field(default=ResultPolicy(), compare=False)
    secrets: tuple[str, ...] = field(default=(), compare=False)
    name: str = field(default="", compare=False)


def remember(
    job: JobRun | GroupState, config: Path | None, results: ResultPolicy | None = None, secrets: Iterable[str] = ()
) -> None:
    """Record where a job is, which file defines that host, what is accepted of its value, and what secrets it got.

    Skip it if it cannot be written.

    Args:
        secrets: The names of their variables; no value is written.
    """
    # A ConfigError says that the user has no home folder.
    with contextlib.suppress(OSError, ConfigError):
        path = ledger_path()
        # The names of jobs may be confidential, so only the user may read the folder.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > LARGEST_BYTES:
            # An older file is lost: hosts know their jobs without it.
            path.replace(_before(path))
        entry: dict[str, Any] = {
            "id": job.id,
            "host": job.host,
            "config": str(config or ""),
            "name": job.name,
            "at": int(time.time()),
        }
        if results is not None and results != ResultPolicy():
            entry["results"] = results._asdict()
        if names := sorted(secrets):
            entry["secrets"] = names
        # Programs may write at the same time: each appends a whole line.
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def entries(job_id: str) -> set[LedgerEntry]:
    """Return where jobs whose id begins so were sent from this machine."""
    return set(_entries(f'"id": "{job_id}'))


def results_of(job_id: str, default: ResultPolicy) -> ResultPolicy:
    """Return what is accepted of the value of a job that was sent from this machine, and never less strictly."""
    policies = [entry.results for entry in _entries(f'"id": "{job_id}')]
    sizes = [policy.max_bytes for policy in policies if policy.max_bytes is not None]
    # The strictest policy counts: attaching must not accept more of the host than sending did.
    return ResultPolicy(
        default.data_only or any(policy.data_only for policy in policies), min(sizes, default=default.max_bytes)
    )


def secrets_of(job_id: str) -> set[str]:
    """Return the names of the variables that a job, by its whole id, got from this machine as secrets."""
    return {name for entry in _entries(f'"id": "{job_id}"') for name in entry.secrets}


def sent_within(job_id: str, seconds: float, hosts: Collection[str]) -> set[str]:
    """Return the ids that begin so of jobs recently sent to these hosts: they may still be on their way."""
    sent = [entry for entry in _entries(f'"id": "{job_id}') if entry.host in hosts]
    return {entry.id for entry in sent if abs(time.time() - entry.at) < seconds}


def hosts(config: Path | None) -> list[str]:
    """List the hosts of that file to which jobs were sent from this machine."""
    return sorted({entry.host for entry in _entries() if entry.config == str(config or "")})


def hosts_of(name: str) -> list[str]:
    """List the hosts to which jobs of that name were sent from this machine, the last one first."""
    normalized = unicodedata.normalize("NFC", name)
    in_order = [entry.host for entry in _entries() if unicodedata.normalize("NFC", entry.name) == normalized]
    return list(dict.fromkeys(reversed(in_order)))


def newest_ids(most: int) -> list[str]:
    """Return the ids of the jobs that were last sent from this machine, newest first."""
    ids = [entry.id for entry in map(_read, _lines()[-most:]) if entry is not None]
    return list(dict.fromkeys(reversed(ids)))


def _entries(text: str = "") -> list[LedgerEntry]:
    """Return the entries in whose lines this text is, oldest first."""
    # A line without the text is not parsed, because the file may have tens of thousands.
    return [entry for line in _lines() if text in line and (entry := _read(line)) is not None]


def _lines() -> list[str]:
    lines: list[str] = []
    with contextlib.suppress(ConfigError):
        for path in (_before(ledger_path()), ledger_path()):
            with contextlib.suppress(OSError):
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines


def _read(line: str) -> LedgerEntry | None:
    try:
        entry = json.loads(line)
        results = ResultPolicy(**entry.get("results", {}))
        names = tuple(map(str, entry.get("secrets", ())))
        at, name = float(entry.get("at", 0.0)), str(entry.get("name", ""))
        return LedgerEntry(str(entry["host"]), str(entry.get("config", "")), str(entry["id"]), at, results, names, name)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def ledger_path() -> Path:
    return places.state_folder() / "jobs.jsonl"


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def hosts_sent_with(entry: LedgerEntry) -> Mapping[str, Host]:
    """Return the hosts of the file with which a job was sent, or of the present one if that file is of no use.

    Raises:
        ConfigError: It cannot be read, and the present file has no such host.
    """
    present, file = config_file.load().hosts, Path(entry.config)
    try:
        return config_file.read(file).hosts if entry.config and file.exists() else present
    except ConfigError:
        if entry.host not in present:
            raise
        return present
