"""`clusterfn run` and `script`: a function in a file, a script, a command after `--`, or a module after `-m`.

What is no function runs once, or once for each of several values. Its standard input is read to its end before anything
is sent. `clusterfn demo` runs calls on this machine alone.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import inspect
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterfn.api.command import (
    CommandText,
    PreparedCommand,
    command_as_shown,
    line_of_one_word,
    make_command,
)
from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.bridge.worker.command_line import places_in
from clusterfn.calls import call
from clusterfn.calls.group import JobGroup
from clusterfn.cli import target
from clusterfn.cli.submission import advise, await_sent, call_options, leave, start_detached
from clusterfn.config import config_file
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, CommandFailed, ConfigError, MapError
from clusterfn.hosts import loop
from clusterfn.scheduler.job_script import read_template
from clusterfn.scheduler.slurm.script import ARRAY_VARIABLE


def run(args: argparse.Namespace) -> int:
    """Call the function on its host; its value goes to stdout, as repr or as JSON. Commands run as they are."""
    with target.host_hints(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    if args.script_words is not None or args.command_words is not None:
        return _run_script(args)
    columns(args.map)
    for name in ("map", "result", "stdin", "max_parallel") if "::" in args.target else ():
        if getattr(args, name):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is for commands and scripts", hint="call the function in Python: f.map(…)")
    if args.detach:
        called, positional, kwargs = _call(args)
        return start_detached(called, positional, kwargs, as_json=args.json)
    # With --json, stdout has only the value. What the file and its jobs print goes to stderr.
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        called, positional, kwargs = _call(args)
        # Calling an async function returns a coroutine, and sends nothing.
        if inspect.iscoroutinefunction(called.__wrapped__):
            value = call.run_call(called.__wrapped__, positional, kwargs, called.options)
        else:
            value = called(*positional, **kwargs)
    print(written(value, args.json))
    return 0


def script(args: argparse.Namespace) -> int:
    """Show what `run` would send and start."""
    with target.host_hints(args):
        if args.script_words is not None or args.command_words is not None:
            command, _ = _prepared(args, {})
            text = command.function.script(*command.array[:1])
        else:
            called, positional, kwargs = _call(args)
            text = called.script(*positional, **kwargs)
    print(console.as_json({"script": text}) if args.json else text)
    return 0


def _call(args: argparse.Namespace) -> tuple[ClusterFunction[Any, Any], tuple[Any, ...], dict[str, Any]]:
    function = target.function(args.target, args.words)
    positional, kwargs = target.arguments(args.words)
    target.check_arguments(function, positional, kwargs)
    decorated = function if isinstance(function, ClusterFunction) else cluster(function)
    return decorated.with_options(**call_options(args)), positional, kwargs


def written(value: Any, as_json: bool) -> str:
    """Format a value; raise ClusterfnError if JSON has no word for it."""
    try:
        return json.dumps(value, ensure_ascii=False) if as_json else repr(value)
    except RecursionError:
        hint = "take it in Python: clusterfn.attach(ID).result()"
        raise ClusterfnError("the value is nested too deeply to be printed", hint=hint) from None
    except (TypeError, ValueError) as error:
        if not as_json:
            # The value's own `__repr__` has failed, which only its author can fix.
            raise
        hint = "leave out --json, or return plain lists and dicts"
        raise ClusterfnError(f"the value cannot be written as JSON: {error}", hint=hint) from error


_DECORATED = re.compile(r"^@(?:clusterfn\.)?cluster\b[^\n]*(?:\n[@ )#][^\n]*)*\n(?:async )?def (\w+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
# A typing error in a range, such as 0..99999999999, must not fill the memory.
_MOST_RUNS = 100_000


def _run_script(args: argparse.Namespace) -> int:
    """Run the command on its host; its exit status becomes ours, 128 and more for a signal."""
    places = columns(args.map)
    command, title = _prepared(args, places, read_input(args.stdin))
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
        print(console.as_json({key: title, "exit_status": code, **({"value": value} if args.result else {})}))
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
        print(console.as_json(value))
    return code


def _prepared(
    args: argparse.Namespace, values: Mapping[str, Sequence[str]], stdin: str | None = None
) -> tuple[PreparedCommand, str]:
    """Return the command as a function, and how people read it.

    Args:
        values: Those of each place, which are checked here.
    """
    words = [args.target, *args.script_words] if args.command_words is None else args.command_words
    if words and words[0].startswith("-"):
        hint = f"options of clusterfn come before --: clusterfn run [HOST] {words[0]} ... -- COMMAND"
        raise ConfigError(f"the command begins with the option {words[0]}", hint=hint)
    if args.command_words is None:
        script = Path(args.target)
        # The configuration is also searched next to the script, as for a script that Python runs itself.
        config_file.running(script)
        text = CommandText(tuple(words), "", ())
        title = args.target
    else:
        text = line_of_one_word(words[0]) if len(words) == 1 else CommandText(tuple(words), "", ())
        title = command_as_shown(text)
    for name in values:
        if name not in places_in(words):
            hint = f"write it where its value goes: {title} --{name} {{{name}}}"
            raise ConfigError(f"the command has no place {{{name}}}", hint=hint)
    options = call_options(args)
    command = make_command(text._replace(names=tuple(values)), options, args.result, stdin)
    if args.host:
        # $CLUSTERFN_HOST overrides the option `host`, and the HOST on the command line must override both.
        command = command._replace(function=command.function.on(args.host))
    return command, title


def columns(texts: list[str]) -> dict[str, list[str]]:
    """Read `lr=1e-3,1e-4` and `seed=0..9`: the values of each place; raise ConfigError if one is not written so."""
    by_name: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        between = _RANGE.fullmatch(values)
        first, last = map(int, between.groups()) if between else (0, 0)
        if not equals or not _NAME.fullmatch(name) or not values or first > last:
            hint = "write it as --map lr=1e-3,1e-4 or --map seed=0..9"
            raise ConfigError(f"--map {text!r} names no values", hint=hint)
        if name in by_name:
            raise ConfigError(f"--map names {name} twice", hint=f"write all of its values once: --map {name}=A,B,C")
        if "\n" in values:
            message = f"--map {name}=… has a line break in its values"
            raise ConfigError(message, hint=f"put commas between them: --map {name}=$(seq -s, 0 9), or {name}=0..9")
        by_name[name] = values.split(",")
        if between:
            by_name[name] = [str(number) for number in range(first, min(last, first + _MOST_RUNS) + 1)]
    return by_name


def _run_for_each(
    called: ClusterFunction[..., Any], columns: dict[str, list[str]], args: argparse.Namespace, title: str
) -> int:
    """Run the command for each combination of values; return 1 if one fails."""
    rows = list(itertools.product(*columns.values()))
    limit = {} if args.max_parallel is None else {"max_parallel": args.max_parallel}
    group: JobGroup[Any, Any] = called.map(*map(list, zip(*rows)), **limit)
    if args.detach:
        await_sent(group)
        return leave(group, args.json)
    try:
        values = group.results()
    except MapError as error:
        if not args.json:
            # The hint of this error names Python calls, so replace it by a command.
            error.hint = f"clusterfn logs {group.id[:SHORT]} shows what each item printed"
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
        print(console.as_json(outcomes))
    elif args.result:
        for row, value in zip(rows, values):
            labels = " ".join(f"{name}={label}" for name, label in zip(columns, row))
            print(f"{labels}  {value if isinstance(value, BaseException) else console.as_json(value)}")
    return 1 if group.failed else 0


def read_input(file: str | None) -> str | None:
    """Return the file that a command reads: the one that `--stdin` names, or a copy of what comes in; None for nothing.

    Neither a terminal is read nor a socket: programs below `ssh` and editors inherit one that never ends.
    """
    mode = 0
    with contextlib.suppress(AttributeError, OSError, ValueError):
        # Standard input may be closed, or replaced by an object without a file.
        mode = os.fstat(sys.stdin.fileno()).st_mode
    if file is not None or not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return file
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-stdin-"))
    # Functions registered first run last, so this removes the file only after everything was sent.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / "stdin"
    said = "reading standard input to its end; add < /dev/null if the command needs none"
    with loop.speaking(lambda: said), copy.open("wb") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
    if not (count := copy.stat().st_size):
        return None
    console.tell(f"the command gets {format_size(count)} of standard input")
    return str(copy)


_DEMO_CONFIG = """\
# Written by `clusterfn demo`: one host, which is this machine.
hosts:
  local:
    scheduler: local
    root: {root}
"""
_DEMO_PATIENCE_S = 115.0
_REMOVAL_S = 5.0


def demo(args: argparse.Namespace) -> int:
    """Run templates/demo.py in a temporary folder, as a user's own script; 0 if everything was as expected."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-demo-"))
    try:
        (folder / "demo.py").write_text(read_template("demo.py"), encoding="utf-8")
        config = folder / "clusterfn.yml"
        config.write_text(_DEMO_CONFIG.format(root=folder / "root"), encoding="utf-8")
        # The user's own settings must not send the demo to a host.
        env = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERFN_")}
        env.update(CLUSTERFN_CONFIG=str(config), XDG_STATE_HOME=str(folder / "state"), PYTHONUNBUFFERED="1")
        return subprocess.run([sys.executable, "demo.py"], cwd=folder, env=env, timeout=_DEMO_PATIENCE_S).returncode
    except subprocess.TimeoutExpired:
        print(f"clusterfn: the demo was stopped after {_DEMO_PATIENCE_S:.0f} s", file=sys.stderr)
        return 1
    finally:
        # The supervisor of the last job may write into it meanwhile.
        until = time.monotonic() + _REMOVAL_S
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.02)
