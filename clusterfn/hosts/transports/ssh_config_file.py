"""The files of ssh_config(5): where they are, and what they say of a host where there is no ssh to ask.

paramiko reads them then. What only ssh itself understands is rejected by file and line. Opens no connection, expands no
tokens.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterfn.config import places
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError

Options = dict[str, list[str]]

# A file may include itself. ssh has the same limit.
_DEPTH = 16
# paramiko skips these, or takes what it does not know of them for true.
_ONLY_SSH = re.compile(r'\s*"?(include|match(?!\W+all\s*$)|canonicalizehostname(?!\W+no))\b(.*)', re.IGNORECASE)
_PROXIES = ("proxyjump", "proxycommand")
_NUMBERS = {"port": range(1, 65536), "connecttimeout": range(10**6), "numberofpasswordprompts": range(10**6)}


def read(host: Host, name: str, overriding: Options, config: str | None) -> Options:
    """Read the options that hold for `name`; those in `overriding` come first.

    Args:
        config: The only file to read; None reads the user's and the system's.

    Raises:
        ConfigError: A file cannot be read, or has a line that needs ssh itself.
    """
    from paramiko import SSHException
    from paramiko.config import SSHConfig

    if config is not None and not Path(config).is_file():
        raise ConfigError(f"{config} does not exist", host=host.name, hint="correct ssh_config: of the host")
    reader = SSHConfig()
    # The caller expands tokens, as it does for the answer of `ssh -G`, so paramiko must leave them alone.
    reader.TOKENS_BY_CONFIG_KEY = {}
    reader.parse([f"{key} {value}" for key, values in overriding.items() for value in values])
    for path in [config_file(), system_file()] if config is None else [Path(config)]:
        lines = _lines(path)
        for number, line in enumerate(lines, 1):
            match = _ONLY_SSH.match(line)
            if match and (match[1].lower() != "include" or _included(path, match[2].split())):
                problem = f"can only be understood by ssh itself, and this machine has no ssh: {match[1]}"
                hint = "install OpenSSH's client, or give the host a file of its own with ssh_config:"
                evidence = [line.strip()]
                raise ConfigError(f"{path}:{number} {problem}", host=host.name, evidence=evidence, hint=hint)
        try:
            reader.parse(lines)
        except (SSHException, ValueError) as error:
            hint = "install OpenSSH's client, or correct that file"
            raise ConfigError(f"{path} cannot be understood: {error}", host=host.name, hint=hint) from error
    return _options(host, name, reader.lookup(name))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.is_file() else []
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _options(host: Host, name: str, raw: dict[str, Any]) -> Options:
    """Return what paramiko found, in the form of `ssh -G`'s answer."""
    options: Options = {key: list(value) if isinstance(value, list) else [value] for key, value in raw.items()}
    options["hostname"] = [options["hostname"][0].replace("%h", name).replace("%%", "%").lower()]
    for proxy in [key for key in options if key in _PROXIES][1:]:
        del options[proxy]
    for key, allowed in _NUMBERS.items():
        value = options.get(key, ["none"])[0]
        if value != "none" and not (value.isascii() and value.isdigit() and int(value) in allowed):
            message = f"The ssh configuration of host {host.name} has {key} {value}, which is not a valid number"
            hint = f"write {key} as a plain number, or install OpenSSH's client"
            raise ConfigError(message, host=host.name, hint=hint)
    return options


def aliases() -> list[str]:
    """List the hosts that the user's configuration, and what it includes, names without a wildcard."""
    return list(dict.fromkeys(name for name in _host_names(config_file()) if not set(name) & set("*?!")))


def _host_names(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the names of a file, and of those that it includes.

    A file or a line that cannot be read must not hide the others: a call reports it as an error.
    """
    with contextlib.suppress(ConfigError):
        for line in _lines(path):
            with contextlib.suppress(ValueError):
                keyword, *words = shlex.split(line, comments=True) or [""]
                if keyword.lower() == "host":
                    yield from words
                elif keyword.lower() == "include" and depth < _DEPTH:
                    for included in _included(path, words):
                        yield from _host_names(included, depth + 1)


def _included(path: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of an Include; a relative name in the user's file begins in ~/.ssh."""
    folder = path.parent if path == system_file() else expanded("~/.ssh")
    return [Path(file) for name in names for file in sorted(glob.glob(str(folder / expanded(name))))]


def home() -> Path:
    """Return the home in which ssh looks for its files: that of the user database, whatever $HOME says."""
    if sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            return Path(pwd.getpwuid(os.getuid()).pw_dir)
    return Path.home()


def expanded(name: str) -> Path:
    """Expand `~` in a path of an ssh configuration, as ssh does; raise ConfigError for an unknown `~user`."""
    if name == "~" or name.startswith("~/"):
        return home() / name[2:]
    try:
        return places.expanded(name)
    except ConfigError as error:
        raise ConfigError(error.message, hint="correct that path in the ssh configuration") from error


def config_file() -> Path:
    """Return the path of the user's own configuration."""
    return expanded("~/.ssh/config")


def system_file() -> Path:
    """Return the path of the configuration of all users of this machine."""
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "ssh" / "ssh_config"
    return Path("/etc/ssh/ssh_config")
