"""An ArgumentParser whose errors are exceptions, and which splits off a host and the own arguments of a script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from clusterfn.cli.suggestion import RUN_FILES, suggest_words

_WITHOUT_VALUE = ("--json", "--detach", "-v", "--verbose", "-h", "--help", "--")


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

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words as a command.

        Raises:
            WrongUsage: They are none; it names the command, option or value that was perhaps meant.
        """
        words, host, script_words = _split_call(argv)
        given: argparse.Namespace
        try:
            given, unknown = self.parse_known_args(words, argparse.Namespace(host=host, script_words=script_words))
            if unknown:
                given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            return given
        except WrongUsage as error:
            raise WrongUsage(error.parser, suggest_words(error.parser, error.message, argv)) from None


def _split_call(words: Sequence[str]) -> tuple[list[str], str | None, list[str] | None]:
    """Take the HOST and a script's own arguments out of `run [options] [HOST] FILE.py ARG…`.

    argparse does not see that HOST is left out, and would take the script's options for ours.

    Returns:
        The other words, the host, and what comes after a script; None where words are left out, or name no script.
    """
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    if place == len(words) or words[place] not in RUN_FILES:
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
    rest = [*words[:at], *words[at + 1 :]] if host is not None else list(words)
    return _with_late_end(rest, at if host is None else file - 1), host, None


def _with_late_end(words: list[str], file: int) -> list[str]:
    """Move a `--` from before the file to behind it: argparse, which looks for options first, would lose it there."""
    if "--" in words[:file]:
        words.insert(file + 1, "--")
        words.remove("--")
    return words


def _next_word(words: Sequence[str], place: int) -> int:
    """Return the place of the next word that is neither an option nor the value of one."""
    while place < len(words) and words[place].startswith("-"):
        place += 1 if words[place] in _WITHOUT_VALUE or "=" in words[place] else 2
    return place


def _is_file(word: str) -> bool:
    return word.endswith(".py") or "::" in word
