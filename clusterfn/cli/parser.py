"""The commands and their words. Each command is a function of the parsed arguments that returns an exit code.

A command's module is imported when the command runs, so that `clusterfn --help` starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from clusterfn import __version__
from clusterfn.bridge.schedulers import SCHEDULERS
from clusterfn.cli.examples import EXAMPLES
from clusterfn.cli.usage import CommandParser, Parser

Command = Callable[[argparse.Namespace], int]
_NOT_ALTERABLE = ("cores", "gpus", "gpu-type", "name", "environment")
_EPILOG = """\
HOST is always a plain word: the name of a host in clusterfn.yml, or "local".
`clusterfn COMMAND --help` shows examples.

exit codes: 0, 1 (the job or the host failed), 2 (usage or configuration), 130 (Ctrl-C); that of a command for `run`
variables:  CLUSTERFN_CONFIG, CLUSTERFN_HOST, CLUSTERFN_LOCAL=1, CLUSTERFN_QUIET=1, CLUSTERFN_DEBUG=1 (as -v), NO_COLOR
"""
_ARGUMENTS = (
    "of a function: Python literals or plain words, name=value for keywords; -- before a word that begins with -. "
    "Of a command, a script or a module: all words and options after it, as they are"
)
_FILE_AND_HOST = "a file such as environment.yml (the host's, else ./environment.yml), and the name of a host"
_HOST = "its name in clusterfn.yml (the one that a call would use)"
_ENVIRONMENT_ID = "an environment's id, or its first digits, or the file it was made from; and the name of a host"
_FOR_GPUS = "choose the build of PyTorch as for a job with N GPUs"
_JOB = "a job's id, its first four digits or more, or its name; add a HOST if clusterfn cannot tell where it is"


def make_parser() -> Parser:
    """Make the parser of the whole command line."""
    parser = Parser(
        prog="clusterfn",
        description="Run Python functions on GPU servers and SLURM clusters over SSH.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clusterfn {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all details, and our own tracebacks")
    parser.set_defaults(run=_help(parser), parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=CommandParser)
    _add_init(commands)
    _add_hosts(commands)
    _add_logins(commands)
    _add_calls(commands)
    _add_jobs(commands)
    _add_env(commands, _help(parser))
    _add_settings(commands)
    _add_kernel(commands, _help(parser))
    _add_jupyter(commands)
    parser.commands = tuple(commands.choices)
    return parser


def _help(parser: Parser) -> Command:
    """Return what the bare word `clusterfn` does."""

    def show(args: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _command(path: str) -> Command:
    """Return a command's function by its module and name; the module is imported when the command runs."""
    module, _, function = path.rpartition(".")

    def run(args: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"clusterfn.cli.{module}"), function)(args)
        return code

    return run


def _add_init(commands: Any) -> None:
    command = _add(
        commands, "init", "init.init", "set up a host: key, login, clusterfn.yml, and a first script that runs"
    )
    about = "user@name, user@name:port, or an alias of ~/.ssh/config"
    command.add_argument("address", metavar="ADDRESS", nargs="?", help=about)
    answers = command.add_argument_group("answers in advance; without them clusterfn asks")
    answers.add_argument("--name", metavar="NAME", help="what to call it in clusterfn.yml")
    about = "trust the key that has this fingerprint"
    answers.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    about = "replace a different key of the host in known_hosts"
    answers.add_argument("--replace", action="store_true", help=about)
    answers.add_argument("--no-key", action="store_true", help="create no SSH key, and copy none to the host")
    answers.add_argument(
        "--scheduler",
        choices=["bare", *SCHEDULERS],
        help="a machine without a queue, SLURM, or Grid Engine",
    )
    about = "the host's folder that has sbatch or qsub, where no login shell finds them"
    answers.add_argument("--scheduler-path", metavar="FOLDER", help=about)
    answers.add_argument("--root", metavar="FOLDER", help="the host's folder for jobs, results and your code")
    answers.add_argument("--environment", metavar="WHICH", help="the Python that runs your functions")
    about = "the partition of SLURM, or the queue of Grid Engine, for jobs without GPUs"
    answers.add_argument("--partition", metavar="NAME", help=about)
    about = "the partition of SLURM, or the queue of Grid Engine, for jobs with GPUs"
    answers.add_argument("--gpu-partition", metavar="NAME", help=about)
    answers.add_argument("--account", metavar="NAME", help="the SLURM account to charge")
    answers.add_argument("--yes", action="store_true", help="accept all defaults; host keys are still confirmed")


