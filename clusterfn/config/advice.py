"""What to write instead of a mistake that many make in clusterfn.yml."""

from __future__ import annotations

import re
from collections.abc import Collection

from clusterfn.config.options import ALIASES, ENVIRONMENT_KINDS, names_a_file, nearly_an_environment
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError

_OF_SLURM = ("partition", "account", "qos", "constraint", "gres", "reservation")
_BELOW_DEFAULTS = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time")
_PASSWORDS = ("pass", "passphrase", "passcode", "secret", "token", "pwd", "pw")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_EXAMPLE = '"conda:NAME"'
_NEVER = "never read: a secret in a file is soon everybody's"

# unknown key of a host -> what to write
OF_HOST = {
    **dict.fromkeys(("user", "username", "port"), "write it in `address:`, as user@name:port"),
    **dict.fromkeys(("host", "hostname"), "the key is `address:`"),
    **{word: f"write it below `slurm:`, as `slurm: {{{word}: …}}`" for word in _OF_SLURM},
    **{word: f"write it below `defaults:`, as `defaults: {{{word}: …}}`" for word in _BELOW_DEFAULTS},
    **{word: f'write `environment: "{word}:…"`' for word in ("conda", "venv", "prefix")},
    **{word: f"write `defaults: {{{meant}: …}}`" for word, meant in ALIASES.items() if meant in _BELOW_DEFAULTS},
}
# unknown key below `defaults:`
OF_DEFAULTS = {word: f"the key is `{meant}:`" for word, meant in ALIASES.items()}


def refuse_passwords(value: Value) -> None:
    """No key of the file may hold a secret; its line is not shown."""
    for key, below in value.pairs:
        word = key.text.lower()
        if (word.startswith("passw") or word in _PASSWORDS) and below.kind != "map":
            raise password(key, f"`{key.text}:` is {_NEVER}")
        if word != "env":
            refuse_passwords(below)


def password(value: Value, problem: str = f"a password in an address is {_NEVER}") -> ConfigError:
    return value.error(problem, "remove it; use a key (ssh-copy-id HOST) or an ssh agent", show=False)


def refuse_misplaced_hosts(top: Value, top_keys: Collection[str], host_keys: Collection[str]) -> None:
    """A host, or its keys, at the left margin."""
    for key, below in top.pairs:
        if key.text in top_keys:
            continue
        if {name.text for name, _ in below.pairs} & set(host_keys):
            raise key.error(f'unknown key "{key.text}"', "if it is a host, write it below `hosts:`, indented further")
        if key.text in host_keys:
            hint = "it belongs to a host: write it below the host's name, below `hosts:`"
            raise key.error(f'unknown key "{key.text}"', hint)


def environment(value: Value) -> str:
    """The text, unless it is a form that is nearly right."""
    if value.kind == "map":
        pairs = value.pairs
        written = [f'"{kind.text}:{name.text}"' for kind, name in pairs if kind.text in ENVIRONMENT_KINDS and name.text]
        hint = f"write `environment: {written[0] if written else _EXAMPLE}`"
        raise value.error("a mapping stands where a text is wanted", hint)
    text = value.as_text()
    if names_a_file(text):
        return text
    instead = nearly_an_environment(text)
    if not instead and text.startswith(("/", "~")):
        path = text.rstrip("/")
        instead = f"python:{text}" if path.rpartition("/")[2].startswith("python") else f"python:{path}/bin/python"
    elif not instead and _NAME.fullmatch(text) and text != "current":
        instead = f"conda:{text}"
    if instead:
        raise value.error(f'"{text}" names no kind of environment', f'write `environment: "{instead}"`')
    return text
