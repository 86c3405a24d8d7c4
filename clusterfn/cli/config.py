"""`clusterfn config [HOST]`: each setting that holds for a host, its value, and the line that it comes from.

`clusterfn hosts` lists the hosts of clusterfn.yml, and says which of them a call uses. Neither connects to a host.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterfn.cli import target
from clusterfn.config import config_file, keys, options, places, yamlfile
from clusterfn.config.keys import DEFAULT_KEYS, HOST_KEYS, LIMIT_KEYS
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.config.units import exact_memory, exact_time
from clusterfn.config.value_kinds import Key
from clusterfn.config.yamlfile import Value
from clusterfn.display import console, live
from clusterfn.errors import ConfigError

_HEAD = ("SETTING", "VALUE", "FROM")
_OF_FILES = (places.VARIABLE, options.HOST_VARIABLE, config_file.LOCAL_VARIABLE)
_VARIABLES = (*_OF_FILES, "CLUSTERFN_QUIET", "CLUSTERFN_RUNTIME", "CLUSTERFN_DEBUG")
_DEFAULT = "default"
Setting = tuple[str, Any, str]


def config(args: argparse.Namespace) -> int:
    """Print the settings of a host, those of the file and the variables first; or the schema of every file."""
    if args.schema:
        if args.host or args.json:
            raise ConfigError("--schema is the same for all hosts, and JSON", hint="clusterfn config --schema")
        print(json.dumps(keys.file_schema(), indent=2))
        return 0
    configuration, host, because = target.host(args.host, "config")
    top = yamlfile.parse(configuration.path.read_bytes(), str(configuration.path)) if configuration.path else None
    of_host = _of_host(host, _keys_of_host(top, host.name))
    settings = [*_of_program(configuration, top), ("host", host.name, because), *of_host]
    if args.json:
        print(console.as_json([{"setting": name, "value": value, "from": source} for name, value, source in settings]))
    else:
        print(live.table(_HEAD, [(name, _in_words(value), source) for name, value, source in settings]))
    return 0


def _of_program(configuration: config_file.Config, top: Value | None) -> Iterator[Setting]:
    chosen = f"${places.VARIABLE}" if os.environ.get(places.VARIABLE) else "found"
    path = configuration.path
    yield "file", str(path) if path else None, chosen if path else f"there is no {places.FILE}"
    for name in _VARIABLES:
        if name in os.environ:
            yield f"${name}", os.environ[name], "environment"
    for key, value in top.pairs if top else ():
        if key.text != "hosts":
            yield from _settings_of(key.text, value)


def _keys_of_host(top: Value | None, name: str) -> Mapping[str, Value]:
    """Return the keys that the file has for a host."""
    hosts = next((value for key, value in top.pairs if key.text == "hosts"), None) if top else None
    host = next((value for key, value in hosts.pairs if key.text == name), None) if hosts else None
    return {key.text: value for key, value in host.pairs} if host else {}


def _of_host(host: Host, values: Mapping[str, Value]) -> Iterator[Setting]:
    for key, (field, *_) in HOST_KEYS.items():
        schedulers = [name for name, scheduler in keys_by_scheduler().items() if key in scheduler.keys]
        if schedulers and host.scheduler not in schedulers:
            # The scheduler of this host does not obey this key, so it has no value here.
            continue
        value: Any = host
        for name in field.split("."):
            value = getattr(value, name, None)
        below = _below(value)
        if key in values:
            yield from _settings_of(key, values[key])
            names = {name.text for name, _ in values[key].pairs}
            yield from ((f"{key}.{name}", default, _DEFAULT) for name, default in below.items() if name not in names)
        elif below:
            yield from ((f"{key}.{name}", default, _DEFAULT) for name, default in below.items())
        elif field != "making.cuda":
            yield key, None if isinstance(value, (Limits, Resources)) else _with_unit(field, value), _DEFAULT


def _below(value: Any) -> dict[str, Any]:
    """Return the defaults below `defaults:` that hold without being written, by the words of the file."""
    table: Mapping[str, Key] = DEFAULT_KEYS if isinstance(value, Resources) else {}
    if isinstance(value, Limits):
        table = LIMIT_KEYS
    facts = {word: (key.field, getattr(value, key.field, None)) for word, key in table.items()}
    return {word: _with_unit(field, entry) for word, (field, entry) in facts.items() if entry is not None}


def _with_unit(field: str, value: Any) -> Any:
    """Return a value as the file would have it: the name of the field of a number ends with its unit."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is not None and field.endswith("_bytes"):
        return exact_memory(value)
    seconds = {"s": 1, "days": 86400}.get(field.rpartition("_")[2])
    return value if value is None or seconds is None else exact_time(value * seconds)


def _settings_of(key: str, value: Value) -> Iterator[Setting]:
    """Yield a key as it is written, and the keys below it."""
    if value.kind == "map":
        for name, below in value.pairs:
            yield from _settings_of(f"{key}.{name.text}", below)
    elif value.kind == "list":
        yield key, [entry.text for entry in value.values], value.place
    else:
        yield key, value.text, value.place


def _in_words(value: Any) -> str:
    if value in (None, (), {}, ""):
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_HOSTS_HEAD = ("", "HOST", "ADDRESS", "SCHEDULER", "ENVIRONMENT", "ROOT", "DEFINED IN")


def hosts(args: argparse.Namespace) -> int:
    """Print the hosts; a star marks the one that a call uses if it names none."""
    configuration = config_file.load()
    try:
        chosen, because = configuration.hosts_named(None)
    except ConfigError as error:
        # There are several hosts and no default. The list is still useful, so print it with that sentence.
        chosen, because = [], error.message
    names = (*configuration.named, *({*configuration.hosts} - {*configuration.named}))
    facts: list[dict[str, Any]] = []
    for name in names:
        host = configuration.hosts[name]
        reached = {"address": host.address, "scheduler": host.scheduler, "transport": host.transport}
        used = {"environment": host.environment, "root": host.root, "source": host.source}
        facts.append({"name": host.name, **reached, **used, "default": host in chosen})
    if args.json:
        print(console.as_json(facts))
        return 0
    rows = []
    for entry in facts:
        row = ["*" if entry["default"] else "", entry["name"], entry["address"] or "this machine", entry["scheduler"]]
        rows.append([*row, entry["environment"] or "-", entry["root"], _short_place(entry["source"])])
    print(live.table(_HOSTS_HEAD, rows))
    for name, members in configuration.lists.items():
        console.tell(f"{name} is any of {', '.join(members)}")
    usual = " or ".join(host.name for host in chosen)
    console.tell(f"a call without a host uses {usual}: {because}" if chosen else because)
    return 0


def _short_place(source: str) -> str:
    """Return a place without the working directory.

    Example:
        >>> _short_place("built in")
        'built in'
    """
    return source.replace(f"{Path.cwd()}/", "", 1)