def _add_hosts(commands: Any) -> None:
    _add(commands, "demo", "run.demo", "run eight short calls on this machine; needs no server and leaves nothing")
    command = _add(commands, "check", "check.check", "test a host step by step, and show how to fix what fails")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--environment", metavar="WHICH", help="the environment to look for (the host's)")
    command.add_argument("--no-job", action="store_true", help="run no function on the host")
    about = "also calculate on N GPUs with the environment's PyTorch"
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=about)
    about = "how long to wait for the function (60 in a queue, 300 in all)"
    command.add_argument("--timeout", metavar="SECONDS", type=float, help=about)
    _add_json(command, "one object when all steps have ended")
    command = _add(commands, "clean", "clean.clean", "remove old jobs, and files that were sent for them, from a host")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    about = "jobs that ended, and files last used, longer ago than this, such as 1d (the host's keep:)"
    command.add_argument("--older", metavar="DURATION", help=about)
    command.add_argument("--local", action="store_true", help="clean the cache of this machine: solver and packages")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    _add_json(command, "one object, sizes in bytes")
    command = _add(commands, "gpus", "gpus.gpus", "show who uses the GPUs of a host, and who waits for one")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--watch", action="store_true", help="repeat every 2 seconds (10 with SLURM), until Ctrl-C")
    _add_json(command, "one object for each refresh")
    about = "show what runs on a host, what it uses, and who is next; refreshes until Ctrl-C"
    command = _add(commands, "top", "top.top", about)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--once", action="store_true", help="look once, as without a terminal")
    _add_json(command, "one object: own jobs, and on a machine without a scheduler those of all users")
    about = "compare what ended jobs asked for with what they used, and suggest smaller requests"
    command = _add(commands, "usage", "jobs.usage", about)
    command.mixes = True
    command.add_argument(
        "hosts", metavar="HOST", nargs="*", default=[], help="names in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--all-hosts", action="store_true", help="all hosts of clusterfn.yml at once")
    command.add_argument("-n", "--number", metavar="N", type=int, help="only the N newest jobs")
    command.add_argument("--since", metavar="TIME", help="only those sent since then: 2h, 7d or 2026-03-31")
    command.set_defaults(state=None)
    _add_json(command, "one array, an object for each function and request")


def _add_logins(commands: Any) -> None:
    command = _add(commands, "trust", "login.trust", "show a host's key, ask whether it is right, and remember it")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    about = "trust the key that has this fingerprint, and do not ask"
    command.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    command.add_argument("--replace", action="store_true", help="replace a different key in known_hosts")
    command = _add(commands, "login", "login.login", "log in once, and share the connection with all your programs")
    about = "its name in clusterfn.yml; without it, list the shared connections"
    command.add_argument("host", metavar="HOST", nargs="?", help=about)
    _add_json(command, "one object; without HOST one array")
    command = _add(commands, "logout", "login.logout", "end the shared connection; jobs on the host keep running")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    _add_json(command, "one object")
    command = _add(commands, "hold", "hold.hold", "keep a SLURM allocation for the calls of all programs")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    command.add_argument("--cores", metavar="N", type=int)
    command.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    command.add_argument("--gpus", metavar="N", type=int)
    command.add_argument("--gpu-type", metavar="NAME", help="of each GPU, such as a6000")
    command.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    about = "release it after so long without a call (never); such as 20min"
    command.add_argument("--idle", metavar="DURATION", help=about)
    command.add_argument("--wait", action="store_true", help="return only once calls can use it")
    _add_json(command, "one object")
    command = _add(commands, "release", "hold.release", "end what hold keeps, once the calls that run in it have ended")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    _add_json(command, "one object")


