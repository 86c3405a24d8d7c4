"""Choose a host's lines of clusterfn.yml from what the host offers; ask the person where there is a choice.

Questions come a line at a time. Each has an option that answers it in advance, and most have a default. They go to
stderr. Without a terminal a missing answer is an error that names the option. Only `transports.prompts` asks for
passwords.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import format_size, in_one_line
from clusterfn.errors import ConfigError
from clusterfn.hosts.survey import Site
from clusterfn.hosts.volumes import Volume
from clusterfn.scheduler import kind_of_site, kinds_of_sites
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.site import AdvanceAnswers

# Give up after so many unusable answers: they may come from a program and not from a person.
_TRIES = 5


def say(text: str = "") -> None:
    """Print a line about progress."""
    print(in_one_line(text))
    sys.stdout.flush()


class Answers:
    """Where answers come from; with `yes`, all are the defaults."""

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
        """Ask yes or no; yes is the default; raise ConfigError if no person can be asked, or it was neither."""
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
    """Read what is typed until Return; raise KeyboardInterrupt if the input has ended, by Ctrl-D."""
    print(in_one_line(prompt.rstrip()), end=" ", file=sys.stderr, flush=True)
    typed = sys.stdin.readline()
    if not typed:
        print(file=sys.stderr)
        raise KeyboardInterrupt
    return typed.strip()


FOLDER = ".clusterfn"
_HOME = "$HOME"
_BARE = "bare"


def keys(
    site: Site,
    user: str,
    scheduler: str | None,
    root: str | None,
    site_options: AdvanceAnswers,
    answers: Answers,
    try_root: Callable[[str], object] = len,
) -> dict[str, Any]:
    """Return the host's lines, without its address and its environment.

    Args:
        user: The name of the account on the host.
        scheduler, root: As given on the command line.
        try_root: Raises ConfigError where a folder cannot be made on the host.

    Raises:
        ConfigError: An answer does not fit the host.
    """
    word = scheduler or site.scheduler
    offered = site.schedulers.get(word)
    kind = kind_of_site(word)
    if kind is not None and offered is None:
        problem = f"that host has no {kind.title}: {kind.program} is missing"
        hint = "leave --scheduler out, or name the folder of its commands with --scheduler-path"
        raise ConfigError(problem, hint=hint)
    if offered is None and (given := [name for name, value in site_options._asdict().items() if value]):
        option = f"--{given[0].replace('_', '-')}"
        raise ConfigError(f"{option} is for a scheduler, and this host has none", hint=f"leave out {option}")
    lines = {"scheduler": word, "root": root or _root(site, user, answers, try_root)}
    if word in site.login.schedulers:
        lines.update(site.login.schedulers[word].keys())
    options = offered.choose_options(site_options, answers.one_of) if offered else {}
    return {**lines, word: options} if options else lines


def ask_about_signs(site: Site, name: str, answers: Answers, look: Callable[[str], Site]) -> Site:
    """Have a person decide about a machine that may be a login node; jobs must never run on one by accident.

    Args:
        name: What the host is called.
        look: Surveys the host again, with one more folder that may hold a scheduler's commands.

    Returns:
        What the host offers, with the scheduler whose folder was named.

    Raises:
        ConfigError: No person can be asked: it has the signs, and the options that answer.
    """
    if not site.signs:
        return site
    # A list, so that the check of an answer can replace the survey.
    surveys = [site]
    kinds = kinds_of_sites().values()
    titles = " or ".join(kind.title for kind in kinds)
    programs = " or ".join(kind.commands.programs[0] for kind in kinds)

    def check(text: str) -> None:
        if text == _BARE:
            return
        if not text.startswith(("/", "~/")):
            raise ConfigError(f"{text!r} is neither {_BARE} nor an absolute path")
        surveys[0] = look(text)
        if not surveys[0].schedulers:
            raise ConfigError(f"no {titles} answers to the commands in {text}")

    unsupported = " and ".join(site.login.signs.unsupported)
    say(f"{name} may be the login node of a cluster, where jobs must not run:")
    for sign in site.signs:
        say(f"  - {sign}")
    if unsupported:
        say(f"clusterfn cannot submit to {unsupported}.")
    try:
        question = f"Folder that has {programs}, or {_BARE} to run jobs on this machine itself"
        answers.text(question, f"--scheduler-path FOLDER or --scheduler {_BARE}", check=check)
    except ConfigError as error:
        unknown = f"; clusterfn cannot submit to {unsupported}" if unsupported else ""
        problem = f"{name} may be the login node of a cluster, and no {titles} was found{unknown}"
        hint = f"name the folder of {programs} with --scheduler-path FOLDER; --scheduler {_BARE} runs jobs on it"
        raise ConfigError(problem, evidence=site.signs, hint=hint) from error
    return surveys[0]


def _root(site: Site, user: str, answers: Answers, try_root: Callable[[str], object]) -> str:
    def check(text: str) -> None:
        if not text.startswith(("/", "~", "$")):
            raise ConfigError(f"{text!r} is not an absolute path", hint="begin it with /, ~/ or a variable")
        try_root(text)

    proposed = site.proposed_root()
    if proposed is None:
        say("Found no folder on the host that you may write to and that has free space.")
        return answers.text("Folder for jobs, results and your code", "--root", check=check)
    path = folder(proposed[0], user)
    say(f"clusterfn can keep jobs, results and your code in {path}: {proposed[1]}.")
    return answers.text("Folder for jobs, results and your code", "--root", path, check)


def folder(volume: Volume, user: str) -> str:
    """Return our folder in a volume, by its path: jobs may lack the variable that named it.

    In a folder that is not the user's alone, it is in a folder of the user's name.
    """
    if volume.name == _HOME:
        return f"~/{FOLDER}"
    base = volume.name if volume.name.startswith("/") else volume.path
    own = user in base.split("/")
    return "/".join([base.rstrip("/"), *([] if own else [user]), FOLDER])


def suggestion(site: Site) -> str:
    """Return a line for a server with GPUs: most people who call a function there want to use one."""
    has_gpus = site.gpus is not None and bool(site.gpus.names)
    return "defaults: {gpus: 1}  # gives each call a GPU, unless it says gpus=0" if has_gpus else ""


def say_site(site: Site) -> None:
    """Print what was found, a line for each thing."""
    lines = site.schedulers[site.scheduler].overview() if site.schedulers else [Bare.overview]
    commands = site.login.schedulers.get(site.scheduler)
    if commands is not None and commands.keys():
        lines.append(f"its commands were found {commands.how}: {commands.in_words()}")
    lines += [f"{volume.name} ({volume.path}, {volume.kind}): {_room(volume)}" for volume in site.volumes]
    if site.gpus is not None and site.gpus.trouble:
        lines.append(f"nvidia-smi fails: {site.gpus.trouble}")
    elif site.gpus is not None:
        names, size = site.gpus.names, site.gpus.memory_bytes
        memory = "unknown memory" if size is None else format_size(size)
        memory += ", shared with the CPU" if site.gpus.unified else ""
        lines.append(f"{len(names)} x {', '.join(sorted(set(names)))}, {memory}; driver {site.gpus.driver}")
    for line in lines:
        say(f"  {line}")


def _room(volume: Volume) -> str:
    words = [f"{format_size(volume.free_bytes)} free" if volume.free_bytes is not None else "free space unknown"]
    if volume.quota_bytes is not None:
        words.append(f"{format_size(volume.quota_bytes)} left of your quota")
    words += [f"room for {volume.room_files:,} files"] if volume.room_files is not None else []
    words += ["not writable"] if not volume.writable else []
    words += ["programs on it cannot be started"] if volume.noexec else []
    return ", ".join(words)
