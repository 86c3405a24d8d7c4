"""`clusterfn env list` and `show`: what lies on a host, and all that is known of one environment."""

from __future__ import annotations

import argparse
import json
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.cli import screen
from clusterfn.cli.env import which
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import environment_builder, environment_facts, remote_files
from clusterfn.hosts.environment_builder import Built
from clusterfn.hosts.host_state import Session

_HEAD = ("ID", "MADE FROM", "PYTHON", "CUDA", "SIZE", "FILES", "AGE", "USED", "USED BY")
_DIGITS = 8
_ABOUT = 40
_SHOWN_JOBS = 3


def listing(given: argparse.Namespace) -> int:
    """The environments of a host, the one used last first."""
    session = which.session(given.host, "list")
    found = environment_builder.environments(session, environment_facts.root(session))
    if given.json:
        print(screen.as_json([asdict(each) for each in found]))
    elif found:
        print(screen.table(_HEAD, _rows(found)))
        total = screen.size(sum(each.size for each in found))
        which.say(f"{len(found)} environments, {total}; files that several share count in each of them")
    else:
        which.say(f"no environments on {session.host.name}")
    return 0


def _rows(found: Sequence[Built]) -> Iterator[list[str]]:
    now = time.time()
    for each in found:
        about = each.about if len(each.about) <= _ABOUT else each.about[: _ABOUT - 1] + "…"
        ages = [screen.age(now - each.built), screen.age(now - each.used)]
        sizes = [screen.size(each.size), str(each.files)]
        yield [each.id[:_DIGITS], about, each.python, each.cuda or "-", *sizes, *ages, _users(each.used_by)]


def _users(jobs: Sequence[str]) -> str:
    shown = " ".join(job[:_DIGITS] for job in jobs[:_SHOWN_JOBS])
    return f"{shown} and {len(jobs) - _SHOWN_JOBS} more" if len(jobs) > _SHOWN_JOBS else shown


def show(given: argparse.Namespace) -> int:
    """All that is known of one."""
    session = which.session(given.host, "show")
    built = which.one(given.id, session)
    prefix = layout.environment_dir(environment_facts.root(session), built.id)
    told, plan = ready(session, prefix), plan_of(session, prefix)
    if given.json:
        print(screen.as_json({**asdict(built), "prefix": prefix, "ready": told, "plan": plan}))
        return 0
    facts = [(name, in_one_line(value)) for name, value in _facts(built, prefix, told, plan) if value]
    print("\n".join(f"{name:<12}{value}" for name, value in facts))
    print(screen.table(("PACKAGE", "VERSION", "BUILD", "BY"), sorted(told["packages"])))
    return 0


def _facts(built: Built, prefix: str, told: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    now = time.time()
    yield "id", built.id
    yield "made from", built.about
    yield "asked for", " ".join(plan.get("wanted") or ())
    yield "folder", prefix
    yield "python", built.python
    yield "CUDA", built.cuda or ("none" if built.cuda == "" else "")
    yield "because", plan.get("why") or ""
    yield "locked for", _virtual(plan.get("virtual") or {})
    yield (
        "size",
        f"{screen.size(built.size)} in {built.files} files; {screen.size(told['fetched'])} fetched by the host",
    )
    yield "built", f"{screen.age(now - built.built)} ago on {told['host']}, in {seconds(told['seconds'])}"
    yield "used", f"{screen.age(now - built.used)} ago"
    yield "used by", " ".join(built.used_by)
    yield "messages", " / ".join(told["messages"])


def seconds(stages: Mapping[str, Any]) -> str:
    """How long each stage took, and all of them.

    Example:
        >>> seconds({"packages": 4.0, "link": 0.5})
        '4.5 s (packages 4.0, link 0.5)'
    """
    each = ", ".join(f"{name} {value:.1f}" for name, value in stages.items())
    return f"{sum(stages.values()):.1f} s ({each})"


def _virtual(packages: Mapping[str, str]) -> str:
    """What was taken to be on the host.

    Example:
        >>> _virtual({"__glibc": "2.28", "__unix": "0"})
        'glibc 2.28'
    """
    return ", ".join(f"{name.lstrip('_')} {value}" for name, value in packages.items() if value != "0")


def ready(session: Session, prefix: str) -> dict[str, Any]:
    """What the builder wrote when it was done."""
    return _read(session, posixpath.join(prefix, layout.READY))


def plan_of(session: Session, prefix: str) -> dict[str, Any]:
    """What the builder was told to make."""
    return _read(session, posixpath.join(prefix, layout.ABOUT, layout.PLAN))


def _read(session: Session, path: str) -> dict[str, Any]:
    text = remote_files.read_text(session.connection, path)
    if not text:
        raise ClusterfnError(
            f"{path} is not there any more", host=session.host.name, hint="clusterfn env verify mends what is missing"
        )
    return dict(json.loads(text))
