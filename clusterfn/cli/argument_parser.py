"""An ArgumentParser whose errors are exceptions, and which splits off a host and the words of a command or a script.

`add_command` adds one of our commands to it, with its examples. Of words that argparse has rejected, the error says
which command, option or value was perhaps meant.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from clusterfn.config.options import ALIASES, OF_SLURM, SCRIPTS, CallOptions
from clusterfn.errors import ConfigError, did_you_mean, nearest_word

Command = Callable[[argparse.Namespace], int]
# After every other option, the next word is its value, and neither a host nor a target.
_WITHOUT_VALUE = ("--json", "--detach", "-v", "--verbose", "-h", "--help")
# What follows the first is a command, and what follows the second is a module.
_COMMAND = ("--", "-m")
_FUNCTION = "::"
# An argument as `add_arguments` reads it: its names, what its value is called, how often it comes, and its default.
_ARGUMENT = re.compile(r"((?:-\S+|[a-z_]+)(?: --\S+)?)(?: (.+?))?([?*+]?)(?:=([\d.]+))?")
# argparse gets this word in place of a command, because it would read the command's options as ours.
_TARGET = "COMMAND"
# Maps names from other programs to our commands.
_OTHER_WORDS = {
    "list": "jobs", "ls": "jobs", "status": "jobs", "ps": "jobs", "queue": "jobs", "squeue": "jobs",
    "kill": "cancel", "delete": "rm", "remove": "rm", "scancel": "cancel", "download": "pull", "fetch": "pull",
    "log": "logs", "cat": "logs", "tail": "logs", "get": "result", "wait": "result", "follow": "attach",
    "cards": "gpus", "gpu": "gpus", "nvidia-smi": "gpus", "sinfo": "gpus", "ssh": "shell", "settings": "config",
    "sbatch": "run", "qsub": "run", "srun": "run",
    "submit": "run", "exec": "run", "call": "run", "test": "check", "doctor": "check", "help": "--help",
    "version": "--version", "sweep": "clusterfn.sweep(…) in Python", "map": "f.map(…) in Python",
    "hold": "clusterfn.Session(…) in Python",
}  # fmt: skip
_UNKNOWN = "unrecognized arguments: "
_REQUIRED = "the following arguments are required: "
_AMBIGUOUS = re.compile(r"ambiguous option: (.+) could match ")
_OPTION = re.compile(r"--?([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)
_CHOICE = re.compile(r"argument (.+): invalid choice: '([^']*)' \(choose from (.*)\)")
_WORDS = re.compile(r"[\w.-]+")
_RUN_FILES = ("run", "script")
_TAKE_IDS = ("logs", "result", "attach", "stack", "cancel", "stop", "rm", "pull", "shell")
# With a smaller value, --epochs, which is meant for a function, would count as a misspelled --detach.
_ALIKE = 0.7


class WrongUsage(Exception):
    """The words are no command of ours. The text is one line, as argparse writes it; `usage` goes before it."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(f"{parser.prog}: error: {message}")
        self.parser = parser
        self.usage = parser.format_usage()
        self.message = message


class CommandParser(argparse.ArgumentParser):
    """The parser of one command; its errors are exceptions.

    Attributes:
        mixes: Whether options may come between the words, as in `logs 7f3a --stderr tensor01`.
    """

    mixes = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is known; as `ArgumentParser` but for `mixes`."""
        if not self.mixes:
            return super().parse_known_args(args, namespace)
        # The method below calls this one for the options, and then for the words.
        self.mixes = False
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixes = True

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage`."""
        raise WrongUsage(self, message)


