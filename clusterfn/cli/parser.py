"""The commands and their words; those of `env`, `kernel` and `jupyter` are in `environment_parser`.

Each command is a function of the parsed arguments that returns an exit code. A command's module is imported
when the command runs, so that `clusterfn --help` starts fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from clusterfn import __version__
from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.cli.argument_parser import Command, CommandParser, Parser, add_command, add_host, add_json
from clusterfn.cli.environment_parser import add_env, add_jupyter, add_kernel

# These cannot change: users know a job by its name, and its environment and files were chosen for the others.
NOT_ALTERABLE = ("cores", "gpus", "gpu-type", "name", "environment")
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
    add_env(commands, _help(parser))
    _add_settings(commands)
    add_kernel(commands, _help(parser))
    add_jupyter(commands)
    parser.commands = tuple(commands.choices)
    return parser


def _help(parser: Parser) -> Command:
    """Return what the bare word `clusterfn` does."""

    def show(args: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _add_init(commands: Any) -> None:
    command = add_command(
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
    about = "run eight short calls on this machine; needs no server and leaves nothing"
    add_command(commands, "demo", "run.demo", about)
    command = add_command(commands, "check", "check.check", "test a host step by step, and show how to fix what fails")
    add_host(command)
    command.add_argument("--environment", metavar="WHICH", help="the environment to look for (the host's)")
    command.add_argument("--no-job", action="store_true", help="run no function on the host")
    about = "also calculate on N GPUs with the environment's PyTorch"
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=about)
    about = "how long to wait for the function (60 in a queue, 300 in all)"
    command.add_argument("--timeout", metavar="SECONDS", type=float, help=about)
    add_json(command, "one object when all steps have ended")
    about = "remove old jobs, and files that were sent for them, from a host"
    command = add_command(commands, "clean", "clean.clean", about)
    add_host(command)
    about = "jobs that ended, and files last used, longer ago than this, such as 1d (the host's keep:)"
    command.add_argument("--older", metavar="DURATION", help=about)
    command.add_argument("--local", action="store_true", help="clean the cache of this machine: solver and packages")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    add_json(command, "one object, sizes in bytes")
    command = add_command(commands, "gpus", "gpus.gpus", "show who uses the GPUs of a host, and who waits for one")
    add_host(command)
    command.add_argument("--watch", action="store_true", help="repeat every 2 seconds (10 with SLURM), until Ctrl-C")
    add_json(command, "one object for each refresh")
    about = "show what runs on a host, what it uses, and who is next; refreshes until Ctrl-C"
    command = add_command(commands, "top", "top.top", about)
    add_host(command)
    command.add_argument("--once", action="store_true", help="look once, as without a terminal")
    add_json(command, "one object: own jobs, and on a machine without a scheduler those of all users")
    about = "compare what ended jobs asked for with what they used, and suggest smaller requests"
    command = add_command(commands, "usage", "jobs.usage", about)
    command.mixes = True
    command.add_argument(
        "hosts", metavar="HOST", nargs="*", default=[], help="names in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--all-hosts", action="store_true", help="all hosts of clusterfn.yml at once")
    command.add_argument("-n", "--number", metavar="N", type=int, help="only the N newest jobs")
    command.add_argument("--since", metavar="TIME", help="only those sent since then: 2h, 7d or 2026-03-31")
    command.set_defaults(state=None)
    add_json(command, "one array, an object for each function and request")


def _add_logins(commands: Any) -> None:
    about = "show a host's key, ask whether it is right, and remember it"
    command = add_command(commands, "trust", "login.trust", about)
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    about = "trust the key that has this fingerprint, and do not ask"
    command.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    command.add_argument("--replace", action="store_true", help="replace a different key in known_hosts")
    about = "log in once, and share the connection with all your programs"
    command = add_command(commands, "login", "login.login", about)
    about = "its name in clusterfn.yml; without it, list the shared connections"
    command.add_argument("host", metavar="HOST", nargs="?", help=about)
    add_json(command, "one object; without HOST one array")
    about = "end the shared connection; jobs on the host keep running"
    command = add_command(commands, "logout", "login.logout", about)
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    add_json(command, "one object")
    command = add_command(commands, "hold", "hold.hold", "keep a SLURM allocation for the calls of all programs")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    command.add_argument("--cores", metavar="N", type=int)
    command.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    command.add_argument("--gpus", metavar="N", type=int)
    command.add_argument("--gpu-type", metavar="NAME", help="of each GPU, such as a6000")
    command.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    about = "release it after so long without a call (never); such as 20min"
    command.add_argument("--idle", metavar="DURATION", help=about)
    command.add_argument("--wait", action="store_true", help="return only once calls can use it")
    add_json(command, "one object")
    about = "end what hold keeps, once the calls that run in it have ended"
    command = add_command(commands, "release", "hold.release", about)
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    add_json(command, "one object")


def _add_calls(commands: Any) -> None:
    about = "run a command, a script or a module on a host, or a function of a file"
    command = add_command(commands, "run", "run.run", about)
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
    add_json(command, "the value, or the exit status of a command; what it prints goes to stderr")
    command = add_command(commands, "script", "run.script", "show what run would send and start; sends nothing")
    _add_call(command)
    command.set_defaults(map=[], result=None, stdin=None)
    add_json(command, "one object")


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
    command = add_command(commands, "jobs", "jobs.jobs", "list the jobs on hosts, newest first")
    command.mixes = True
    command.add_argument(
        "hosts", metavar="HOST", nargs="*", default=[], help="names in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--all-hosts", action="store_true", help="all hosts of clusterfn.yml at once")
    _add_filters(command)
    add_json(command, "one array, times in seconds since 1970")
    command = _add_job(commands, "logs", "output.logs", "show what jobs have printed", several=True)
    command.add_argument("-f", "--follow", action="store_true", help="keep printing until the job ends")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--stderr", action="store_const", dest="stream", const="stderr", help="stderr instead of stdout")
    about = "what the scheduler and clusterfn's supervisor wrote"
    which.add_argument("--scheduler", action="store_const", dest="stream", const="scheduler", help=about)
    command.set_defaults(stream="stdout")
    add_json(command, "one object; an array for several jobs")
    command = _add_job(commands, "result", "output.result", "wait for jobs and print their values", several=True)
    add_json(command, "the value as JSON; for several jobs an array of objects")
    _add_job(commands, "attach", "output.attach", "show the output of a job from its start, and follow it to the end")
    command = _add_job(commands, "stack", "output.stack", "show the stack of every thread of a running job")
    add_json(command, "one object")
    command = _add_job(
        commands, "cancel", "cancel.cancel", "withdraw waiting jobs, and end running ones with all their processes",
        aliases=["stop"], several=True,
    )  # fmt: skip
    add_json(command, "one array: each job, what was done, and its state")
    about = "change the time, the memory or the priority of waiting jobs"
    command = _add_job(commands, "alter", "cancel.alter", about, several=True)
    command.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    command.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    about = "order among your own waiting jobs: higher first; SLURM and Grid Engine only take 0 and less"
    command.add_argument("--priority", metavar="N", type=int, help=about)
    # Accept these options, so that `alter` itself can say why it does not change them.
    for other in NOT_ALTERABLE:
        command.add_argument(f"--{other}", help=argparse.SUPPRESS)
    add_json(command, "one array: each job, and what it asks for now")
    command = _add_job(
        commands, "pull", "pull.pull", "fetch the files that jobs have left on their hosts", several=True
    )
    about = "files to fetch, such as '*.pt'; can be repeated (the outputs= of the job, else all)"
    command.add_argument("--only", metavar="PATTERN", action="append", default=[], help=about)
    about = "where to put them (the working directory); several jobs get a folder each"
    command.add_argument("--to", metavar="FOLDER", default=".", help=about)
    add_json(command, "one object; an array for several jobs")
    about = "reach a port of a running job, such as TensorBoard's, at a port of this machine"
    command = add_command(commands, "tunnel", "shell.tunnel", about)
    command.usage, command.mixes = "%(prog)s [options] ID PORT [HOST]", True
    command.add_argument("words", metavar="ID PORT", nargs="+", help=f"{_JOB}; and the port on the job's machine")
    about = "port of this machine (the same number, or any free one)"
    command.add_argument("--local-port", metavar="N", type=int, help=about)
    about = "open a shell on a host in the environment of its jobs, or in the folder and environment of a job"
    command = add_command(commands, "shell", "shell.shell", about)
    command.usage, command.mixes = "%(prog)s [options] [ID] [HOST]", True
    command.add_argument("words", metavar="ID", nargs="*", default=[], help=f"a HOST alone, or {_JOB}")
    command.add_argument("--environment", metavar="WHICH", help="an environment other than the host's")
    about = "remove ended jobs from their hosts, with all their files; cancel a running job first"
    command = _add_job(commands, "rm", "clean.remove", about, several=True)
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would be removed")
    add_json(command, "one object, sizes in bytes")


def _add_settings(commands: Any) -> None:
    command = add_command(commands, "hosts", "config.hosts", "list the hosts of clusterfn.yml; connects to none")
    add_json(command, "one array")
    about = "show each setting of a host, and the line of the file that it comes from"
    command = add_command(commands, "config", "config.config", about)
    add_host(command)
    command.add_argument("--schema", action="store_true", help="print the JSON Schema of clusterfn.yml, for editors")
    add_json(command, "one array of objects")
    about = "print what a shell needs to complete commands, hosts and job ids"
    command = add_command(commands, "completion", "completion.completion", about)
    command.add_argument("shell", metavar="SHELL", nargs="?", choices=("bash", "zsh"), help="bash or zsh")
    about = "print only the words that can be completed: hosts, or jobs"
    command.add_argument("--words", metavar="KIND", choices=("hosts", "jobs"), help=about)


def _add_job(
    commands: Any, name: str, run: str, about: str, aliases: Sequence[str] = (), several: bool = False
) -> CommandParser:
    command = add_command(commands, name, run, about, aliases)
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
