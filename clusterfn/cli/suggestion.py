"""Say which command, option or value was perhaps meant by words that argparse has rejected, for every command."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Sequence

from clusterfn.config.options import ALIASES, OF_SLURM, SCRIPTS, CallOptions
from clusterfn.errors import ConfigError, did_you_mean, nearest_word

# Maps names from other programs to our commands.
_OTHER_WORDS = {
    "list": "jobs", "ls": "jobs", "status": "jobs", "ps": "jobs", "queue": "jobs", "squeue": "jobs",
    "kill": "cancel", "delete": "rm", "remove": "rm", "scancel": "cancel", "download": "pull", "fetch": "pull",
    "log": "logs", "cat": "logs", "tail": "logs", "get": "result", "wait": "result", "follow": "attach",
    "cards": "gpus", "gpu": "gpus", "nvidia-smi": "gpus", "sinfo": "gpus", "ssh": "shell", "settings": "config",
    "sbatch": "run", "qsub": "run", "srun": "run",
    "submit": "run", "exec": "run", "call": "run", "test": "check", "doctor": "check", "help": "--help",
    "version": "--version", "sweep": "clusterfn.sweep(…) in Python", "map": "f.map(…) in Python",
}  # fmt: skip
_UNKNOWN = "unrecognized arguments: "
_REQUIRED = "the following arguments are required: "
_AMBIGUOUS = re.compile(r"ambiguous option: (.+) could match ")
_OPTION = re.compile(r"--?([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)
_CHOICE = re.compile(r"argument (.+): invalid choice: '([^']*)' \(choose from (.*)\)")
_WORDS = re.compile(r"[\w.-]+")
RUN_FILES = ("run", "script")
_TAKE_IDS = ("logs", "result", "attach", "stack", "cancel", "stop", "rm", "pull", "shell")
_OF_SBATCH = ("cpus-per-task", "gres", "gpus-per-node", "gpus-per-task", "mem-per-cpu", "mem-per-gpu", "job-name")
# Short options of sbatch for many tasks and for arrays. One call is one task here, and `--map` makes an array.
_MANY_TASKS = "na"
# With a smaller value, --epochs, which is meant for a function, would count as a misspelled --detach.
_ALIKE = 0.7


def suggest_words(parser: argparse.ArgumentParser, message: str, typed: Sequence[str]) -> str:
    """Return argparse's message with the command, option or value that was perhaps meant.

    Args:
        parser: The one that has rejected them: of the whole command line, or of one command.
        typed: All words after `clusterfn`.
    """
    if message.startswith(_UNKNOWN):
        return f"{message}{_near_option(parser, message[len(_UNKNOWN) :].split(' ')[0], typed)}"
    if ambiguous := _AMBIGUOUS.match(message):
        return f"{message}{_near_option(parser, ambiguous[1], typed)}"
    if message.startswith(_REQUIRED) and parser.prog.partition(" ")[2] in RUN_FILES:
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
    options, words = _options(parser), [each for each in before if each.startswith("-")]
    stray = next((each for each in words if not any(option.startswith(each) for option in options)), None)
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
    listed = f"; its commands are {', '.join(choices)}" if group and not near else ""
    return f"there is no command {f'{group} {word}'.strip()!r}{near}{listed}"


def _near_option(parser: argparse.ArgumentParser, word: str, typed: Sequence[str]) -> str:
    """Return what to write instead of an option that this parser does not have; nothing for another word."""
    match = _OPTION.fullmatch(word)
    command = parser.prog.partition(" ")[2]
    if match is None:
        is_number = command in RUN_FILES and word[1:2].isdigit()
        return f"; put -- before it: {parser.prog} ... -- {word}" if is_number else ""
    if command == "init" and word.startswith("-p"):
        return "; a port is written user@name:22028"
    name = match[1].replace("_", "-")
    names = [each[2:] for each in _options(parser) if each.startswith("--")]
    near = ALIASES.get(name.replace("-", "_"), name).replace("_", "-")
    if near not in names:
        near = nearest_word(name, [*names, "host"], _ALIKE) or ""
    takes_command = any(action.metavar == "COMMAND" for action in parser._actions)
    if near == "host":
        rest = " FILE.py::FUNCTION" if command in RUN_FILES else " ID" if command in _TAKE_IDS else ""
        host = f"{' COMMAND' if takes_command else ''} {_value(typed, word, match, 'HOST')}{rest}"
        return f"; write the host without --host: {parser.prog}{host}"
    tip = f"; did you mean --{near}?" if near else ""
    if command in RUN_FILES and (words := _as_of_sbatch(word, _value(typed, word, match, ""))):
        return f"; write {words}"
    if command in RUN_FILES:
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


def _as_of_sbatch(word: str, value: str) -> str:
    """Return what `run` calls an option of sbatch with this value; "" for another word, or what sbatch rejects."""
    # Imported late, because it is needed only after a mistake.
    from clusterfn.scheduler.slurm.script import read_sbatch

    letter, name = word[1:2], word.lstrip("-").partition("=")[0]
    if (word.startswith("--") and name not in _OF_SBATCH) or not value:
        return ""
    try:
        script = read_sbatch(f"#!/bin/sh\n#SBATCH {word.partition('=')[0]} {shlex.quote(value)}", has_slurm=True)
    except ConfigError:
        return ""
    options = dict(script.options) if script else {}
    if script is None or script.not_taken or (not word.startswith("--") and letter in _MANY_TASKS):
        return ""
    if "time" in options:
        options["time"] = f"{options['time'].total_seconds() / 60:g}min"
    words = [f"--slurm {key}={text}" for key, text in options.pop("slurm", {}).items()]
    words += [f"--{key.replace('_', '-')} {shlex.quote(str(each))}" for key, each in options.items()]
    return " ".join(words)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _value(typed: Sequence[str], word: str, match: re.Match[str], unknown: str) -> str:
    """Return what was given to an option."""
    if match[2] is not None:
        return match[2]
    after = typed[typed.index(word) + 1 :] if word in typed else ()
    return after[0] if after and not after[0].startswith("-") else unknown
