"""Find out which host the person means, and log in: by a key, or by what the person types.

The host is its address, its name in clusterfn.yml, and how ssh resolves them; no connection is open before the login.
That creates and installs a key if none exists. Each step of it is noted at once, so that Ctrl-C can say what was done.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterfn.cli.init.choices import Answers, say
from clusterfn.config import writing
from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError, HostDiskFull, HostError
from clusterfn.hosts.connection import HostConnection, connection_for
from clusterfn.hosts.transports import can_hold, prompts, ssh_config_file, ssh_errors, ssh_keys, transport_for
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings, parse_address, resolve

_SHOWN_ALIASES = 12
# These names say nothing about a cluster, so the next part of the address becomes the host's name.
_NO_NAMES = re.compile(r"login[-\w]*|ssh\d*|head\w*|gate\w*|frontend\w*|www", re.IGNORECASE)


@dataclass(frozen=True)
class Begun:
    """The host that is meant.

    Attributes:
        host: As far as it is known.
        path: The clusterfn.yml that holds here, or will.
        is_configured: Whether that file has the host already.
    """

    host: Host
    path: Path
    is_configured: bool


def begin(address: str | None, name: str | None, answers: Answers) -> Begun:
    """Ask for what was not given, and look whether clusterfn.yml has that host.

    Raises:
        ConfigError: The address or the name cannot be used, or the name is that of another host.
    """
    path = writing.place(Path.cwd())
    configuration = writing.read_or_empty(path)
    if address is None:
        aliases = ssh_config_file.aliases()
        if aliases:
            more = ", …" if len(aliases) > _SHOWN_ALIASES else ""
            say(f"{ssh_config_file.config_file()} knows {', '.join(aliases[:_SHOWN_ALIASES])}{more}")
        question = "Address of the host (user@name, user@name:port, or an alias of ~/.ssh/config)"
        address = answers.text(question, "ADDRESS, the word after `clusterfn init`", check=_check_address)
    address = address.removeprefix("ssh://").rstrip("/")
    _check_address(address)
    same = next((known for known in configuration.named if configuration.hosts[known].address == address), None)
    if name is None and address == "local" and "local" not in configuration.named:
        hint = "run `clusterfn check local`; if an alias of ~/.ssh/config has this name, give --name too"
        raise ConfigError("local is this machine, which needs no init", host="local", hint=hint)
    if name is None:
        name = same or answers.text("A short name for it", "--name", _proposed(address), lambda it: _draft(it, "x"))
    if name not in configuration.named:
        return Begun(_draft(name, address), path, False)
    host = configuration.hosts[name]
    if host.address == address:
        return Begun(host, path, True)
    what = f"is at {host.address}" if host.address else "is this machine"
    hint = "choose another name with --name, or edit its lines"
    if name == address:
        hint = f"run `clusterfn check {name}`; for another host, " + hint
    raise ConfigError(f"{name} {what} according to {host.source}, not at {address}", host=name, hint=hint)


def _check_address(address: str) -> None:
    _draft("host", address)


def _draft(name: str, address: str) -> Host:
    """Return a host of which only this is known; raise ConfigError if clusterfn.yml could not hold it."""
    address = address.removeprefix("ssh://").rstrip("/")
    if not address:
        raise ConfigError("no address is given", hint="write user@name, user@name:port, or an alias of ~/.ssh/config")
    if ":" in address.rpartition("@")[0]:
        hint = "write user@name; clusterfn asks for the password when it is needed"
        raise ConfigError("clusterfn reads no password from an address", hint=hint)
    try:
        host = writing.host(name, {"address": address, "scheduler": "bare"}, Path("clusterfn.yml"))
    except ConfigError as error:
        problem = error.message.rpartition(": ")[2]
        raise ConfigError(problem, hint=error.hint) from error
    return host._replace(source="as given")


def _proposed(address: str) -> str:
    """Propose the first part of the host's name that says more than "login" or "www"."""
    name = parse_address(address, Host("host", address, "bare", "")).name
    with contextlib.suppress(ValueError):
        return "server" if ipaddress.ip_address(name).version == 6 else name
    labels = [label for label in name.split(".") if label]
    chosen = next((label for label in labels if not _NO_NAMES.fullmatch(label)), "".join(labels[:1]))
    return re.sub(r"[^\w-]", "-", chosen, flags=re.ASCII).strip("_-") or "server"


