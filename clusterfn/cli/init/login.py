"""From an address whose host key is known to a connection: by a key, which may be made, and put there, on the way.

Each thing that was done is noted at once, so that Ctrl-C can tell of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterfn.cli.init.answers import Answers, say
from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, HostDiskFull, HostError
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.transports import auto, prompts, transport_for
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings, resolve

if TYPE_CHECKING:
    from clusterfn.hosts.transports.ssh_keys import KeyPair

Note = Callable[[str], None]
_UNWRITABLE = ("full", "denied", "io")


def connected(host: Host, answers: Answers, no_key: bool, note: Note) -> HostConnection:
    """A connection, by a key if the host takes one and the person wants one there.

    Raises:
        AuthenticationError: Neither a key nor what the person typed was enough.
        HostError: It cannot be reached, or is not ready for an agent.
    """
    refused = _refusal(host)
    if refused is None:
        say("Login by your key: works")
        return hosts.connection_for(host)
    settings = resolve(host)
    asker = prompts.person()
    if asker is None:
        raise refused
    if not no_key and _can_take_a_key(host, settings) and _wants_one(settings, answers):
        _put_there(host, settings, _key(settings, note), asker, note)
        _refuse_unless_taken(host, settings)
        return hosts.connection_for(host)
    try:
        connection = hosts.connection_for(host)
    except AuthenticationError as error:
        if "clusterfn login" in (error.hint or ""):  # which knows the host once it is in clusterfn.yml
            error.hint = "the same command asks again"
        raise
    say(f"{host.name} will ask you again in each program; once for all of them: clusterfn login {host.name}")
    return connection


def _refusal(host: Host) -> AuthenticationError | None:
    """Why a login without a person is refused; None if it works."""
    try:
        transport_for(host).open("exit 0").close()
    except AuthenticationError as refused:
        return refused
    return None


def _can_take_a_key(host: Host, settings: Settings) -> bool:
    """Where paramiko can go, and a password alone lets one in; else a key is there, or only others can put it there."""
    from clusterfn.hosts.transports import ssh_keys

    return not auto.needs_ssh(settings) and ssh_keys.takes_passwords(host)


def _wants_one(settings: Settings, answers: Answers) -> bool:
    say(f"{settings.place} takes no key of yours yet.")
    return answers.agree("Put one there? Your password is asked for once, and not kept", "--yes, or --no-key")


def _key(settings: Settings, note: Note) -> KeyPair:
    """The person's own, or a new one."""
    from clusterfn.hosts.transports import ssh_keys

    there = ssh_keys.usable(settings)
    if there is not None:
        say(f"Your key: {there.path}")
        return there
    made = ssh_keys.make(ssh_keys.new_path(settings))
    note(f"made a key: {made.path}")
    say(f"It has no passphrase; to set one: ssh-keygen -p -f {made.path}")
    return made


def _put_there(host: Host, settings: Settings, key: KeyPair, asker: Asker, note: Note) -> None:
    from clusterfn.hosts.transports import ssh_keys

    put = ssh_keys.install(host, key.line, asker)
    where = f"~/.ssh/authorized_keys of {settings.user} on {settings.hostname}"
    note(f"put the key into {where}" if put.added else f"found the key in {where} already")
    if put.open_home:
        say("Others may write to your home there; most hosts refuse keys then. There: chmod go-w ~")


def _refuse_unless_taken(host: Host, settings: Settings) -> None:
    refused = _refusal(host)
    if refused is not None:
        refused.hint = "the key is there and is not taken: your home there must not be writable for others; or ask the "
        refused.hint += f"administrator where sshd looks for keys ({settings.ssh} -v tells more)"
        raise refused
    say("The key alone lets you in.")


def with_room(host: Host, answers: Answers, no_key: bool, note: Note) -> HostConnection:
    """As `connected`; where the usual root cannot be made another one is asked for.

    Raises:
        HostError: It could not be made there either.
    """
    try:
        return connected(host, answers, no_key, note)
    except HostError as error:
        if not isinstance(error, HostDiskFull) and getattr(error, "kind", None) not in _UNWRITABLE:
            raise
        say(error.message)
    root = answers.text("Folder for jobs, results and your code, with room in it", "--root")
    return hosts.connection_for(replace(host, root=root))
