"""`clusterfn config [HOST]`: each setting that holds for a host, its value, and the line that it comes from."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from clusterfn.cli import screen, target
from clusterfn.config import config_file, options, places, schema, yamlfile
from clusterfn.config.hosts import KEY_READERS
from clusterfn.config.schedulers import SCHEDULER_KEYS
from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.config.units import exact_memory, shown_time
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError

_HEAD = ("SETTING", "VALUE", "FROM")
_VARIABLES = (
    places.VARIABLE,
    options.HOST_VARIABLE,
    config_file.LOCAL_VARIABLE,
    "CLUSTERFN_QUIET",
    "CLUSTERFN_RUNTIME",
    "CLUSTERFN_DEBUG",
)
_DEFAULT = "default"
Setting = tuple[str, Any, str]


def config(given: argparse.Namespace) -> int:
    """Print the settings of a host, those of the file and the variables first; or the schema of every file."""
    if given.schema:
        if given.host or given.json:
            raise ConfigError("--schema is the same for all hosts, and JSON", hint="clusterfn config --schema")
        print(json.dumps(schema.file_schema(), indent=2))
        return 0
    known, host, because = target.host(given.host, "config")
    top = yamlfile.parse(known.path.read_bytes(), str(known.path)) if known.path else None
    found = [*_of_program(known, top), ("host", host.name, because), *_of_host(host, _keys_of_host(top, host.name))]
    if given.json:
        print(screen.as_json([{"setting": name, "value": value, "from": source} for name, value, source in found]))
    else:
        print(screen.table(_HEAD, [(name, _in_words(value), source) for name, value, source in found]))
    return 0


def _of_program(known: config_file.Config, top: Value | None) -> Iterator[Setting]:
    chosen = f"${places.VARIABLE}" if os.environ.get(places.VARIABLE) else "found"
    yield "file", str(known.path) if known.path else None, chosen if known.path else f"there is no {places.FILE}"
    for name in _VARIABLES:
        if name in os.environ:
            yield f"${name}", os.environ[name], "environment"
    for key, value in top.pairs if top else ():
        if key.text != "hosts":
            yield from _written(key.text, value)


def _keys_of_host(top: Value | None, name: str) -> Mapping[str, Value]:
    """Return the keys that the file has for a host."""
    hosts = next((value for key, value in top.pairs if key.text == "hosts"), None) if top else None
    found = next((value for key, value in hosts.pairs if key.text == name), None) if hosts else None
    return {key.text: value for key, value in found.pairs} if found else {}


def _of_host(host: Host, written: Mapping[str, Value]) -> Iterator[Setting]:
    for key, (field, _) in KEY_READERS.items():
        schedulers = [name for name, each in SCHEDULER_KEYS.items() if key in each.keys]
        if schedulers and host.scheduler not in schedulers:
            continue  # a key that this host does not obey
        value = _attribute(host, field)
        below = _below(value)
        if key in written:
            yield from _written(key, written[key])
            names = {name.text for name, _ in written[key].pairs}
            yield from ((f"{key}.{name}", each, _DEFAULT) for name, each in below.items() if name not in names)
        elif below:
            yield from ((f"{key}.{name}", each, _DEFAULT) for name, each in below.items())
        elif field != "making.cuda":
            yield key, None if isinstance(value, (Limits, Resources)) else _with_unit(field, value), _DEFAULT


def _attribute(host: Host, field: str) -> Any:
    found: Any = host
    for name in field.split("."):
        found = getattr(found, name, None)
    return found


def _below(value: Any) -> dict[str, Any]:
    """Return the defaults below `defaults:` that hold without being written, by the words of the file."""
    facts = value._asdict() if isinstance(value, (Limits, Resources)) else {}
    kept = {name: each for name, each in facts.items() if each is not None and name not in ("nodes", "allow_cpu")}
    return {name.removesuffix("_bytes").removesuffix("_s"): _with_unit(name, each) for name, each in kept.items()}


def _with_unit(field: str, value: Any) -> Any:
    """Return a number as the file would have it: the name of its field ends with its unit."""
    if value is None:
        return None
    if field.endswith("_bytes"):
        return exact_memory(value)
    if field.endswith("_s"):
        return shown_time(value)
    return shown_time(value * 86400) if field.endswith("_days") else value


def _written(key: str, value: Value) -> Iterator[Setting]:
    """Yield a key as it is written, and the keys below it."""
    if value.kind == "map":
        for name, below in value.pairs:
            yield from _written(f"{key}.{name.text}", below)
    elif value.kind == "list":
        yield key, [each.text for each in value.values], value.place
    else:
        yield key, value.text, value.place


def _in_words(value: Any) -> str:
    if value in (None, (), {}, ""):
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
