"""`clusterfn run` of what is no function: a script, a command after `--`, a module after `-m`.

It runs once, or once for each of several values. Its standard input is read to its end before anything is sent. Where
it fails, the end of its stderr or its words may show what was meant.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from clusterfn.api.command import CommandText, PreparedCommand, command_as_shown, line_of_one_word, make_command
from clusterfn.api.decorator import ClusterFunction
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.calls.group import JobGroup
from clusterfn.cli import screen
from clusterfn.cli.submission import OPTIONS, await_sent, call_options, leave, start_detached
from clusterfn.config import config_file
from clusterfn.display import console
from clusterfn.errors import CommandFailed, ConfigError, MapError
from clusterfn.hosts import loop
from clusterfn.packing.project import Project
from clusterfn.scheduler.slurm.script import ARRAY_VARIABLE

_DECORATED = re.compile(r"^@(?:clusterfn\.)?cluster\b[^\n]*(?:\n[@ )#][^\n]*)*\n(?:async )?def (\w+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
# A typing error in a range, such as 0..99999999999, must not fill the memory.
_MOST_RUNS = 100_000


def run_script(args: argparse.Namespace) -> int:
    """Run the command on its host; its exit status becomes ours, 128 and more for a signal."""
    places = columns(args.map)
    command, title = _prepared(args, tuple(places), read_input(args.stdin))
    called = command.function
    if command.array:
        places[ARRAY_VARIABLE] = command.array
        args.max_parallel = args.max_parallel or command.max_parallel
    if places:
        return _run_for_each(called, places, args, title)
    if args.detach:
        return start_detached(called, (), {}, as_json=args.json)
    code, value, advice = 0, None, None
    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            value = called()
    except CommandFailed as error:
        code = error.exit_status
        if error.hint:
            # A command that could not be started has printed nothing, so only this hint says why.
            console.warn(f"{error.message}; {error.hint}")
        advice = advise(error, command.project, args)
    if args.json:
        key = "script" if title == args.target else "command"
        print(screen.as_json({key: title, "exit_status": code, **({"value": value} if args.result else {})}))
    elif code:
        console.warn(f"{title} has exited with status {code}")
        if advice:
            console.tell(advice)
        path = Path(title)
        match = path.is_file() and _DECORATED.search(path.read_text(encoding="utf-8", errors="replace"))
        if match:
            hint = f"python {title}, or for one function: clusterfn run {title}::{match[1]}"
            console.warn(f"{title} sends its functions itself, so it is meant to run here: {hint}")
    elif args.result:
        print(screen.as_json(value))
    return code


def describe_script(args: argparse.Namespace) -> str:
    """Return what `run` would send and start for a command."""
    command, _ = _prepared(args, ())
    return command.function.script(*command.array[:1])


def _prepared(
    args: argparse.Namespace, names: tuple[str, ...], stdin: str | None = None
) -> tuple[PreparedCommand, str]:  # fmt: skip
    """Return the command as a function, and how people read it."""
    words = [args.target, *args.script_words] if args.command_words is None else args.command_words
    if words and words[0].startswith("-"):
        hint = f"options of clusterfn come before --: clusterfn run [HOST] {words[0]} ... -- COMMAND"
        raise ConfigError(f"the command begins with the option {words[0]}", hint=hint)
    if args.command_words is None:
        script = Path(args.target)
        # The configuration is also searched next to the script, as for a script that Python runs itself.
        config_file.running(script)
        text, title = CommandText(tuple(words), "", ()), args.target
    else:
        text = line_of_one_word(words[0]) if len(words) == 1 else CommandText(tuple(words), "", ())
        title = command_as_shown(text)
    unused = [name for name in names if not any(f"{{{name}}}" in word for word in words)]
    if unused:
        hint = f"write it where its value goes: {title} --{unused[0]} {{{unused[0]}}}"
        raise ConfigError(f"the command has no place {{{unused[0]}}}", hint=hint)
    options = call_options(args)
    command = make_command(text._replace(names=names), options, args.result, stdin)
    if args.host:
        # $CLUSTERFN_HOST overrides the option `host`, and the HOST on the command line must override both.
        command = command._replace(function=command.function.on(args.host))
    return command, title


def columns(texts: list[str]) -> dict[str, list[str]]:
    """Read `lr=1e-3,1e-4` and `seed=0..9`: the values of each place.

    Raises:
        ConfigError: One is not written so.
    """
    by_name: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not _NAME.fullmatch(name) or not values:
            hint = "write it as --map lr=1e-3,1e-4 or --map seed=0..9"
            raise ConfigError(f"--map {text!r} names no values", hint=hint)
        if name in by_name:
            raise ConfigError(f"--map names {name} twice", hint=f"write all of its values once: --map {name}=A,B,C")
        by_name[name] = values.split(",")
        if between := _RANGE.fullmatch(values):
            first, last = int(between[1]), int(between[2])
            by_name[name] = [str(number) for number in range(first, min(last, first + _MOST_RUNS) + 1)]
    return by_name


def _run_for_each(
    called: ClusterFunction[..., Any], columns: dict[str, list[str]], args: argparse.Namespace, title: str
) -> int:  # fmt: skip
    """Run the command for each combination of values; return 1 if one fails."""
    rows = list(itertools.product(*columns.values()))
    limit = {} if args.max_parallel is None else {"max_parallel": args.max_parallel}
    group: JobGroup[Any, Any] = called.map(*map(list, zip(*rows)), **limit)
    if args.detach:
        await_sent(group)
        return leave(group, args.json)
    try:
        values = group.results()
    except MapError:
        if not args.json:
            raise
        values = list(group.failed.values())
    if args.json:
        outcomes: list[dict[str, Any]] = []
        for row, value in zip(rows, values):
            outcome = {"exit_status": 0, "value": value}
            if isinstance(value, CommandFailed):
                outcome = {"exit_status": value.exit_status}
            elif isinstance(value, BaseException):
                outcome = {"exit_status": None, "error": str(value)}
            outcomes.append({"arguments": dict(zip(columns, row)), **outcome})
        print(screen.as_json(outcomes))
    elif args.result:
        for row, value in zip(rows, values):
            labels = " ".join(f"{name}={each}" for name, each in zip(columns, row))
            print(f"{labels}  {value if isinstance(value, BaseException) else screen.as_json(value)}")
    return 1 if group.failed else 0


# The exit status of argparse, click and getopt for wrong options.
_WRONG_USAGE = 2
_ADVICE = (
    (re.compile(r"\b(?:conda|mamba|micromamba): (?:command )?not found|[Cc]onda init"),
     "the command already runs in the environment of the host; for another: --environment conda:NAME"),
    (re.compile(r"\bmodule: (?:command )?not found"),
     "the host loads modules before the command: modules: [NAME] below the host in clusterfn.yml"),
)  # fmt: skip
_MISSING = re.compile(r"No such file|not found|cannot (?:find|open|access)|does not exist", re.IGNORECASE)
_WORDS = re.compile(r"[^\s'\"`,;:()\[\]]+")
_KEPT_OUT = (
    "{} is here, but was not sent: .gitignore, or its name, keeps it out; change that, or put the file on the host and "
    "pass its path there"
)
_EMPTY = "{} is an empty folder here, and only files are sent: let the command begin with mkdir -p {}"


def advise(error: CommandFailed, project: Project | None, args: argparse.Namespace) -> str | None:
    """Return what to do about a failed command; None if nothing shows it."""
    after = args.script_words if args.command_words is None else args.command_words
    options = {f"--{name.replace('_', '-')}" for name in (*OPTIONS, "detach", "partition", "map")}
    stray = next((word for word in after or () if word.partition("=")[0] in options), None)
    if error.exit_status == _WRONG_USAGE and stray:
        place = "the script" if args.command_words is None else "--"
        return f"{stray} went to the command: options of clusterfn come before {place}"
    lines = error.evidence or ()
    for pattern, what in _ADVICE:
        if any(pattern.search(line) for line in lines):
            return what
    name = _left_out(lines, project) if project is not None else None
    if name is None or project is None:
        return None
    folder = Path(project, name)
    return (_EMPTY if folder.is_dir() and not any(folder.iterdir()) else _KEPT_OUT).format(name, name)


def _left_out(lines: Sequence[str], project: Project) -> str | None:
    """Return a file that a line misses, or the folder of one, that is in the project's folder and was not sent."""
    root = Path(project)
    members: set[str] = set()
    for line in filter(_MISSING.search, lines):
        for word in _WORDS.findall(line):
            full_path = Path(os.path.normpath(root / word))
            path = next((each for each in (full_path, *full_path.parents) if each.exists()), root)
            if root not in path.parents:
                continue
            name: str = path.relative_to(root).as_posix()
            if not members:
                members = {each for each, _ in project.members()}
            if not any(each == name or each.startswith(f"{name}/") for each in members):
                return name
    return None


