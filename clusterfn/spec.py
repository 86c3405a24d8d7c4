"""The plain facts that travel between modules: what a job asks for, where it goes, what it is made of.

Frozen dataclasses and the parsing of their units. Imports `errors` alone; everybody imports this.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Union

from clusterfn.errors import ConfigError

Time = Union[str, timedelta]

_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT])i?B", re.IGNORECASE)
_MEMORY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TIME_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(d|h|min|m|s)(?![a-z])", re.IGNORECASE)
_TIME_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,3}):(\d{2}):(\d{2})")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or nothing.

    Example:
        >>> did_you_mean("gpu", ["gpus", "cores"])
        '; did you mean gpus?'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def parse_memory(value: object) -> int:
    """Bytes in a text such as "16GB" (16 * 2**30), "512MB" or "1.5 TiB".

    Raises:
        ConfigError: No unit, an unknown unit, zero or not a text.

    Example:
        >>> parse_memory("2GB")
        2147483648
    """
    match = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(match[1]) * _MEMORY_UNITS[match[2].upper()]) if match else 0
    if size <= 0:
        raise ConfigError(f"memory={value!r} is not an amount of memory", hint='write it with a unit: memory="4GB"')
    return size


def parse_time(value: object) -> float:
    """Seconds in a text with units ("90min", "2h", "1d 12h", "02:00:00", "1-00:00:00") or a timedelta.

    Raises:
        ConfigError: No unit, an unknown unit, zero or another type.

    Example:
        >>> parse_time("1h 30min")
        5400.0
    """
    seconds = _seconds(value)
    if seconds is None or seconds <= 0:
        raise ConfigError(
            f"time={value!r} is not a duration", hint='write it with a unit: time="90min", time="2h" or time="02:00:00"'
        )
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return None
    clock = _CLOCK.fullmatch(value.strip())
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if _TIME_PART.sub("", value).strip():
        return None
    return sum(float(number) * _TIME_UNITS[unit.lower()] for number, unit in _TIME_PART.findall(value))


def whole_number(name: str, value: object, least: int) -> int:
    """`value` if it is a whole number of at least `least`; else a ConfigError that names `name`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} is not a whole number of at least {least}", hint=f"write {name}={least}")
    return value


@dataclass(frozen=True)
class Resources:
    """What a job asks for. None means: the host's default.

    Attributes:
        cores: Processor cores (`--cpus-per-task`).
        memory_bytes: Memory of the whole job.
        gpus: Whole cards; 0 hides CUDA.
        time_s: Seconds until the job is ended.
    """

    cores: int = 1
    memory_bytes: int | None = None
    gpus: int = 0
    time_s: float | None = None


@dataclass(frozen=True)
class Options:
    """What the decorator (or `with_options`) said; None where it was silent. Units are already parsed.

    Attributes are those of `Resources`, and where and how to run; see `clusterfn.cluster`.
    """

    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    time_s: float | None = None
    host: str | None = None
    environment: str | None = None
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cwd: str | None = None
    name: str | None = None
    on_interrupt: str = "detach"


@dataclass(frozen=True)
class Host:
    """One host of clusterfn.yml, checked. The keys are documented in docs/reference/configuration.md.

    Attributes:
        name: Its name in clusterfn.yml.
        address: Name or alias for ssh, `user@name:port` allowed; "" for this machine.
        scheduler: "bare", "slurm" or "local".
        transport: "auto", "paramiko", "openssh" or "local".
        source: Where it was defined, "file:line", for messages.
    """

    name: str
    address: str
    scheduler: str
    source: str
    transport: str = "auto"
    ssh_config: str | None = None
    root: str = "~/.clusterfn"
    python: str | None = None
    environment: str | None = None
    defaults: Resources = Resources()
    setup: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prolog: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, Any] = field(default_factory=dict)
    gpu_option: str = "gres"
    lease: str = "socket"
    poll_floor_s: float = 2.0
    queue_timeout_s: float | None = None
    keep_days: float = 14.0


