"""What a host with `scheduler: grid_engine` may say in clusterfn.yml: names of the site, and options of qsub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterfn.config import value_kinds as kinds
from clusterfn.config.scheduler_keys import BATCH_JOBS, BY_GPU, OPTIONS, SchedulerKeys
from clusterfn.config.value_kinds import WRITTEN, Key, Kind
from clusterfn.config.yamlfile import Value

_SITE_NAME = re.compile(r"[A-Za-z_][\w.@*-]*")


def _site_name(value: Value) -> str:
    text = value.as_written()
    if not _SITE_NAME.fullmatch(text):
        raise value.error(f'"{text}" cannot name anything in Grid Engine', "write one word that `qconf` lists")
    return text


def _queue(value: Value) -> Any:
    if value.kind == "map":
        return {kind: _site_name(name) for kind, name in value.mapping(("cpu", "gpu")).items()}
    return _site_name(value)


def _resources(value: Value) -> dict[str, str]:
    """Read what is asked for by `-l` in addition to what calls ask for."""
    for key, amount in value.pairs:
        _site_name(key)
        if key.text in ("h_rt", "s_rt"):
            raise key.error(f"clusterfn sets `-l {key.text}` itself", "use `time=` or `defaults: time:`")
        if not re.fullmatch(r"[^,\s=]+", amount.as_written()):
            raise amount.error(f'"{amount.as_written()}" is not the value of a resource', "write one word or number")
    return {name: amount.as_written() for name, amount in value.mapping().items()}


_NAME_OR_NULL = Kind(
    lambda value: None if value.kind == "null" else _site_name(value), {"type": ["string", "number", "null"]}
)
_OPTIONS: Mapping[str, Kind] = {
    "queue": Kind(_queue, BY_GPU),
    "project": Kind(_site_name, WRITTEN),
    "parallel_environment": Kind(_site_name, WRITTEN),
    "memory": _NAME_OR_NULL,
    "gpus": _NAME_OR_NULL,
    "per_job": kinds.LINES,
    "resources": Kind(_resources, {"type": "object", "additionalProperties": WRITTEN}),
}
_QSUB = Kind(
    lambda value: {key: _OPTIONS[key].read(option) for key, option in value.mapping(_OPTIONS).items()},
    {"type": "object", "additionalProperties": False, "properties": {key: each.form for key, each in _OPTIONS.items()}},
)

KEYS = SchedulerKeys(
    "clusterfn submits them with qsub",
    keys={
        "grid_engine": Key(
            OPTIONS, _QSUB, "none", "{queue: long.q, project: physics}",
            "names of the site for qsub, see [Grid Engine](../how-to/grid-engine.md); only with "
            "`scheduler: grid_engine`",
        ),
        **BATCH_JOBS,
    },
    limits=("with Grid Engine the scheduler sets limits, by resource quotas", "`qconf -srqsl` lists them"),
    misread=(":,%\\", "Grid Engine expands or splits paths at : , % and \\"),
    sets_memory=lambda options: options.get("memory", "") is None,
)  # fmt: skip