# All of the input is sent with the job, so larger input belongs into a file on the host.
MOST_BYTES = 200 << 20
_PIECE = 1 << 20


def read_input(source_name: str | None) -> str | None:
    """Return the file that a command reads: the one that `--stdin` names, or a copy of what comes in; None for nothing.

    A terminal is never read. A socket is read only for `--stdin -`: programs below `ssh` and editors inherit one
    that never ends.

    Raises:
        ConfigError: There is nothing to read for `--stdin -`, or more than a job may get so.
    """
    if source_name not in (None, "-"):
        return source_name
    source = _source(source_name == "-")
    if source is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-stdin-"))
    # Functions registered first run last, so this removes the file only after everything was sent.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with loop.speaking(lambda: "reading standard input to its end; add < /dev/null if the command needs none"):
        count = _copy(source, folder / "stdin")
    if not count:
        return None
    console.tell(f"the command gets {format_size(count)} of standard input")
    return str(folder / "stdin")


def _source(is_required: bool) -> BinaryIO | None:
    mode = 0
    with contextlib.suppress(AttributeError, OSError, ValueError):
        # Standard input may be closed, or replaced by an object without a file.
        mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or (is_required and stat.S_ISSOCK(mode)):
        return sys.stdin.buffer
    if is_required:
        hint = "pipe into it, as in: cat input.txt | clusterfn run ..., or name a file: --stdin input.txt"
        raise ConfigError("--stdin - reads a pipe or a file, and standard input is neither", hint=hint)
    return None


def _copy(source: BinaryIO, path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        while piece := source.read(_PIECE):
            count += len(piece)
            if count > MOST_BYTES:
                hint = "write it into a file: --stdin FILE, or keep it on the host, and name its path there"
                raise ConfigError(f"standard input is more than {format_size(MOST_BYTES)}", hint=hint)
            file.write(piece)
    return count
