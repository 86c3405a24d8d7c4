"""`clusterfn kernel run`: what a Jupyter client starts as its kernel. It imports little before it listens."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from clusterfn.config.options import Options, parse_options
from clusterfn.config.units import parse_time
from clusterfn.integrations.jupyter.jupyter_files import listen, read_connection_file

OPTIONS = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment", "binds", "cwd")


def read_options(args: argparse.Namespace, name: str = "kernel") -> tuple[Options, float]:
    """Return what the job of a kernel asks for, and after how many seconds without a cell it ends."""
    values = {name: getattr(args, name) for name in OPTIONS}
    options = parse_options({**values, "host": args.host, "cwd": values["cwd"] or "~", "name": name})
    return options, parse_time(args.idle or "2h", "idle")


def run(args: argparse.Namespace) -> int:
    """Be a kernel to the Jupyter client that has started this process."""
    # Jupyter clients interrupt a kernel before each shutdown. Ignore that until the proxy handles interrupts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from clusterfn.integrations.jupyter import kernel_proxy, near_end

    connection = read_connection_file(Path(args.connection_file))
    listeners = listen(connection)
    # Imported after `listen`, because it loads all that a call needs, and the client tries to connect meanwhile.
    from clusterfn.integrations.jupyter.kernel_job import JobSearch, launch_of

    # The last word is the connection file, which differs in each start. The others identify the kernel.
    launch = launch_of(sys.argv[1:-1])
    search = JobSearch(connection.key, *read_options(args), launch=launch)
    near_end.exit_at_once(kernel_proxy.run_proxy(connection, listeners, search))
    return 0
