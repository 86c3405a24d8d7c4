"""Signs that a machine without a known scheduler is the login node of a cluster, where nothing may be computed.

Pure: bridge/login_shell.py answers the questions, and this module reads the answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterfn.scheduler import kinds_of_sites

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
_UNSUPPORTED = ("PBS", "LSF", "HTCondor", "Flux", "OAR")
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
    unsupported = tuple(owner for owner in _UNSUPPORTED if owner in owners)
    return Signs(tuple(sentences), unsupported)


def _about_alias(name: str, text: str) -> str:
    to = _BY_SSH.search(text)
    if to:
        return f"{name} there means ssh to {to[1]}: if that has the commands, set up {to[1]} instead"
    return f"{name} is an alias or a function of the login shell: {text[:120]}"