class Parser(CommandParser):
    """The parser of the whole command line.

    Attributes:
        overview: Its help, after the usage: a screen, which a list of all commands with their options is not.
    """

    commands: tuple[str, ...] = ()
    overview = ""

    def format_help(self) -> str:
        """Return the usage and the overview."""
        return f"{self.format_usage()}\n{self.overview}"

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words as a command; raise WrongUsage with what was perhaps meant if they are none."""
        rest, apart = _split_call(argv)
        args: argparse.Namespace
        try:
            args, unknown = self.parse_known_args(rest, apart)
            if unknown:
                args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            return args
        except WrongUsage as error:
            if apart.without_target and error.message.startswith("unrecognized"):
                message = "there is no script, and no function; for a command, write -- before it"
                raise WrongUsage(error.parser, f"{message}: clusterfn run [HOST] -- COMMAND") from None
            raise WrongUsage(error.parser, _suggest_words(error.parser, error.message, argv)) from None


def add_command(
    commands: Any, name: str, run: str | Command, about: str, arguments: Mapping[str, str | None] = {}, *,
    json: str = "", usage: str | None = None, mixes: bool = False, aliases: Sequence[str] = (),
) -> CommandParser:  # fmt: skip
    """Add a command. Its help begins with the first of its examples in `EXAMPLES`.

    Args:
        run: Its place below clusterfn.cli; the module is imported when the command runs.
        about: Its line of help.
        arguments: As for `add_arguments`.
        json: What --json prints; "" if the command has no such option.
        usage: In place of the line that argparse makes of the arguments.
        mixes: As the attribute of `CommandParser`.
    """
    command: CommandParser = commands.add_parser(
        name, help=about, aliases=aliases, usage=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    first, *more = [f"  clusterfn {line}" for line in EXAMPLES[command.prog.partition(" ")[2]]]
    command.description = f"{first}\n\n{about[:1].upper()}{about[1:]}."
    command.epilog = "\n".join(["more examples:", *more]) if more else None
    # With a default, this option of the command would reset a -v that was written before the command.
    command.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command.set_defaults(run=_command(run) if isinstance(run, str) else run, parser=command)
    command.mixes = mixes
    add_arguments(command, {**arguments, **({"--json": f"print JSON: {json}"} if json else {})})
    return command


def add_arguments(command: argparse._ActionsContainer, arguments: Mapping[str, str | None]) -> None:
    """Add arguments, each with its help.

    "--gpus N" takes a number, "--keep N=5" has a default, "--only PATTERN*" may be repeated, and "--yes" takes nothing.
    "host HOST?" is a word with the name `host` that may be left out; "words ID+" and "words ID*" are several.
    """
    for written, about in arguments.items():
        match = _ARGUMENT.fullmatch(written)
        assert match is not None, written
        names, metavar, count, default = match.groups()
        how: dict[str, Any] = {"action": "store_true"}
        if metavar:
            kind: type[float | str] = int if metavar == "N" else str
            if metavar == "SECONDS" or "." in (default or "")[1:]:
                kind = float
            several = count in ("*", "+")
            how = {"metavar": metavar, "type": kind, "default": [] if several else default and kind(default)}
            # Only an option may be repeated.
            how |= {"action": "append"} if count == "*" and written.startswith("-") else {"nargs": count or None}
        command.add_argument(*names.split(" "), help=about, **how)


def _command(path: str) -> Command:
    """Return a command's function by its module and name."""
    module, _, function = path.rpartition(".")

    def run(args: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"clusterfn.cli.{module}"), function)(args)
        return code

    return run


def _split_call(words: Sequence[str]) -> tuple[list[str], argparse.Namespace]:
    """Take the HOST, and the own arguments of a command or a script, out of `run [options] [HOST] SCRIPT ARG…`.

    argparse does not see that HOST is left out, and would take a script's options for ours.

    Returns:
        What argparse gets, and what it does not: `host`, `script_words` after a script, and `command_words` after `--`
        or to run the module after `-m`; each is None if there is none. `without_target` says that there are words, and
        none of them is what `run` can run.
    """
    apart = argparse.Namespace(host=None, script_words=None, command_words=None, without_target=False)
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    if place == len(words) or words[place] not in _RUN_FILES:
        return list(words), apart
    at = file = _next_word(words, place + 1)
    if at < len(words) and not _begins(words, at):
        file = _next_word(words, at + 1)
        if not _begins(words, file):
            # The word is neither a target nor a host with a target after it.
            apart.without_target = True
            return list(words), apart
        apart.host = words[at]
    before = [*words[:at], *words[at + 1 : file]]
    target, after = "".join(words[file : file + 1]), list(words[file + 1 :])
    if target in _COMMAND and not after:
        what = "MODULE" if target == "-m" else "COMMAND"
        raise ConfigError(f"there is nothing after {target}", hint=f"clusterfn {words[place]} [HOST] {target} {what}")
    if target == "-m":
        apart.command_words = ["python", "-m", *after]
        return [*before, _TARGET], apart
    if target == "--" and after and _FUNCTION in after[0]:
        return [*before, after[0], "--", *after[1:]], apart
    if target == "--":
        apart.command_words = after
        return [*before, _TARGET], apart
    if target and _FUNCTION not in target:
        apart.script_words, after = after, []
    return [*before, *words[file : file + 1], *after], apart


def _next_word(words: Sequence[str], place: int) -> int:
    """Return the place of the next word that is neither an option of ours nor the value of one."""
    while place < len(words) and words[place].startswith("-") and words[place] not in _COMMAND:
        place += 1 if words[place] in _WITHOUT_VALUE or "=" in words[place] else 2
    return place


def _begins(words: Sequence[str], place: int) -> bool:
    """Whether the target of `run` begins there: a function, a script, `--` or `-m`."""
    if place >= len(words):
        return False
    word = words[place]
    return word in _COMMAND or word.endswith(SCRIPTS) or _FUNCTION in word or ("/" in word and os.path.isfile(word))


