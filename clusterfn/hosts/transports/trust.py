"""Fetch a host's key by the way that a connection would take, and write it to known_hosts as ssh would.

Asks no person: that is the command's part. The only module that writes to known_hosts. It logs in to the jump hosts, as
a connection does, but not to the host itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError, HostKeyError
from clusterfn.hosts.transports import host_keys, openssh, ssh_errors
from clusterfn.hosts.transports.host_keys import KnownKey
from clusterfn.hosts.transports.ssh_config import Settings, jumps, resolve

KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)


@dataclass(frozen=True)
class ShownKey:
    """One key that a host has shown."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return host_keys.fingerprint(self.blob)

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


@dataclass(frozen=True)
class HostKeys:
    """A host on the way, the keys that it showed, and what is remembered of it (markers left out).

    Attributes:
        trusted: The remembered line that fits, if one does.
    """

    settings: Settings
    shown: tuple[ShownKey, ...]
    remembered: tuple[KnownKey, ...]

    @property
    def trusted(self) -> KnownKey | None:
        blobs = {key.blob for key in self.shown}
        return next((entry for entry in self.remembered if entry.blob in blobs), None)


def hosts_on_the_way(host: Host) -> list[Settings]:
    """Return each host on the way to `host`, the nearest first, itself last."""
    target = resolve(host)
    hops = jumps(host, target)
    # The first stop is reached as its own configuration says. Each further one is reached through those before it.
    chained = [hop._replace(proxy_jump=target.proxy_jump[:at]) if at else hop for at, hop in enumerate(hops)]
    return [*chained, target]


def fetch_keys(host: Host, settings: Settings) -> HostKeys:
    """Fetch the keys of one stop.

    Raises:
        HostError: There is no way to it, or a jump host before it is not trusted.
        HostKeyError: It showed a key that is marked as revoked.
    """
    fetch = _by_ssh if openssh.has_ssh() else _by_paramiko
    shown: list[ShownKey] = []
    missing: HostError | None = None
    for kinds in KINDS:
        try:
            shown += fetch(host, settings, kinds)
        except HostError as error:
            if type(error) is not HostError or error.__cause__ is None:
                raise
            # The host has no key of this kind. That is an error only if it has none of any kind.
            missing = error
    if not shown and missing is not None:
        raise missing
    entries = host_keys.known_keys(settings.key_name, settings.known_hosts)
    for key in shown:
        revoked = next((entry for entry in entries if entry.marker == "@revoked" and entry.blob == key.blob), None)
        if revoked is not None:
            raise host_keys.revoked_error(settings, host.name, f"{key} by {settings.place}", revoked.place)
    return HostKeys(settings, tuple(shown), tuple(entry for entry in entries if not entry.marker))


def _by_ssh(host: Host, settings: Settings, kinds: tuple[str, ...]) -> list[ShownKey]:
    """Let ssh write the key into an empty file of ours; it tries no login."""
    with tempfile.TemporaryDirectory(prefix="clusterfn-") as folder:
        file = Path(folder) / "known_hosts"
        line = ["ssh", *fetch_options(settings, file, kinds), *openssh.way(settings), "--", settings.alias, "true"]
        try:
            ran = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=openssh.patience_s(settings),
                env={**os.environ, **openssh.ASK_NOBODY},
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            stderr = (error.stderr or b"").decode(errors="replace")
            raise ssh_errors.error_of(host, settings, stderr, -1) from error
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:
        raise ssh_errors.error_of(host, settings, ran.stderr.decode(errors="replace"), ran.returncode)
    return [ShownKey(words[1], base64.b64decode(words[2])) for words in map(str.split, lines) if len(words) >= 3]


