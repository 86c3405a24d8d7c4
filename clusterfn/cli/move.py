"""`clusterfn move`: move the root of a host to another folder there, with all jobs and environments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from clusterfn.calls import console
from clusterfn.cli import screen, target
from clusterfn.config import writing
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError
from clusterfn.hosts.environment_builder import describe_progress
from clusterfn.hosts.root_move import Step, move_root

_MOST_LEFT = 5


def move(given: argparse.Namespace) -> int:
    """Move it, and write the new root into clusterfn.yml. Return 1 if something is left to do."""
    known, host, _ = target.host(given.host, "move")
    if known.path is None or host.name not in known.named:
        raise ConfigError(
            f"no clusterfn.yml describes {host.name}, so clusterfn cannot write its new root there",
            hint=f"add the host to clusterfn.yml, with root: {host.root}",
        )
    writing.moving(host.name, given.folder, known.path)  # before hours are spent: can it be written?
    with _MoveProgress(host) as progress:
        told = move_root(host, given.folder, progress.show)
    change, written = writing.moving(host.name, given.folder, known.path), False
    if change is not None and host.root != given.folder:
        writing.write(change)
        written = True
    failed = [each for each in told["environments"] if each["why"]]
    if given.json:
        print(screen.as_json({**told, "host": host.name, "config": str(known.path), "written": written}))
    else:
        _print_moved(host, told, failed)
        _print_config(host, given.folder, str(known.path), change)
    return 1 if told["left"] else 0


class _MoveProgress(console.StatusLine):
    """Shows how far it is, in one line."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __enter__(self) -> _MoveProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line and console.can_redraw():
            self.redraw("")

    def show(self, told: Step) -> None:
        """Show one line of the host."""
        if told.get("step") == "copy":
            files, done, size = (int(told[name]) for name in ("files", "bytes", "of"))
            line = f"{files} files, {screen.size(done)} of {screen.size(size)}"
        elif told.get("step") == "build":
            line = f"building {told['about']}: {describe_progress(told['told'])}"
        elif told.get("step") == "remove":
            line = "removing the old root"
        else:
            return
        line = f"clusterfn: {self._host.name}: {line}"
        if console.can_redraw():
            self.redraw(line)
        else:
            self.say_if_changed(line)


def _print_moved(host: Host, told: Step, failed: Sequence[dict[str, Any]]) -> None:
    if told["from"] == told["root"]:
        console.tell(f"the root of {host.name} is {told['root']} already")
        return
    amount = f" ({told['files']} files, {screen.size(told['bytes'])})" if told["files"] else ""
    console.tell(f"the root of {host.name} has moved from {told['from']} to {told['root']}{amount}")
    for each in failed:
        console.warn(f"{each['about']} was not built there: {each['why']}; the next call that needs it builds it")
    for path in told["left"][:_MOST_LEFT]:
        console.warn(f"not removed: {path}")
    if len(told["left"]) > _MOST_LEFT:
        console.warn(f"not removed: {len(told['left']) - _MOST_LEFT} more")


def _print_config(host: Host, folder: str, path: str, change: writing.Change | None) -> None:
    if change is None:
        console.warn(f"write `root: {folder}` below {host.name} in {path}")
    elif host.root != folder:
        console.tell(f"changed {path}: {change.added[0]} for {host.name}")
    else:
        return
    console.tell(f"other machines and copies of the project need `root: {folder}` for {host.name}, too")