def _suggest_words(parser: argparse.ArgumentParser, message: str, typed: Sequence[str]) -> str:
    """Return argparse's message with the command, option or value that was perhaps meant.

    Args:
        parser: The one that has rejected them: of the whole command line, or of one command.
        typed: All words after `clusterfn`.
    """
    if message.startswith(_UNKNOWN):
        return f"{message}{_near_option(parser, message[len(_UNKNOWN) :].split(' ')[0], typed)}"
    if ambiguous := _AMBIGUOUS.match(message):
        return f"{message}{_near_option(parser, ambiguous[1], typed)}"
    if message.startswith(_REQUIRED) and parser.prog.partition(" ")[2] in _RUN_FILES:
        return f"there is nothing to run; write a script, or {parser.prog} [HOST] -- COMMAND"
    wrong = _CHOICE.fullmatch(message)
    if wrong is None:
        return message
    choices = _WORDS.findall(wrong[3])
    if wrong[1] == "COMMAND":
        return _unknown_command(parser, wrong[2], choices, typed)
    near = nearest_word(wrong[2], choices, _ALIKE)
    return f"{message}; did you mean {near}?" if near else message


def _unknown_command(parser: argparse.ArgumentParser, word: str, choices: Sequence[str], typed: Sequence[str]) -> str:
    """Say what is wrong with a word where a command is expected, or with an option before it."""
    before = typed[: typed.index(word)] if word in typed else ()
    options, words = _options(parser), [word for word in before if word.startswith("-")]
    stray = next((word for word in words if not any(option.startswith(word) for option in options)), None)
    if stray is not None:
        # argparse took the value of an unknown option for the command.
        return f"{_UNKNOWN}{stray}{_near_option(parser, stray, typed)}"
    # The group is "env", "kernel" or "". A group has so few commands that one line can list them.
    group = parser.prog.partition(" ")[2]
    if not group and word == "help" and (asked := typed[len(before) + 1 :]) and asked[0] in choices:
        return f"there is no command 'help'; write clusterfn {asked[0]} --help"
    if not group and (other := _OTHER_WORDS.get(word.lower())):
        return f"there is no command {word!r}; did you mean {other}?"
    if not group and (word.endswith(SCRIPTS) or "::" in word):
        return f"there is no command {word!r}; to run it, write clusterfn run [HOST] {word}"
    if not group and shutil.which(word) and not nearest_word(word, choices, _ALIKE):
        return f"there is no command {word!r}; to run that program on a host, write clusterfn run [HOST] -- {word}"
    near = did_you_mean(word, choices)
    listed = f"; its commands are {', '.join(choices)}" if group else "; clusterfn --help lists them"
    return f"there is no command {f'{group} {word}'.strip()!r}{near or listed}"


def _near_option(parser: argparse.ArgumentParser, word: str, typed: Sequence[str]) -> str:
    """Return what to write instead of an option that this parser does not have; nothing for another word."""
    match = _OPTION.fullmatch(word)
    command = parser.prog.partition(" ")[2]
    if match is None:
        is_number = command in _RUN_FILES and word[1:2].isdigit()
        return f"; put -- before it: {parser.prog} ... -- {word}" if is_number else ""
    name = match[1].replace("_", "-")
    names = [option[2:] for option in _options(parser) if option.startswith("--")]
    near = ALIASES.get(name.replace("-", "_"), name).replace("_", "-")
    if near not in names:
        near = nearest_word(name, [*names, "host"], _ALIKE) or ""
    takes_command = any(action.metavar == "COMMAND" for action in parser._actions)
    if near == "host":
        rest = " ID" if command in _TAKE_IDS else ""
        if command in _RUN_FILES:
            rest = " FILE.py::FUNCTION"
        host = f"{' COMMAND' if takes_command else ''} {_value(typed, word, match, 'HOST')}{rest}"
        return f"; write the host without --host: {parser.prog}{host}"
    tip = f"; did you mean --{near}?" if near else ""
    if command in _RUN_FILES:
        # After `run FILE.py::f`, an unknown `--x 12` may also be meant as an argument of the function.
        value = _value(typed, word, match, "VALUE")
        keyword = name.replace("-", "_")
        if keyword in OF_SLURM:
            tip = f"; write --slurm {name}={value}, or {keyword}: below slurm: in clusterfn.yml."
        elif not tip and keyword in CallOptions.__annotations__:
            tip = f"; write {keyword}=... in @cluster."
        form = f"n argument of the function is written {keyword}={value}"
        return f"{tip} A{form}" if tip else f"; a{form}"
    return f"; write options after the command: {parser.prog} COMMAND {word}" if takes_command and not tip else tip


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _value(typed: Sequence[str], word: str, match: re.Match[str], unknown: str) -> str:
    """Return what was given to an option."""
    if match[2] is not None:
        return match[2]
    after = typed[typed.index(word) + 1 :] if word in typed else ()
    return after[0] if after and not after[0].startswith("-") else unknown