def _add_calls(commands: Any) -> None:
    about = "run a command, a script or a module on a host, or a function of a file"
    command = _add(commands, "run", "run.run", about)
    _add_call(command)
    about = "send the call, print its id, and do not wait"
    command.add_argument("--detach", action="store_true", help=about)
    about = "fetch files that match, such as '*.pt', into this folder at the end; can be repeated"
    command.add_argument("--outputs", metavar="PATTERN", action="append", default=[], help=about)
    runs = command.add_argument_group("of a command or a script")
    about = "run it once for each value, which takes the place {NAME}; several --map: for each combination"
    runs.add_argument("--map", metavar="NAME=VALUE,VALUE", action="append", default=[], help=about)
    runs.add_argument("--max-parallel", metavar="N", type=int, help="with --map: how many run at the same time")
    about = "print what is in this JSON file, which the command writes"
    runs.add_argument("--result", metavar="FILE", help=about)
    about = "a local file for its standard input, or - for this one (this one, if it is a pipe or a file)"
    runs.add_argument("--stdin", metavar="FILE", help=about)
    _add_json(command, "the value, or the exit status of a command; what it prints goes to stderr")
    command = _add(commands, "script", "run.script", "show what run would send and start; sends nothing")
    _add_call(command)
    command.set_defaults(map=[], result=None, stdin=None)
    _add_json(command, "one object")


def _add_call(command: CommandParser) -> None:
    command.usage = (
        "%(prog)s [options] [HOST] -- COMMAND [ARG ...]\n"
        "       %(prog)s [options] [HOST] SCRIPT [ARG ...]\n"
        "       %(prog)s [options] [HOST] -m MODULE [ARG ...]\n"
        "       %(prog)s [options] [HOST] FILE.py::FUNCTION [ARG ...]"
    )
    command.mixes = True
    options = command.add_argument_group("options that override those of @cluster")
    options.add_argument("--cores", metavar="N", type=int)
    options.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    options.add_argument("--gpus", metavar="N", type=int)
    options.add_argument("--gpu-memory", metavar="AMOUNT", help="of each GPU, such as 24GB")
    options.add_argument("--gpu-type", metavar="NAME", help="of each GPU, such as a6000")
    options.add_argument("--resume", metavar="ID", help="start with a copy of the checkpoint of that job")
    options.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    options.add_argument("--warn-before", metavar="DURATION", help="warn the function so long before its time is over")
    about = "timeout, preempted or node: start the job again, three times or as node=5 says; can be repeated"
    options.add_argument("--requeue", metavar="CAUSE", action="append", default=[], help=about)
    options.add_argument("--environment", metavar="WHICH", help="such as python:/opt/envs/ml/bin/python or conda:ml")
    options.add_argument("--nodes", metavar="N", type=int, help="nodes of SLURM; each of them runs it")
    options.add_argument("--tasks-per-node", metavar="N", type=int, help="processes on each node, as srun starts them")
    options.add_argument("--cwd", metavar="FOLDER", help="run in this folder of the host; no file is sent")
    options.add_argument("--name", metavar="NAME", help="the name of the job")
    options.add_argument("--retries", metavar="N", type=int, help="tries after a transient failure")
    options.add_argument("--notify", metavar="ADDRESS", help="the host sends a mail there when the job ends")
    about = "a variable of this machine that only this job gets; can be repeated"
    options.add_argument("--secret", dest="secrets", metavar="NAME", action="append", default=[], help=about)
    about = "a variable of the job; can be repeated"
    options.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help=about)
    about = "an option of sbatch by its long name, such as partition=gpu; can be repeated"
    options.add_argument("--slurm", metavar="OPTION=VALUE", action="append", default=[], help=about)
    about = "a function: path of its file, two colons, its name; or a script; a HOST may come before it"
    command.add_argument("target", metavar="FILE.py::FUNCTION", help=about)
    command.add_argument("words", metavar="ARG", nargs="*", default=[], help=_ARGUMENTS)


