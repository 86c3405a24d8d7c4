"""A JSON Schema of clusterfn.yml, from the table of its keys: editors complete keys with it and mark mistakes.

It knows keys, words and units. Mistakes that take more to see are found when clusterfn reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.config import config_file
from clusterfn.config.hosts import DEFAULT_READERS, GPU_KEYS, KEY_READERS, LIMIT_READERS, Count
from clusterfn.config.options import HOST_NAME, PYTHON_SOURCES
from clusterfn.config.schedulers import LINES, SCHEDULER_KEYS, WRITTEN, Choice, Key
from clusterfn.config.units import VARIABLE
from clusterfn.config.yamlfile import Value

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_MEMORY: Schema = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[KMGTkmgt]i?[Bb]\s*$", "examples": ["16GB"]}
_TIME: Schema = {"type": "string", "pattern": r"[0-9]\s*[dhmsDHMS]|[0-9]:[0-9]{2}:[0-9]{2}", "examples": ["2h"]}
_GPUS: Schema = {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}, "examples": [[0, 1]]}
_FROM_ROOT: Schema = {"type": "string", "pattern": "^[/~$]"}
_VARIABLES: Schema = {
    "type": "object",
    "propertyNames": {"pattern": f"^{VARIABLE.pattern}$"},
    "additionalProperties": WRITTEN,
}

# how a value is read -> its form
_OF_READER: Mapping[Any, Schema] = {
    Value.as_path: _TEXT,
    Value.as_lines: LINES,
    Value.as_memory: _MEMORY,
    Value.as_time: _TIME,
}
# keys whose values are read by a function of their own
_OF_KEY: Mapping[str, Schema] = {
    "address": _TEXT,
    "root": _FROM_ROOT,
    "env_root": _FROM_ROOT,
    "owners": LINES,
    "modules": LINES,
    "secrets": LINES,
    "environment": {**_TEXT, "examples": ["conda:NAME", "venv:~/PATH", "python:/PATH", "environment.yml", "current"]},
    "env": _VARIABLES,
    "scheduler_env": _VARIABLES,
    "scheduler_path": LINES,
    "keep": _TIME,
    "purge_days": _TIME,
    "gpu_type": WRITTEN,
    "installer": {"anyOf": [{"enum": ["clusterfn", "conda"]}, {"type": "string", "pattern": "^(/|~/)"}]},
    "env_python": {
        "anyOf": [{"enum": list(PYTHON_SOURCES)}, {"type": "string", "pattern": "^(/|~/|python3)"}],
        "examples": ["host", "/usr/bin/python3.11"],
    },
    "environment_at": {"anyOf": [{"enum": ["root", "node"]}, {"type": "string", "pattern": "^/"}]},
    "gpu_sizes": {"type": "object", "additionalProperties": _MEMORY},
}


def file_schema() -> Schema:
    """Return the schema of a whole file."""
    top: dict[str, Schema] = {
        "hosts": {
            "type": "object",
            "propertyNames": {"pattern": f"^{HOST_NAME.pattern}$"},
            "additionalProperties": {"$ref": "#/definitions/host"},
        },
        "default_host": {"type": "string", "pattern": f"^{HOST_NAME.pattern}$"},
        "quiet": {"type": "boolean"},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "clusterfn.yml",
        **_keys({key: top[key] for key in sorted(config_file.TOP_KEYS)}),
        "definitions": {"host": _host(), "by_gpu": _keys({"cpu": WRITTEN, "gpu": WRITTEN})},
    }


def _host() -> Schema:
    below = {
        "defaults": _keys(_shapes(DEFAULT_READERS)),
        "limits": _keys(_shapes(LIMIT_READERS)),
        "gpus": {**_keys(dict.fromkeys(GPU_KEYS, _GPUS)), "required": sorted(GPU_KEYS)},
        "cuda": _keys({"driver": WRITTEN, "capability": WRITTEN, "table": _TEXT}),
        **{word: keys.schema for word, keys in SCHEDULER_KEYS.items() if keys.schema},
    }
    shapes = _shapes({key: read for key, read in KEY_READERS.items() if key not in below})
    rules = [
        {
            "if": {"properties": {"scheduler": {"const": word}}, "required": ["scheduler"]},
            "then": {"properties": dict.fromkeys(_not_obeyed(word), False)},
        }
        for word in SCHEDULER_KEYS
    ]
    return {**_keys({**shapes, **below}), "required": ["scheduler"], "allOf": rules}


def _not_obeyed(word: str) -> list[str]:
    """Return the keys that a host with this scheduler cannot have."""
    own = SCHEDULER_KEYS[word].keys
    others = {key for each in SCHEDULER_KEYS.values() for key in each.keys if key not in own}
    return sorted(others | ({"limits", "gpus"} if SCHEDULER_KEYS[word].limits else set()))


def _shapes(table: Mapping[str, Key]) -> dict[str, Schema]:
    """Return the form of each key's value; a KeyError names a key that has no form here."""
    found: dict[str, Schema] = {}
    for key, (_, read) in table.items():
        if isinstance(read, Choice):
            found[key] = {"enum": list(read.words)}
        elif isinstance(read, Count):
            found[key] = {"type": "integer", "minimum": read.least}
        else:
            found[key] = _OF_KEY[key] if key in _OF_KEY else _OF_READER[read]
    return found


def _keys(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}
