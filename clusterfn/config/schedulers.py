"""What each word of `scheduler:` means for the other keys of its host in clusterfn.yml.

A scheduler that is added here needs an entry in `SCHEDULER_KEYS`; `hosts` takes its keys and their checks from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from clusterfn.config.units import GPU_TYPE, VARIABLE
from clusterfn.config.yamlfile import Value
from clusterfn.config.yamlfile import parse as parse_yaml
from clusterfn.errors import ConfigError

Key = tuple[str, Callable[[Value], Any]]
# of a JSON Schema: what is written as a word or number, and that for jobs with and without GPUs
WRITTEN: Mapping[str, Any] = {"type": ["string", "number"]}
BY_GPU: Mapping[str, Any] = {"anyOf": [WRITTEN, {"$ref": "#/definitions/by_gpu"}]}
LINES: Mapping[str, Any] = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]
}
OPTIONS = "scheduler_options"


class SchedulerKeys(NamedTuple):
    """What a host with one scheduler may have in addition to the keys of every host, and what it may not.

    Attributes:
        keys: The keys that it obeys: the attribute of `Host`, and how the key is read. One of them, with the
            scheduler's own name, becomes `Host.scheduler_options`.
        written_beside: Words below that key that people write next to it.
        limits: Why such a host has no `limits:`, and where its limits are set; None if it obeys them.
        misread: Characters that a path cannot have, and what the scheduler makes of them.
        schema: JSON Schema of the value of the key with the scheduler's own name; {} where there is no such key.
        sets_memory: Whether these options decide about the memory of a job that does not ask for any; else it asks
            for the usual amount.
    """

    keys: Mapping[str, Key] = {}
    written_beside: tuple[str, ...] = ()
    limits: tuple[str, str] | None = None
    misread: tuple[str, str] = ("", "")
    schema: Mapping[str, Any] = {}
    sets_memory: Callable[[Mapping[str, Any]], bool] = lambda options: True


@dataclass(frozen=True)
class Choice:
    """Read one of a few words."""

    words: tuple[str, ...]

    def __call__(self, value: Value) -> str:
        return value.as_choice(self.words)


def _folders(value: Value) -> tuple[str, ...]:
    folders = value.as_lines()
    for folder in folders:
        if ":" in folder:
            each = ", ".join(folder.split(":"))
            raise value.error(f'"{folder}" is several folders in one text', f"write a list: [{each}]")
        if not folder.startswith(("/", "~/")):
            raise value.error(f'"{folder}" is not an absolute path', "write a folder, or a list: [/opt/slurm/bin]")
    return folders


def read_variables(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if not VARIABLE.fullmatch(key.text):
            raise key.error(f'"{key.text}" cannot name a variable', "use letters, digits and `_`")
    return {name: given.as_written() for name, given in value.mapping().items()}


def _variables_of_commands(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if key.text == "PATH":
            raise key.error("PATH is that of the host", "write `scheduler_path:` with the folders that come first")
    return read_variables(value)


_BATCH_JOBS: Mapping[str, Key] = {
    "build_partition": ("making.partition", Value.as_path),
    "scheduler_path": ("scheduler_path", _folders),
    "scheduler_env": ("scheduler_env", _variables_of_commands),
}


# SLURM

# sbatch options that clusterfn sets from arguments: here they can only be dropped, by null.
_FROM_ARGUMENTS = {
    "cpus-per-task": "cores=", "mem": "memory=", "time": "time=", "gpus": "gpus=", "gpus-per-node": "gpus=",
    "open-mode": None,
}  # fmt: skip
# ... and those without which a job could not be followed, or that would not reach the function: what to do instead.
_REMOVE = "remove this line"
_RESERVED = {
    **dict.fromkeys(
        [
            "batch", "bb", "bbf", "container", "export-file", "get-user-env", "gid", "help", "ignore-pbs", "input",
            "parsable", "quiet", "test-only", "uid", "usage", "version",
        ],
        _REMOVE,
    ),
    "array": "call the function with `.map`, which submits an array",
    "chdir": "use `cwd=`",
    "cpus-per-gpu": "use `cores=`",
    "error": "remove this line: the output of a job is in `clusterfn logs`",
    "gpus-per-socket": "use `gpus=`",
    "gpus-per-task": "use `gpus=`",
    "job-name": "use `name=`",
    "output": "remove this line: the output of a job is in `clusterfn logs`",
    "signal": "use `warn_before=`, and `clusterfn.on_warning(handler)` in the function",
    "wait": "remove this line: a call waits for its result by itself",
    "wrap": "remove this line: `clusterfn run` runs a script",
}  # fmt: skip
_LONG_NAME = "use the option's long name, without dashes in front"
_GPU_COUNTED = re.compile(r"gpu(?::.*)?:[0-9]+|gpu:?=.*")


# What names the cluster that squeue and scancel ask too, so that no call can have another one than its host.
_OF_HOST = ("cluster", "clusters")


def sbatch_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a call says with `slurm=`, as if it were below `slurm:` in clusterfn.yml.

    Raises:
        ConfigError: No such option can be set, or its value is wrong.

    Example:
        >>> sbatch_options({"partition": "gpu", "exclusive": True})
        {'partition': 'gpu', 'exclusive': True}
    """
    for name in _OF_HOST:
        if name in given:
            raise ConfigError(f"slurm= cannot set {name!r}", hint=f"write `slurm: {{{name}: …}}` in clusterfn.yml")
    for name, value in given.items():
        if value is False or not isinstance(value, (str, int, float, Mapping, type(None))):
            hint = f"leave it out, or write slurm={{{name!r}: None}} to drop what the host's section says"
            raise ConfigError(f"slurm= cannot set {name!r} to {value!r}", hint=hint)
    try:
        text = json.dumps({"slurm": dict(given)}, ensure_ascii=False, default=str)
        top = parse_yaml(text.encode("utf-8", "replace"), "slurm=")
        return _sbatch_options(top.mapping(["slurm"])["slurm"])
    except ConfigError as error:  # its place is one in the text that was made here
        hint = (error.hint or "").replace("this line", "it").replace("null", "None")
        raise ConfigError(error.message.partition(": ")[2], hint=hint) from None


