"""The words of `clusterfn env`."""

from __future__ import annotations

import argparse
from typing import Any

from clusterfn.cli.env import building, keeping, locking, showing

_WORDS = "a file such as environment.yml (the host's, else ./environment.yml), and the name of a host"
_HOST = "its name in clusterfn.yml (the one that a call would use)"
_ID = "an environment's id, or its first digits, or the file it was made from"
_GPUS = "choose the build of PyTorch as for a job with so many cards"


def add(env: argparse.ArgumentParser) -> None:
    """Give the command its commands."""
    commands = env.add_subparsers(metavar="COMMAND", dest="what", parser_class=argparse.ArgumentParser, required=True)
    _making(commands)
    _looking(commands)
    _removing(commands)


def _making(commands: Any) -> None:
    command = _add(commands, "lock", locking.lock, "decide which packages make an environment, and write that down")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=f"{_WORDS}, or several hosts")
    _packages(command)
    about = "for a platform such as linux-64 instead of a host: glibc 2.17 and no card are supposed"
    command.add_argument("--platform", metavar="NAME", help=about)
    about = "for a job with so many cards (without it: for the cards that the host is known to have)"
    command.add_argument("--gpus", metavar="N", type=int, help=about)
    command.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is out of date")
    command = _add(commands, "build", building.build, "build an environment on a host, before any job wants it")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=_WORDS)
    _packages(command)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=_GPUS)


def _looking(commands: Any) -> None:
    command = _add(commands, "list", showing.listing, "the environments on a host, the one used last first")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--json", action="store_true", help="one JSON array, times in seconds since 1970")
    command = _add_one(commands, "show", showing.show, "all that is known of an environment")
    command.add_argument("--json", action="store_true", help="one JSON object")
    command = _add_one(commands, "verify", keeping.verify, "mend what is missing, and see that its packages work")
    command.add_argument("--gpus", metavar="N", type=int, default=0, help="and that PyTorch works on a card, by a job")


def _removing(commands: Any) -> None:
    _add_one(commands, "remove", keeping.remove, "remove an environment that no job uses")
    command = _add(commands, "gc", keeping.collect, "remove environments that were not used for long")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--days", metavar="N", type=float, default=30.0, help="not used for so many days (30)")
    command.add_argument("--keep", metavar="N", type=int, default=5, help="but for the so many used last (5)")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would go")


def _packages(command: argparse.ArgumentParser) -> None:
    about = 'instead of a file, as packages= of @cluster: "python=3.11" "numpy>=2"'
    command.add_argument("--packages", metavar="PACKAGE", nargs="+", default=[], help=about)


def _add_one(commands: Any, name: str, run: Any, about: str) -> argparse.ArgumentParser:
    command = _add(commands, name, run, about)
    command.add_argument("id", metavar="ID", help=_ID)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    return command


def _add(commands: Any, name: str, run: Any, about: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    command.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command.set_defaults(run=run)
    return command
