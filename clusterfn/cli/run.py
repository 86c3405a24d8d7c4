"""`clusterfn run` and `script`: a function in a file (commands: `script_job`); `demo`: calls on this machine alone."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.calls import call
from clusterfn.cli import screen, script_job, target
from clusterfn.cli.submission import call_options, start_detached
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.scheduler.job_script import read_template


def run(args: argparse.Namespace) -> int:
    """Call the function on its host; its value goes to stdout, as repr or as JSON. Commands run as they are."""
    with target.host_hints(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    if args.script_words is not None or args.command_words is not None:
        return script_job.run_script(args)
    script_job.columns(args.map)
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
            text = script_job.describe_script(args)
        else:
            called, positional, kwargs = _call(args)
            text = called.script(*positional, **kwargs)
    print(screen.as_json({"script": text}) if args.json else text)
    return 0


def _call(args: argparse.Namespace) -> tuple[ClusterFunction[Any, Any], tuple[Any, ...], dict[str, Any]]:
    function = target.function(args.target, args.words)
    positional, kwargs = target.arguments(args.words)
    target.check_arguments(function, positional, kwargs)
    decorated = function if isinstance(function, ClusterFunction) else cluster(function)
    return decorated.with_options(**call_options(args)), positional, kwargs


def written(value: Any, as_json: bool) -> str:
    """Format a value.

    Raises:
        ClusterfnError: JSON has no word for it.
    """
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


_DEMO_CONFIG = """\
# Written by `clusterfn demo`: one host, which is this machine.
hosts:
  local:
    scheduler: local
    root: {root}
"""
_DEMO_PATIENCE_S = 115.0


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
        shutil.rmtree(folder, ignore_errors=True)
