"""Brings an environment's archives to a host that lacks them, and starts its builder there: nothing twice.

The host fetches what it can reach, and is sent the rest. The builder goes on by itself; the job waits for it on the
host. Called by `send`.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clusterfn import layout
from clusterfn.environment import fetching, zstd
from clusterfn.environment.lock import Package
from clusterfn.environment.making import Made
from clusterfn.errors import EnvironmentBuildError
from clusterfn.host import Reply
from clusterfn.session import Session

Say = Callable[[str], None]

_TIMEOUT_S = 120.0
_EVERY_S = 5.0


def ship(session: Session, made: Made, say: Say) -> list[Reply[Any]]:
    """Requests that must end well before a job of this environment is started; none if it is there.

    Raises:
        EnvironmentBuildError: A package cannot be fetched, here and there.
    """
    if not session.missing([made.ready]):
        return []
    before = session.lay_out_bridge()
    lacking = _ask(session, made, before)
    theirs, ours = _divide(session, made, lacking)
    say(_in_words(session, made, theirs, ours))
    sent = [*before, *_send(session, made, ours, say)]
    plan = posixpath.join(layout.build_dir(made.root, made.id), layout.PLAN)
    document = json.dumps(_document(session, made, fetch=bool(theirs))).encode()
    planned = session.connection.put(plan, document, after=sent)
    if session.host.making.build_on == "host":
        log = posixpath.join(posixpath.dirname(plan), "log")
        session.connection.spawn([*session.builder, "build", plan], made.root, log, after=[planned])
    return [*sent, planned]


def _ask(session: Session, made: Made, before: Sequence[Reply[Any]]) -> dict[str, Any]:
    """What the host lacks, and which of it it cannot reach."""
    document = _document(session, made, fetch=session.host.making.fetch_on != "client")
    asked = session.connection.run(
        [*session.builder, "lacking"], stdin=json.dumps(document).encode(), timeout_s=_TIMEOUT_S, after=before
    )
    answer = asked.result(_TIMEOUT_S)
    lines = answer.out.splitlines()
    if answer.rc != 0 or not lines:
        said = [line.decode("utf-8", "replace") for line in (answer.out + answer.err).splitlines()[-5:]]
        raise EnvironmentBuildError(
            "the host cannot say what it lacks for the environment", host=session.host.name, stage="environment",
            evidence=said, hint="see whether env_root: is a folder that you may write to",
        )  # fmt: skip
    return dict(json.loads(lines[-1]))


def _divide(session: Session, made: Made, lacking: dict[str, Any]) -> tuple[list[Package], list[Package]]:
    """What the host fetches, and what is sent."""
    wheel = _zstd(session)
    wanted = {each.sha256: each for each in [*made.lock.on(made.platform), *([wheel] if wheel else [])]}
    missing = [wanted[sha256] for sha256 in lacking["missing"]]
    if session.host.making.fetch_on == "host":
        return missing, []
    ours = set(lacking["unreachable"]) if session.host.making.fetch_on == "auto" else set(lacking["missing"])
    return [each for each in missing if each.sha256 not in ours], [each for each in missing if each.sha256 in ours]


def _in_words(session: Session, made: Made, theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    count = len(made.lock.on(made.platform))
    parts = [f"{session.host.name} fetches {len(theirs)}"] if theirs else []
    parts += [f"{len(ours)} are sent"] if ours else []
    parts += [f"{count - len(theirs) - len(ours)} are there"] if len(theirs) + len(ours) < count else []
    return f"{made.title}: environment {made.id[:8]} of {count} packages: {', '.join(parts)}"


def _send(session: Session, made: Made, packages: Sequence[Package], say: Say) -> Iterator[Reply[Any]]:
    if not packages:
        return
    said = _Said(say)
    for sha256, path in fetching.fetch(packages, said.fetched).items():
        target = layout.blob(made.root, sha256)
        yield session.connection.put(target, path, mode=0o600, sha256=sha256)


class _Said:
    """Progress of fetching, told now and then."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._next = time.monotonic() + _EVERY_S

    def fetched(self, done: int, of: int, size: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            self._say(f"fetching here: {done} of {of} packages, {size >> 20} MB")


def _document(session: Session, made: Made, fetch: bool) -> dict[str, Any]:
    """plan.json, as decision 14 describes it."""
    wheel = _zstd(session)
    return {
        "format": layout.FORMAT,
        "id": made.id,
        "root": made.root,
        "platform": made.platform,
        "python": list(made.interpreter.version),
        "packages": [_entry(each) for each in made.lock.on(made.platform)],
        "fetch": fetch,
        "zstd": _entry(wheel) if wheel else None,
        "verify": [],
        "purged": session.host.making.purge_days is not None,
        "about": made.title,
    }


def _zstd(session: Session) -> Package | None:
    facts = session.connection.facts
    return zstd.wheel(facts.version, facts.platform.partition("-")[2])


def _entry(package: Package) -> dict[str, Any]:
    names = ("name", "version", "build", "manager", "file", "url", "sha256")
    return {name: getattr(package, name) for name in names}
