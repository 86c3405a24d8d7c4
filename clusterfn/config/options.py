"""What a user writes as `@cluster(...)`, read into plain facts: names, types, and what to write instead of a mistake.

Imports `errors` and `units` alone.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Union

from clusterfn.config.units import NUMBER, finite, parse_memory, parse_time
from clusterfn.errors import ConfigError

Time = Union[str, timedelta]

_CARDS = re.compile(r"(?:gpu:)?(?:(?!gpu:)([A-Za-z][\w.-]*):)?(\d{1,4})")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or nothing.

    Example:
        >>> did_you_mean("gpu", ["gpus", "cores"])
        '; did you mean gpus?'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


# What people write for one of our words, from SLURM, PBS and other libraries.
ALIASES = {
    **dict.fromkeys(("cpu", "cpus", "ncpus", "num_cpus", "cpus_per_task", "n_cores", "threads"), "cores"),
    **dict.fromkeys(("mem", "ram"), "memory"),
    **dict.fromkeys(("gpu", "ngpus", "num_gpus"), "gpus"),
    **dict.fromkeys(("num_nodes", "n_nodes", "nnodes"), "nodes"),
    **dict.fromkeys(("vram", "gpu_mem", "gpu_ram"), "gpu_memory"),
    **dict.fromkeys(("gpu_kind", "gpu_model", "gpu_name"), "gpu_type"),
    **dict.fromkeys(("retry", "max_retries", "num_retries"), "retries"),
    **dict.fromkeys(("walltime", "timeout", "time_limit"), "time"),
    **dict.fromkeys(("python", "conda", "venv", "env_file"), "environment"),
}
# Of the Executors of the standard library, and of hosted services.
_NOT_ASKED_FOR = {
    "max_workers": "leave it out: the host's room decides how many run at the same time",
    **dict.fromkeys(
        ("image", "container", "docker"), "containers are not supported: name an environment= or packages= instead"
    ),
    "initializer": "call it at the beginning of the function: each call has a process of its own",
}
# What the function has, what was written -> what to write.
_ELSEWHERE = {
    ("max_parallel", "max_workers"): "write max_parallel={}",
    ("chunksize", "timeout"): "say it where you wait: .results(timeout={}); a call's own limit is time= of @cluster",
}
_JOB_ID = re.compile(r"[0-9a-f]{4,16}")
_OF_SLURM = ("partition", "account", "qos", "ntasks", "slurm")


def read(given: Mapping[str, object]) -> dict[str, Any]:
    """Attributes of `spec.Options`, from keywords; a keyword that is None counts as not said.

    Raises:
        ConfigError: An unknown keyword, or a value of the wrong type or without its unit.
    """
    facts: dict[str, Any] = {}
    for keyword, value in given.items():
        if keyword not in _KEYWORDS:
            raise unknown("there is", keyword, value, list(_KEYWORDS))
        if value is not None:
            attribute, reads = _KEYWORDS[keyword]
            facts[attribute] = reads(keyword, value)
    return facts


def unknown(who_has: str, keyword: str, value: object, known: Sequence[str]) -> ConfigError:
    """The refusal of a keyword, with what to write instead.

    Args:
        who_has: "there is", or "map() has".
        known: The keywords that can be written there.
    """
    problem, meant = f"{who_has} no argument {keyword!r}", ALIASES.get(keyword, keyword)
    if instead := _instead(keyword, value, known):
        return ConfigError(problem, hint=instead)
    if keyword in _OF_SLURM:
        option = "…" if keyword == "slurm" else f"{{{keyword}: {value if isinstance(value, (str, int)) else '…'}}}"
        return ConfigError(problem, hint=f"options of SLURM stand in clusterfn.yml: `slurm: {option}`")
    if meant in known:
        return ConfigError(f"{problem}; did you mean {meant}?", hint=_as_meant(keyword, meant, value))
    near = "" if meant in _KEYWORDS else did_you_mean(keyword, known)
    if not near and meant not in _KEYWORDS and "sequential_up_to" in known:  # of `map`: it was meant for the function
        hint = "pass the function's arguments as iterables, by position; one that stays the same is "
        return ConfigError(problem, hint=f"{hint}itertools.repeat({value!r:.60})")
    elsewhere = f"{meant}= goes to @cluster or .with_options(); " if meant in _KEYWORDS else ""
    return ConfigError(f"{problem}{near}", hint=f"{elsewhere}the arguments are {', '.join(known)}")


def _instead(keyword: str, value: object, known: Sequence[str]) -> str | None:
    found = (hint for (has, word), hint in _ELSEWHERE.items() if word == keyword and has in known)
    hint = next(found, None)
    return hint.format(_quoted(value)) if hint else _NOT_ASKED_FOR.get(keyword)


def _as_meant(keyword: str, meant: str, value: object) -> str | None:
    """What to write: the value under its right word, or a near one which that word takes."""
    try:
        if meant in _KEYWORDS and meant != "environment":  # of which the value is another word's
            _KEYWORDS[meant][1](meant, value)
    except ConfigError as refused:
        return refused.hint
    return f"write {meant}={_meant(keyword, value)}"


def _meant(keyword: str, value: object) -> str:
    """The value under its right word, as it would be written."""
    if ALIASES.get(keyword) != "environment":
        return _quoted(value)
    kind = keyword if keyword in ("python", "venv") else "conda"
    named = value if keyword != "env_file" and isinstance(value, str) else "NAME" if kind == "conda" else "/PATH"
    return _quoted(f"{kind}:{named}")


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def whole_number(name: str, value: object, least: int) -> int:
    """`value` if it is a whole number of at least `least`; else a ConfigError that names `name`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name}={value!r} is not a whole number of at least {least}", hint=_whole_hint(name, value, least)
        )
    return value


