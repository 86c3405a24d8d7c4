"""The commands and their words. Each command is a function of the parsed arguments that returns an exit code.

A command's module is imported when the command runs, so that `clusterfn --help` starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from clusterfn import __version__
from clusterfn.config.options import ALIASES
from clusterfn.config.schedulers import SCHEDULER_KEYS
from clusterfn.errors import did_you_mean

Command = Callable[[argparse.Namespace], int]
# What others call a command, and what it is called here.
_OTHER_WORDS = {
    "list": "jobs", "ls": "jobs", "status": "jobs", "ps": "jobs", "queue": "jobs", "squeue": "jobs",
    "kill": "cancel", "rm": "cancel", "delete": "cancel", "scancel": "cancel",
    "log": "logs", "cat": "logs", "tail": "logs", "get": "result", "wait": "result", "follow": "attach",
    "cards": "gpus", "gpu": "gpus", "nvidia-smi": "gpus", "sinfo": "gpus",
    "submit": "run", "exec": "run", "call": "run", "test": "check", "doctor": "check", "help": "--help",
    "version": "--version", "sweep": "clusterfn.sweep(…) in Python", "map": "f.map(…) in Python",
}  # fmt: skip
_UNKNOWN = "unrecognized arguments: "
_OPTION = re.compile(r"--?([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '([^']*)'")
_EPILOG = """\
exit codes: 0, 1 (the job or the host failed), 2 (usage or configuration), 130 (Ctrl-C)
variables:  CLUSTERFN_CONFIG, CLUSTERFN_HOST, CLUSTERFN_QUIET=1, CLUSTERFN_DEBUG=1 (as -v), NO_COLOR
"""
_OF_A_CALL = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment")
_TARGET = "the function: path of its file, two colons, its name"
_ARGUMENTS = (
    "its arguments: Python literals or plain words, name=value for keywords; -- before a word that begins with -"
)
_FILE_AND_HOST = "a file such as environment.yml (the host's, else ./environment.yml), and the name of a host"
_HOST = "its name in clusterfn.yml (the one that a call would use)"
_ENVIRONMENT_ID = "an environment's id, or its first digits, or the file it was made from"
_FOR_GPUS = "choose the build of PyTorch as for a job with so many cards"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says which word was perhaps meant."""

    commands: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the words as a command; they are kept, for a complaint about one of them."""
        self.typed = tuple(sys.argv[1:] if argv is None else argv)
        return self.parse_args(self.typed)

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and leave with 2."""
        wrong = _CHOICE.search(message)
        if wrong and self.commands:
            other = _OTHER_WORDS.get(wrong[1].lower())
            near = f"; did you mean {other}?" if other else did_you_mean(wrong[1], self.commands)
            message = f"there is no command {wrong[1]!r}{near}"
        elif message.startswith(_UNKNOWN):
            message += self._as_written(message[len(_UNKNOWN) :].split(" ")[0])
        super().error(message)

    def _as_written(self, word: str) -> str:
        if word.startswith("-p") and "init" in self.typed:
            return "; a port is written user@name:22028"
        match = _OPTION.fullmatch(word)
        if match is None or word not in self.typed:
            return ""
        if {"run", "script"} & {*self.typed}:
            return self._as_an_argument(word, match)
        return (
            f"; a host is written without --host here: {self._value(word, match, 'HOST')}" if match[1] == "host" else ""
        )

    def _as_an_argument(self, word: str, match: re.Match[str]) -> str:
        """`--x 12` after `run FILE.py::f` was meant for the function, or is another's word for an option of ours."""
        name = match[1].replace("-", "_")
        written = f"n argument of the function is written {name}={self._value(word, match, 'VALUE')}"
        ours = ALIASES.get(name)
        return f"; did you mean --{ours.replace('_', '-')}? A{written}" if ours in _OF_A_CALL else f"; a{written}"

    def _value(self, word: str, match: re.Match[str], unknown: str) -> str:
        """Return what was given to an option."""
        after = self.typed[self.typed.index(word) + 1 :]
        beside = after[0] if after and not after[0].startswith("-") else unknown
        return beside if match[2] is None else match[2]


def make_parser() -> Parser:
    """Make the parser of the whole command line."""
    parser = Parser(
        prog="clusterfn",
        description="Run Python functions on GPU servers and SLURM clusters over SSH.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clusterfn {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks of clusterfn itself")
    parser.set_defaults(run=_help(parser))
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=argparse.ArgumentParser)
    _add_init(commands)
    _add_hosts(commands)
    _add_calls(commands)
    _add_jobs(commands)
    _add_env(commands, _help(parser))
    parser.commands = tuple(commands.choices)
    return parser


def _help(parser: Parser) -> Command:
    """Return what the bare word `clusterfn` does."""

    def show(given: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _command(path: str) -> Command:
    """Return a command's function by its module and name; the module is imported when the command runs."""
    module, _, function = path.rpartition(".")

    def run(given: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"clusterfn.cli.{module}"), function)(given)
        return code

    return run


