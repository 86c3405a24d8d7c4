"""`clusterfn env build`: an environment on a host before any job wants it, with its progress."""

from __future__ import annotations

import argparse
import sys

from clusterfn.calls import environment_upload
from clusterfn.cli import screen
from clusterfn.cli.env import showing, which
from clusterfn.config.spec import Resources
from clusterfn.environment.making import Made
from clusterfn.errors import ConfigError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.environment_builder import Told
from clusterfn.hosts.host_state import CALLER, Session

_QUARTERS = 4


def build(given: argparse.Namespace) -> int:
    """Build it; on stdout its id."""
    words = which.told_apart(given.words)
    if len(words.hosts) > 1:
        raise ConfigError(f"several hosts are named: {', '.join(words.hosts)}", hint="build on one after the other")
    session = which.session(words.hosts[0] if words.hosts else None, "build")
    spec = which.specification(words.file, given.packages, session.host)
    session.enough(Resources(gpus=given.gpus))
    made = environment_facts.made(session, spec, given.gpus, CALLER, which.say)
    if made.why:
        which.say(made.why)
    shown = _Shown()
    try:
        new = environment_upload.build(session, made, shown.say, shown.progress)
    except KeyboardInterrupt:
        shown.say(f"the build goes on on {session.host.name}, unless nothing was sent yet; the same command follows it")
        raise
    finally:
        shown.clear()
    which.say(_result(session, made, new))
    print(made.id)
    return 0


def _result(session: Session, made: Made, new: bool) -> str:
    ready = showing.ready(session, made.prefix)
    size = f"{len(ready['packages'])} packages, {screen.size(ready['bytes'])}, {ready['files']} files"
    what = f"Python {ready['python']}, {size}"
    if not new:
        return f"{made.title} is there already, on {session.host.name}: {what}"
    return f"{made.title} is built on {session.host.name}: {what}; {showing.seconds(ready['seconds'])}"


class _Shown:
    """One line rewritten on a terminal; elsewhere a line for each quarter of a stage."""

    def __init__(self) -> None:
        self._line = screen.Line(sys.stderr)

    def say(self, sentence: str) -> None:
        """A sentence that stays."""
        self._line.clear()
        which.say(sentence)

    def progress(self, told: Told) -> None:
        """How far it is."""
        of = told.get("of") or 1
        self._line.show(
            f"clusterfn: {environment_builder.in_words(told)}",
            f"{told['stage']} {told.get('done', 0) * _QUARTERS // of}",
        )

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()
