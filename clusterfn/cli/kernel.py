"""`clusterfn kernel`: Jupyter kernels that run in a job on a host."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from clusterfn.cli import screen
from clusterfn.config.options import parse_options
from clusterfn.config.units import parse_time
from clusterfn.errors import ConfigError

if TYPE_CHECKING:
    from clusterfn.config.options import Options

_OPTIONS = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment", "cwd")
_HEAD = ("NAME", "SHOWN AS", "HOST", "OPTIONS", "")
_HOME = "~"
_IDLE = "2h"


def add(given: argparse.Namespace) -> int:
    """Write a kernelspec, after what can be known to be wrong with it was rejected."""
    from clusterfn.kernel import job, kernelspecs

    parse_time(given.idle or _IDLE, "idle")
    given.environment = kernelspecs.absolute_environment(given.environment)
    _options_of(given)
    host = job.host_for_kernel(given.host)
    if not (given.environment or host.environment):
        raise ConfigError(
            f"no environment is named for the kernel, and {host.name} has none in clusterfn.yml",
            hint="write --environment conda:NAME, or a file such as environment.yml; it must have ipykernel",
        )
    given.host = host.name
    shown = given.name or _name_of(given)
    added = kernelspecs.add_kernelspec(shown, host.name, _words(given))
    print(f"added {added.name} as {added.shown!r}: choose it in Jupyter or VS Code", file=sys.stderr)
    return 0


def _name_of(given: argparse.Namespace) -> str:
    gpus = f" · {given.gpus} GPU{'s' if given.gpus > 1 else ''}" if given.gpus else ""
    return f"{given.host}{gpus}"


def _words(given: argparse.Namespace) -> list[str]:
    """Write what was given as `kernel run` reads it."""
    words = [given.host]
    for name in (*_OPTIONS, "idle"):
        value = getattr(given, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _options_of(given: argparse.Namespace) -> Options:
    said = {name: getattr(given, name) for name in _OPTIONS}
    return parse_options({**said, "host": given.host, "cwd": said["cwd"] or _HOME, "name": "kernel"})


def list_kernels(given: argparse.Namespace) -> int:
    """Print the kernels that clusterfn has added."""
    from clusterfn.kernel import kernelspecs

    found = kernelspecs.list_kernelspecs()
    if given.json:
        print(screen.as_json([asdict(spec) for spec in found]))
    elif found:
        rows = [[spec.name, spec.shown, spec.host, shlex.join(spec.options), _trouble(spec.trouble)] for spec in found]
        print(screen.table(_HEAD, rows))
    else:
        print("clusterfn: no kernels were added: clusterfn kernel add HOST", file=sys.stderr)
    return 0


def _trouble(trouble: str) -> str:
    return f"cannot start: {trouble}" if trouble else ""


def remove(given: argparse.Namespace) -> int:
    """Remove a kernelspec; kernels that run keep running."""
    from clusterfn.kernel import kernelspecs

    removed = kernelspecs.remove_kernelspec(given.name)
    print(f"removed {removed.name} ({removed.shown})", file=sys.stderr)
    return 0


def run(given: argparse.Namespace) -> int:
    """Be a kernel to the Jupyter client that has started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the proxy listens: clients interrupt before each shutdown
    from clusterfn.kernel import proxy
    from clusterfn.kernel.connection_file import listen, read_connection_file

    wanted = read_connection_file(Path(given.connection_file))
    listeners = listen(wanted)
    from clusterfn.kernel.job import JobSearch  # imports all of a call, which takes longer than to listen

    search = JobSearch(wanted.key, _options_of(given), parse_time(given.idle or _IDLE, "idle"))
    proxy.exit_at_once(proxy.run_proxy(wanted, listeners, search))
    return 0
