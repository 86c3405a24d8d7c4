"""The interface of what a survey finds of a scheduler: `init` writes clusterfn.yml by it, `check` compares the two.

Implementations are pure: they read what templates/survey.sh has printed, and ask nothing themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, did_you_mean

# The exit status by which a shell reports a missing program.
NOT_THERE = 127
SILENT = "it did not answer in time"
# Asks the person: a question, the option that answers it in advance, the choices, and the default.
Ask = Callable[[str, str, Sequence[str], str], str]


@dataclass(frozen=True)
class Section:
    """The answer to one question of a survey.

    Attributes:
        rc: None if it did not answer in time.
        lines: The lines before the first part.
        parts: The lines after `MARK.name`, by name; parts of the same name are joined.
    """

    name: str
    rc: int | None = None
    lines: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def part(self, name: str) -> list[str]:
        """Return the lines of a part; none if there is no such part."""
        return self.parts.get(name, [])

    @property
    def trouble(self) -> str:
        """What it said instead of an answer; "" if it answered, or if its program is missing."""
        if self.rc in (0, NOT_THERE):
            return ""
        return SILENT if self.rc is None else "\n".join(self.lines[-5:]) or f"it ended with status {self.rc}"


MISSING = Section("", NOT_THERE)


class AdvanceAnswers(NamedTuple):
    """What the person has answered in advance; None where nothing."""

    partition: str | None = None
    gpu_partition: str | None = None
    account: str | None = None


def check_advance_answer(lacking: str, option: str, answer: str | None, existing: Sequence[str]) -> None:
    """Reject an answer that was given in advance and names what the site does not have; take it if nothing is known.

    Args:
        lacking: What to say before the name, such as "there is no partition".
        answer: One name, or several with commas.

    Raises:
        ConfigError: It names what there is, and the nearest of it.
    """
    for name in (answer or "").split(","):
        if name and existing and name not in existing:
            raise ConfigError(
                f"{lacking} {name}{did_you_mean(name, existing)}",
                hint=f"give {option} one of {', '.join(dict.fromkeys(existing))}",
            )


class Commands(NamedTuple):
    """How a scheduler's commands are found where PATH of a command over ssh does not have them.

    Attributes:
        programs: Those that clusterfn runs; the first one submits jobs.
        variables: What they read of the environment, which sites set for login shells.
        modules: Names of modules that provide them.
        usual: Folders in which sites keep them, as patterns; `$NAME` is a variable of the login shell.
        probe: A command that asks the scheduler and changes nothing.
        bare: What that says on a machine on which they are installed without a configuration: a regular expression.
        files: What only machines of such a cluster have, as patterns.
    """

    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()
    bare: str = ""
    files: tuple[str, ...] = ()


class SchedulerSite(ABC):
    """One scheduler at one site.

    Attributes:
        commands: How its commands are found; without them it is known only where PATH has them.
        title: Its name for people.
        program: By this the survey knows that the scheduler is there.
        wanted_address: What `address:` must be where that program is missing.
        no_accounts: Why nothing can be said of accounts, where `check_account` returns None.
    """

    commands: Commands = Commands()
    title: str
    program: str
    wanted_address: str
    no_accounts: str

    @classmethod
    @abstractmethod
    def read(cls, sections: Mapping[str, Section]) -> SchedulerSite | None:
        """Read the sections of a survey; None where the program is missing."""

    @abstractmethod
    def overview(self) -> list[str]:
        """Return lines that describe it."""

    @abstractmethod
    def choose_options(self, answers: AdvanceAnswers, ask: Ask) -> dict[str, Any]:
        """Return what to write below the scheduler's key of clusterfn.yml, where it would not choose so itself.

        Raises:
            ConfigError: The site does not have what was given in advance.
        """

    @abstractmethod
    def check(self, host: Host, place: str) -> str:
        """Compare the scheduler's key of clusterfn.yml with what is there, and describe it.

        Args:
            place: The host's lines in clusterfn.yml, for hints.

        Raises:
            ConfigError: The scheduler does not answer, or does not have or give what that key names.
        """

    def check_account(self, host: Host, place: str) -> str | None:
        """Compare the account of clusterfn.yml with those of the user, and list these; as `check`."""
        return None