def _add_jobs(commands: Any) -> None:
    command = _add(commands, "jobs", "jobs.jobs", "list the jobs on hosts, newest first")
    command.mixes = True
    command.add_argument(
        "hosts", metavar="HOST", nargs="*", default=[], help="names in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--all-hosts", action="store_true", help="all hosts of clusterfn.yml at once")
    _add_filters(command)
    _add_json(command, "one array, times in seconds since 1970")
    command = _add_job(commands, "logs", "output.logs", "show what jobs have printed", several=True)
    command.add_argument("-f", "--follow", action="store_true", help="keep printing until the job ends")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--stderr", action="store_const", dest="stream", const="stderr", help="stderr instead of stdout")
    about = "what the scheduler and clusterfn's supervisor wrote"
    which.add_argument("--scheduler", action="store_const", dest="stream", const="scheduler", help=about)
    command.set_defaults(stream="stdout")
    _add_json(command, "one object; an array for several jobs")
    command = _add_job(commands, "result", "output.result", "wait for jobs and print their values", several=True)
    _add_json(command, "the value as JSON; for several jobs an array of objects")
    _add_job(commands, "attach", "output.attach", "show the output of a job from its start, and follow it to the end")
    command = _add_job(commands, "stack", "output.stack", "show the stack of every thread of a running job")
    _add_json(command, "one object")
    command = _add_job(
        commands, "cancel", "cancel.cancel", "withdraw waiting jobs, and end running ones with all their processes",
        aliases=["stop"], several=True,
    )  # fmt: skip
    _add_json(command, "one array: each job, what was done, and its state")
    about = "change the time, the memory or the priority of waiting jobs"
    command = _add_job(commands, "alter", "alter.alter", about, several=True)
    command.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    command.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    about = "order among your own waiting jobs: higher first; SLURM and Grid Engine only take 0 and less"
    command.add_argument("--priority", metavar="N", type=int, help=about)
    # Accept these options, so that `alter` itself can say why it does not change them.
    for other in _NOT_ALTERABLE:
        command.add_argument(f"--{other}", help=argparse.SUPPRESS)
    _add_json(command, "one array: each job, and what it asks for now")
    command = _add_job(
        commands, "pull", "pull.pull", "fetch the files that jobs have left on their hosts", several=True
    )
    about = "files to fetch, such as '*.pt'; can be repeated (the outputs= of the job, else all)"
    command.add_argument("--only", metavar="PATTERN", action="append", default=[], help=about)
    about = "where to put them (the working directory); several jobs get a folder each"
    command.add_argument("--to", metavar="FOLDER", default=".", help=about)
    _add_json(command, "one object; an array for several jobs")
    about = "reach a port of a running job, such as TensorBoard's, at a port of this machine"
    command = _add(commands, "tunnel", "shell.tunnel", about)
    command.usage, command.mixes = "%(prog)s [options] ID PORT [HOST]", True
    command.add_argument("words", metavar="ID PORT", nargs="+", help=f"{_JOB}; and the port on the job's machine")
    about = "port of this machine (the same number, or any free one)"
    command.add_argument("--local-port", metavar="N", type=int, help=about)
    about = "open a shell on a host in the environment of its jobs, or in the folder and environment of a job"
    command = _add(commands, "shell", "shell.shell", about)
    command.usage, command.mixes = "%(prog)s [options] [ID] [HOST]", True
    command.add_argument("words", metavar="ID", nargs="*", default=[], help=f"a HOST alone, or {_JOB}")
    command.add_argument("--environment", metavar="WHICH", help="an environment other than the host's")
    about = "remove ended jobs from their hosts, with all their files; cancel a running job first"
    command = _add_job(commands, "rm", "remove.remove", about, several=True)
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    _add_json(command, "one object, sizes in bytes")


def _add_settings(commands: Any) -> None:
    command = _add(commands, "hosts", "config.hosts", "list the hosts of clusterfn.yml; connects to none")
    _add_json(command, "one array")
    about = "show each setting of a host, and the line of the file that it comes from"
    command = _add(commands, "config", "config.config", about)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--schema", action="store_true", help="print the JSON Schema of clusterfn.yml, for editors")
    _add_json(command, "one array of objects")
    about = "print what a shell needs to complete commands, hosts and job ids"
    command = _add(commands, "completion", "completion.completion", about)
    command.add_argument("shell", metavar="SHELL", nargs="?", choices=("bash", "zsh"), help="bash or zsh")
    about = "print only the words that can be completed: hosts, or jobs"
    command.add_argument("--words", metavar="KIND", choices=("hosts", "jobs"), help=about)


def _add_env(commands: Any, usage: Command) -> None:
    env = _add(commands, "env", usage, "lock environments, and build, show and remove them on hosts")
    words = env.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    _add_env_making(words)
    _add_env_looking(words)
    _add_env_removing(words)


def _add_env_making(commands: Any) -> None:
    command = _add(commands, "lock", "env.build.lock", "choose the packages of an environment, and write a lock file")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=f"{_FILE_AND_HOST}, or several hosts")
    _add_packages(command)
    about = "for a platform such as linux-64 instead of a host; assumes glibc 2.17 and no GPU"
    command.add_argument("--platform", metavar="NAME", help=about)
    about = "for a job with N GPUs (without it: for the GPUs that the host is known to have)"
    command.add_argument("--gpus", metavar="N", type=int, help=about)
    command.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is out of date")
    _add_json(command, "one array, an object for each host")
    command = _add(commands, "build", "env.build.build", "build an environment on a host, before a job needs it")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=_FILE_AND_HOST)
    _add_packages(command)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=_FOR_GPUS)
    _add_json(command, "one object")


