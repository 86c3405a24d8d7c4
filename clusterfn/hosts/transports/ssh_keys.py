"""Make an SSH key, and install it on a host with the password typed once.

Overwrites nothing, locally or on the host. A password goes from `prompts` to the host, inside the connection, after the
host's key was checked, and is kept nowhere.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import ssh_config_file, transport_for
from clusterfn.hosts.transports.paramiko_login import ENCRYPTED, UNREADABLE
from clusterfn.hosts.transports.prompts import Asker
from clusterfn.hosts.transports.ssh_config import Settings, resolve

ANSWER_S = 30.0
# An rc file of the login shell may read lines that are meant for the command, so send empty lines first.
RC_LINES = 8
PRESENT, ADDED, OPEN = "clusterfn: key there", "clusterfn: key added", "clusterfn: open home"

# One line without single quotes and exclamation marks, because csh and fish read only such a text as sh does.
APPEND_SCRIPT = (
    "umask 077; cd || exit 1; key=; "
    "while IFS= read -r line; do case $line in ssh-*|ecdsa-*|sk-*) key=$line; break;; esac; done; "
    '[ -n "$key" ] || exit 1; set -f; set -- $key; mkdir -p .ssh && chmod go-w .ssh || exit 1; '
    "file=.ssh/authorized_keys; "
    f'if [ -f $file ] && grep -v "^ *#" $file | grep -qF -- "$2"; then said="{PRESENT}"; else '
    'if [ -s $file ] && [ -n "$(tail -c 1 $file)" ]; then echo >>$file || exit 1; fi; '
    f'printf "%s\\n" "$key" >>$file || exit 1; said="{ADDED}"; fi; '
    "chmod go-w $file || exit 1; "
    "if [ -x /sbin/restorecon ]; then /sbin/restorecon -F .ssh $file >/dev/null 2>&1; fi; "
    f'echo; echo "$said"; case $(ls -ld .) in ?????w*|????????w*) echo "{OPEN}";; esac'
)


@dataclass(frozen=True)
class KeyPair:
    """A key pair of this user; `line` is its public half, as authorized_keys holds it."""

    path: Path
    line: str


def usable(settings: Settings) -> KeyPair | None:
    """Return the first key that a connection would try, of an agent or of a file without a passphrase."""
    with contextlib.closing(paramiko.Agent()) as agent:
        held = {key.asbytes(): key for key in (agent.get_keys() if settings.use_agent else ())}
    for path in settings.identity_files:
        line = _public(path)
        if line and (base64.b64decode(line.split()[1]) in held or _opens(path)):
            return KeyPair(path, line)
    if held and not settings.identities_only:
        blob, key = next(iter(held.items()))
        return KeyPair(Path("ssh-agent"), f"{key.get_name()} {base64.b64encode(blob).decode()}")
    return None


def _public(path: Path) -> str:
    """Return the public half of a key file; "" if one of the halves is missing."""
    try:
        words = path.with_name(path.name + ".pub").read_text(encoding="utf-8", errors="replace").split()
        base64.b64decode(words[1], validate=True)
    except (OSError, ValueError, IndexError):
        return ""
    return " ".join(words) if path.is_file() else ""


def _opens(path: Path) -> bool:
    """Whether paramiko can use it: of a known kind, without a passphrase."""
    try:
        paramiko.PKey.from_path(path)
    except (*ENCRYPTED, *UNREADABLE):
        return False
    return True


def new_path(settings: Settings) -> Path:
    """Return a path where a connection would look for a key, and that does not exist yet.

    Raises:
        ConfigError: All of them are taken, by keys with a passphrase or of kinds that cannot be used.
    """
    usual = ssh_config_file.expanded("~/.ssh/id_ed25519")
    candidates = [usual] if usual in settings.identity_files else [*settings.identity_files]
    free = [path for path in candidates if not path.exists() and not path.with_name(path.name + ".pub").exists()]
    if not free:
        occupied = candidates[0] if candidates else usual
        message = f"{occupied} exists, but cannot be used without you"
        evidence = ["clusterfn never overwrites a key"]
        hint = f"if it has a passphrase: run ssh-add {occupied}, then the same command again"
        raise ConfigError(message, evidence=evidence, hint=hint)
    return free[0]


def make(path: Path) -> KeyPair:
    """Make an ed25519 key without a passphrase for this user; raise ConfigError, and leave nothing, if it fails."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    line = f"{public.decode()} {getpass.getuser()}@{socket.gethostname()}"
    beside = path.with_name(path.name + ".pub")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(beside, f"{line}\n".encode(), 0o644)
        try:
            _create(path, private, 0o600)
        except BaseException:
            # This includes Ctrl-C: half a key pair must not stay.
            beside.unlink()
            raise
    except OSError as error:
        hint = "fix that, or create a key with ssh-keygen"
        raise ConfigError(f"no key could be written to {path}: {error.strerror}", hint=hint) from error
    return KeyPair(path, line)


def _create(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


@dataclass(frozen=True)
class Installed:
    """The answer of a host to which a key was sent.

    Attributes:
        added: Whether it is new.
        open_home: Whether others may write to the home, which makes most sshds refuse every key.
    """

    added: bool
    open_home: bool


def install(host: Host, line: str, asker: Asker) -> Installed:
    """Log in by what a person types, and add a public key to authorized_keys, once.

    Args:
        line: The public half.

    Raises:
        AuthenticationError: What was typed was not enough.
        HostError: The host cannot be reached, or the key could not be written.
    """
    stream = transport_for(host).open(f"exec /bin/sh -c '{APPEND_SCRIPT}'", asker)
    timer = threading.Timer(ANSWER_S, stream.close)
    timer.start()
    try:
        with contextlib.suppress(OSError):
            # A command that has ended already has said why.
            stream.write(b"\n" * RC_LINES + line.encode() + b"\n")
        said = b"".join(iter(lambda: stream.read(65536), b""))
        lines = [*stream.stderr().splitlines(), *said.decode(errors="replace").splitlines()]
    finally:
        timer.cancel()
        stream.close()
    if PRESENT not in lines and ADDED not in lines:
        message = f"The key could not be put into ~/.ssh/authorized_keys on {host.name}"
        hint = f"log in by `{resolve(host).ssh}` and check that ~/.ssh is writable"
        raise HostError(message, host=host.name, evidence=lines[-5:], hint=hint)
    return Installed(ADDED in lines, OPEN in lines)
