"""Ask the person, a line at a time: each question has an option that answers it in advance, and most have a default.

Questions go to stderr. Without a terminal a missing answer is an error that names the option. Only
`transports.prompts` asks for passwords.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.errors import ConfigError

# Give up after so many unusable answers: they may come from a program and not from a person.
_TRIES = 5


def say(text: str = "") -> None:
    """Print a line about progress."""
    print(in_one_line(text))
    sys.stdout.flush()


class Answers:
    """Where answers come from.

    Args:
        yes: Take every default, and ask nothing.
    """

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    def text(self, question: str, option: str, default: str | None = None, check: Callable[[str], object] = len) -> str:
        """Ask for a line; an empty one is the default.

        Args:
            option: The option that answers it in advance, for the error.
            check: Raises ConfigError where the answer cannot be used; then it is asked again.

        Raises:
            ConfigError: No person can be asked, and no default is to be taken.
        """
        if self._yes and default is not None:
            return default
        self._reject_without_terminal(question, option, default)
        for _ in range(_TRIES):
            answer = _line(f"{question}{f' [{default}]' if default else ''}: ") or default or ""
            try:
                check(answer)
            except ConfigError as error:
                print(in_one_line(f"{error.message}{f' ({error.hint})' if error.hint else ''}"), file=sys.stderr)
                continue
            if answer:
                return answer
        raise ConfigError(f"no usable answer to: {question}", hint=f"give it with {option}")

    def one_of(self, question: str, option: str, choices: Sequence[str], default: str) -> str:
        """Ask for one of a few words."""

        def check(answer: str) -> None:
            if answer not in choices:
                raise ConfigError(f"{answer!r} is not one of {', '.join(choices)}")

        return self.text(f"{question} ({', '.join(choices)})", option, default, check)

    def agree(self, question: str, option: str) -> bool:
        """Ask yes or no; yes is the default.

        Raises:
            ConfigError: No person can be asked, or it was neither.
        """
        if self._yes:
            return True
        self._reject_without_terminal(question, option, "yes")
        for _ in range(_TRIES):
            answer = _line(f"{question} [Y/n] ").lower()
            if answer in ("", "y", "yes", "n", "no"):
                return not answer.startswith("n")
        raise ConfigError(f"neither yes nor no to: {question}", hint=f"answer it with {option}")

    def _reject_without_terminal(self, question: str, option: str, default: str | None) -> None:
        if sys.stdin.isatty():
            return
        accept = f", or accept {default} with --yes" if default else ""
        hint = f"answer it with {option}{accept}"
        raise ConfigError(f"init needs an answer, and there is no terminal: {question}", hint=hint)


def _line(prompt: str) -> str:
    """Read what is typed until Return.

    Raises:
        KeyboardInterrupt: The input has ended, by Ctrl-D.
    """
    print(in_one_line(prompt.rstrip()), end=" ", file=sys.stderr, flush=True)
    typed = sys.stdin.readline()
    if not typed:
        print(file=sys.stderr)
        raise KeyboardInterrupt
    return typed.strip()
