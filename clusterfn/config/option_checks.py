"""The check of each option of a call: what its value becomes, and what to write instead of one that it cannot have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Callable

from clusterfn.config.environment_kinds import (
    ADDRESS,
    ASK_FOR_GPUS,
    CHOOSE_ENVIRONMENT,
    ENVIRONMENT_KINDS,
    OF_SCRIPT,
    is_set_by_clusterfn,
    names_a_file,
    nearly_a_file,
    nearly_an_environment,
    python_version,
    why_no_image,
)
from clusterfn.config.units import VARIABLE
from clusterfn.errors import ConfigError, did_you_mean

# Gets a value and its keyword, and returns what `Options` holds.
Check = Callable[[Any, str], Any]

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JOB_ID = re.compile(r"[0-9a-f]{4,16}")
# The last two alternatives are an option of pip and its value.
_PACKAGE = re.compile(r"(?:[\w./-]+::|pip:)?[A-Za-z0-9_]|--?[a-z]|[./]")
_PACKAGES_FILE = re.compile(r"(?:(?:-r|--requirement)[\s=]*)?([^\s:@=]+\.(?:txt|ya?ml|toml|cfg|lock))", re.IGNORECASE)
# The causes that `requeue=` knows.
_CAUSES = ("timeout", "preempted", "node")
# Used if `requeue=` names only causes: how often a job is requeued for each.
REQUEUED = 3
_MOST_REQUEUED = 1000
_MOST_PRIORITY = 1_000_000


def quoted(value: object) -> str:
    """Return a value as it is written in a call."""
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def whole_number(least: int) -> Check:
    """Make the check of a whole number that is not smaller."""

    def check(value: Any, name: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        hint = f"write {name}={max(least, 1)}: a number, without quotes"
        if name == "gpus":
            hint += '; gpu_type="a6000" is their type, and `gpus: {only: [3]}` of a host chooses some of them'
        raise ConfigError(f"{name}={value!r} is not a whole number of at least {least}", hint=hint)

    return check


def priority(value: Any, name: str) -> int:
    """Check the place of a job among the other jobs of its user."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_PRIORITY:
        return value
    problem = f"{name}={value!r:.80} is not a whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}"
    raise ConfigError(problem, hint=f"write {name}=1 to start the job before your others, or {name}=-1 for after them")


def non_empty_text(value: Any, name: str) -> str:
    """Check a text that has at least one visible character."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{name}={value!r} is not a string", hint=f'write it in quotes: {name}="..."')
    return value


def matching(pattern: re.Pattern[str], example: str) -> Check:
    """Make the check of a text that matches a pattern as a whole."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write it like {example!r}")
        return value

    return check


def host_names(value: Any, name: str) -> str:
    """Check the name of a host, or a list of names, which becomes "a,b"; hosts are looked up when a call needs them."""
    if isinstance(value, (list, tuple)) and value:
        return ",".join(host_names(member, name) for member in value)
    if isinstance(value, str) and all(map(HOST_NAME.fullmatch, value.split(","))):
        return value
    hint = f'write names of clusterfn.yml: {name}="tensor01", or {name}=["tensor01", "tensor02"]'
    if isinstance(value, str) and ADDRESS.fullmatch(value):
        hint = f"add it to clusterfn.yml, and use the name that it has there: clusterfn init {value}"
    raise ConfigError(f"{name}={value!r:.80} is not the name of a host", hint=hint)


def several(item: Check) -> Check:
    """Make the check of a list from the check of one of its items."""

    def check(value: Any, name: str) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}={value!r} is not a list", hint=f"write {name}=[…], even for one")
        return tuple(item(member, name) for member in value)

    return check


def secret_names(value: Any, name: str) -> tuple[str, ...]:
    """Check names of variables. No message shows what stands there, which may be a secret itself."""
    names = value if isinstance(value, (list, tuple)) else [None]
    if not all(isinstance(word, str) and VARIABLE.fullmatch(word) for word in names):
        hint = f'write {name}=["HF_TOKEN"]; the values stay in your environment'
        raise ConfigError(f"{name}= is not a list of names of variables", hint=hint)
    return tuple(names)


