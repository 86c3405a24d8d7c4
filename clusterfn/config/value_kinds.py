"""The kinds of values that clusterfn.yml may have: how each is read, and the form of it that editors check.

A `Key` has one of them, and its row of docs/reference/configuration.md. `host_values` has those of single keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clusterfn.config import units
from clusterfn.config.yamlfile import Value

# A JSON Schema.
Form = Mapping[str, Any]


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
        read: Checks and returns the value; raises ConfigError.
        form: What a JSON Schema can say of it.
    """

    read: Callable[[Value], Any]
    form: Form


class Key(NamedTuple):
    """A key of clusterfn.yml.

    Attributes:
        field: The attribute that its value becomes.
        kind: What may be written.
        default, example, meaning: Its row in docs/reference/configuration.md, in Markdown; the example without its
            quotes. Editors show the meaning.
    """

    field: str
    kind: Kind
    default: str
    example: str
    meaning: str


def form_of(keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the form of a mapping that has no other keys than these."""
    shapes = {word: {**key.kind.form, "description": _plain(key.meaning)} for word, key in keys.items()}
    return {"type": "object", "additionalProperties": False, "properties": shapes}


def _plain(meaning: str) -> str:
    """Return a text without its links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning)


TEXT: Form = {"type": "string", "minLength": 1}
WRITTEN: Form = {"type": ["string", "number"]}
_LINES: Form = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
# These patterns only guide editors. `units` decides what is valid.
_TIME: Form = {"type": "string", "pattern": r"[0-9]\s*[dhmsDHMS]|[0-9]:[0-9]{2}:[0-9]{2}", "examples": ["2h"]}
_MEMORY: Form = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[KMGTkmgt]i?[Bb]\s*$", "examples": ["16GB"]}

PATH = Kind(Value.as_path, TEXT)
LINES = Kind(Value.as_lines, _LINES)
MEMORY = Kind(Value.as_memory, _MEMORY)
TIME = Kind(Value.as_time, _TIME)
DAYS = Kind(lambda value: value.as_time() / 86400, _TIME)


def choice(*words: str) -> Kind:
    """One of a few words, in capitals or not."""
    return Kind(lambda value: value.as_choice(words), {"enum": list(words)})


def count(least: int) -> Kind:
    """A whole number of at least `least`."""
    return Kind(lambda value: value.as_count(least), {"type": "integer", "minimum": least})


def read_variables(value: Value) -> dict[str, str]:
    """Return names of variables with their values."""
    for key, _ in value.pairs:
        if not units.VARIABLE.fullmatch(key.text):
            raise key.error(f'"{key.text}" cannot name a variable', "use letters, digits and `_`")
    return {name: content.as_written() for name, content in value.mapping().items()}


VARIABLES = Kind(
    read_variables,
    {"type": "object", "propertyNames": {"pattern": f"^{units.VARIABLE.pattern}$"}, "additionalProperties": WRITTEN},
)


def _gpu_type(value: Value) -> str:
    text = value.as_written()
    if not units.GPU_TYPE.fullmatch(text):
        raise value.error(f'"{text}" cannot name a type of GPU', "write one word of its name, such as a6000")
    return text


GPU_TYPE = Kind(_gpu_type, WRITTEN)