def _add_init(commands: Any) -> None:
    command = _add(
        commands, "init", "init.init", "set a host up: key, login, clusterfn.yml, and a first script that runs"
    )
    about = "user@name, user@name:port, or an alias of ~/.ssh/config"
    command.add_argument("address", metavar="ADDRESS", nargs="?", help=about)
    answers = command.add_argument_group("answers in advance; without them it asks")
    answers.add_argument("--name", metavar="NAME", help="what to call it in clusterfn.yml")
    about = "take the key that has this fingerprint"
    answers.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    about = "forget another key of the host that was remembered before"
    answers.add_argument("--replace", action="store_true", help=about)
    answers.add_argument("--no-key", action="store_true", help="make no key, and put none there")
    answers.add_argument(
        "--scheduler",
        choices=[word for word in SCHEDULER_KEYS if word != "local"],
        help="a machine without a queue, SLURM, or Grid Engine",
    )
    answers.add_argument("--root", metavar="FOLDER", help="where jobs, results and your code lie there")
    answers.add_argument("--environment", metavar="WHICH", help="the Python that runs your functions")
    answers.add_argument("--partition", metavar="NAME", help="of SLURM, for jobs without cards; a queue of Grid Engine")
    answers.add_argument(
        "--gpu-partition", metavar="NAME", help="of SLURM, for jobs with cards; a queue of Grid Engine"
    )
    answers.add_argument("--account", metavar="NAME", help="of SLURM: who pays")
    answers.add_argument("--yes", action="store_true", help="take what is proposed; host keys are asked about even so")


def _add_hosts(commands: Any) -> None:
    _add(commands, "demo", "run.demo", "eight short calls on this machine; needs no server and leaves nothing behind")
    command = _add(
        commands, "check", "check.check", "what works on a host, step by step, and how to mend what does not"
    )
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--environment", metavar="WHICH", help="the environment to look for (the host's)")
    command.add_argument("--no-job", action="store_true", help="run no function there")
    about = "also calculate on N GPUs by the environment's PyTorch"
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=about)
    command.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="for the function (60 in a queue, 300 in all)"
    )
    about = "one JSON object when all steps have ended"
    command.add_argument(
        "--json",
        dest="run",
        action="store_const",
        const=_command("check.as_json"),
        default=argparse.SUPPRESS,
        help=about,
    )
    about = "remove from a host what is no longer needed: jobs that are over, and what was sent for them"
    command = _add(commands, "clean", "clean.clean", about)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    about = "what ended, or was used last, longer ago than this, such as 1d (the host's keep:)"
    command.add_argument("--older", metavar="DURATION", help=about)
    command.add_argument("--local", action="store_true", help="the cache of this machine instead: solver and packages")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would go")
    command.add_argument("--json", action="store_true", help="one JSON object, sizes in bytes")
    command = _add(commands, "gpus", "gpus.gpus", "who holds which card of a host, and who waits for one")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument(
        "--watch", action="store_true", help="look again every 2 seconds (10 with SLURM), until Ctrl-C"
    )
    command.add_argument("--json", action="store_true", help="one JSON object a look")
    command = _add(commands, "trust", "login.trust", "show a host's key, ask whether it is right, and remember it")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    about = "take the key that has this one, and do not ask"
    command.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    command.add_argument("--replace", action="store_true", help="forget another key that was remembered before")
    command = _add(commands, "login", "login.login", "log in once, and hold the connection for all your programs here")
    command.add_argument("host", metavar="HOST", nargs="?", help="its name in clusterfn.yml; without it: what is held")
    command = _add(commands, "logout", "login.logout", "end the connection that login holds; jobs there go on")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")


def _add_calls(commands: Any) -> None:
    command = _add(commands, "run", "run.run", "run a function of a file and print its value")
    _add_call(command)
    command.add_argument(
        "--json", action="store_true", help="print the value as JSON; what the function prints goes to stderr"
    )
    command = _add(commands, "script", "run.script", "show what run would send and start; sends nothing")
    _add_call(command)


def _add_call(command: argparse.ArgumentParser) -> None:
    options = command.add_argument_group("options that override those of @cluster")
    options.add_argument("--host", metavar="NAME")
    options.add_argument("--cores", metavar="N", type=int)
    options.add_argument("--memory", metavar="AMOUNT", help="such as 16GB")
    options.add_argument("--gpus", metavar="N", type=int)
    options.add_argument("--gpu-memory", metavar="AMOUNT", help="of each card, such as 24GB")
    options.add_argument("--gpu-type", metavar="NAME", help="of each card, such as a6000")
    options.add_argument("--resume", metavar="ID", help="start with a copy of the checkpoint of that job")
    options.add_argument("--time", metavar="DURATION", help="such as 90min, 2h or 02:00:00")
    options.add_argument("--environment", metavar="WHICH", help="such as python:/opt/envs/ml/bin/python or conda:ml")
    command.add_argument("target", metavar="FILE.py::FUNCTION", help=_TARGET)
    command.add_argument("words", metavar="ARG", nargs="*", default=[], help=_ARGUMENTS)