def _sbatch_options(value: Value) -> dict[str, Any]:
    for key, _ in value.pairs:
        if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", key.text) or len(key.text) < 2:
            long = key.text.replace("_", "-")
            ours = _FROM_ARGUMENTS.get(long)
            hint = f"use `{ours}`" if ours else f'write "{long}"' if "_" in key.text else _LONG_NAME
            raise key.error(f'"{key.text}" is not an option of sbatch', hint)
        if key.text in _RESERVED:
            raise key.error(f"clusterfn needs `--{key.text}` for itself", _RESERVED[key.text])
    return {name: _sbatch_option(name, given) for name, given in value.mapping().items()}


def _sbatch_option(name: str, value: Value) -> Any:
    """Return a text, True for an option without a value, None to drop it, or a mapping for partition."""
    if value.kind == "null":
        return None
    if name in _FROM_ARGUMENTS:
        ours = _FROM_ARGUMENTS[name]
        hint = f"use `{ours}` or `defaults:`; null leaves the option out" if ours else "set it to null to drop it"
        raise value.error(f"clusterfn sets `--{name}` itself", hint)
    if name == "nodes" and value.as_written() not in ("1", "1-1"):
        raise value.error("nothing would run on any node but the first", "write nodes= in @cluster, or `nodes: 1`")
    if name == "partition" and value.kind == "map":
        return {kind: given.as_written() for kind, given in value.mapping(("cpu", "gpu")).items()}
    if value.kind == "bool" and value.text.lower() in ("true", "yes", "on"):
        return True
    if name != "gres":
        return value.as_written()
    text = value.as_text()
    if any(_GPU_COUNTED.fullmatch(part) for part in text.split(",")):
        raise value.error(f'"{text}" counts GPUs', "write only their type, `gpu:a100`; the number comes from `gpus=`")
    return text


