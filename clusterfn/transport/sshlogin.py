"""Logging in by keys, and never by asking: no prompt is ever waited for. Called by `paramiko`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from clusterfn.errors import AuthenticationError
from clusterfn.transport.sshconfig import Settings

AUTH_TIMEOUT_S = 30.0
INTERACTIVE = ("keyboard-interactive", "password")


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
    raise _refused(settings, host_name, tried)


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
        raise _not_enough(settings, host_name, list(further), tried)
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


def _refused(settings: Settings, host_name: str, tried: _Tried) -> AuthenticationError:
    if tried.allowed and all(method in INTERACTIVE for method in tried.allowed):
        return _interactive(settings, host_name, tried.allowed, tried)
    message = f"{settings.place} did not let {settings.user} in"
    hint = (
        f"make `{settings.ssh.replace('ssh ', 'ssh -o BatchMode=yes ', 1)} true` work, say with ssh-copy-id or ssh-add"
    )
    return AuthenticationError(message, host=host_name, evidence=_evidence(tried), hint=hint)


def _interactive(settings: Settings, host_name: str, methods: list[str], tried: _Tried) -> AuthenticationError:
    return AuthenticationError(
        f"{settings.place} wants an interactive login of {settings.user} ({', '.join(methods)})",
        host=host_name,
        evidence=_evidence(tried),
        hint="a password or a second factor cannot be asked for here; use a key that needs none (ssh-copy-id, ssh-add) "
        f"and check with `{settings.ssh.replace('ssh ', 'ssh -o BatchMode=yes ', 1)} true`",
    )


def _not_enough(settings: Settings, host_name: str, methods: list[str], tried: _Tried) -> AuthenticationError:
    return AuthenticationError(
        f"{settings.place} accepts the key of {settings.user}, but wants a password (or a code) besides "
        f"({', '.join(methods)})",
        host=host_name,
        evidence=_evidence(tried),
        hint="this version cannot give a password or a code: ask the administrator for a login with a key alone",
    )


def _evidence(tried: _Tried) -> list[str]:
    allowed = [f"the host allows: {', '.join(tried.allowed)}"] if tried.allowed else []
    return [*(f"tried {word}" for word in tried.words or ["no key: none was found"]), *allowed]