def _whole_hint(name: str, value: object, least: int) -> str:
    if isinstance(value, bool):
        return f"write {name}={max(int(value), least)}"
    if not isinstance(value, str):
        return f"write {name}={max(math.ceil(finite(value)), least)}"
    if NUMBER.fullmatch(value.strip()):
        return f"write {name}={max(math.ceil(float(value)), least)}, without quotes"
    cards = _CARDS.fullmatch(value.strip()) if name == "gpus" else None
    if not cards:
        return f"write {name}=1: a number, without quotes"
    kind = f', gpu_type="{cards[1]}"' if cards[1] else ""
    return f"write gpus={int(cards[2])}{kind}"


_ON_INTERRUPT = ("detach", "stop")
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JOB_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")
_PACKAGE = re.compile(r"(?:[\w./-]+::|pip:)?[A-Za-z0-9_]|--?[a-z]|[./]")  # the latter: an option of pip's, its value
_PACKAGES_FILE = re.compile(r"(?:(?:-r|--requirement)[\s=]*)?([^\s:@=]+\.(?:txt|ya?ml|toml|cfg))", re.IGNORECASE)
_MODULE = re.compile(r"[\w.+@=/~][\w.+@=/~:,-]*")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{name}={value!r} is not a text", hint=f'write it in quotes: {name}="..."')
    return value


def _matching(pattern: re.Pattern[str], example: str) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write it like {example!r}")
        return value

    return check


def _job_name(name: str, value: object) -> str:
    if isinstance(value, str) and _JOB_NAME.fullmatch(value):
        return value
    near = re.sub(r"[^A-Za-z0-9_.-]+", "_", value)[:63] if isinstance(value, str) else ""
    fitting = next((each for each in (near, f"_{near}") if near.strip("_") and _JOB_NAME.fullmatch(each)), "train")
    hint = f'use up to 64 letters, digits, "_", "." and "-", a letter or "_" first: {name}="{fitting}"'
    raise ConfigError(f"{name}={value!r:.80} is not possible", hint=hint)


def _several(item: Callable[[str, object], str]) -> Callable[[str, object], tuple[str, ...]]:
    def check(name: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}={value!r} is not a list", hint=f"write {name}=[...], even for one")
        return tuple(item(name, each) for each in value)

    return check


def _package(name: str, value: object) -> str:
    text = _text(name, value).strip()
    if file := _PACKAGES_FILE.fullmatch(text):
        raise ConfigError(f"{name}: {text!r} is a file, not a package", hint=f'write environment="{file[1]}"')
    if not _PACKAGE.match(text):
        raise ConfigError(f"{name}: {text!r} names no package", hint=f'write {name}=["python=3.11", "numpy>=2"]')
    return text


_ENVIRONMENTS = ("python", "venv", "prefix", "conda")
_INTERPRETER = re.compile(r"/bin/python[\d.]*$")
_ENVIRONMENT_FILES = (".yml", ".yaml", ".txt", ".toml", ".cfg")


def _environment(name: str, value: object) -> str:
    text = _text(name, value)
    kind, _, rest = text.partition(":")
    if meant := nearly_an_environment(text):
        raise ConfigError(f"{name}={text!r} names no environment", hint=f'write {name}="{meant}"')
    if text == "current" or text.lower().endswith(_ENVIRONMENT_FILES) or (kind in _ENVIRONMENTS and rest):
        return text
    raise ConfigError(
        f"{name}={text!r} names no environment",
        hint='name one that is on the host ("python:/path", "venv:~/v", "prefix:/path", "conda:name"), a file from '
        'which it is made ("environment.yml"), or packages=["python=3.11", "numpy"]',
    )