def read_gpu_type(value: Value) -> str:
    text = value.as_written()
    if not GPU_TYPE.fullmatch(text):
        raise value.error(f'"{text}" cannot name a type of GPU', "write one word of its name, such as a6000")
    return text


def _sizes_of_gpus(value: Value) -> dict[str, int]:
    for key, given in value.pairs:
        read_gpu_type(key)
        given.as_memory()
    return {kind: given.as_memory() for kind, given in value.mapping().items()}


_SLURM = SchedulerKeys(
    keys={
        "slurm": (OPTIONS, _sbatch_options),
        "gpu_option": ("gpu_option", Choice(("gres", "gpus", "gpus-per-node"))),
        "gpu_sizes": ("gpu_sizes", _sizes_of_gpus),
        **_BATCH_JOBS,
    },
    schema={
        "type": "object",
        "properties": {"partition": BY_GPU},
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    },
    written_beside=("partition", "account", "qos", "constraint", "gres", "reservation"),
    limits=(
        "with SLURM the scheduler sets limits, by QOS",
        "SLURM's own limits are those of your account and its QOS",
    ),
    misread=("%\\", "SLURM expands % and \\ in paths"),
    sets_memory=lambda options: bool({"mem", "mem-per-cpu", "mem-per-gpu"} & set(options)),
)


# Grid Engine

_SITE_NAME = re.compile(r"[A-Za-z_][\w.@*-]*")


def _qsub_options(value: Value) -> dict[str, Any]:
    """Read names of the site's own queues and resources, as qsub wants them."""
    return {key: QSUB_OPTIONS[key](given) for key, given in value.mapping(QSUB_OPTIONS).items()}


def _site_name(value: Value) -> str:
    text = value.as_written()
    if not _SITE_NAME.fullmatch(text):
        raise value.error(f'"{text}" cannot name anything in Grid Engine', "write one word that `qconf` lists")
    return text


def _optional_name(value: Value) -> str | None:
    return None if value.kind == "null" else _site_name(value)


def _queue(value: Value) -> Any:
    if value.kind == "map":
        return {kind: _site_name(given) for kind, given in value.mapping(("cpu", "gpu")).items()}
    return _site_name(value)


def _resources(value: Value) -> dict[str, str]:
    """Read what is asked for by `-l` in addition to what calls ask for."""
    for key, given in value.pairs:
        _site_name(key)
        if key.text in ("h_rt", "s_rt"):
            raise key.error(f"clusterfn sets `-l {key.text}` itself", "use `time=` or `defaults: time:`")
        if not re.fullmatch(r"[^,\s=]+", given.as_written()):
            raise given.error(f'"{given.as_written()}" is not the value of a resource', "write one word or number")
    return {name: given.as_written() for name, given in value.mapping().items()}


QSUB_OPTIONS: dict[str, Callable[[Value], Any]] = {
    "queue": _queue,
    "project": _site_name,
    "parallel_environment": _site_name,
    "memory": _optional_name,
    "gpus": _optional_name,
    "per_job": Value.as_lines,
    "resources": _resources,
}

_QSUB_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "queue": BY_GPU,
    "per_job": LINES,
    "resources": {"type": "object", "additionalProperties": WRITTEN},
    **dict.fromkeys(("memory", "gpus"), {"type": ["string", "number", "null"]}),
}

_GRID_ENGINE = SchedulerKeys(
    keys={"grid_engine": (OPTIONS, _qsub_options), **_BATCH_JOBS},
    limits=("with Grid Engine the scheduler sets limits, by resource quotas", "`qconf -srqsl` lists them"),
    schema={
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _QSUB_SCHEMAS.get(name, WRITTEN) for name in QSUB_OPTIONS},
    },
    misread=(":,%\\", "Grid Engine expands or splits paths at : , % and \\"),
    sets_memory=lambda options: options.get("memory", "") is None,
)


# word of `scheduler:` -> what it means for the host's other keys
SCHEDULER_KEYS: Mapping[str, SchedulerKeys] = {
    "bare": SchedulerKeys(),
    "slurm": _SLURM,
    "grid_engine": _GRID_ENGINE,
    "local": SchedulerKeys(),
}
