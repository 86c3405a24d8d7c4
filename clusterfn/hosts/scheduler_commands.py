"""Find a scheduler's commands on a host as a login shell finds them, and what says that it is a login node.

The program that looks is bridge/login_shell.py. Afterwards the host's agent uses what it has found, so that every
command finds its program; clusterfn.yml keeps it for the connections to come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection
from clusterfn.scheduler import SCHEDULERS, SURVEY_UNSET, kinds_of_sites

_PROGRAM = Path(__file__).parents[1] / "bridge" / "login_shell.py"
# The program tries up to so many login shells, one after another, so the limit allows for all of them.
_SHELLS = 4
_SPARE_S = 20.0


# Signs of schedulers to which clusterfn cannot submit: a file or a variable -> the scheduler it belongs to.
_FILES = {
    "/etc/pbs.conf": "PBS",
    "/etc/lsf.conf": "LSF",
    "/etc/condor/condor_config": "HTCondor",
    "/cm/shared": "a cluster manager",
}
_VARIABLES = {
    "PBS_CONF_FILE": "PBS",
    "PBS_SERVER": "PBS",
    "LSF_ENVDIR": "LSF",
    "LSF_SERVERDIR": "LSF",
    "CONDOR_CONFIG": "HTCondor",
}
_CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_PROGRAMS = {"pbsnodes": "PBS", "bsub": "LSF", "condor_submit": "HTCondor", "flux": "Flux", "oarsub": "OAR"}
_ALIAS = r"\balias|\bfunction\b|\(\)|\bssh\b|apptainer|singularity"
_BY_SSH = re.compile(r"\bssh\s+(?:-\S+\s+)*([\w.@-]+)")
_HOST_NAME = re.compile(r"(?:^|[^a-z])(?:login|logon|submit|headnode|frontend)(?![a-z])|^head\d*$", re.IGNORECASE)
_MOTD = re.compile(
    r"[^\n]*\b(?:(?:login|head|submit|compute)[ -]?nodes?|sbatch|qsub|bsub|batch (?:system|jobs?)|slurm)\b[^\n]*",
    re.IGNORECASE,
)


def _files() -> dict[str, str]:
    return {**{path: kind.title for kind in kinds_of_sites().values() for path in kind.commands.files}, **_FILES}


def _variables() -> dict[str, str]:
    kinds = kinds_of_sites().values()
    return {**{name: kind.title for kind in kinds for name in kind.commands.variables}, **_VARIABLES}


def questions() -> dict[str, Any]:
    """Return what the host is asked about signs."""
    return {
        "files": list(_files()),
        "variables": [*_variables(), *_CONTAINERS],
        "programs": list(_PROGRAMS),
        "aliases": _ALIAS,
        "motd": ["/etc/motd", "/run/motd.dynamic", "/etc/motd.d/cluster"],
    }


class Signs(NamedTuple):
    """What says that a machine may be a login node.

    Attributes:
        sentences: Each of them is enough to ask.
        unsupported: Schedulers among them that clusterfn does not know.
    """

    sentences: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()


def read_signs(facts: Mapping[str, Any]) -> Signs:
    """Read the answers to `questions`.

    Example:
        >>> read_signs({"programs": ["bsub"]}).sentences
        ('it has bsub, which is of LSF',)
    """
    owners: list[str] = []

    def of(owner: str) -> str:
        owners.append(owner)
        return f"which is of {owner}"

    sentences: list[str] = []
    for path in map(str, facts.get("files", ())):
        # The host has found it by one of these patterns.
        matching = (owner for pattern, owner in _files().items() if path.startswith(pattern.rstrip("*")))
        sentences.append(f"it has {path}, {of(next(matching, 'a scheduler'))}")
    for name, value in dict(facts.get("variables", {})).items():
        if name in _CONTAINERS:
            sentences.append(f"logins run in the container {value}, where a scheduler's commands may be missing")
        else:
            sentences.append(f"{name} is set in a login shell, {of(_variables()[name])}")
    sentences += [f"it has {name}, {of(_PROGRAMS[name])}" for name in facts.get("programs", ())]
    sentences += [_about_alias(name, str(text)) for name, text in dict(facts.get("aliases", {})).items()]
    name = str(facts.get("hostname", ""))
    sentences += [f"it is called {name}"] if _HOST_NAME.search(name.partition(".")[0]) else []
    greeting = _MOTD.search(str(facts.get("motd", "")))
    sentences += [f"its greeting says: {greeting[0].strip()[:120]}"] if greeting else []
    unsupported = tuple(owner for owner in _PROGRAMS.values() if owner in owners)
    return Signs(tuple(sentences), unsupported)


def _about_alias(name: str, text: str) -> str:
    to = _BY_SSH.search(text)
    if to:
        return f"{name} there means ssh to {to[1]}: if that has the commands, set up {to[1]} instead"
    return f"{name} is an alias or a function of the login shell: {text[:120]}"


class FoundCommands(NamedTuple):
    """Where the commands of one scheduler are, beyond what PATH of a command over ssh shows.

    Attributes:
        how: "by a login shell", for people.
        path: The folders for `scheduler_path:`; none where PATH is enough.
        env: The variables for `scheduler_env:`.
    """

    how: str
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = {}

    def keys(self) -> dict[str, Any]:
        """Return the lines of clusterfn.yml that say this."""
        path, env = list(self.path), dict(self.env)
        return {**({"scheduler_path": path} if path else {}), **({"scheduler_env": env} if env else {})}

    def in_words(self) -> str:
        """Return these lines as a person writes them: `scheduler_path: [/opt/slurm/bin]`."""
        variables = ", ".join(f"{name}: {value}" for name, value in self.env.items())
        lines = [f"scheduler_path: [{', '.join(self.path)}]"] if self.path else []
        return ", ".join([*lines, *([f"scheduler_env: {{{variables}}}"] if variables else [])])

    def on(self, host: Host) -> Host:
        """Return the host with these folders and variables before its own."""
        path = tuple(dict.fromkeys((*self.path, *host.scheduler_path)))
        return host._replace(scheduler_path=path, scheduler_env={**host.scheduler_env, **self.env})


class LoginShellAnswer(NamedTuple):
    """What a login shell of the host shows.

    Attributes:
        schedulers: Those that are there, by the word of `scheduler:`.
        signs: What says that this may be the login node of a cluster, each a sentence; asked if nothing was found.
        empty: Folders of `scheduler_path:` that have no command of a scheduler, or do not exist.
    """

    schedulers: Mapping[str, FoundCommands] = {}
    signs: Signs = Signs()
    empty: tuple[str, ...] = ()


def look(connection: HostConnection, folder: str, timeout_s: float) -> LoginShellAnswer:
    """Look for the commands of the schedulers that clusterfn knows, and have the host's agent use them.

    Args:
        folder: One more folder to look into.
        timeout_s: How long each login shell may take.

    Raises:
        HostError: The host did not answer.
    """
    queries = {
        word: {**kind.commands._asdict(), "usual": [*filter(None, [folder]), *kind.commands.usual]}
        for word, kind in kinds_of_sites().items()
        if kind.commands.programs
    }
    question = {
        "wanted": queries,
        "patience_s": timeout_s,
        "folders": connection.host.scheduler_path,
        "signs": questions(),
    }
    argv = [connection.facts.python, "-I", "-S", "-c", _PROGRAM.read_text(encoding="utf-8"), json.dumps(question)]
    limit = _SHELLS * timeout_s + _SPARE_S
    answer = connection.run(argv, unset=SURVEY_UNSET, timeout_s=limit).result(limit + _SPARE_S)
    shell = read(answer.out)
    host = connection.host
    for commands in shell.schedulers.values():
        host = commands.on(host)
    if host != connection.host:
        connection.use_commands(host).result(limit)
    return shell


def read(printed: bytes) -> LoginShellAnswer:
    """Read what the program has printed; nothing where that makes no sense."""
    try:
        answer = json.loads(printed.decode("utf-8", "surrogateescape"))
        schedulers = {
            word: FoundCommands(str(commands["how"]), tuple(commands["path"]), dict(commands["env"]))
            for word, commands in answer["found"].items()
            # What is found must be such that it can be shown, and written to clusterfn.yml.
            if word in SCHEDULERS
            and all(text.isprintable() for text in (*commands["path"], *commands["env"], *commands["env"].values()))
        }
        empty = tuple(map(str, answer.get("empty", ())))
        return LoginShellAnswer(schedulers, read_signs(answer.get("signs") or {}), empty)
    except (ValueError, KeyError, TypeError, AttributeError):
        return LoginShellAnswer()