@dataclass(frozen=True)
class EnvironmentSpec:
    """Which interpreter runs the function.

    Attributes:
        kind: "python" (a path), "venv", "prefix", "conda", "current", or "found" (the host's own pythonX.Y).
        value: The path or name; "" for "current" and "found".
    """

    kind: str
    value: str


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that was found on a host and asked for its version.

    Attributes:
        path: Absolute path there.
        version: (major, minor).
        activation: Variables that make it the environment's own (PATH and the like), see `Environment.activation`.
    """

    path: str
    version: tuple[int, int]
    activation: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSpec:
    """One job, ready to be written: everything that spec.json and job.sh are made from.

    Attributes:
        id: 16 hex digits, chosen by the client.
        name: The function's name, safe for a scheduler.
        root: The host's root, absolute.
        bridge: The folder of the bridge there, absolute.
        host_python: The old interpreter that runs the supervisor.
        sys_path: Folders of the user's modules there.
        caller_python: (major, minor) of the interpreter that pickled the call.
    """

    id: str
    name: str
    host: Host
    root: str
    bridge: str
    host_python: str
    resources: Resources
    interpreter: Interpreter
    caller_python: tuple[int, int]
    sys_path: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    cwd: str | None = None
    log_limit_bytes: int = 64 * 2**20
    grace_s: float = 10.0


_ON_INTERRUPT = ("detach", "stop")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JOB_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[\w.+@=/~][\w.+@=/~:,-]*")


def parse_options(given: Mapping[str, object]) -> Options:
    """The keywords of `@cluster` or `with_options`, checked; a keyword that is None counts as not said.

    Raises:
        ConfigError: An unknown keyword, or a value of the wrong type or without its unit.

    Example:
        >>> parse_options({"cores": 2, "memory": "1GB"}).memory_bytes
        1073741824
    """
    facts: dict[str, Any] = {}
    for keyword, value in given.items():
        if keyword not in _KEYWORDS:
            hint = f"the arguments are {', '.join(_KEYWORDS)}"
            raise ConfigError(f"there is no argument {keyword!r}{did_you_mean(keyword, _KEYWORDS)}", hint=hint)
        if value is not None:
            attribute, read = _KEYWORDS[keyword]
            facts[attribute] = read(keyword, value)
    return Options(**facts)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{name}={value!r} is not a text", hint=f'write it in quotes: {name}="..."')
    return value


def _matching(pattern: re.Pattern[str], example: str) -> Callable[[str, object], str]:
    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write it like {example!r}")
        return value

    return read


def _several(item: Callable[[str, object], str]) -> Callable[[str, object], tuple[str, ...]]:
    def read(name: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}={value!r} is not a list", hint=f"write {name}=[...], even for one")
        return tuple(item(name, each) for each in value)

    return read


def _environment_variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r} is not a dict", hint=f'write {name}={{"NAME": "value"}}')
    for key, each in value.items():
        _matching(_VARIABLE, "OMP_NUM_THREADS")(name, key)
        if not isinstance(each, str) or "\0" in each:
            raise ConfigError(f"{name}[{key!r}]={each!r} is not a text", hint=f'write {name}={{"{key}": "..."}}')
    return dict(value)


def _on_interrupt(name: str, value: object) -> str:
    if value not in _ON_INTERRUPT:
        raise ConfigError(f"{name}={value!r} is not possible", hint=f"choose one of {', '.join(_ON_INTERRUPT)}")
    return str(value)


# keyword -> attribute of Options, and how it is read
_KEYWORDS: dict[str, tuple[str, Callable[[str, object], Any]]] = {
    "cores": ("cores", lambda name, value: whole_number(name, value, 1)),
    "memory": ("memory_bytes", lambda _, value: parse_memory(value)),
    "gpus": ("gpus", lambda name, value: whole_number(name, value, 0)),
    "time": ("time_s", lambda _, value: parse_time(value)),
    "host": ("host", _matching(_HOST, "tensor01")),
    "environment": ("environment", _text),
    "modules": ("modules", _several(_matching(_MODULE, "cuda/12.4"))),
    "env": ("env", _environment_variables),
    "secrets": ("secrets", _several(_matching(_VARIABLE, "HF_TOKEN"))),
    "outputs": ("outputs", _several(_text)),
    "cwd": ("cwd", _text),
    "name": ("name", _matching(_JOB_NAME, "train")),
    "on_interrupt": ("on_interrupt", _on_interrupt),
}
