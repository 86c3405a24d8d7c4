"""What a host with `scheduler: slurm` may say in clusterfn.yml, and a call with `slurm=`: options of sbatch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from clusterfn.config import value_kinds as kinds
from clusterfn.config.scheduler_keys import BATCH_JOBS, BY_GPU, OPTIONS, SchedulerKeys
from clusterfn.config.value_kinds import Form, Key, Kind
from clusterfn.config.yamlfile import Value
from clusterfn.config.yamlfile import parse as parse_yaml
from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.options import OPTIONS as OPTIONS_OF_SBATCH
from clusterfn.scheduler.slurm.options import SENT

_LONG_NAME = "use the option's long name, without dashes in front"
_GPU_COUNTED = re.compile(r"gpu(?::.*)?:[0-9]+|gpu:?=.*")


# What names the cluster that squeue and scancel ask too, so that no call can have another one than its host.
_OF_HOST = ("cluster", "clusters")


def sbatch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a call says with `slurm=`, as if it were below `slurm:` in clusterfn.yml.

    Raises:
        ConfigError: No such option can be set, or its value is wrong.

    Example:
        >>> sbatch_options({"partition": "gpu", "exclusive": True})
        {'partition': 'gpu', 'exclusive': True}
    """
    for name in _OF_HOST:
        if name in options:
            raise ConfigError(f"slurm= cannot set {name!r}", hint=f"write `slurm: {{{name}: …}}` in clusterfn.yml")
    for name, value in options.items():
        if value is False or not isinstance(value, (str, int, float, Mapping, type(None))):
            hint = f"leave it out, or write slurm={{{name!r}: None}} to drop what the host's section says"
            raise ConfigError(f"slurm= cannot set {name!r} to {value!r}", hint=hint)
    try:
        text = json.dumps({"slurm": dict(options)}, ensure_ascii=False, default=str)
        top = parse_yaml(text.encode("utf-8", "replace"), "slurm=")
        return _sbatch_options(top.mapping(["slurm"])["slurm"])
    except ConfigError as error:
        # The error names a line of the text that was made here, which the user has never seen.
        hint = (error.hint or "").replace("this line", "it").replace("null", "None")
        raise ConfigError(error.message.partition(": ")[2], hint=hint) from None


def _sbatch_options(value: Value) -> dict[str, Any]:
    for key, _ in value.pairs:
        if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", key.text) or len(key.text) < 2:
            long = key.text.replace("_", "-")
            hint = _instead(long) or (f'write "{long}"' if "_" in key.text else _LONG_NAME)
            raise key.error(f'"{key.text}" is not an option of sbatch', hint)
        option = OPTIONS_OF_SBATCH.get(key.text)
        if option is not None and option.instead not in ("", SENT):
            raise key.error(f"clusterfn needs `--{key.text}` for itself", option.instead)
    return {name: _sbatch_option(name, option) for name, option in value.mapping().items()}


def _instead(name: str) -> str:
    """Return which argument clusterfn sends as an option; "" for none."""
    option = OPTIONS_OF_SBATCH.get(name)
    return f"use `{option.argument}=`" if option and option.instead == SENT and option.argument else ""


def _sbatch_option(name: str, value: Value) -> Any:
    """Return a text, True for an option without a value, None to drop it, or a mapping for partition."""
    if value.kind == "null":
        return None
    if name in OPTIONS_OF_SBATCH and OPTIONS_OF_SBATCH[name].instead == SENT:
        ours = _instead(name)
        hint = f"{ours} or `defaults:`; null leaves the option out" if ours else "set it to null to drop it"
        raise value.error(f"clusterfn sets `--{name}` itself", hint)
    if name == "nodes" and value.as_written() not in ("1", "1-1"):
        raise value.error("nothing would run on any node but the first", "write nodes= in @cluster, or `nodes: 1`")
    if name == "partition" and value.kind == "map":
        return {kind: name_of_kind.as_written() for kind, name_of_kind in value.mapping(("cpu", "gpu")).items()}
    if value.kind == "bool" and value.text.lower() in ("true", "yes", "on"):
        return True
    if name != "gres":
        return value.as_written()
    text = value.as_text()
    if any(_GPU_COUNTED.fullmatch(part) for part in text.split(",")):
        raise value.error(f'"{text}" counts GPUs', "write only their type, `gpu:a100`; the number comes from `gpus=`")
    return text


def _restarts(options: Mapping[str, Any]) -> bool:
    """Return whether SLURM may start a job again: the last word counts, as for sbatch; null leaves it to the site."""
    words = [name for name in options if name in ("requeue", "no-requeue")]
    said = [name for name in words if options[name]]
    return said[-1] == "requeue" if said else bool(words)


_SBATCH: Form = {
    "type": "object",
    "properties": {"partition": BY_GPU},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}

KEYS = SchedulerKeys(
    "clusterfn submits them with sbatch",
    keys={
        "slurm": Key(
            OPTIONS, Kind(_sbatch_options, _SBATCH), "none", "{account: ab12}",
            "options for sbatch, see below; only with `scheduler: slurm`",
        ),
        "gpu_option": Key(
            "gpu_option", kinds.choice("gres", "gpus", "gpus-per-node"), "`gres`", "gpus-per-node",
            "which option asks for GPUs: `gres` (`--gres=gpu:2`), `gpus`, `gpus-per-node`; only with "
            "`scheduler: slurm`",
        ),
        **BATCH_JOBS,
    },
    written_beside=("partition", "account", "qos", "constraint", "gres", "reservation"),
    limits=("with SLURM the scheduler sets limits, by QOS", "SLURM's own limits are those of your account and its QOS"),
    misread=("%\\", "SLURM expands % and \\ in paths"),
    sets_memory=lambda options: bool({"mem", "mem-per-cpu", "mem-per-gpu"} & set(options)),
    restarts=_restarts,
    of_call=sbatch_options,
)  # fmt: skip
