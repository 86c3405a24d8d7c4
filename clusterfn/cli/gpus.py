"""`clusterfn gpus HOST`: who holds which card, who uses one without a lease, who waits; once, or again and again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import job_display
from clusterfn.cli import cards, nodes, screen, target
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.host_state import Session, open_session

_EVERY_S = 2.0
_EVERY_ON_SLURM_S = 10.0  # its controller serves everybody


@dataclass(frozen=True)
class Kind:
    """How a host is looked at.

    Attributes:
        look: Asks it; what it told, for `--json`.
        lines: The same for people; it may remember earlier looks.
        none: Whether there are no cards, and what to say then.
    """

    look: Callable[[Session], dict[str, Any]]
    lines: Callable[[dict[str, Any]], str]
    none: Callable[[dict[str, Any]], str]
    every_s: float


def gpus(given: argparse.Namespace) -> int:
    """The cards of a host and their queue."""
    _, host, _ = target.host(given.host, "gpus")
    session, kind = open_session(host), _kind(host)
    return _watch(session, kind, given.json) if given.watch else _once(session, kind, given.json)


def _kind(host: Host) -> Kind:
    if host.scheduler == "slurm":
        return Kind(nodes.look, nodes.lines, nodes.none, max(_EVERY_ON_SLURM_S, host.poll_floor_s))
    return Kind(cards.look, cards.Lines(time.monotonic).of, cards.none, _EVERY_S)


def _once(session: Session, kind: Kind, as_json: bool) -> int:
    told = kind.look(session)
    none = kind.none(told)
    if as_json:
        print(_json(session, told))
    elif not none:
        print(kind.lines(told))
    if none:
        job_display.say(f"clusterfn: no GPUs on {session.host.name}: {none}\n")
    return 0


def _watch(session: Session, kind: Kind, as_json: bool) -> int:
    """Until Ctrl-C; a look that fails is shown in its place, and the next one may be better."""
    block = screen.Block(sys.stdout)
    while True:
        try:
            told = kind.look(session)
        except ClusterfnError as error:
            told, text = {"trouble": error.message}, in_one_line(error.message)
        else:
            text = kind.none(told) or kind.lines(told)
        if as_json:
            print(_json(session, told), flush=True)
        else:
            block.show(f"{session.host.name}, {time.strftime('%H:%M:%S')}\n{text}")
        time.sleep(kind.every_s)


def _json(session: Session, told: dict[str, Any]) -> str:
    return screen.as_json({"host": session.host.name, "scheduler": session.host.scheduler, **told})