def may_be_in_a_name(sign: str) -> bool:
    """Whether the name of a job may hold a character: those of Python's names in any script, ".", "-" and a blank."""
    return sign in ".- " or f"_{sign}".isidentifier()


def job_name(value: Any, name: str) -> str:
    """Check the name of a job, and return it in the normal form of Unicode."""
    # Keyboards and file systems may write a letter in two ways. Use one of them, so that the same name always matches.
    text = unicodedata.normalize("NFC", value) if isinstance(value, str) else ""
    fits = 0 < len(text) <= 64 and text[0].isidentifier() and not text.endswith(" ")
    if fits and all(map(may_be_in_a_name, text)):
        return text
    hint = f'use up to 64 letters, digits, blanks, "_", "." and "-", a letter or "_" first: {name}="train"'
    raise ConfigError(f"{name}={value!r:.80} is not possible", hint=hint)


def package(value: Any, name: str) -> str:
    """Check a package of `packages=`."""
    text = non_empty_text(value, name).strip()
    if file := _PACKAGES_FILE.fullmatch(text):
        raise ConfigError(f"{name}: {text!r} is a file, not a package", hint=f'write environment="{file[1]}"')
    if not _PACKAGE.match(text):
        raise ConfigError(f"{name}: {text!r} is not a package name", hint=f'write {name}=["python=3.11", "numpy>=2"]')
    return text


def environment(value: Any, name: str) -> str:
    """Check what names an environment of the host, or a file to build one from."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(word, str) for word in value):
        words = ", ".join(f'"{word}"' for word in value)
        raise ConfigError(f"{name}={value!r:.80} is not a string", hint=f"write packages=[{words}]")
    text = non_empty_text(value, name)
    kind, _, rest = text.partition(":")
    if version := python_version(text):
        hint = f'name an interpreter by its path, {name}="python:/path/to/python", or write {python_package(version)}'
        raise ConfigError(f"{name}={text!r} names a version of Python, not an interpreter", hint=hint)
    meant = nearly_an_environment(text)
    why, instead = why_no_image(meant or text)
    if why:
        raise ConfigError(f"{name}={text!r} cannot be used: {why}", hint=instead)
    if not meant and (text in ("current", OF_SCRIPT) or names_a_file(text) or (kind in ENVIRONMENT_KINDS and rest)):
        return text
    if meant := meant or nearly_a_file(text):
        raise ConfigError(f"{name}={text!r} does not name an environment", hint=f'write {name}="{meant}"')
    may_be_conda = re.fullmatch(r"[\w-]+", text) and kind not in ENVIRONMENT_KINDS
    conda = f'write {name}="conda:{text}", or ' if may_be_conda else ""
    raise ConfigError(f"{name}={text!r} does not name an environment", hint=f"{conda}{CHOOSE_ENVIRONMENT}")


def python_package(version: object) -> str:
    """Return the option that asks for a version of Python."""
    return f'packages=["python={version}"]'


def output(value: Any, name: str) -> str:
    """Reject a pattern that leads out of the job's folder."""
    text = non_empty_text(value, name)
    if text.startswith(("/", "~")) or ".." in PurePosixPath(text).parts:
        hint = f'{name}= takes paths relative to the job\'s own folder: {name}=["*.pt"]'
        raise ConfigError(f"{name}={value!r} is outside the job's folder", hint=hint)
    return text


def folder(value: Any, name: str) -> str:
    """Check a folder of the host."""
    text = non_empty_text(value, name)
    if not text.startswith(("/", "~", "$")):
        hint = f'{name}= is a folder on the host: write an absolute path or use ~, such as {name}="~/data"'
        raise ConfigError(f"{name}={value!r} is not an absolute path", hint=hint)
    return text


