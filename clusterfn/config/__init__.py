"""clusterfn.yml: found, read, checked, and asked which host a call goes to.

    $CLUSTERFN_CONFIG, else clusterfn.yml in the working directory or above it, else in the user's configuration folder

Read at the first call that needs a host, never at decoration and never inside a job (the callers see to that).
Every complaint is a ConfigError that names file, line and column. No network, and nothing on disk but this one file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterfn.config import hosts as _hosts
from clusterfn.config import yamlfile
from clusterfn.errors import ConfigError
from clusterfn.spec import Host, did_you_mean

FILE = "clusterfn.yml"
FILE_VARIABLE = "CLUSTERFN_CONFIG"
HOST_VARIABLE = "CLUSTERFN_HOST"
_ROOT = 0
TOP_KEYS = frozenset(["hosts", "default_host"])
LOCAL = Host(name="local", address="", scheduler="local", source="built in", transport="local", environment="current")

__all__ = ["LOCAL", "Config", "load"]


@dataclass(frozen=True)
class Config:
    """What clusterfn.yml says.

    Attributes:
        hosts: By name; `local` is always there.
        default_host: `default_host:`, or None.
        path: The file, or None where there is none.
        named: The hosts of the file itself, in its order.
    """

    hosts: Mapping[str, Host]
    default_host: str | None = None
    path: Path | None = None
    named: tuple[str, ...] = ()
    default_place: str = field(default="", compare=False)

    def resolve(self, name: str | None) -> tuple[Host, str]:
        """The host for a call that says `host=name`, and what decided: a clause for messages.

        Raises:
            ConfigError: There is no such host, or several and none is the default.

        Example:
            >>> Config({"local": LOCAL}).resolve(None)[1]
            'there is no clusterfn.yml'
        """
        chosen, because = self._chosen(name)
        if chosen not in self.hosts:
            near = did_you_mean(chosen, self.hosts)
            raise ConfigError(f"there is no host {chosen!r}{near} ({because})", hint=self._known())
        return self.hosts[chosen], because

    def _chosen(self, name: str | None) -> tuple[str, str]:
        variable = os.environ.get(HOST_VARIABLE)
        if name is not None:
            return name, f"host={name!r}"
        if variable:
            return variable, f"${HOST_VARIABLE}={variable}"
        if self.default_host is not None:
            return self.default_host, f"default_host: in {self.default_place}"
        return self._only()

    def _only(self) -> tuple[str, str]:
        if len(self.named) > 1:
            hint = f'say host="{self.named[0]}", or add `default_host: {self.named[0]}` to {self.path}'
            raise ConfigError(f"{self.path} has several hosts and no default_host: {', '.join(self.named)}", hint=hint)
        if self.named:
            return self.named[0], f"the only host in {self.path}"
        return LOCAL.name, f"{self.path} names no host" if self.path else f"there is no {FILE}"

    def _known(self) -> str:
        where = f"add it to {self.path}" if self.path else f"make a {FILE} that defines it"
        return f"the hosts are {', '.join(self.hosts)}; choose one of them or {where}"


def load(start: Path | None = None) -> Config:
    """The configuration that holds in the folder `start` (the working directory).

    Raises:
        ConfigError: The file cannot be read, belongs to somebody else, or has a mistake.
    """
    path = _given() or _found(start or Path.cwd())
    if path is None:
        return Config({LOCAL.name: LOCAL})
    return read(path)


def read(path: Path) -> Config:
    """The configuration in this file."""
    try:
        with path.open("rb") as file:
            data = file.read(yamlfile.LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    return parse(data, path)


def parse(data: bytes, path: Path) -> Config:
    """The configuration in these bytes of `path`."""
    top = yamlfile.parse(data, str(path))
    _hosts.refuse_passwords(top)
    keys = top.mapping(TOP_KEYS)
    named = _named_hosts(keys.get("hosts"), path.parent)
    hosts = {LOCAL.name: LOCAL, **named}
    default = keys.get("default_host")
    if default is not None and default.as_text() not in hosts:
        near = did_you_mean(default.text, hosts)
        raise default.error(f'there is no host "{default.text}"{near}', f"the hosts are {', '.join(hosts)}")
    place = default.place if default else ""
    return Config(hosts, default.text if default else None, path, tuple(named), place)


def _named_hosts(value: yamlfile.Value | None, folder: Path) -> dict[str, Host]:
    if value is None:
        return {}
    value.mapping()  # refuses what is no mapping, and a name that stands there twice
    return {key.text: _hosts.host(key, below, folder) for key, below in value.pairs}


def _given() -> Path | None:
    text = os.environ.get(FILE_VARIABLE)
    path = Path(text).expanduser() if text else None
    if path is not None and not path.is_file():
        raise ConfigError(f"${FILE_VARIABLE}={text} is not a file", hint="correct the path, or unset the variable")
    return path


def _found(start: Path) -> Path | None:
    for folder in _folders(start):
        path = folder / FILE
        if _is_file(path):
            return _trusted(path)
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above that may not be looked into
        return False


def _folders(start: Path) -> Iterator[Path]:
    here = start.absolute()
    yield from (here, *here.parents)
    yield from _user_folders()


def _user_folders() -> Iterator[Path]:
    home = Path("~").expanduser()
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "clusterfn"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "clusterfn"
    if os.environ.get("APPDATA"):
        yield Path(os.environ["APPDATA"]) / "clusterfn"


def _trusted(path: Path) -> Path:
    """A file that was merely found is obeyed only if it is the user's own: its `setup:` lines are run."""
    if hasattr(os, "geteuid") and path.stat().st_uid not in (_ROOT, os.geteuid()):
        hint = f"to use it all the same, set {FILE_VARIABLE}={path}"
        raise ConfigError(f"{path} belongs to another user, and its lines would run in your name", hint=hint)
    return path
