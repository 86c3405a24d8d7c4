"""`clusterfn run` and `script`: a call of a function in a file; and `demo`: calls on this machine alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.cli import screen, script_job, target
from clusterfn.cli.submission import call_options, start_detached
from clusterfn.errors import ClusterfnError
from clusterfn.scheduler.job_script import read_template


def run(given: argparse.Namespace) -> int:
    """Call the function on its host; its value goes to stdout, as repr or as JSON. A script runs as it is."""
    if given.script_words is not None:
        return script_job.run_script(given)
    if given.detach:
        called, args, kwargs = _call(given)
        return start_detached(called, args, kwargs, as_json=given.json)
    with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
        called, args, kwargs = _call(given)
        value = called(*args, **kwargs)
    print(written(value, given.json))
    return 0


def script(given: argparse.Namespace) -> int:
    """Show what `run` would send and start."""
    if given.script_words is not None:
        text = script_job.describe_script(given)
    else:
        called, args, kwargs = _call(given)
        text = called.script(*args, **kwargs)
    print(screen.as_json({"script": text}) if given.json else text)
    return 0


def _call(given: argparse.Namespace) -> tuple[ClusterFunction[Any, Any], tuple[Any, ...], dict[str, Any]]:
    named = target.function(given.target)
    args, kwargs = target.arguments(given.words)
    target.check_arguments(named, args, kwargs)
    decorated = named if isinstance(named, ClusterFunction) else cluster(named)
    return decorated.with_options(**call_options(given)), args, kwargs


def written(value: Any, as_json: bool) -> str:
    """Format a value.

    Raises:
        ClusterfnError: JSON has no word for it.
    """
    try:
        return json.dumps(value, ensure_ascii=False) if as_json else repr(value)
    except RecursionError:
        raise ClusterfnError(
            "the value is nested too deeply to be printed", hint="take it in Python: clusterfn.attach(ID).result()"
        ) from None
    except (TypeError, ValueError) as error:
        if not as_json:  # its own __repr__
            raise
        raise ClusterfnError(
            f"the value cannot be written as JSON: {error}", hint="leave out --json, or return plain lists and dicts"
        ) from error


_DEMO_CONFIG = """\
# Written by `clusterfn demo`: one host, which is this machine.
hosts:
  local:
    scheduler: local
    root: {root}
"""
_DEMO_PATIENCE_S = 115.0


def demo(given: argparse.Namespace) -> int:
    """Run templates/demo.py in a temporary folder, as a user's own script; 0 if everything was as expected."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-demo-"))
    try:
        (folder / "demo.py").write_text(read_template("demo.py"), encoding="utf-8")
        config = folder / "clusterfn.yml"
        config.write_text(_DEMO_CONFIG.format(root=folder / "root"), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERFN_")}
        env.update(CLUSTERFN_CONFIG=str(config), XDG_STATE_HOME=str(folder / "state"), PYTHONUNBUFFERED="1")
        return subprocess.run([sys.executable, "demo.py"], cwd=folder, env=env, timeout=_DEMO_PATIENCE_S).returncode
    except subprocess.TimeoutExpired:
        print(f"clusterfn: the demo was stopped after {_DEMO_PATIENCE_S:.0f} s", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
