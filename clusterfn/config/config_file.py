"""clusterfn.yml: find, read and check it, and resolve which host a call goes to.

    $CLUSTERFN_CONFIG, else clusterfn.yml in the working directory or above it, else beside the running script or above
    it, else in the user's configuration folder

Read at the first call that needs a host, never at decoration and never inside a job (the callers see to that).
Every error is a ConfigError that names file, line and column.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterfn.config import hosts as host_keys
from clusterfn.config import places, yamlfile
from clusterfn.config.places import FILE
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, did_you_mean

HOST_VARIABLE = "CLUSTERFN_HOST"
TOP_KEYS = frozenset(["hosts", "default_host", "quiet"])
LOCAL = Host(name="local", address="", scheduler="local", source="built in", transport="local", environment="current")

running_file: Path | None = None
quiet = False  # `quiet:` of the file that was loaded last: sentences come from where no configuration is at hand

__all__ = ["LOCAL", "Config", "load", "running"]


@dataclass(frozen=True)
class Config:
    """What clusterfn.yml says.

    Attributes:
        hosts: By name; `local` is always there.
        default_host: `default_host:`, or None.
        path: The file, or None where there is none.
        named: The hosts of the file itself, in its order.
        quiet: Whether progress is hidden.
    """

    hosts: Mapping[str, Host]
    default_host: str | None = None
    path: Path | None = None
    named: tuple[str, ...] = ()
    default_place: str = field(default="", compare=False)
    quiet: bool = False

    def resolve(self, name: str | None) -> tuple[Host, str]:
        """Return the host for a call that says `host=name`, and what decided: a clause for messages.

        Raises:
            ConfigError: There is no such host, or several and none is the default.

        Example:
            >>> Config({"local": LOCAL}).resolve(None)[1]
            'there is no clusterfn.yml'
        """
        chosen, because = self._chosen(name)
        if chosen not in self.hosts:
            hint = f"the hosts are {', '.join(self.hosts)}; choose one of them or add it to {self.path}"
            if not self.path:
                found = f"there is no {FILE} in {Path.cwd()} or above: change to your project's folder"
                hint = f"{found}, set ${places.VARIABLE}, or add a host with `clusterfn init ADDRESS`"
            near = did_you_mean(chosen, self.hosts)
            raise ConfigError(f"there is no host {chosen!r}{near} ({because})", hint=hint)
        return self.hosts[chosen], because

    def _chosen(self, name: str | None) -> tuple[str, str]:
        variable = os.environ.get(HOST_VARIABLE)
        if name is not None:
            return name, f"host={name!r}"
        if variable:
            return variable, f"${HOST_VARIABLE}={variable}"
        if self.default_host is not None:
            return self.default_host, f"default_host: in {self.default_place}"
        if len(self.named) > 1:
            hint = f'set host="{self.named[0]}", or add `default_host: {self.named[0]}` to {self.path}'
            raise ConfigError(f"{self.path} has several hosts and no default_host: {', '.join(self.named)}", hint=hint)
        if self.named:
            return self.named[0], f"the only host in {self.path}"
        return LOCAL.name, f"{self.path} defines no host" if self.path else f"there is no {FILE}"


def running(script: Path) -> None:
    """Let `load` look beside this file, as if Python had been started with it: for commands that run a file."""
    global running_file
    running_file = script


def load(start: Path | None = None) -> Config:
    """Read the configuration that holds in the folder `start` (the working directory), and for the running script.

    Raises:
        ConfigError: The file cannot be read, belongs to another user, has a mistake or another name.
    """
    global quiet
    path = places.given() or places.found(start or Path.cwd(), running_file or places.running_script())
    config = Config({LOCAL.name: LOCAL}) if path is None else read(path)
    quiet = config.quiet
    return config


def read(path: Path) -> Config:
    """Read the configuration in this file.

    Raises:
        ConfigError: It cannot be read, has a mistake, or belongs to another user and the variable does not name it.
    """
    try:
        with path.open("rb") as file:
            places.refuse_others(path, os.fstat(file.fileno()))
            data = file.read(yamlfile.LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    return parse(data, path)


@functools.lru_cache(maxsize=8)  # each call of a function reads the file; parsing takes longer than packing the call
def parse(data: bytes, path: Path) -> Config:
    """Parse the configuration in these bytes of `path`."""
    top = yamlfile.parse(data, str(path))
    host_keys.refuse_passwords(top)
    host_keys.refuse_misplaced_hosts(top, TOP_KEYS)
    keys = top.mapping(TOP_KEYS)
    named: dict[str, Host] = {}
    if below := keys.get("hosts"):
        below.mapping()  # rejects what is no mapping, and a name that it has twice
        named = {key.text: host_keys.host(key, value, path.parent) for key, value in below.pairs}
    hosts = {LOCAL.name: LOCAL, **named}
    default = keys.get("default_host")
    if default is not None and default.as_text() not in hosts:
        near = did_you_mean(default.text, hosts)
        raise default.error(f'there is no host "{default.text}"{near}', f"the hosts are {', '.join(hosts)}")
    place = default.place if default else ""
    silent = "quiet" in keys and keys["quiet"].as_choice(("true", "false")) == "true"
    return Config(hosts, default.text if default else None, path, tuple(named), place, silent)