# What `clusterfn COMMAND --help` shows, without the word `clusterfn`. A test parses each of them.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "init": ("init ada@tensor01.example.edu", "init tensor01 --yes", "init ada@login.example.edu --scheduler slurm"),
    "demo": ("demo",),
    "check": ("check tensor01", "check tensor01 --gpus 1", "check cluster --no-job --json"),
    "clean": ("clean tensor01 --dry-run", "clean tensor01 --older 7d"),
    "gpus": ("gpus tensor01",),
    "top": ("top tensor01", "top cluster --once", "top tensor01 --json | jq '.own[].usage.now'"),
    "usage": ("usage tensor01", "usage --all-hosts --since 7d", "usage --json | jq '.[].suggestions'"),
    "trust": ("trust tensor01", "trust tensor01 --fingerprint SHA256:4h64/59IGKTl17wO3YDaN6I7norVI0iJuFbUUuIPO28"),
    "login": ("login cluster", "login"),
    "logout": ("logout cluster",),
    "run": (
        "run tensor01 -- nvidia-smi",
        "run tensor01 --gpus 4 -- torchrun train.py --lr 0.1",
        "run tensor01 --gpus 1 --outputs '*.pt' train.py --lr 0.1",
        "run --detach tensor01 -m mylab.train --lr 0.1",
        "run cluster job.sbatch",
        "run tensor01 -- 'zcat *.gz | wc -l'",
        "run cluster --map lr=1e-3,1e-4 --map seed=0..4 -- python train.py --lr {lr} --seed {seed}",
        "run tensor01 --gpus 1 train.py::train 1e-3 layers=4",
        "run --json train.py::train 1e-3 | jq .loss",
    ),
    "script": ("script train.py::train 1e-3", "script cluster --gpus 1 train.py::train 1e-3"),
    "jobs": ("jobs tensor01", "jobs --all-hosts --state failed --since 1d", "jobs -n 1 --json | jq '.[0].state'"),
    "logs": ("logs 7f3a", "logs -f 7f3a", "logs 7f3a --stderr", "logs train tensor01"),
    "result": ("result 7f3a", "result 7f3a --json | jq .loss", "result train tensor01"),
    "attach": ("attach 7f3a", "attach 7f3a tensor01"),
    "stack": ("stack 7f3a",),
    "cancel": ("cancel 7f3a 90aa", "cancel train", "cancel --all train", "cancel --all tensor01 --yes"),
    "rm": ("rm 7f3a", "rm --all train --dry-run", "rm --all --state failed tensor01"),
    "pull": ("pull 7f3a", "pull 7f3a --only '*.pt' --to results"),
    "tunnel": ("tunnel 7f3a 6006", "tunnel train 8888 --local-port 9000 cluster"),
    "shell": ("shell tensor01", "shell tensor01 --environment conda:ml", "shell 7f3a"),
    "hosts": ("hosts", "hosts --json | jq -r '.[].name'"),
    "config": ("config", "config tensor01", "config --schema > clusterfn.schema.json"),
    "completion": (
        "completion bash > ~/.local/share/bash-completion/completions/clusterfn",
        "completion zsh > ~/.zfunc/_clusterfn",
    ),
    "kernel": ("kernel add tensor01 --gpus 1 --environment environment.yml",),
    "kernel add": (
        "kernel add tensor01 --environment conda:ml",
        'kernel add tensor01 --name "tensor01 · 1 GPU" --gpus 1 --environment environment.yml',
        "kernel add tensor01 --gpus 2 --memory 64GB --time 8h --environment conda:ml --cwd '~/project'",
    ),
    "kernel run": ("kernel run tensor01 --gpus 1 /run/user/1000/jupyter/kernel-7f3a.json",),
    "jupyter": (
        "jupyter tensor01",
        "jupyter tensor01 --gpus 1 --environment environment.yml --cwd '~/project'",
        "jupyter cluster --time 8h --port 8899 --no-browser",
    ),
    "env": ("env build environment.yml tensor01", "env list tensor01", "env gc tensor01 --dry-run"),
    "env lock": (
        "env lock",
        "env lock environment.yml tensor01 cluster",
        'env lock tensor01 --packages python=3.11 "numpy>=2"',
    ),
    "env build": ("env build environment.yml tensor01", "env build tensor01 --gpus 1"),
    "env list": ("env list tensor01",),
    "env show": ("env show 5d1c tensor01", "env show environment.yml tensor01"),
    "env verify": ("env verify 5d1c tensor01",),
    "env remove": ("env remove 5d1c tensor01",),
    "env gc": ("env gc tensor01 --dry-run", "env gc tensor01 --days 60 --keep 3"),
}
