"""The kinds of values that clusterfn.yml may have: how each is read, and the form of it that editors check.

A `Key` has one of them, and its row of docs/reference/configuration.md. Those that several keys have come first.
Nothing here reads the disk or the network.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clusterfn.bridge.supervisor.eligible_gpus import is_gpu_id
from clusterfn.config import environment_kinds, notes, units
from clusterfn.config.environment_kinds import ENVIRONMENT_KINDS, NOTIFY_KEYS, PYTHON_SOURCES, Notify, parse_notify
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError, did_you_mean

# A JSON Schema.
Form = Mapping[str, Any]


class Kind(NamedTuple):
    """A kind of value: `read` checks and returns it or raises ConfigError; `form` is its JSON Schema."""

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


# A shell expands these. A variable of a process has its value as it is written.
_FOR_A_SHELL = re.compile(r"\$[A-Za-z_{(]|(?:^|:)~/")
_WHERE_A_SHELL_IS = 'write the whole value, or set it in `setup:`, which a shell reads: export NAME="$HOME/x"'
_AS_IT_IS = "if it is meant as it is, put it in single quotes"


def read_variables(value: Value, instead: str) -> dict[str, str]:
    """Return variables by name; `instead` is what to write where a shell should expand a value."""
    for key, _ in value.pairs:
        if not units.VARIABLE.fullmatch(key.text):
            raise key.error(f'"{key.text}" cannot name a variable', "use letters, digits and `_`")
    variables = {name: content.as_written() for name, content in value.mapping().items()}
    for _, content in value.pairs:
        if _FOR_A_SHELL.search(content.text) and not content.literal:
            problem = f"{content.written} would stay as it is: only a shell expands it"
            raise content.error(problem, f"{instead}; {_AS_IT_IS}")
    return variables


VARIABLES: Form = {
    "type": "object",
    "propertyNames": {"pattern": f"^{units.VARIABLE.pattern}$"},
    "additionalProperties": WRITTEN,
}


def _gpu_type(value: Value) -> str:
    text = value.as_written()
    if not units.GPU_TYPE.fullmatch(text):
        raise value.error(f'"{text}" cannot name a type of GPU', "write one word of its name, such as a6000")
    return text


GPU_TYPE = Kind(_gpu_type, WRITTEN)
NEVER_READ = "never read: secrets in files leak"


def password_error(value: Value, problem: str = f"a password in an address is {NEVER_READ}") -> ConfigError:
    return value.error(problem, "remove it; use a key (ssh-copy-id HOST) or an ssh agent", show=False)


# An IPv6 address without brackets, whose last colon would begin a port.
_IPV6 = re.compile(r"((?:[^@:]+@)?)([0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)")


def _address(value: Value) -> str:
    text = value.as_text()
    # The colon of `ssh://` is not one before a password.
    if ":" in text.rpartition("@")[0].replace("://", ""):
        raise password_error(value)
    match = environment_kinds.ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[1] or 22) < 65536:
        hint = "write `name`, `user@name` or `user@name:port`; for anything else add an alias to ~/.ssh/config"
        if six := _IPV6.fullmatch(text):
            hint = f'write an IPv6 address in brackets and quotes: "{six[1]}[{six[2]}]"'
        raise value.error(f'"{text}" is not an address', hint)
    return text


ADDRESS = Kind(_address, TEXT)


def _root(value: Value) -> str:
    text = value.as_text()
    if not text.startswith(("/", "~", "$")) or "\t" in text:
        hint = "start it with `/`, `~/` or a variable such as `$SCRATCH`"
        raise value.error(f'"{text}" is not an absolute path', hint)
    return text


ROOT = Kind(_root, {"type": "string", "pattern": "^[/~$]"})


def _names(pattern: re.Pattern[str], cannot: str, hint: str) -> Kind:
    """A list of texts that match a pattern, each as a whole."""

    def read(value: Value) -> tuple[str, ...]:
        names = value.as_lines()
        for name in names:
            if not pattern.fullmatch(name):
                raise value.error(f'"{name}" {cannot}', hint)
        return names

    return Kind(read, _LINES)


_PRINCIPAL = re.compile(r"[\w.@+\\][\w.@+\\-]*\$?")
OWNERS = _names(_PRINCIPAL, "cannot name a user or a group", "write a list, one name each: [alice, lab]")
MODULES = _names(environment_kinds.MODULE, "cannot name a module", "write a list, one name each: [cuda/12.4, gcc]")


_ABOUT_BINDS = "write absolute folders, [/data], or pairs with the image's, [/data:/mnt]"
BINDS = _names(environment_kinds.BIND, "names no folder of the host", _ABOUT_BINDS)


def _container(value: Value) -> tuple[str, ...]:
    """Return the words that run a program in an image."""
    if value.kind != "list" or not value.values or not any("{image}" in entry.text for entry in value.values[1:]):
        hint = 'write a list of its words, [shifter, "--image={image}"]; python3 and its arguments come behind it'
        raise value.error("expected the words of a command with {image} among them", hint)
    words = value.as_lines()
    why, remedy = environment_kinds.UNUSABLE.get(posixpath.basename(words[0]), ("", ""))
    if why:
        raise value.error(f"{words[0]} cannot be used: {why}", remedy)
    return words


CONTAINER = Kind(_container, {"type": "array", "items": TEXT, "minItems": 2})


def _environment(value: Value) -> str:
    """Return the text, unless its form is nearly right."""
    if value.kind == "map":
        kinds = [(kind.text, name.text) for kind, name in value.pairs if kind.text in ENVIRONMENT_KINDS]
        example = next((f'"{kind}:{name}"' for kind, name in kinds if name), '"conda:NAME"')
        raise value.error("expected a string, found a mapping", f"write `environment: {example}`")
    text = value.as_text()
    if environment_kinds.names_a_file(text):
        return text
    if environment_kinds.python_version(text):
        hint = 'write the path of an interpreter, `environment: "python:/path"`, or a file such as environment.yml'
        raise value.error(f'"{text}" names a version of Python, not an interpreter', hint)
    instead = environment_kinds.nearly_an_environment(text)
    why, remedy = environment_kinds.why_no_image(instead or text)
    if why:
        raise value.error(f'"{text}" cannot be used: {why}', remedy)
    if not instead and re.fullmatch(r"[A-Za-z0-9][\w-]*", text) and text != "current":
        instead = f"conda:{text}"
    if instead:
        raise value.error(f'"{text}" is not a kind of environment', f'write `environment: "{instead}"`')
    return text


_EXAMPLES = ["conda:NAME", "venv:~/PATH", "python:/PATH", "environment.yml", "current"]
ENVIRONMENT = Kind(_environment, {**TEXT, "examples": _EXAMPLES})


def _env(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if environment_kinds.is_set_by_clusterfn(key.text):
            raise key.error(f'"{key.text}" is set by clusterfn itself', environment_kinds.ASK_FOR_GPUS)
    return read_variables(value, _WHERE_A_SHELL_IS)


ENV = Kind(_env, VARIABLES)


def _secrets(value: Value) -> tuple[str, ...]:
    """Return names of variables; neither the name nor the line of what may be a secret itself is shown."""
    names = () if value.kind == "map" else value.as_lines()
    if not names or not all(units.VARIABLE.fullmatch(name.removesuffix("*")) for name in names):
        hint = "write a list, [HF_TOKEN, WANDB_*]; the values stay in your environment"
        raise value.error("expected names of variables", hint, show=False)
    return names


SECRETS = Kind(_secrets, _LINES)


# Without `after:`, `notify:` sends notices only about jobs that took longer than this.
_LONG_S = 600.0


def _notify(value: Value) -> Notify:
    """Return the command that runs when a job has ended. By default, not after short jobs, because calls are many."""
    content: Any = value.as_text() if value.kind == "str" else None
    if content is None:
        content = {word: below.as_written() for word, below in value.mapping(NOTIFY_KEYS).items()}
    try:
        notify = parse_notify(content, "notify")
    except ConfigError as error:
        raise value.error(error.message, error.hint, show=False) from error
    return notify if isinstance(content, dict) and "after" in content else notify._replace(after_s=_LONG_S)


_NOTIFY: Form = {"type": "object", "properties": dict.fromkeys(NOTIFY_KEYS, TEXT), "additionalProperties": False}
NOTIFY = Kind(_notify, {"anyOf": [TEXT, _NOTIFY], "examples": ["mail -s done ada@example.edu"]})


def _notes(value: Value) -> tuple[str, ...]:
    """Return the ids of notes that are not said, from `{hide: [ID, …]}`."""
    hide = value.mapping(["hide"]).get("hide")
    ids = hide.as_lines() if hide else ()
    for id_ in ids:
        if hide and id_ not in notes.NOTES:
            raise hide.error(f'no note has the id "{id_}"{did_you_mean(id_, notes.NOTES)}', "the reference lists them")
    return ids


_IDS: Form = {"type": "array", "items": {"enum": list(notes.NOTES)}}
NOTES = Kind(_notes, {"type": "object", "properties": {"hide": _IDS}, "additionalProperties": False})


_COUNT_OR_ONLY = "write it below `defaults:`, as `defaults: {gpus: 1}`; to use only some, `gpus: {only: [3]}`"


def _gpus(value: Value) -> tuple[str, ...]:
    """Return the GPUs that jobs may get, from `{only: [3, GPU-7f3a…]}`."""
    if value.kind != "map":
        raise value.error(f"expected `{{only: […]}}`, found {value.written}", _COUNT_OR_ONLY)
    only = value.mapping(["only"]).get("only")
    if only is None or only.kind != "list" or not only.values:
        raise (only or value).error("expected a list of GPUs below `only:`", "write `gpus: {only: [3]}`")
    names = tuple(entry.as_written() for entry in only.values)
    for entry, name in zip(only.values, names):
        if not is_gpu_id(name):
            hint = "write the number or the UUID that `nvidia-smi -L` shows: [3] or [GPU-7f3a…]"
            raise entry.error(f'"{name}" names no GPU', hint)
    return names


_ONLY: Form = {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}, "examples": [[0, 1]]}
_CHOSEN: Form = {"type": "object", "additionalProperties": False, "properties": {"only": _ONLY}, "required": ["only"]}
GPUS = Kind(_gpus, _CHOSEN)


def _env_python(value: Value) -> str:
    """Where the Python of environments from project files comes from."""
    text = value.as_text()
    if not environment_kinds.is_python_source(text):
        hint = f"write {', '.join(PYTHON_SOURCES)}, or the path of an interpreter such as /usr/bin/python3.11"
        raise value.error(f'"{text}" does not say where Python comes from', hint)
    return text


_PYTHONS: Form = {"anyOf": [{"enum": list(PYTHON_SOURCES)}, {"type": "string", "pattern": "^(/|~/|python3)"}]}
ENV_PYTHON = Kind(_env_python, {**_PYTHONS, "examples": ["host", "/usr/bin/python3.11"]})
