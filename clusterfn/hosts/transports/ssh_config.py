"""From a host's address to everything that is needed to reach it, as OpenSSH would resolve it.

`ssh -G` answers where there is an ssh (4 ms, no connection); else `ssh_config_file` lets paramiko read the same files.
`Settings.unmet` holds what paramiko cannot do, which is refused by name where paramiko connects.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, Unreachable
from clusterfn.hosts.transports import ssh_config_file
from clusterfn.hosts.transports.ssh_config_file import Options

CONNECT_TIMEOUT_S = 15.0
SSH_G_TIMEOUT_S = 20.0
# ssh would take a text that begins with a hyphen for an option, and spaces or control characters break its files.
UNSAFE = re.compile(r"^-|[\s\x00-\x1f\x7f]")
# `ssh -G` writes several paths in one line without quotes, though blanks may stand in each.
_BETWEEN_PATHS = re.compile(r'\s+(?=["/~%$]|__PROGRAMDATA__|[A-Za-z]:|none$)')

# Options that change where or how ssh connects, and that paramiko does not support, with their harmless values.
NOT_HONOURED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pkcs11provider", "knownhostscommand", "revokedhostkeys", "remotecommand"), ("none",)),
    "bindaddress": (),
    "bindinterface": (),
    "addressfamily": ("any",),
    "proxyusefdpass": ("no",),
    "identityagent": ("SSH_AUTH_SOCK", "none"),
    "localcommand": ("none",),
}
# Options that keep ssh from being a plain stream, with the values to use instead. An old ssh does not know all of them.
IN_THE_WAY = {"remotecommand": "none", "sessiontype": "default", "stdinnull": "no", "forkafterauthentication": "no"}
DEFAULTS = {
    "port": ["22"],
    "identityfile": [f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk")],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


class Address(NamedTuple):
    """`user@name:port` in its parts."""

    name: str
    user: str | None = None
    port: int | None = None


class Settings(NamedTuple):
    """How to reach one host.

    Attributes:
        alias: The name as it was asked for; `ssh` takes it.
        key_name: The name under which its host key is remembered.
        known_hosts: Files, the user's first.
        user_known_hosts: Those of them that are the user's own: `trust` writes into the first.
        strict: StrictHostKeyChecking as `ssh -G` says it: "true", "ask", "accept-new" or "false".
        compress: Whether to compress the connection.
        tries: How often a person is asked for one thing (NumberOfPasswordPrompts).
        unmet: What paramiko cannot do of all this, each as "option value".
        named: User and port of the address itself, as options of ssh.
        instead: Options for ssh, without which it would not be a plain stream.
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
    proxy_jump: tuple[str, ...]
    proxy_command: str | None
    user_known_hosts: tuple[Path, ...]
    hash_known_hosts: bool
    strict: str
    compress: bool
    tries: int
    unmet: tuple[str, ...]
    named: tuple[str, ...]
    instead: tuple[str, ...]
    config_file: str | None

    @property
    def place(self) -> str:
        """host:port, for messages."""
        return f"{self.hostname}:{self.port}"

    def named_in(self, host: Host) -> str:
        """Return where the name that is looked up was written: in an ssh configuration, or as `address:`."""
        if self.hostname.lower() == self.alias.lower():
            return f"address: of host {host.name} ({host.source})"
        return f"`HostName {self.hostname}` of {self.alias} in {self.config_file or ssh_config_file.config_file()}"

    @property
    def ssh(self) -> str:
        """The command by which a person connects to the same host."""
        config = ["-F", self.config_file] if self.config_file else []
        if self.alias != self.hostname:
            # What the address itself does not say is in ssh's configuration.
            return shlex.join(["ssh", *config, *self.named, self.alias])
        port = ["-p", str(self.port)] if self.port != 22 else []
        return shlex.join(["ssh", *config, *port, f"{self.user}@{self.alias}"])


def parse_address(text: str, host: Host) -> Address:
    """Parse `user@name:port` or `user@[::1]:port`; raise ConfigError if it is none, or an option to ssh."""
    match = re.fullmatch(r"(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<name>[^:@\[\]]+))(?::(?P<port>\d+))?", text)
    parts = match.groupdict() if match else {}
    name = parts.get("v6") or parts.get("name") or ""
    if not name or any(UNSAFE.search(word) for word in (text, name, parts.get("user") or "")):
        message = f"address: {text!r} of host {host.name} is not the address of a host"
        hint = "write a name, an alias of your ssh configuration, or user@name:port"
        raise ConfigError(message, host=host.name, evidence=[host.source], hint=hint)
    return Address(name, parts.get("user"), int(parts["port"]) if parts.get("port") else None)


def resolve(host: Host, address: str | None = None) -> Settings:
    """Return how to reach `address` (the host's own if None); raise ConfigError if it cannot be used."""
    target = parse_address(address or host.address or host.name, host)
    config = str(Path(host.ssh_config).expanduser()) if host.ssh_config else None
    if shutil.which("ssh"):
        return _settings(host, target, _options_by_ssh(host, target, config), config)
    options: Options = {"user": [target.user] if target.user else [], "port": [str(target.port)] if target.port else []}
    return _settings(host, target, {**DEFAULTS, **ssh_config_file.read(host, target.name, options, config)}, config)


def jumps(host: Host, settings: Settings) -> list[Settings]:
    """Resolve each jump host on the way like a host, the nearest first."""
    # What is compressed for the host is not compressed again for each host on the way.
    plain = host._replace(compress=False)
    return [resolve(plain, jump.removeprefix("ssh://")) for jump in settings.proxy_jump]