def say_way(host: Host) -> Settings:
    """Print how ssh resolves the address; raise ConfigError if the ssh configuration cannot be read."""
    settings = resolve(host)
    say(f"{host.name} is {settings.user}@{settings.hostname}, port {settings.port}, as ssh resolves it")
    way = ", ".join(settings.proxy_jump) or settings.proxy_command
    if way:
        say(f"It is reached through {way}")
    return settings


Note = Callable[[str], None]
_UNWRITABLE = ("full", "denied", "io")


def connected(host: Host, answers: Answers, no_key: bool, note: Note) -> HostConnection:
    """Connect, by a key if the host takes one and the person wants one there.

    Raises:
        AuthenticationError: Neither a key nor what the person typed was enough.
        HostError: It cannot be reached, or is not ready for an agent.
    """
    failed = _login_error(host)
    if failed is None:
        say("Key login: ok")
        return _opened(host)
    asker = prompts.person()
    if asker is None:
        raise failed
    # Where a password alone is not enough, the host has a key already, or only its administrator can install one.
    if not no_key and ssh_errors.offers_password(failed) and _install_key(host, resolve(host), asker, answers, note):
        return _opened(host)
    try:
        connection = _opened(host)
    except AuthenticationError as error:
        if "clusterfn login" in (error.hint or ""):
            # `clusterfn login` does not know this host until it is in clusterfn.yml.
            error.hint = "run the same command to be asked again"
        raise
    once = f"; to log in once for all of them: clusterfn login {host.name}" if can_hold(host) else ""
    say(f"{host.name} will ask you again in each program{once}")
    return connection


def _opened(host: Host) -> HostConnection:
    try:
        return connection_for(host)
    except HostError as error:
        if isinstance(error, HostDiskFull) or getattr(error, "kind", None) in _UNWRITABLE:
            error.hint = "name another folder of the host, which has room and to which you may write: --root FOLDER"
        raise


def _login_error(host: Host) -> AuthenticationError | None:
    """Log in without a person; return the error if that fails, and None if it works."""
    try:
        transport_for(host).open("exit 0").close()
    except AuthenticationError as failed:
        return failed
    return None


def _install_key(host: Host, settings: Settings, asker: Asker, answers: Answers, note: Note) -> bool:
    """Install the person's key or a new one; return whether that was done; may raise AuthenticationError."""
    say(f"{settings.place} does not accept any of your keys yet.")
    question = "Copy one to the host? clusterfn asks for your password once, and does not store it"
    if not answers.agree(question, "--yes, or --no-key"):
        return False
    key = ssh_keys.usable(settings)
    if key is not None:
        say(f"Your key: {key.path}")
    else:
        key = ssh_keys.make(ssh_keys.new_path(settings))
        note(f"created a key: {key.path}")
        say(f"It has no passphrase; to set one: ssh-keygen -p -f {key.path}")
    put = ssh_keys.install(host, key.line, asker)
    where = f"~/.ssh/authorized_keys of {settings.user} on {settings.hostname}"
    note(f"added the key to {where}" if put.added else f"found the key in {where} already")
    if put.open_home:
        say("Others can write to your home folder, and most hosts then reject keys. On the host, run: chmod go-w ~")
    failed = _login_error(host)
    if failed is not None:
        home = "make your home folder writable only by you (chmod go-w ~)"
        keys = f"ask the administrator where sshd looks for keys ({settings.ssh} -v shows more)"
        failed.hint = f"the host has the key and rejects it: {home}, or {keys}"
        raise failed
    say("Login with this key: ok")
    return True
