"""`clusterfn kernel` and `clusterfn jupyter`: kernels, and the whole of JupyterLab, that run in a job on a host."""

from __future__ import annotations

import argparse
import html
import shlex
import signal
import sys
import tempfile
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from clusterfn.cli import screen
from clusterfn.config.options import parse_options
from clusterfn.config.units import parse_time
from clusterfn.errors import ConfigError
from clusterfn.jupyter.connection_file import listen, read_connection_file

if TYPE_CHECKING:
    from clusterfn.config.options import Options

_OPTIONS = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment", "cwd")
_HEAD = ("NAME", "SHOWN AS", "HOST", "OPTIONS", "")
_HOME = "~"
_IDLE = "2h"


def add(given: argparse.Namespace) -> int:
    """Write a kernelspec, after what can be known to be wrong with it was rejected."""
    from clusterfn.jupyter import kernel_job, kernelspecs

    parse_time(given.idle or _IDLE, "idle")
    given.environment = kernelspecs.absolute_environment(given.environment)
    _options_of(given)
    host = kernel_job.host_for_kernel(given.host)
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


def _options_of(given: argparse.Namespace, name: str = "kernel") -> Options:
    said = {name: getattr(given, name) for name in _OPTIONS}
    return parse_options({**said, "host": given.host, "cwd": said["cwd"] or _HOME, "name": name})


def list_kernels(given: argparse.Namespace) -> int:
    """Print the kernels that clusterfn has added."""
    from clusterfn.jupyter import kernelspecs

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
    from clusterfn.jupyter import kernelspecs

    removed = kernelspecs.remove_kernelspec(given.name)
    print(f"removed {removed.name} ({removed.shown})", file=sys.stderr)
    return 0


def run(given: argparse.Namespace) -> int:
    """Be a kernel to the Jupyter client that has started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the proxy listens: clients interrupt before each shutdown
    from clusterfn.jupyter import kernel_proxy

    wanted = read_connection_file(Path(given.connection_file))
    listeners = listen(wanted)
    # imports all of a call, which takes longer than to listen
    from clusterfn.jupyter.kernel_job import JobSearch, launch_of

    launch = launch_of(sys.argv[1:-1])  # all but the connection file
    search = JobSearch(wanted.key, _options_of(given), parse_time(given.idle or _IDLE, "idle"), launch=launch)
    kernel_proxy.exit_at_once(kernel_proxy.run_proxy(wanted, listeners, search))
    return 0


def jupyter(given: argparse.Namespace) -> int:
    """Run JupyterLab on a host, and open it in the local browser."""
    from clusterfn.jupyter import kernel_proxy, kernelspecs, lab

    given.environment = kernelspecs.absolute_environment(given.environment)
    options = _options_of(given, "jupyter")
    with tempfile.TemporaryDirectory(prefix="clusterfn-lab-") as folder:

        def announce(address: str, host: str) -> None:
            print(address, flush=True)
            print(f"clusterfn: JupyterLab runs on {host}; Ctrl-C ends it and its job", file=sys.stderr, flush=True)
            if given.browser:
                webbrowser.open(_page_to(address, Path(folder)).as_uri())

        code = lab.open_lab(options, parse_time(given.idle or _IDLE, "idle"), given.port, announce)
    kernel_proxy.exit_at_once(code)
    return code


def _page_to(address: str, folder: Path) -> Path:
    """Write a page that only this user can read: every user can read the arguments of a browser."""
    page, goal = folder / "open.html", html.escape(address)
    text = f'<meta http-equiv="refresh" content="0; url={goal}"><a href="{goal}">JupyterLab</a>'
    page.write_text(text, encoding="utf-8")
    return page