def _add_env_looking(commands: Any) -> None:
    about = "list the environments on a host, most recently used first"
    command = _add(commands, "list", "env.manage.list_environments", about)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    _add_json(command, "one array, times in seconds since 1970")
    command = _add_for_id(commands, "show", "env.manage.show_environment", "show everything about an environment")
    _add_json(command, "one object")
    about = "restore missing files, and import its packages"
    command = _add_for_id(commands, "verify", "env.manage.verify_environment", about)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help="also run PyTorch on a GPU, in a job")
    _add_json(command, "one object")


def _add_env_removing(commands: Any) -> None:
    about = "remove an environment that no job uses"
    _add_json(_add_for_id(commands, "remove", "env.manage.remove_environment", about), "one object")
    command = _add(commands, "gc", "env.manage.remove_unused", "remove environments not used for a long time")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--days", metavar="N", type=float, default=30.0, help="not used for N days (30)")
    command.add_argument("--keep", metavar="N", type=int, default=5, help="keep the N most recently used (5)")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    _add_json(command, "one object, sizes in bytes")


def _add_kernel(commands: Any, usage: Command) -> None:
    kernel = _add(commands, "kernel", usage, "run Jupyter kernels on a host, for JupyterLab and VS Code")
    words = kernel.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    about = "add a kernel on a host to those that Jupyter and VS Code offer"
    command = _add(words, "add", "kernel.add", about)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--name", metavar="NAME", help="what Jupyter and VS Code show (the host, and its GPUs)")
    _add_kernel_options(command)
    about = "list the kernels that clusterfn has added, and say which cannot start"
    _add_json(_add(words, "list", "kernel.list_kernels", about), "one array")
    command = _add(words, "remove", "kernel.remove", "remove a kernel from the list; running kernels keep running")
    command.add_argument("name", metavar="NAME", help="its name, or what Jupyter and VS Code show")
    command = _add(words, "run", "kernel.run", "run as a kernel; Jupyter starts this command, not you")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    _add_kernel_options(command)
    command.add_argument("connection_file", metavar="CONNECTION_FILE", help="the file that Jupyter has written")


def _add_jupyter(commands: Any) -> None:
    command = _add(commands, "jupyter", "kernel.jupyter", "run JupyterLab on a host, and open it in your browser")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
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
    command = _add(commands, name, run, about)
    command.usage, command.mixes = "%(prog)s [options] ID|FILE [HOST]", True
    command.add_argument("words", metavar="ID", nargs="+", help=_ENVIRONMENT_ID)
    return command


def _add_job(
    commands: Any, name: str, run: str, about: str, aliases: Sequence[str] = (), several: bool = False
) -> CommandParser:
    command = _add(commands, name, run, about, aliases)
    command.usage, command.mixes = f"%(prog)s [options] ID{' [ID ...]' if several else ''} [HOST]", True
    command.add_argument("words", metavar="ID", nargs="*" if several else "+", default=[], help=_JOB)
    if several:
        command.add_argument("--all", action="store_true", help="all jobs of the HOST, instead of ids and names")
        _add_filters(command)
    return command


def _add_filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("-n", "--number", metavar="N", type=int, help="only the N newest")
    about = "only these: pending, running, returned, raised, died, cancelled, ...; active, ended, failed"
    command.add_argument("--state", metavar="STATE[,STATE]", help=about)
    command.add_argument("--since", metavar="TIME", help="only those sent since then: 2h, 7d or 2026-03-31")


def _add_json(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--json", action="store_true", help=f"print JSON: {what}")


def _add(commands: Any, name: str, run: str | Command, about: str, aliases: Sequence[str] = ()) -> CommandParser:
    """Add a command: its name, its place below clusterfn.cli, and its line of help; its examples are in `examples`."""
    command: CommandParser = commands.add_parser(
        name, help=about, description=about[:1].upper() + about[1:] + ".", aliases=aliases,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    lines = EXAMPLES.get(command.prog.partition(" ")[2], ())
    if lines:
        command.epilog = "\n".join(["examples:", *(f"  clusterfn {line}" for line in lines)])
    # With a default, this option of the command would reset a -v that was written before the command.
    command.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command.set_defaults(run=_command(run) if isinstance(run, str) else run, parser=command)
    return command