def nearly_an_environment(text: str) -> str:
    """What was meant by a text with a space too many, or with an interpreter as a folder; "" if it is neither.

    Example:
        >>> nearly_an_environment("conda: ml"), nearly_an_environment("prefix:/opt/ml/bin/python")
        ('conda:ml', 'python:/opt/ml/bin/python')
    """
    kind, _, rest = (part.strip() for part in text.partition(":"))
    if kind not in _ENVIRONMENTS or not rest:
        return ""
    if kind in ("venv", "prefix") and _INTERPRETER.search(rest):
        kind = "python"
    return "" if f"{kind}:{rest}" == text else f"{kind}:{rest}"


def _output(name: str, value: object) -> str:
    """A pattern that cannot lead out of the job's folder."""
    text = _text(name, value)
    if text.startswith(("/", "~")) or ".." in PurePosixPath(text).parts:
        hint = f'{name} are names below the job\'s own folder: {name}=["*.pt"]'
        raise ConfigError(f"{name}={value!r} lies outside the job's folder", hint=hint)
    return text


def _folder(name: str, value: object) -> str:
    text = _text(name, value)
    if not text.startswith(("/", "~", "$")):
        hint = f'{name}= is a folder of the host: give it in full or with ~, such as {name}="~/data"'
        raise ConfigError(f"{name}={value!r} is not a whole path", hint=hint)
    return text


def _environment_variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r} is not a dict", hint=f'write {name}={{"NAME": "value"}}')
    for key, each in value.items():
        _matching(VARIABLE, "OMP_NUM_THREADS")(name, key)
        if is_set_by_clusterfn(key):
            raise ConfigError(f"{name}[{key!r}] is set by clusterfn itself", hint=ASK_FOR_GPUS)
        number = isinstance(each, (int, float)) and not isinstance(each, bool)
        if not number and not (isinstance(each, str) and _can_be_passed(each)):
            text = int(each) if isinstance(each, bool) else "..."
            raise ConfigError(
                f"{name}[{key!r}]={each!r} is neither text nor a number", hint=f'write {name}={{"{key}": "{text}"}}'
            )
    return {key: str(each) for key, each in value.items()}


ASK_FOR_GPUS = "use gpus= to ask for GPUs; CLUSTERFN_ variables are reserved"


def is_set_by_clusterfn(variable: str) -> bool:
    """Whether a job's variable of this name is not the user's to set."""
    return variable == "CUDA_VISIBLE_DEVICES" or variable.startswith("CLUSTERFN_")


def _can_be_passed(value: str) -> bool:
    """Whether a process can be given this text: neither a NUL nor half a character."""
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither True nor False", hint=f"write {name}=True")
    return value


def _on_interrupt(name: str, value: object) -> str:
    if value not in _ON_INTERRUPT:
        raise ConfigError(f"{name}={value!r} is not possible", hint=f"choose one of {', '.join(_ON_INTERRUPT)}")
    return str(value)


# keyword -> attribute of spec.Options, and how it is read
_KEYWORDS: dict[str, tuple[str, Callable[[str, object], Any]]] = {
    "cores": ("cores", lambda name, value: whole_number(name, value, 1)),
    "memory": ("memory_bytes", lambda _, value: parse_memory(value)),
    "gpus": ("gpus", lambda name, value: whole_number(name, value, 0)),
    "nodes": ("nodes", lambda name, value: whole_number(name, value, 1)),
    "gpu_memory": ("gpu_memory_bytes", lambda name, value: parse_memory(value, name)),
    "gpu_type": ("gpu_type", _matching(GPU_TYPE, "a6000")),
    "allow_cpu": ("allow_cpu", _yes_or_no),
    "time": ("time_s", lambda _, value: parse_time(value)),
    "stall_timeout": ("stall_s", lambda name, value: parse_time(value, name)),
    "retries": ("retries", lambda name, value: whole_number(name, value, 0)),
    "resume": ("resume", _matching(_JOB_ID, "7f3a")),
    "host": ("host", _matching(HOST_NAME, "tensor01")),
    "environment": ("environment", _environment),
    "packages": ("packages", _several(_package)),
    "modules": ("modules", _several(_matching(_MODULE, "cuda/12.4"))),
    "env": ("env", _environment_variables),
    "secrets": ("secrets", _several(_matching(VARIABLE, "HF_TOKEN"))),
    "outputs": ("outputs", _several(_output)),
    "cwd": ("cwd", _folder),
    "name": ("name", _job_name),
    "on_interrupt": ("on_interrupt", _on_interrupt),
}
