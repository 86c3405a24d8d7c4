"""The files of ssh_config(5): where they are, and what they say of a host where there is no ssh to ask.

paramiko reads them then. A line that it would skip, or read otherwise than OpenSSH, is rejected by file and line. Opens
no connection, expands no tokens.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import os
import re
import shlex
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError

Options = dict[str, list[str]]

# A file may include itself. ssh has the same limit.
_DEPTH = 16
_LINE = re.compile(r'\s*"?(\w+)"?(?:\s*=\s*|\s+)(.*?)\s*')
# The value of each of these options is the whole rest of its line.
_COMMANDS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
_CRITERIA = ("host", "originalhost", "user", "localuser")
_PROXIES = ("proxyjump", "proxycommand")
_NUMBERS = {"port": range(1, 65536), "connecttimeout": range(10**6), "numberofpasswordprompts": range(10**6)}
_WORDS = (
    "addressfamily", "compression", "gssapiauthentication", "hashknownhosts", "identitiesonly", "permitlocalcommand",
    "proxyusefdpass",
)  # fmt: skip


def read(host: Host, name: str, overriding: Options, config: str | None) -> Options:
    """Read the options that hold for `name`; those in `overriding` come first.

    Args:
        config: The only file to read; None reads the user's and the system's.

    Raises:
        ConfigError: A line cannot be understood, or needs ssh itself; file and line are named.
    """
    load_paramiko()
    from paramiko.config import SSHConfig

    if config is not None and not Path(config).is_file():
        raise ConfigError(f"{config} does not exist", host=host.name, hint="correct ssh_config: of the host")
    reader = SSHConfig()
    # The caller expands tokens, as it does for the answer of `ssh -G`, so paramiko must leave them alone.
    reader.TOKENS_BY_CONFIG_KEY = {}
    reader.parse([f"{key} {value}" for key, values in overriding.items() for value in values])
    for path in _files(config):
        reader.parse([_accepted(host, path, *each) for each in _lines(path)])
    return _options(host, name, reader.lookup(name))


def _lines(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, line, keyword and value, comments left out; the keyword is empty if there is no value."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if line.strip() and not line.lstrip().startswith("#"):
            yield (number, line, match[1].lower(), match[2]) if match else (number, line, "", "")


def _accepted(host: Host, path: Path, number: int, line: str, keyword: str, value: str) -> str:
    """Return the line as paramiko is to read it.

    Raises:
        ConfigError: It would not read it as OpenSSH does.
    """
    from paramiko import SSHException
    from paramiko.config import SSHConfig

    try:
        SSHConfig.from_text(line)
        problem = _problem(path, keyword, value)
    except (SSHException, ValueError) as error:
        problem = f"cannot be understood: {error}"
    if problem:
        hint = "install OpenSSH's client, rewrite the line, or give the host a file of its own with ssh_config:"
        raise ConfigError(f"{path}:{number} {problem}", host=host.name, evidence=[line.strip()], hint=hint)
    # Of ProxyJump and ProxyCommand, the first one counts. paramiko ignores `ProxyCommand none`, which must still count.
    return "ProxyJump none" if (keyword, value.lower()) == ("proxycommand", "none") else line


def _problem(path: Path, keyword: str, value: str) -> str:
    """Return what OpenSSH reads otherwise in a line that paramiko accepts; empty if nothing."""
    only_ssh = "can only be understood by ssh itself, and this machine has no ssh"
    if keyword not in _COMMANDS and re.search(r"\s#", value):
        return "has a comment behind its value; put it on a line of its own"
    if keyword in ("host", "match") and "[" in value:
        return "has a bracket, which is not a pattern for ssh"
    if keyword == "match":
        words = shlex.split(value)
        while words:
            criterion = words.pop(0).lstrip("!")
            if criterion in _CRITERIA:
                del words[:1]
            elif criterion != "all":
                return f"{only_ssh}: {criterion}"
    elif keyword == "include" and _included(path, value.split()):
        return f"{only_ssh}: Include"
    elif keyword == "canonicalizehostname" and value.lower() not in ("no", "none"):
        return f"{only_ssh}: {keyword}"
    elif keyword != "host" and '"' in value[:1] + value[-1:] and (keyword in _COMMANDS or value.count('"') != 2):
        return "has quotes, of which paramiko reads only a pair around the whole value"
    elif keyword in ("identityfile", "certificatefile", "userknownhostsfile", "user", "hostname") and "'" in value:
        return "has single quotes, which paramiko does not read"
    return ""


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
    for key in options.keys() & set(_WORDS):
        value = options[key][0].lower()
        options[key] = [{"true": "yes", "false": "no"}.get(value, value)]
    return options


class ConfigLine(NamedTuple):
    """Where an option is written. `place`: "FILE:LINE"; `line`: as it is written there, without blanks around it."""

    place: str
    line: str


def places(keyword: str, values: Collection[str], config: str | None) -> list[ConfigLine]:
    """Find the lines that set an option to one of these values, in the order in which ssh reads them.

    Args:
        keyword: In lower case.
        values: In lower case; the first word of the line's value is compared.
        config: As for `read`.
    """
    lines = (each for top in _files(config) for each in _each_line(top, top))
    return [line for line, word, words in lines if word == keyword and words and words[0].lower() in values]


def aliases() -> list[str]:
    """List the hosts that the user's configuration, and what it includes, names without a wildcard."""
    top = config_file()
    names = [name for _, keyword, words in _each_line(top, top) if keyword == "host" for name in words]
    return list(dict.fromkeys(name for name in names if not set(name) & set("*?!")))


