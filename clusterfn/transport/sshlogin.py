"""Logging in by keys, and never by asking: no prompt is ever waited for. Called by `paramiko`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from clusterfn.transport import failures
from clusterfn.transport.sshconfig import Settings

AUTH_TIMEOUT_S = 30.0


@dataclass
class _Tried:
    """What was tried, in words, and what the server would allow."""

    words: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)


def log_in(ssh: paramiko.Transport, settings: Settings, host_name: str) -> None:
    """Log the transport in with the first key that the host takes.

    Raises:
        AuthenticationError: No key was taken, or the host wants a second, interactive step.
    """
    ssh.auth_timeout = AUTH_TIMEOUT_S
    tried = _Tried()
    with contextlib.closing(paramiko.Agent()) as agent:
        for name, key in _keys(agent, settings, tried):
            if not ssh.is_active():
                break
            if _takes(ssh, settings, host_name, name, key, tried):
                return
    if ssh.is_active() and _takes_nothing(ssh, settings, tried):
        return
    raise failures.login_refused(host_name, settings, _evidence(tried), tried.allowed)


def _keys(agent: paramiko.Agent, settings: Settings, tried: _Tried) -> Iterator[tuple[str, paramiko.PKey]]:
    wanted = {blob for path in settings.identity_files if (blob := _public_blob(path))}
    offered = set()
    for key in agent.get_keys() if settings.use_agent else ():
        if not settings.identities_only or key.asbytes() in wanted:
            offered.add(key.asbytes())
            yield f"agent's key {getattr(key, 'comment', '') or key.get_name()}", key
    for path in settings.identity_files:
        if path.is_file() and _public_blob(path) not in offered:
            yield from _from_file(path, settings, tried)


def _public_blob(path: Path) -> bytes | None:
    public = path.with_name(path.name + ".pub")
    try:
        return bytes(paramiko.pkey.PublicBlob.from_file(str(public)).key_blob)
    except (OSError, ValueError):
        return None


def _from_file(path: Path, settings: Settings, tried: _Tried) -> Iterator[tuple[str, paramiko.PKey]]:
    certificates = [*settings.certificate_files, path.with_name(path.name + "-cert.pub")]
    try:
        for certificate in certificates:
            if certificate.is_file():
                key = paramiko.PKey.from_path(path)
                key.load_certificate(str(certificate))
                yield f"{path} with {certificate.name}", key
        yield str(path), paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        tried.words.append(f"{path}: has a passphrase, and no agent holds it (ssh-add {path})")
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError) as error:
        tried.words.append(f"{path}: cannot be used ({error})")


def _takes(
    ssh: paramiko.Transport, settings: Settings, host_name: str, name: str, key: paramiko.PKey, tried: _Tried
) -> bool:
    try:
        further = ssh.auth_publickey(settings.user, key)
    except paramiko.BadAuthenticationType as error:
        tried.allowed = list(error.allowed_types)
        tried.words.append(f"{name}: keys are not allowed")
        return False
    except (paramiko.AuthenticationException, EOFError) as error:
        tried.words.append(
            f"{name}: refused{'' if isinstance(error, paramiko.AuthenticationException) else ', hung up'}"
        )
        return False
    if further:
        tried.words.append(f"{name}: accepted")
        raise failures.login_refused(host_name, settings, _evidence(tried), list(further), partly=True)
    return True


def _takes_nothing(ssh: paramiko.Transport, settings: Settings, tried: _Tried) -> bool:
    """Ask with the method "none", which tells what the server would allow."""
    try:
        ssh.auth_none(settings.user)
    except paramiko.BadAuthenticationType as error:
        tried.allowed = list(error.allowed_types)
        return False
    except (paramiko.SSHException, EOFError):
        return False
    return True


def _evidence(tried: _Tried) -> list[str]:
    allowed = [f"the host allows: {', '.join(tried.allowed)}"] if tried.allowed else []
    return [*(f"tried {word}" for word in tried.words or ["no key: none was found"]), *allowed]