def fetch_options(settings: Settings, file: Path, kinds: tuple[str, ...]) -> list[str]:
    """Return the options of an ssh that fetches host keys of these kinds into `file`."""
    options = [
        "BatchMode=yes", "PreferredAuthentications=none", "ControlMaster=no", "ControlPath=none",
        "ClearAllForwardings=yes", "ForwardAgent=no", f"ConnectTimeout={max(1, round(settings.timeout_s))}",
        # ssh accepts any key here, because it writes the key only into a file of ours, which no connection trusts.
        "StrictHostKeyChecking=no", f'UserKnownHostsFile="{file}"', "GlobalKnownHostsFile=/dev/null",
        "HashKnownHosts=no", "UpdateHostKeys=no", "VerifyHostKeyDNS=no", "NoHostAuthenticationForLocalhost=no",
        f"HostKeyAlgorithms={','.join(kinds)}",
        *(["KnownHostsCommand=none"] if any(line.startswith("knownhostscommand") for line in settings.unmet) else []),
        *settings.instead,
    ]  # fmt: skip
    through = ["-J", ",".join(settings.proxy_jump)] if settings.proxy_jump else []
    return ["-T", "-x", "-v", *(f"-o{option}" for option in options), *through]


def _by_paramiko(host: Host, settings: Settings, kinds: tuple[str, ...]) -> list[ShownKey]:
    # Imported late, because importing paramiko takes a tenth of a second.
    from clusterfn.hosts.transports import paramiko

    hops: list[Any] = []
    try:
        key = paramiko.meet(host, settings, hops, kinds=kinds).get_remote_server_key()
        return [ShownKey(key.get_name(), key.asbytes())]
    finally:
        paramiko.close(hops)


def refuse_unwritable(host: Host, settings: Settings) -> None:
    """Raise ConfigError if no key could be written for this host: before a person is asked to compare it."""
    obstacle = host_keys.obstacle(settings)
    if obstacle is not None:
        message = f"The host key of {host.name} ({settings.place}) cannot be remembered: {obstacle.problem}"
        raise ConfigError(message, host=host.name, hint=obstacle.fix)


def write_known_hosts(host: Host, met: HostKeys, keys: Sequence[ShownKey]) -> Path:
    """Write keys into the user's first known_hosts file, in place of what was remembered; return the file.

    Raises:
        ConfigError: There is no such file in the configuration, or the user must edit a line.
    """
    refuse_unwritable(host, met.settings)
    file = met.settings.user_known_hosts[0]
    _forget(host, met)
    try:
        return _append(file, met, keys)
    except OSError as error:
        # The disk may be full, or the file may be protected in a way that the check above cannot see.
        problem = f"{file} cannot be written: {error.strerror}"
        raise ConfigError(problem, host=host.name, hint="make it writable, then run the same command again") from error


def _append(file: Path, met: HostKeys, keys: Sequence[ShownKey]) -> Path:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else b""
    text = "" if before.endswith(b"\n") or not before else "\n"
    for key in keys:
        name = met.settings.key_name
        if met.settings.hash_known_hosts:
            salt = secrets.token_bytes(20)
            digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
            name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
        text += f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n"
    # Append with a single write, so that lines which other programs add at the same time stay intact.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as opened:
        opened.write(text.encode())
    return file


def _forget(host: Host, met: HostKeys) -> None:
    """Remove the host from the user's files, as ssh-keygen does it; the old ones stay as .old.

    Raises:
        HostKeyError: A file that is not the user's still has another key for it.
    """
    name = met.settings.key_name
    for file in {Path(entry.place.rpartition(":")[0]) for entry in met.remembered}:
        if file in met.settings.user_known_hosts and shutil.which("ssh-keygen"):
            # Resolved, because ssh-keygen would replace a link by a file.
            words = ["ssh-keygen", "-R", name, "-f", str(file.resolve())]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    left = [entry for entry in host_keys.known_keys(name, met.settings.known_hosts) if not entry.marker]
    if left:
        message = f"{left[0].place} has another key for {met.settings.place}, and clusterfn cannot change that line"
        evidence = [f"remembered: {left[0].kind} {host_keys.fingerprint(left[0].blob)}"]
        raise HostKeyError(message, host=host.name, evidence=evidence, hint="remove it, or ask the file's owner to")
