"""Add one host to clusterfn.yml as text: every other line and comment in the file stays.

The new text is parsed by `config_file` first, written aside and renamed: the file is the old one or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.bridge.supervisor import publish
from clusterfn.config import config_file, places
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError

Keys = Mapping[str, Any]
_STEP = "  "
_NEW = "# Where functions run. To test a host: clusterfn check {name}; to add a host: clusterfn init ADDRESS\n"
# So wide that YAML breaks no line: each key of the host gets one line of text.
_WIDE = 10**6


@dataclass(frozen=True)
class Change:
    """What is to be written to a file: all of its text, and the lines that are new in it."""

    path: Path
    text: str
    added: tuple[str, ...]


def place(folder: Path) -> Path:
    """Return the file that counts in a folder, and for a script in it; a new one there if there is none.

    Raises:
        ConfigError: It belongs to another user, or has nearly the right name.
    """
    # The name of the script does not matter, only its folder.
    return places.file_of_variable() or places.find_file(folder, folder / "script.py") or folder / places.FILE


def read_or_empty(path: Path) -> config_file.Config:
    """Read the file; nothing where there is none yet, or only comments."""
    if not path.exists() or all(re.match(r"\s*(#|$)", line) for line in _read(path).splitlines()):
        return config_file.Config({config_file.LOCAL.name: config_file.LOCAL}, path=path)
    return config_file.read(path)


def host(name: str, keys: Keys, path: Path) -> Host:
    """Return the host that these keys mean, in a file `path`; raise ConfigError if one of them cannot be such."""
    return config_file.parse(_block(name, keys, "hosts:\n", _STEP).encode(), path).hosts[name]


def adding(name: str, keys: Keys, path: Path, suggestion: str = "") -> Change:
    """Add a host to the file; calls that name no host go where they went before, or to it if it is the first.

    Args:
        keys: As they are written below the host's name: texts, numbers, and mappings of these.
        suggestion: A line that the user may want, written below them as a comment.

    Raises:
        ConfigError: The file cannot be read, has that host, or is written in a way that only a person can extend.
    """
    before = read_or_empty(path)
    if name in before.named:
        hint = "choose another name, or edit its lines yourself"
        raise ConfigError(f"{path} already has a host {name}", evidence=[before.hosts[name].source], hint=hint)
    old = _read(path) if path.exists() else _NEW.format(name=name)
    text = text_with_host(old, name, keys, suggestion)
    if before.default_host is None and len(before.named) <= 1:
        # With a second host, calls that name no host would be ambiguous. Let them go where they went before.
        only = before.named[0] if before.named else name
        text = _appended(text, f"\ndefault_host: {_flow(only)}\n")
    _reject_unless_only_added(before, text, name, path, _block(name, keys, "", _STEP))
    return Change(path, text, _new_lines(old if path.exists() else "", text))


def write(change: Change) -> None:
    """Put the new text in place of the old; raise ConfigError if it cannot be written there."""
    # Replace the file that a symbolic link names, and not the link itself.
    target = change.path.resolve()
    try:
        # Publishing makes a new file, so give it the permissions of the old one.
        mode = target.stat().st_mode & 0o7777 if target.exists() else None
        publish.replace(str(target), change.text.encode(), mode=0o666 if mode is None else 0o600)
        if mode is not None:
            target.chmod(mode)
    except OSError as error:
        hint = f"change to a folder of your own, or set {places.VARIABLE} to the path of your file"
        raise ConfigError(f"{change.path} cannot be written: {error.strerror}", hint=hint) from error


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="fix the file, or move it away") from error


def _flow(value: Any) -> str:
    """Write a value in one line, in quotes where YAML would take it for something else."""
    import yaml

    plain = dict(value) if isinstance(value, Mapping) else value
    line: str = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDE)
    return line.splitlines()[0]


def _block(name: str, keys: Keys, head: str, indent: str, suggestion: str = "") -> str:
    lines = [f"{indent}{_flow(name)}:", *(f"{indent}{_STEP}{key}: {_flow(value)}" for key, value in keys.items())]
    lines += [f"{indent}{_STEP}# {suggestion}"] if suggestion else []
    return head + "".join(f"{line}\n" for line in lines)


def text_with_host(text: str, name: str, keys: Keys, suggestion: str) -> str:
    """Add the host below the others. A file that is written in another way is rejected by who parses the result."""
    lines = text.splitlines(keepends=True)
    top = next((number for number, line in enumerate(lines) if re.match(r"hosts\s*:", line)), None)
    if top is None:
        return _appended(text, _block(name, keys, "hosts:\n", _STEP, suggestion))
    end, indent = top + 1, ""
    for number, line in enumerate(lines[end:], end):
        bare = line.strip()
        # A key or a comment at the left margin is no part of the hosts.
        if bare and not line[0].isspace():
            break
        end = number + 1 if bare else end
        indent = indent or ("" if bare.startswith("#") else line[: len(line) - len(line.lstrip())].strip("\r\n"))
    block = _block(name, keys, "", indent or _STEP, suggestion)
    return _appended("".join(lines[:end]), block) + "".join(lines[end:])


def _appended(text: str, block: str) -> str:
    """Put a block below a text, with the line ends of the file."""
    end = "\r\n" if "\r\n" in text else "\n"
    return text + (end if text and not text.endswith("\n") else "") + block.replace("\n", end)


def _reject_unless_only_added(before: config_file.Config, text: str, name: str, path: Path, block: str) -> None:
    try:
        # Parse the new text before it is written: in an unusual file, the insertion could change other hosts.
        after = config_file.parse(text.encode(), path)
        same = {key: other._replace(source="") for key, other in after.hosts.items() if key != name}
        if same == {key: other._replace(source="") for key, other in before.hosts.items()} and name in after.named:
            return
        problem = "its other hosts would change"
    except ConfigError as error:
        problem = error.message
    hint = "add these lines yourself, then run the same command again"
    raise ConfigError(f"{name} cannot be added to {path}: {problem}", evidence=block.splitlines(), hint=hint)


def _new_lines(old: str, text: str) -> tuple[str, ...]:
    """Return the lines of `text` that are not in `old`, in their order; nothing was removed."""
    rest = old.splitlines()
    new: list[str] = []
    for line in text.splitlines():
        if rest and rest[0] == line:
            rest.pop(0)
        else:
            new.append(line)
    return tuple(new)
