"""Check a host's key against known_hosts, read strictly. `trust` alone writes to it."""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterfn.errors import HostKeyError
from clusterfn.hosts.transports.ssh_config import Settings

AUTHORITY = "@cert-authority"
# The kinds of keys in the names of sshd's own files. Any other kind counts as ed25519.
_FILES = ("ecdsa", "rsa")


class KnownKey(NamedTuple):
    """One line of a known_hosts file. `marker` is "", "@revoked" or "@cert-authority"."""

    place: str
    marker: str
    kind: str
    blob: bytes


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it.

    Example:
        >>> fingerprint(b"")
        'SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU'
    """
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_keys(name: str, files: Iterable[Path]) -> list[KnownKey]:
    """Return what the files remember of a host; `name` is as known_hosts writes it: `[lab8]:2222`."""
    keys: list[KnownKey] = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not matches(words[0], name):
                continue
            with contextlib.suppress(ValueError):
                # `binascii.Error` is a ValueError, and a character outside of
                # ASCII raises a plain one. Such a line has no usable key.
                keys.append(KnownKey(f"{path}:{number}", marker, words[1], base64.b64decode(words[2])))
    return keys


def matches(patterns: str, name: str) -> bool:
    """Whether the first field of a known_hosts line means `name`: hashed, or patterns with `*`, `?` and `!`."""
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in patterns.split("|")[2:4])
        except ValueError:
            # `binascii.Error` is a ValueError.
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    negated = [pattern[1:] for pattern in patterns.lower().split(",") if pattern.startswith("!")]
    plain = [pattern for pattern in patterns.lower().split(",") if not pattern.startswith("!")]
    return any(_fits(pattern, name) for pattern in plain) and not any(_fits(pattern, name) for pattern in negated)


def _fits(pattern: str, text: str) -> bool:
    """Whether a pattern matches the whole text. A bracket means itself here, other than to fnmatch."""
    if set("*?").isdisjoint(pattern):
        return pattern == text
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


class Obstacle(NamedTuple):
    """What keeps a host key from being remembered, and what to do about that."""

    problem: str
    fix: str


def obstacle(settings: Settings) -> Obstacle | None:
    """Return what would keep `clusterfn trust` from writing a key for the host; None if it would work."""
    if settings.user_known_hosts:
        return None
    fix = f"remove it, or write `UserKnownHostsFile ~/.ssh/known_hosts` for {settings.alias} above it"
    return Obstacle("the UserKnownHostsFile of your ssh configuration keeps no host keys", fix)


def check(settings: Settings, host_name: str, kind: str, blob: bytes) -> None:
    """Raise HostKeyError, with both fingerprints and the line, for any key but the one remembered for the host."""
    # An authority may have signed this key, which paramiko cannot check: it is unknown then.
    own_keys = [entry for entry in known_keys(settings.key_name, settings.known_hosts) if entry.marker != AUTHORITY]
    revoked = next((entry for entry in own_keys if entry.marker and entry.blob == blob), None)
    trusted = [entry for entry in own_keys if not entry.marker]
    shown = f"{kind} {fingerprint(blob)} by {settings.place}"
    if revoked is not None:
        raise revoked_error(settings, host_name, shown, revoked.place)
    if any(entry.blob == blob for entry in trusted):
        return
    same_kind = [entry for entry in trusted if entry.kind == kind] or trusted
    raise (changed if same_kind else unknown)(settings, host_name, shown, same_kind)


def revoked_error(settings: Settings, host_name: str, shown: str, place: str) -> HostKeyError:
    """Return the error for a key that is marked as revoked."""
    return _error(f"The host key of {host_name} is revoked in {place}", host_name, shown, [], "")


def unknown(settings: Settings, host_name: str, shown: str, remembered: Sequence[KnownKey] = ()) -> HostKeyError:
    """Return the error for an unknown key. `shown`: its kind and fingerprint, and the host that showed it."""
    files = ", ".join(str(path) for path in settings.known_hosts) or "no known_hosts file"
    once = settings.ssh.replace("ssh ", "ssh -o StrictHostKeyChecking=ask ", 1)
    file = next((kind for kind in _FILES if kind in shown.split()[0]), "ed25519")
    command = f"ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub"
    hint = f"compare the fingerprint with the administrator's (or with `{command}`, run on that machine itself), "
    before = obstacle(settings)
    hint += f"then: clusterfn trust {host_name} (or by ssh: {once} true)"
    if before is not None:
        hint = f"{before.problem}: {before.fix}; then clusterfn trust {host_name} shows the fingerprint to compare"
    message = f"The host key of {host_name} ({settings.place}) is unknown"
    return _error(message, host_name, shown, [f"not in: {files}"], hint)


def changed(settings: Settings, host_name: str, shown: str, entries: Sequence[KnownKey]) -> HostKeyError:
    """Return the error where known_hosts has other keys than the one that was shown."""
    remembered = [f"remembered: {entry.kind} {fingerprint(entry.blob)} at {entry.place}" for entry in entries]
    file = entries[0].place.rpartition(":")[0] if entries else "FILE"
    forget = f"ssh-keygen -R '{settings.key_name}' -f {file}"
    hint = "someone may be intercepting the connection; if the host was reinstalled, ask its administrator for the "
    how = f"clusterfn trust {host_name} --replace (or by ssh-keygen: {forget})"
    before = obstacle(settings)
    if before is not None:
        how = f"{before.fix} ({before.problem}), and then: {how}"
    hint += f"fingerprint, then: {how}"
    message = f"The host key of {host_name} ({settings.place}) has changed"
    return _error(message, host_name, shown, remembered, hint)


def _error(message: str, host_name: str, shown: str, evidence: list[str], hint: str) -> HostKeyError:
    return HostKeyError(message, host=host_name, evidence=[f"shown now:  {shown}", *evidence], hint=hint or None)