def environment_variables(value: Any, name: str) -> dict[str, str]:
    """Check variables of the job, and return their values as texts."""
    if not isinstance(value, Mapping):
        hint = f'write {name}={{"NAME": "value"}}; environment= names an environment'
        raise ConfigError(f"{name}={value!r} is not a dict", hint=hint)
    for key, setting in value.items():
        matching(VARIABLE, "OMP_NUM_THREADS")(key, name)
        if is_set_by_clusterfn(key):
            raise ConfigError(f"{name}[{key!r}] is set by clusterfn itself", hint=ASK_FOR_GPUS)
        number = isinstance(setting, (int, float)) and not isinstance(setting, bool)
        if not number and not (isinstance(setting, str) and _can_be_passed(setting)):
            problem = f"{name}[{key!r}]={setting!r} is neither a string nor a number"
            raise ConfigError(problem, hint=f'write {name}={{"{key}": "1"}}')
    return {key: str(setting) for key, setting in value.items()}


def scheduler_options(value: Any, name: str) -> dict[str, Any]:
    """Check options for the scheduler of this name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}={value!r} is not a dict of options", hint=f'write {name}={{"partition": "gpu"}}')
    if not value:
        # An empty value takes back the options of the decorator.
        return {}
    # Imported late, because this reads YAML, which takes time to import.
    from clusterfn.config.scheduler_keys import keys_by_scheduler

    check = keys_by_scheduler()[name].of_call
    assert check is not None
    return {name: check(value)}


def requeue(value: Any, name: str) -> dict[str, int]:
    """Check how often each cause may start a job again."""
    if isinstance(value, (list, tuple)) and all(isinstance(path, str) for path in value):
        value = dict.fromkeys(value, REQUEUED)
    if not isinstance(value, Mapping):
        problem = f"{name}={value!r:.60} is neither a list of causes nor a dict of how often for each"
        raise ConfigError(problem, hint=f'write {name}=["timeout", "preempted", "node"], or {name}={{"timeout": 3}}')
    for cause, count in value.items():
        if cause not in _CAUSES:
            near = did_you_mean(cause, _CAUSES) if isinstance(cause, str) else ""
            raise ConfigError(f"{name}= has no cause {cause!r}{near}", hint=f"the causes are {', '.join(_CAUSES)}")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_REQUEUED:
            problem = f"{name}[{cause!r}]={count!r} is not a whole number from 0 to {_MOST_REQUEUED}"
            raise ConfigError(problem, hint=f'write {name}={{"{cause}": {REQUEUED}}}')
    return {cause: count for cause, count in value.items() if count}


def read_requeue(words: Sequence[str]) -> dict[str, Any]:
    """Read what a command line or a cell gives for `requeue=`: causes with commas, each with a number or without.

    Example:
        >>> read_requeue(["timeout=5,node", "preempted"])
        {'timeout': 5, 'node': 3, 'preempted': 3}
    """
    requeue: dict[str, Any] = {}
    for word in words:
        for pair in word.split(","):
            cause, equals, count = pair.partition("=")
            requeue[cause] = count if equals else REQUEUED
            if count.isdecimal():
                requeue[cause] = int(count)
    return requeue


def _can_be_passed(value: str) -> bool:
    """Whether a process can be given this text: neither a NUL nor half a character."""
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def yes_or_no(value: Any, name: str) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither True nor False", hint=f"write {name}=True")
    return value


def job_id(value: Any, name: str) -> str:
    """Check the id of a job, or its first digits."""
    if isinstance(value, str) and _JOB_ID.fullmatch(value):
        return value
    hint = f'use at least its first four digits: {name}="7f3a"'
    raise ConfigError(f"{name}={value!r:.80} is not the id of a job", hint=hint)


def one_of(*words: str) -> Check:
    """Make the check of a text that is one of a few words."""

    def check(value: Any, name: str) -> str:
        if value not in words:
            forms = " or ".join(f'{name}="{word}"' for word in words)
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write {forms}")
        return str(value)

    return check
