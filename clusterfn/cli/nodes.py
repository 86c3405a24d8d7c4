"""The cards of a cluster's nodes, and the jobs that wait for cards: asked of SLURM, and written as two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from clusterfn.cli import screen
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.host_state import Session
from clusterfn.scheduler import slurm_gres
from clusterfn.scheduler.slurm import clusters

_HEAD = ("NODE", "STATE", "TYPE", "FREE")
_QUEUE_HEAD = ("WAITING", "", "FOR", "SUBMITTED", "")
_TIMEOUT_S = 60.0


def look(session: Session) -> dict[str, Any]:
    """`nodes` and `waiting`; both questions go out at once.

    Raises:
        ClusterfnError: SLURM does not answer.
        HostError: The host cannot be reached.
    """
    words = clusters(session.host)
    asked = [_ask(session, command(words)) for command in (slurm_gres.nodes_command, slurm_gres.waiting_command)]
    there, waiting = (reply.result(_TIMEOUT_S) for reply in asked)
    old = waiting.rc != 0
    if old:
        waiting = _ask(session, slurm_gres.waiting_command(words, old)).result(_TIMEOUT_S)
    found = slurm_gres.waiting(_text(session, waiting), old)
    user = session.connection.facts.user
    return {
        "nodes": [asdict(each) for each in slurm_gres.nodes(_text(session, there))],
        "waiting": [{**asdict(each), "own": each.user == user} for each in found],
    }


def _ask(session: Session, argv: tuple[str, ...]) -> Reply[Completed]:
    return session.connection.run(argv, unset=session.scheduler.unset, timeout_s=_TIMEOUT_S)


def _text(session: Session, answer: Completed) -> str:
    if answer.rc != 0:
        said = answer.err.decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError(
            "SLURM does not tell of its nodes and jobs", host=session.host.name, evidence=said, hint="try again later"
        )
    return answer.out.decode("utf-8", "replace")


def none(told: Mapping[str, Any]) -> str:
    """Why there is nothing to show; "" if there are cards."""
    return "" if told["nodes"] else "no node has a gres named gpu"


def lines(told: Mapping[str, Any]) -> str:
    """Both tables as text."""
    nodes = told["nodes"]
    rows = [(each["node"], each["state"], each["type"] or "-", _free(each)) for each in nodes]
    queue = [(_who(each), each["id"], each["wants"], each["submitted"], each["reason"]) for each in told["waiting"]]
    used = [each["used"] for each in nodes]
    free = "?" if None in used else sum(each["total"] for each in nodes) - sum(used)
    parts = [f"{free} of {sum(each['total'] for each in nodes)} GPUs free", screen.table(_HEAD, rows)]
    return "\n\n".join([*parts, *([screen.table(_QUEUE_HEAD, queue)] if queue else [])])


def _free(cards: Mapping[str, Any]) -> str:
    return f"{'?' if cards['used'] is None else cards['total'] - cards['used']} of {cards['total']}"


def _who(job: Mapping[str, Any]) -> str:
    return f"you: {job['name']}" if job["own"] else str(job["user"])
