"""The words of `clusterfn env`, `kernel` and `jupyter`: environments, and kernels that run in them."""

from __future__ import annotations

import argparse
from typing import Any

from clusterfn.cli.argument_parser import Command, CommandParser, add_command, add_host, add_json

_FILE_AND_HOST = "a file such as environment.yml (the host's, else ./environment.yml), and the name of a host"
_ENVIRONMENT_ID = "an environment's id, or its first digits, or the file it was made from; and the name of a host"
_FOR_GPUS = "choose the build of PyTorch as for a job with N GPUs"


def add_env(commands: Any, usage: Command) -> None:
    """Add `clusterfn env`, which does `usage` without one of its own words."""
    env = add_command(commands, "env", usage, "lock environments, and build, show and remove them on hosts")
    words = env.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    _add_env_making(words)
    _add_env_looking(words)
    _add_env_removing(words)


def _add_env_making(commands: Any) -> None:
    about = "choose the packages of an environment, and write a lock file"
    command = add_command(commands, "lock", "env.build.lock", about)
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=f"{_FILE_AND_HOST}, or several hosts")
    _add_packages(command)
    about = "for a platform such as linux-64 instead of a host; assumes glibc 2.17 and no GPU"
    command.add_argument("--platform", metavar="NAME", help=about)
    about = "for a job with N GPUs (without it: for the GPUs that the host is known to have)"
    command.add_argument("--gpus", metavar="N", type=int, help=about)
    command.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is out of date")
    add_json(command, "one array, an object for each host")
    command = add_command(commands, "build", "env.build.build", "build an environment on a host, before a job needs it")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=_FILE_AND_HOST)
    _add_packages(command)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=_FOR_GPUS)
    add_json(command, "one object")


def _add_env_looking(commands: Any) -> None:
    about = "list the environments on a host, most recently used first"
    command = add_command(commands, "list", "env.manage.list_environments", about)
    add_host(command)
    add_json(command, "one array, times in seconds since 1970")
    command = _add_for_id(commands, "show", "env.manage.show_environment", "show everything about an environment")
    add_json(command, "one object")
    about = "restore missing files, and import its packages"
    command = _add_for_id(commands, "verify", "env.verify.verify_environment", about)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help="also run PyTorch on a GPU, in a job")
    add_json(command, "one object")


def _add_env_removing(commands: Any) -> None:
    about = "remove an environment that no job uses"
    add_json(_add_for_id(commands, "remove", "env.manage.remove_environment", about), "one object")
    command = add_command(commands, "gc", "env.manage.remove_unused", "remove environments not used for a long time")
    add_host(command)
    command.add_argument("--days", metavar="N", type=float, default=30.0, help="not used for N days (30)")
    command.add_argument("--keep", metavar="N", type=int, default=5, help="keep the N most recently used (5)")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    add_json(command, "one object, sizes in bytes")


def add_kernel(commands: Any, usage: Command) -> None:
    """Add `clusterfn kernel`, which does `usage` without one of its own words."""
    kernel = add_command(commands, "kernel", usage, "run Jupyter kernels on a host, for JupyterLab and VS Code")
    words = kernel.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    about = "add a kernel on a host to those that Jupyter and VS Code offer"
    command = add_command(words, "add", "kernel.add", about)
    add_host(command)
    command.add_argument("--name", metavar="NAME", help="what Jupyter and VS Code show (the host, and its GPUs)")
    _add_kernel_options(command)
    about = "list the kernels that clusterfn has added, and say which cannot start"
    add_json(add_command(words, "list", "kernel.list_kernels", about), "one array")
    about = "remove a kernel from the list; running kernels keep running"
    command = add_command(words, "remove", "kernel.remove", about)
    command.add_argument("name", metavar="NAME", help="its name, or what Jupyter and VS Code show")
    command = add_command(words, "run", "kernel.run", "run as a kernel; Jupyter starts this command, not you")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    _add_kernel_options(command)
    command.add_argument("connection_file", metavar="CONNECTION_FILE", help="the file that Jupyter has written")


def add_jupyter(commands: Any) -> None:
    """Add `clusterfn jupyter`."""
    about = "run JupyterLab on a host, and open it in your browser"
    command = add_command(commands, "jupyter", "kernel.jupyter", about)
    add_host(command)
    command.add_argument("--port", metavar="N", type=int, default=0, help="local port for the browser (any free one)")
    about = "print the address only"
    command.add_argument("--no-browser", dest="browser", action="store_false", help=about)
    _add_kernel_options(command, "JupyterLab", "jupyterlab")


def _add_kernel_options(command: argparse.ArgumentParser, what: str = "the kernel", program: str = "ipykernel") -> None:
    command.add_argument("--cores", metavar="N", type=int)
    command.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    command.add_argument("--gpus", metavar="N", type=int, help=f"GPUs that {what} holds until it ends")
    command.add_argument("--gpu-memory", metavar="AMOUNT", help="of each GPU, such as 24GB")
    command.add_argument("--gpu-type", metavar="NAME", help="of each GPU, such as a6000")
    command.add_argument("--time", metavar="DURATION", help=f"end {what} after this, such as 8h")
    about = f"such as environment.yml or conda:ml; it must have {program} (the host's)"
    command.add_argument("--environment", metavar="WHICH", help=about)
    command.add_argument("--idle", metavar="DURATION", help=f"end {what} when no cell has run for this long (2h)")
    command.add_argument("--cwd", metavar="FOLDER", help="folder on the host in which cells run (~)")


def _add_packages(command: argparse.ArgumentParser) -> None:
    about = 'instead of a file, as packages= of @cluster: "python=3.11" "numpy>=2"'
    command.add_argument("--packages", metavar="PACKAGE", nargs="+", default=[], help=about)


def _add_for_id(commands: Any, name: str, run: str, about: str) -> CommandParser:
    command = add_command(commands, name, run, about)
    command.usage, command.mixes = "%(prog)s [options] ID|FILE [HOST]", True
    command.add_argument("words", metavar="ID", nargs="+", help=_ENVIRONMENT_ID)
    return command