def _each_line(top: Path, path: Path, depth: int = 0) -> Iterator[tuple[ConfigLine, str, list[str]]]:
    """Yield the lines of a file, and of those that it includes, each with its keyword and words.

    A file or a line that cannot be read must not hide the others: a call reports it as an error.
    """
    with contextlib.suppress(ConfigError):
        for number, line, keyword, value in _lines(path):
            try:
                words = shlex.split(value, comments=True)
            except ValueError:
                continue
            yield ConfigLine(f"{path}:{number}", line.strip()), keyword, words
            for name in words if keyword == "include" and depth < _DEPTH else ():
                with contextlib.suppress(ConfigError):
                    for each in _included(top, [name]):
                        yield from _each_line(top, each, depth + 1)


def _files(config: str | None) -> list[Path]:
    return [config_file(), system_file()] if config is None else [Path(config)]


def _included(path: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of an Include; a relative name in the user's file begins in ~/.ssh."""
    folder = path.parent if path == system_file() else expanded("~/.ssh")
    return [Path(each) for name in names for each in sorted(glob.glob(str(folder / expanded(name))))]


def home() -> Path:
    """Return the home in which ssh looks for its files: that of the user database, whatever $HOME says."""
    if sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            return Path(pwd.getpwuid(os.getuid()).pw_dir)
    return Path.home()


def expanded(name: str) -> Path:
    """Expand `~` in a path of an ssh configuration, as ssh does.

    Raises:
        ConfigError: It is `~user`, and this machine has no such user.
    """
    if name == "~" or name.startswith("~/"):
        return home() / name[2:]
    path = os.path.expanduser(name)
    if path.startswith("~"):
        raise ConfigError(f"{name}: this machine has no such user", hint="correct that path in the ssh configuration")
    return Path(path)


def config_file() -> Path:
    """Return the path of the user's own configuration."""
    return expanded("~/.ssh/config")


def system_file() -> Path:
    """Return the path of the configuration of all users of this machine."""
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "ssh" / "ssh_config"
    return Path("/etc/ssh/ssh_config")


def load_paramiko() -> None:
    """Import paramiko without `invoke`, unless it is imported already; `invoke` comes with its first use.

    It takes longer to import than paramiko itself, and serves only its `Match exec`. clusterfn rejects `Match exec`
    where it reads an ssh configuration by paramiko. A program that uses it itself gets `invoke` when paramiko first
    calls it.
    """
    later = _LaterInvoke("invoke")
    if "paramiko" not in sys.modules and "invoke" not in sys.modules and importlib.util.find_spec("invoke") is not None:
        # Threads need no lock: `setdefault` never replaces what is there, and each removes only what it put there.
        sys.modules.setdefault("invoke", later)
    try:
        importlib.import_module("paramiko")
    finally:
        _restore_invoke(later)


class _LaterInvoke(types.ModuleType):
    """Take the place of `invoke`, and import it at its first use. Not importlib's LazyLoader: `import` loads that."""

    def __getattr__(self, name: str) -> Any:
        _restore_invoke(self)
        return getattr(importlib.import_module("invoke"), name)


def _restore_invoke(later: _LaterInvoke) -> None:
    """Let the next `import invoke` find the real one."""
    if sys.modules.get("invoke") is later:
        del sys.modules["invoke"]
