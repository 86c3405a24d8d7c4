"""What a host is asked before an environment is made for it: where environments lie, and what its cards are.

Sends nothing but these questions.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.environment import making
from clusterfn.environment.cuda import Cards
from clusterfn.environment.making import Made, Say
from clusterfn.environment.specification import Specification
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts import remote_files

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import Session

_TIMEOUT_S = 60.0
_EXPAND = "import os, sys; print(os.path.expanduser(os.path.expandvars(sys.argv[1])))"
_CARDS = ["--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]


def made(session: Session, spec: Specification, gpus: int, caller: tuple[int, int], say: Say) -> Made:
    """The environment of a specification on the session's host.

    Raises:
        LockError, EnvironmentBuildError, ConfigError: As `making.make`.
    """
    told = facts(session)
    try:
        return making.make(spec, session.host, told, cards(session, told["root"]) if gpus else None, caller, say)
    except EnvironmentBuildError as error:
        error.host = session.host.name
        raise


def stale(session: Session, spec: Specification, gpus: int, caller: tuple[int, int]) -> str:
    """Why the lock that is there does not do for the session's host; "" if it does."""
    told = facts(session)
    return making.stale(spec, session.host, told, cards(session, told["root"]) if gpus else None, caller)


def facts(session: Session) -> dict[str, str]:
    """What a lock for the host depends on, and where environments lie there."""
    known = session.connection.facts
    return {"platform": known.platform, "glibc": known.glibc, "root": root(session), "uid": str(known.uid)}


def root(session: Session) -> str:
    """The folder below which environments lie on the host, absolute.

    Raises:
        ConfigError: `env_root:` is no absolute path there.
    """
    wanted = session.host.making.root
    if wanted is None or wanted == session.host.root:
        return session.root
    if wanted.startswith("/") and "$" not in wanted:
        return posixpath.normpath(wanted)
    python = session.connection.facts.python
    answer = session.connection.run([python, "-I", "-S", "-c", _EXPAND, wanted]).result(_TIMEOUT_S)
    found = answer.out.decode("utf-8", "surrogateescape").strip()
    if not found.startswith("/") or "$" in found:
        raise ConfigError(
            f"env_root: {wanted} is not an absolute path on {session.host.name}", host=session.host.name,
            evidence=[found or "nothing"], hint="is a variable unset there?",
        )  # fmt: skip
    return posixpath.normpath(found)


def cards(session: Session, environments: str) -> Cards:
    """What is known of the cards that a job of this host gets: from clusterfn.yml, the machine, or an earlier job."""
    return known_cards(session, environments) or making.unknown_cards(session.host)


def known_cards(session: Session, environments: str) -> Cards | None:
    """The same, without a guess."""
    if session.host.making.driver:
        return making.unknown_cards(session.host)
    return _remembered(session, environments) if session.host.scheduler == "slurm" else _asked(session)


def _asked(session: Session) -> Cards | None:
    argv = ["/bin/sh", "-c", 'command -v nvidia-smi >/dev/null && exec nvidia-smi "$@"', "sh", *_CARDS]
    answer = session.connection.run(argv, timeout_s=20.0).result(_TIMEOUT_S)
    rows = [line.split(", ") for line in answer.out.decode("utf-8", "replace").splitlines() if line.count(", ") == 1]
    if answer.rc != 0 or not rows:
        return None
    return Cards(rows[0][0].strip(), _capabilities(row[1] for row in rows), f"nvidia-smi says on {session.host.name}")


def _remembered(session: Session, environments: str) -> Cards | None:
    """What the last job on the partition saw."""
    partition = session.host.slurm.get("partition")
    name = partition.get("gpu", "") if isinstance(partition, dict) else partition or ""
    path = posixpath.join(environments, layout.CARDS, f"{name or layout.DEFAULT}.json")
    text = remote_files.read_text(session.connection, path)
    try:
        told: dict[str, Any] = json.loads(text) if text else {}
        return Cards(told["driver"], _capabilities(told["capabilities"]), f"the last job saw on {told['node']}")
    except (ValueError, KeyError, TypeError):
        return None


def _capabilities(told: Any) -> tuple[str, ...]:
    found = {str(each).strip() for each in told}
    return tuple(sorted(each for each in found if each.replace(".", "").isdigit()))