def refuse_unmet(host: Host, settings: Settings) -> None:
    """Reject by name what paramiko would ignore; raise ConfigError if there is something."""
    if not settings.unmet:
        return
    name = settings.unmet[0].split()[0]
    hint = f"use transport: openssh (needs the system's ssh), leave {name} out for this host, or give it a file of "
    message = f"The ssh configuration of host {host.name} asks for {name}, which paramiko does not support"
    raise ConfigError(message, host=host.name, evidence=settings.unmet, hint=f"{hint}its own by ssh_config:")


def _options_by_ssh(host: Host, target: Address, config: str | None) -> Options:
    question = ["ssh", "-G", *(["-F", config] if config else []), *_address_options(target), "--", target.name]
    # Not by `run`, which would wait for the end of the output after the timeout: a program of `Match exec` may stay,
    # and has inherited the pipe.
    with subprocess.Popen(
        question,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",
    ) as ssh:
        answer = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                answer, complaint = ssh.communicate(timeout=SSH_G_TIMEOUT_S)
        finally:
            if answer is None:
                ssh.kill()
    if answer is None:
        hint = "run that command: a `Match exec` program may hang, or CanonicalizeHostname may wait for DNS"
        message = f"ssh did not resolve its configuration for {target.name} within {SSH_G_TIMEOUT_S:g} s"
        evidence = [f"still running: {shlex.join(question)}"]
        raise Unreachable(message, host=host.name, evidence=evidence, hint=hint, retryable=True)
    if ssh.returncode:
        message = f"ssh cannot read its configuration for {target.name}"
        last = complaint.splitlines()[-5:]
        hint = f"fix it until `{shlex.join(question)}` works"
        raise ConfigError(message, host=host.name, evidence=last, hint=hint)
    options: Options = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value.strip())
    return options


def _address_options(target: Address) -> tuple[str, ...]:
    user = ("-l", target.user) if target.user else ()
    return (*user, "-p", str(target.port)) if target.port else user


def _settings(host: Host, target: Address, options: Options, config: str | None) -> Settings:
    def first(name: str, default: str = "") -> str:
        value = (options.get(name) or [default])[0]
        return default if value.lower() == "none" else value

    hostname, port, user = first("hostname", target.name), int(first("port", "22")), first("user") or getpass.getuser()
    alias, jump = first("hostkeyalias").lower(), first("proxyjump")
    expand = _Tokens({"h": hostname, "p": str(port), "r": user, "n": target.name})
    timeout = first("connecttimeout")
    user_files = expand.files(_paths(options, "userknownhostsfile"))
    identity_agent = options.get("identityagent", [""])[0]
    requested = {
        name: next((value for value in options.get(name, []) if value and value not in harmless), "")
        for name, harmless in NOT_HONOURED.items()
        if name != "localcommand" or options.get("permitlocalcommand") == ["yes"]
    }
    unmet = [f"{name} {value}" for name, value in requested.items() if value]
    return Settings(
        alias=target.name,
        hostname=hostname,
        port=port,
        user=user,
        key_name=alias or (hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"),
        known_hosts=user_files + expand.files(_paths(options, "globalknownhostsfile")),
        identity_files=expand.files(options.get("identityfile", [])),
        certificate_files=expand.files(options.get("certificatefile", [])),
        identities_only=first("identitiesonly") == "yes",
        use_agent=identity_agent != "none",
        timeout_s=float(timeout) if timeout else CONNECT_TIMEOUT_S,
        proxy_jump=tuple(hop for hop in jump.split(",") if hop),
        proxy_command=expand.text(first("proxycommand")) or None,
        user_known_hosts=user_files,
        hash_known_hosts=first("hashknownhosts") == "yes",
        strict=first("stricthostkeychecking", "ask"),
        compress=host.compress or first("compression") == "yes",
        tries=int(first("numberofpasswordprompts", "3")),
        unmet=(*unmet, *expand.unknown),
        named=_address_options(target),
        instead=tuple(f"{key}={value}" for key, value in IN_THE_WAY.items() if options.get(key, [value]) != [value]),
        config_file=config,
    )


def _paths(options: Options, name: str) -> list[str]:
    return [path.strip('"') for value in options.get(name, []) for path in _BETWEEN_PATHS.split(value)]


class _Tokens:
    """Expands ssh's %-tokens and `${VARIABLE}`; `unknown` gets the ones that we do not know, as "token in text"."""

    def __init__(self, values: dict[str, str]) -> None:
        self.unknown: list[str] = []
        self.values = {"%": "%", "d": str(ssh_config_file.home()), "u": getpass.getuser(), **values}

    def text(self, text: str) -> str:
        return re.sub("%(.?)", lambda match: self._or_unknown(match[0], text, self.values.get(match[1])), text)

    def files(self, names: list[str]) -> tuple[Path, ...]:
        paths = [name for name in names if name.lower() not in ("none", "/dev/null", "nul")]
        return tuple(ssh_config_file.expanded(self._file(name)) for name in paths)

    def _file(self, name: str) -> str:
        return re.sub(
            r"\$\{(\w+)\}", lambda match: self._or_unknown(match[0], name, os.environ.get(match[1])), self.text(name)
        )

    def _or_unknown(self, token: str, text: str, value: str | None) -> str:
        if value is None:
            self.unknown.append(f"{token} in {text}")
        return token if value is None else value
