"""The commands and their words. Each command is a function of the parsed arguments that returns an exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from clusterfn._version import __version__
from clusterfn.cli import calls, check, clean, demo, gpus, init, jobs, login, trust
from clusterfn.cli.env import words as env
from clusterfn.config.options import ALIASES, did_you_mean

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
variables:  CLUSTERFN_CONFIG, CLUSTERFN_HOST, CLUSTERFN_DEBUG=1 (as -v), NO_COLOR
"""
_OF_A_CALL = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment")
_TARGET = "the function: path of its file, two colons, its name"
_WORDS = "its arguments: Python literals or plain words, name=value for keywords; -- before a word that begins with -"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says which word was perhaps meant."""

    commands: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The words as a command; they are kept, for a complaint about one of them."""
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
        """What was given to an option."""
        after = self.typed[self.typed.index(word) + 1 :]
        beside = after[0] if after and not after[0].startswith("-") else unknown
        return beside if match[2] is None else match[2]


def make_parser() -> Parser:
    """The parser of the whole command line."""
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
    _init(commands)
    _hosts(commands)
    _calls(commands)
    _jobs(commands)
    env.add(_add(commands, "env", _help(parser), "environments: locked here, built, shown and removed on hosts"))
    parser.commands = tuple(commands.choices)
    return parser


def _help(parser: Parser) -> Command:
    """What the bare word `clusterfn` does."""

    def show(given: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _init(commands: Any) -> None:
    command = _add(
        commands, "init", init.init, "set a host up: key, login, clusterfn.yml, and a first script that runs"
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
    answers.add_argument("--scheduler", choices=("bare", "slurm"), help="a machine without a queue, or SLURM")
    answers.add_argument("--root", metavar="FOLDER", help="where jobs, results and your code lie there")
    answers.add_argument("--environment", metavar="WHICH", help="the Python that runs your functions")
    answers.add_argument("--partition", metavar="NAME", help="of SLURM, for jobs without cards")
    answers.add_argument("--gpu-partition", metavar="NAME", help="of SLURM, for jobs with cards")
    answers.add_argument("--account", metavar="NAME", help="of SLURM: who pays")
    answers.add_argument("--yes", action="store_true", help="take what is proposed; host keys are asked about even so")


def _hosts(commands: Any) -> None:
    _add(commands, "demo", demo.demo, "eight short calls on this machine; needs no server and leaves nothing behind")
    command = _add(commands, "check", check.check, "what works on a host, step by step, and how to mend what does not")
    command.add_argument(
        "host", metavar="HOST", nargs="?", help="its name in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--environment", metavar="WHICH", help="the environment to look for (the host's)")
    command.add_argument("--no-job", action="store_true", help="run no function there")
    about = "also calculate on N GPUs by the environment's PyTorch"
    command.add_argument("--gpus", metavar="N", type=int, default=0, help=about)
    command.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="for the function (60 in a queue, 300 in all)"
    )
    about = "one JSON object when all steps have ended"
    command.add_argument(
        "--json", dest="run", action="store_const", const=check.as_json, default=argparse.SUPPRESS, help=about
    )
    about = "remove from a host what nobody needs any more: jobs that are over, and what was sent for them"
    command = _add(commands, "clean", clean.clean, about)
    command.add_argument(
        "host", metavar="HOST", nargs="?", help="its name in clusterfn.yml (the one that a call would use)"
    )
    about = "what ended, or was used last, longer ago than this, such as 1d (the host's keep:)"
    command.add_argument("--older", metavar="DURATION", help=about)
    command.add_argument("--local", action="store_true", help="the cache of this machine instead: solver and packages")
    command.add_argument("--dry-run", action="store_true", help="remove nothing; show what would go")
    command.add_argument("--json", action="store_true", help="one JSON object, sizes in bytes")
    command = _add(commands, "gpus", gpus.gpus, "who holds which card of a host, and who waits for one")
    command.add_argument(
        "host", metavar="HOST", nargs="?", help="its name in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument(
        "--watch", action="store_true", help="look again every 2 seconds (10 with SLURM), until Ctrl-C"
    )
    command.add_argument("--json", action="store_true", help="one JSON object a look")
    command = _add(commands, "trust", trust.trust, "show a host's key, ask whether it is right, and remember it")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")
    about = "take the key that has this one, and do not ask"
    command.add_argument("--fingerprint", metavar="SHA256:...", action="append", default=[], help=about)
    command.add_argument("--replace", action="store_true", help="forget another key that was remembered before")
    command = _add(commands, "login", login.login, "log in once, and hold the connection for all your programs here")
    command.add_argument("host", metavar="HOST", nargs="?", help="its name in clusterfn.yml; without it: what is held")
    command = _add(commands, "logout", login.logout, "end the connection that login holds; jobs there go on")
    command.add_argument("host", metavar="HOST", help="its name in clusterfn.yml")


def _calls(commands: Any) -> None:
    command = _add(commands, "run", calls.run, "run a function of a file and print its value")
    _add_call(command)
    command.add_argument(
        "--json", action="store_true", help="print the value as JSON; what the function prints goes to stderr"
    )
    command = _add(commands, "script", calls.script, "show what run would send and start; sends nothing")
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
    command.add_argument("words", metavar="ARG", nargs="*", default=[], help=_WORDS)


def _jobs(commands: Any) -> None:
    command = _add(commands, "jobs", jobs.jobs, "the jobs on a host, newest first")
    command.add_argument(
        "host", metavar="HOST", nargs="?", help="its name in clusterfn.yml (the one that a call would use)"
    )
    command.add_argument("--json", action="store_true", help="one JSON array, times in seconds since 1970")
    command = _add_job(commands, "logs", jobs.logs, "what a job has printed")
    command.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--stderr", action="store_const", dest="stream", const="stderr", help="its stderr")
    which.add_argument(
        "--scheduler", action="store_const", dest="stream", const="scheduler", help="the scheduler's words"
    )
    command.set_defaults(stream="stdout")
    command = _add_job(commands, "result", jobs.result, "wait for a job and print its value")
    command.add_argument("--json", action="store_true", help="print the value as JSON")
    _add_job(commands, "attach", jobs.attach, "follow a job until its end")
    _add_job(commands, "stack", jobs.stack, "where a running job is: the stack of every thread; the job goes on")
    _add_job(commands, "cancel", jobs.cancel, "withdraw jobs that wait, or end running ones with all their processes",
             aliases=["stop"], several=True)  # fmt: skip


def _add_job(
    commands: Any, name: str, run: Command, about: str, aliases: list[str] | None = None, several: bool = False
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
    commands: Any, name: str, run: Command, about: str, aliases: list[str] | None = None
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about, aliases=aliases or [])
    command.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command.set_defaults(run=run)
    return command