def _add_jobs(commands: Any) -> None:
    command = _add(commands, "jobs", "jobs.jobs", "the jobs on a host, newest first")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--json", action="store_true", help="one JSON array, times in seconds since 1970")
    command = _add_job(commands, "logs", "jobs.logs", "what a job has printed")
    command.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--stderr", action="store_const", dest="stream", const="stderr", help="its stderr")
    which.add_argument(
        "--scheduler", action="store_const", dest="stream", const="scheduler", help="the scheduler's words"
    )
    command.set_defaults(stream="stdout")
    command = _add_job(commands, "result", "jobs.result", "wait for a job and print its value")
    command.add_argument("--json", action="store_true", help="print the value as JSON")
    _add_job(commands, "attach", "jobs.attach", "follow a job until its end")
    _add_job(commands, "stack", "jobs.stack", "where a running job is: the stack of every thread; the job goes on")
    _add_job(commands, "cancel", "jobs.cancel", "withdraw jobs that wait, or end running ones with all their processes",
             aliases=["stop"], several=True)  # fmt: skip


def _add_env(commands: Any, usage: Command) -> None:
    env = _add(commands, "env", usage, "environments: locked here, built, shown and removed on hosts")
    words = env.add_subparsers(metavar="COMMAND", dest="what", parser_class=argparse.ArgumentParser, required=True)
    _add_env_making(words)
    _add_env_looking(words)
    _add_env_removing(words)


def _add_env_making(commands: Any) -> None:
    command = _add(commands, "lock", "env.build.lock", "decide which packages make an environment, and write that down")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=f"{_FILE_AND_HOST}, or several hosts")
    _add_packages(command)
    about = "for a platform such as linux-64 instead of a host: glibc 2.17 and no card are supposed"
    command.add_argument("--platform", metavar="NAME", help=about)
    about = "for a job with so many cards (without it: for the cards that the host is known to have)"
    command.add_argument("--gpus", metavar="N", type=int, help=about)
    command.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is out of date")
    command = _add(commands, "build", "env.build.build", "build an environment on a host, before any job wants it")
    command.add_argument("words", metavar="FILE HOST", nargs="*", help=_FILE_AND_HOST)
    _add_packages(command)
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=_FOR_GPUS)


def _add_env_looking(commands: Any) -> None:
    command = _add(
        commands, "list", "env.manage.list_environments", "the environments on a host, the one used last first"
    )
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--json", action="store_true", help="one JSON array, times in seconds since 1970")
    command = _add_for_id(commands, "show", "env.manage.show_environment", "all that is known of an environment")
    command.add_argument("--json", action="store_true", help="one JSON object")
    command = _add_for_id(
        commands, "verify", "env.manage.verify_environment", "mend what is missing, and see that its packages work"
    )
    command.add_argument("--gpus", metavar="N", type=int, default=0, help="and that PyTorch works on a card, by a job")


def _add_env_removing(commands: Any) -> None:
    _add_for_id(commands, "remove", "env.manage.remove_environment", "remove an environment that no job uses")
    command = _add(commands, "gc", "env.manage.remove_unused", "remove environments that were not used for long")
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    command.add_argument("--days", metavar="N", type=float, default=30.0, help="not used for so many days (30)")
    command.add_argument("--keep", metavar="N", type=int, default=5, help="but for the so many used last (5)")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would go")


def _add_packages(command: argparse.ArgumentParser) -> None:
    about = 'instead of a file, as packages= of @cluster: "python=3.11" "numpy>=2"'
    command.add_argument("--packages", metavar="PACKAGE", nargs="+", default=[], help=about)


def _add_for_id(commands: Any, name: str, run: str, about: str) -> argparse.ArgumentParser:
    command = _add(commands, name, run, about)
    command.add_argument("id", metavar="ID", help=_ENVIRONMENT_ID)
    command.add_argument("host", metavar="HOST", nargs="?", help=_HOST)
    return command


def _add_job(
    commands: Any, name: str, run: str | Command, about: str, aliases: list[str] | None = None, several: bool = False
) -> argparse.ArgumentParser:
    command = _add(commands, name, run, about, aliases)
    about = "the job's id, or its first four digits or more"
    if several:
        command.add_argument("ids", metavar="ID", nargs="+", help=f"{about}; several are possible")
    else:
        command.add_argument("id", metavar="ID", help=about)
    command.add_argument("--host", metavar="NAME", help="where it is, if clusterfn cannot know")
    return command


def _add(
    commands: Any, name: str, run: str | Command, about: str, aliases: list[str] | None = None
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about, aliases=aliases or [])
    command.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command.set_defaults(run=_command(run) if isinstance(run, str) else run)
    return command
