"""From a host's address to everything that is needed to reach it, as OpenSSH would resolve it.

`ssh -G` answers where there is an ssh (4 ms, no connection); else paramiko's reader of ~/.ssh/config, which knows no
Include and takes an unknown Match for a true one: files with these are refused by line. What is asked for and not done
here is refused by name, never ignored. Called by `paramiko`.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterfn.errors import ConfigError
from clusterfn.spec import Host

CONNECT_TIMEOUT_S = 15.0
SSH_G_TIMEOUT_S = 20.0
UNSAFE = re.compile(r"^-|[\s\x00-\x1f\x7f]")

# Options that change where or how one connects and are not done here, with the values that ask for nothing.
NOT_HONOURED: dict[str, tuple[str, ...]] = {
    "pkcs11provider": ("none",),
    "knownhostscommand": ("none",),
    "revokedhostkeys": ("none",),
    "remotecommand": ("none",),
    "bindaddress": (),
    "bindinterface": (),
    "proxyusefdpass": ("no",),
    "identityagent": ("SSH_AUTH_SOCK", "none"),
    "localcommand": ("none",),
}
DEFAULTS = {
    "port": ["22"],
    "identityfile": ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}
KNOWN_MATCHES = ("all", "host", "originalhost", "user", "localuser", "final", "canonical")

Options = dict[str, list[str]]


@dataclass(frozen=True)
class Address:
    """`user@name:port` in its parts."""

    name: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class Settings:
    """How to reach one host.

    Attributes:
        alias: The name as it was asked for; `ssh` takes it.
        key_name: The name under which its host key is remembered.
        known_hosts: Files, the user's first.
        config_file: What `ssh -F` needs, if anything.
    """

    alias: str
    hostname: str
    port: int
    user: str
    key_name: str
    known_hosts: tuple[Path, ...]
    identity_files: tuple[Path, ...]
    certificate_files: tuple[Path, ...]
    identities_only: bool
    use_agent: bool
    timeout_s: float
    family: str
    proxy_jump: tuple[str, ...]
    proxy_command: str | None
    config_file: str | None

    @property
    def place(self) -> str:
        """host:port, for messages."""
        return f"{self.hostname}:{self.port}"

    def named_in(self, host: Host) -> str:
        """Where the name that is looked up was written: in an ssh configuration, or as `address:`."""
        if self.hostname.lower() == self.alias.lower():
            return f"address: of host {host.name} ({host.source})"
        file = Path(self.config_file or "~/.ssh/config").expanduser()
        return f"`HostName {self.hostname}` of {self.alias} in {file}{_line_of(file, self.hostname)}"

    @property
    def ssh(self) -> str:
        """The command by which a person reaches the same host."""
        config = f"-F {self.config_file} " if self.config_file else ""
        name = f"{self.user}@{self.alias}" if self.alias == self.hostname else self.alias
        port = f"-p {self.port} " if self.alias == self.hostname and self.port != 22 else ""
        return f"ssh {config}{port}{name}"


def _line_of(file: Path, hostname: str) -> str:
    """`:line` of the one HostName with this value, "" if it stands elsewhere (Include, /etc/ssh) or more than once."""
    wanted = re.compile(rf'\s*HostName[\s=]+"?{re.escape(hostname)}"?\s*(?:#.*)?', re.IGNORECASE)
    with contextlib.suppress(OSError):
        lines = file.read_text(errors="replace").splitlines()
        found = [number for number, line in enumerate(lines, 1) if wanted.fullmatch(line)]
        return f":{found[0]}" if len(found) == 1 else ""
    return ""


def parse_address(text: str, host: Host) -> Address:
    """The parts of `user@name:port` or `user@[::1]:port`.

    Raises:
        ConfigError: It could be taken for an option of ssh, or is not an address.
    """
    match = re.fullmatch(r"(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<name>[^:@\[\]]+))(?::(?P<port>\d+))?", text)
    parts = match.groupdict() if match else {}
    name = parts.get("v6") or parts.get("name") or ""
    if not name or any(UNSAFE.search(word) for word in (text, name, parts.get("user") or "")):
        raise ConfigError(
            f"address: {text!r} of host {host.name} is not the address of a host",
            host=host.name,
            evidence=[host.source],
            hint="write a name, an alias of your ssh configuration, or user@name:port",
        )
    return Address(name, parts.get("user"), int(parts["port"]) if parts.get("port") else None)


def resolve(host: Host, address: str | None = None) -> Settings:
    """How to reach `address` (the host's own if None).

    Raises:
        ConfigError: The address or the ssh configuration cannot be used, or asks for what is not done here.
    """
    wanted = parse_address(address or host.address or host.name, host)
    config = str(Path(host.ssh_config).expanduser()) if host.ssh_config else None
    options = _asked(host, wanted, config) if shutil.which("ssh") else _read(host, wanted, config)
    _refuse_unknown(host, options)
    return _settings(host, wanted, options, config)


def _asked(host: Host, wanted: Address, config: str | None) -> Options:
    user = ["-l", wanted.user] if wanted.user else []
    port = ["-p", str(wanted.port)] if wanted.port else []
    argv = ["ssh", "-G", *(["-F", config] if config else []), *user, *port, "--", wanted.name]
    ran = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SSH_G_TIMEOUT_S, check=False
    )
    if ran.returncode:
        raise ConfigError(
            f"ssh cannot read its configuration for {wanted.name}",
            host=host.name,
            evidence=ran.stderr.splitlines()[-5:],
            hint=f"mend it until `{' '.join(argv)}` works",
        )
    return _collected(line.partition(" ")[::2] for line in ran.stdout.splitlines())


def _collected(pairs: Iterable[Iterable[str]]) -> Options:
    options: Options = {}
    for key, value in pairs:
        options.setdefault(key.lower(), []).append(value.strip())
    return options


def _read(host: Host, wanted: Address, config: str | None) -> Options:
    from paramiko import ConfigParseError, SSHConfig

    path = Path(config or "~/.ssh/config").expanduser()
    text = path.read_text() if config or path.exists() else ""
    _refuse_unreadable(host, path, text)
    try:
        found = SSHConfig.from_text(re.sub(r"\s+#.*", "", text)).lookup(wanted.name)
    except ConfigParseError as error:
        raise ConfigError(f"{path} cannot be read: {error}", host=host.name, hint="mend that line") from error
    options = {key: list(value) if isinstance(value, list) else [value] for key, value in found.items()}
    named = {"user": wanted.user, "port": str(wanted.port) if wanted.port else None}
    return {**DEFAULTS, **options, **{key: [value] for key, value in named.items() if value}}


def _refuse_unreadable(host: Host, path: Path, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.lower().replace("=", " ").split()
        unknown = words[:1] == ["match"] and words[1:2] and words[1].lstrip("!") not in KNOWN_MATCHES
        if words[:1] == ["include"] or unknown:
            raise ConfigError(
                f"{path}:{number} can only be understood by ssh itself, and there is no ssh here",
                host=host.name,
                evidence=[line.strip()],
                hint="install OpenSSH's client, or give the host a simple file by ssh_config:",
            )


def _refuse_unknown(host: Host, options: Options) -> None:
    for name, harmless in NOT_HONOURED.items():
        asked = [value for value in options.get(name, []) if value and value not in harmless]
        if asked and not (name == "localcommand" and options.get("permitlocalcommand") != ["yes"]):
            raise ConfigError(
                f"The ssh configuration of host {host.name} asks for {name}, which this transport does not do",
                host=host.name,
                evidence=[f"{name} {asked[0]}"],
                hint=f"leave {name} out for this host, or give it a file of its own by ssh_config:",
            )


def _settings(host: Host, wanted: Address, options: Options, config: str | None) -> Settings:
    def first(name: str, default: str = "") -> str:
        value = (options.get(name) or [default])[0]
        return default if value.lower() == "none" else value

    hostname, port, user = first("hostname", wanted.name), int(first("port", "22")), first("user") or getpass.getuser()
    expand = _Tokens(host, {"h": hostname, "p": str(port), "r": user, "n": wanted.name})
    key_name = first("hostkeyalias") or (hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}")
    timeout = first("connecttimeout")
    return Settings(
        alias=wanted.name,
        hostname=hostname,
        port=port,
        user=user,
        key_name=key_name,
        known_hosts=expand.files(_words(options, "userknownhostsfile") + _words(options, "globalknownhostsfile")),
        identity_files=expand.files(options.get("identityfile", [])),
        certificate_files=expand.files(options.get("certificatefile", [])),
        identities_only=first("identitiesonly") == "yes",
        use_agent=options.get("identityagent") != ["none"],
        timeout_s=float(timeout) if timeout else CONNECT_TIMEOUT_S,
        family=first("addressfamily", "any"),
        proxy_jump=tuple(jump for jump in first("proxyjump").split(",") if jump),
        proxy_command=expand.text(first("proxycommand")) or None,
        config_file=config,
    )


def _words(options: Options, name: str) -> list[str]:
    return [word for value in options.get(name, []) for word in value.split()]


class _Tokens:
    """ssh's %-tokens, as far as they are done here."""

    def __init__(self, host: Host, values: dict[str, str]) -> None:
        self.host = host
        home = str(Path.home())
        self.values = {"%": "%", "d": home, "u": getpass.getuser(), **values}

    def text(self, text: str) -> str:
        return re.sub("%(.?)", self._one, text)

    def files(self, names: list[str]) -> tuple[Path, ...]:
        return tuple(Path(self.text(name)).expanduser() for name in names if name.lower() not in ("none", "/dev/null"))

    def _one(self, match: re.Match[str]) -> str:
        try:
            return self.values[match[1]]
        except KeyError:
            raise ConfigError(
                f"The ssh configuration of host {self.host.name} uses {match[0]}, which this transport does not know",
                host=self.host.name,
                evidence=[match.string],
                hint="write the value out for this host",
            ) from None
