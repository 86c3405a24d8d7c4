"""An ArgumentParser that shows examples, splits off a script's own arguments, and says which word you perhaps meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from clusterfn.config.options import ALIASES
from clusterfn.errors import did_you_mean

# What others call a command, and what it is called here.
_OTHER_WORDS = {
    "list": "jobs", "ls": "jobs", "status": "jobs", "ps": "jobs", "queue": "jobs", "squeue": "jobs",
    "kill": "cancel", "delete": "rm", "remove": "rm", "scancel": "cancel", "download": "pull", "fetch": "pull",
    "log": "logs", "cat": "logs", "tail": "logs", "get": "result", "wait": "result", "follow": "attach",
    "cards": "gpus", "gpu": "gpus", "nvidia-smi": "gpus", "sinfo": "gpus", "ssh": "shell", "settings": "config",
    "submit": "run", "exec": "run", "call": "run", "test": "check", "doctor": "check", "help": "--help",
    "version": "--version", "sweep": "clusterfn.sweep(…) in Python", "map": "f.map(…) in Python",
}  # fmt: skip
_UNKNOWN = "unrecognized arguments: "
_OPTION = re.compile(r"--?([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '([^']*)'")
OF_A_CALL = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time", "environment")
_RUNS_FILES = ("run", "script")
_TAKE_IDS = ("logs", "result", "attach", "stack", "cancel", "stop", "rm", "pull", "shell")
_WITHOUT_VALUE = ("--json", "--detach", "-v", "--verbose", "-h", "--help", "--")


class WrongUsage(Exception):
    """The words are no command of ours. The text is one line, as argparse writes it; `usage` goes before it."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(f"{parser.prog}: error: {message}")
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
        self.mixes = False  # it calls this method for the options, and then for the words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixes = True

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage`."""
        raise WrongUsage(self, message)


class Parser(CommandParser):
    """The parser of the whole command line."""

    commands: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words as a command; keep them, for a complaint about one of them.

        Raises:
            WrongUsage: They are none.
        """
        self.typed = tuple(argv)
        words, host, script_words = _split_call(self.typed)
        return self.parse_args(words, argparse.Namespace(host=host, script_words=script_words))

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage`, with the command or option that was perhaps meant."""
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
        if match[1] == "host":
            return f"; write the host without --host: {self._with_host(self._value(word, match, 'HOST'))}"
        return self._as_an_argument(word, match) if {*_RUNS_FILES} & {*self.typed} else ""

    def _with_host(self, host: str) -> str:
        """Return the command with its host in the place that every command takes, and the words that follow."""
        command = " ".join(self.typed[:2] if self.typed[0] == "env" else self.typed[:1])
        rest = " FILE.py::FUNCTION" if self.typed[0] in _RUNS_FILES else " ID" if self.typed[0] in _TAKE_IDS else ""
        return f"clusterfn {command} {host}{rest}"

    def _as_an_argument(self, word: str, match: re.Match[str]) -> str:
        """`--x 12` after `run FILE.py::f` was meant for the function, or is another's word for an option of ours."""
        name = match[1].replace("-", "_")
        written = f"n argument of the function is written {name}={self._value(word, match, 'VALUE')}"
        ours = ALIASES.get(name)
        return f"; did you mean --{ours.replace('_', '-')}? A{written}" if ours in OF_A_CALL else f"; a{written}"

    def _value(self, word: str, match: re.Match[str], unknown: str) -> str:
        """Return what was given to an option."""
        after = self.typed[self.typed.index(word) + 1 :]
        beside = after[0] if after and not after[0].startswith("-") else unknown
        return beside if match[2] is None else match[2]


def _split_call(words: Sequence[str]) -> tuple[list[str], str | None, list[str] | None]:
    """Take the HOST and a script's own arguments out of `run [options] [HOST] FILE.py ARG…`.

    argparse cannot tell that HOST is left out, and would take the script's options for ours.

    Returns:
        The other words, the host, and what comes after a script; None where words are left out, or name no script.
    """
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    if place == len(words) or words[place] not in _RUNS_FILES:
        return list(words), None, None
    at = _next_word(words, place + 1)
    host = None
    file = at
    if at < len(words) and not _is_file(words[at]):
        file = _next_word(words, at + 1)
        host = words[at] if file < len(words) and _is_file(words[file]) else None
    rest = [*words[:at], *words[at + 1 : file + 1]] if host is not None else list(words[: file + 1])
    if file < len(words) and words[file].endswith(".py") and (host is not None or file == at):
        return rest, host, list(words[file + 1 :])
    return [*words[:at], *words[at + 1 :]] if host is not None else list(words), host, None


def _next_word(words: Sequence[str], place: int) -> int:
    """Return the place of the next word that is neither an option nor the value of one."""
    while place < len(words) and words[place].startswith("-"):
        place += 1 if words[place] in _WITHOUT_VALUE or "=" in words[place] else 2
    return place


def _is_file(word: str) -> bool:
    return word.endswith(".py") or "::" in word
