"""`clusterfn init` logs in: by a key, which it creates and installs if none exists, or by what the person types.

Each step is noted at once, so that Ctrl-C can say what was done.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterfn.cli.init.answers import Answers, say
from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, HostDiskFull, HostError
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.transports import auto, can_hold, prompts, ssh_keys, transport_for
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings, resolve

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
        return hosts.connection_for(host)
    asker = prompts.person()
    if asker is None:
        raise failed
    if not no_key and _install_key(host, resolve(host), asker, answers, note):
        return hosts.connection_for(host)
    try:
        connection = hosts.connection_for(host)
    except AuthenticationError as error:
        if "clusterfn login" in (error.hint or ""):
            # `clusterfn login` does not know this host until it is in clusterfn.yml.
            error.hint = "run the same command to be asked again"
        raise
    once = f"; to log in once for all of them: clusterfn login {host.name}" if can_hold(host) else ""
    say(f"{host.name} will ask you again in each program{once}")
    return connection


def _login_error(host: Host) -> AuthenticationError | None:
    """Log in without a person; return the error if that fails, and None if it works."""
    try:
        transport_for(host).open("exit 0").close()
    except AuthenticationError as failed:
        return failed
    return None


def _install_key(host: Host, settings: Settings, asker: Asker, answers: Answers, note: Note) -> bool:
    """Install the person's key, or a new one; return whether that was possible and wanted.

    Raises:
        AuthenticationError: The host does not take the key.
    """
    # Where a password alone is not enough, the host has a key already, or only its administrator can install one.
    if auto.needs_ssh(settings) or not ssh_keys.takes_passwords(host):
        return False
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
        failed.hint = (
            "the host has the key and rejects it: make your home folder writable only by you (chmod go-w ~), "
            f"or ask the administrator where sshd looks for keys ({settings.ssh} -v shows more)"
        )
        raise failed
    say("Login with this key: ok")
    return True


def with_room(host: Host, answers: Answers, no_key: bool, note: Note) -> HostConnection:
    """Connect as `connected` does; ask for another root where the usual one cannot be made.

    Raises:
        HostError: The other root cannot be made either.
    """
    try:
        return connected(host, answers, no_key, note)
    except HostError as error:
        if not isinstance(error, HostDiskFull) and getattr(error, "kind", None) not in _UNWRITABLE:
            raise
        say(error.message)
    root = answers.text("Folder for jobs, results and your code, with free space", "--root")
    return hosts.connection_for(host._replace(root=root))
