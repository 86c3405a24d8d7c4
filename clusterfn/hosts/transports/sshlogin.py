"""Logging in: by keys, then by what only a person can give, if one can be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from clusterfn.hosts.transports import failures
from clusterfn.hosts.transports.asking import Asker, NotAnswered, Question
from clusterfn.hosts.transports.interactive import PERSON_S, Steps
from clusterfn.hosts.transports.sshconfig import Settings

AUTH_TIMEOUT_S = 30.0
UNREADABLE = (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError)
ENCRYPTED = (paramiko.PasswordRequiredException, TypeError)


@dataclass
class _Tried:
    """What was tried, in words, and what the server would allow."""

    words: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    locked: list[Callable[[], Iterator[tuple[str, paramiko.PKey]]]] = field(default_factory=list)


def log_in(ssh: paramiko.Transport, settings: Settings, host_name: str, asker: Asker | None = None) -> None:
    """Log the transport in with the first key that the host takes, and the steps that it wants besides.

    Args:
        asker: Asks for passphrases, passwords and codes; None: nobody is asked.

    Raises:
        AuthenticationError: Nothing that could be given was enough.
    """
    ssh.auth_timeout = AUTH_TIMEOUT_S
    tried = _Tried()
    further = _by_key(ssh, settings, tried, asker)
    partly = further is not None
    if further is None:
        further = _by_nothing(ssh, settings, tried)
    if further and asker is not None:
        ssh.auth_timeout = PERSON_S
        who = f"{settings.user}@{settings.hostname}"
        further = Steps(ssh, settings.user, who, asker, settings.tries, tried.words.append).go(further)
    if further != []:
        raise failures.login_refused(
            host_name, settings, _evidence(tried), tried.allowed, partly=partly, asked=asker is not None
        )


def _by_key(ssh: paramiko.Transport, settings: Settings, tried: _Tried, asker: Asker | None) -> Sequence[str] | None:
    """What the host wants after the first key that it takes, [] if nothing; None if it takes none."""
    with contextlib.closing(paramiko.Agent()) as agent:
        for name, key in _keys(agent, settings, tried, asker):
            if not ssh.is_active():
                return None
            further = _offer(ssh, settings, name, key, tried)
            if further is not None:
                return further
    return None


def _keys(
    agent: paramiko.Agent, settings: Settings, tried: _Tried, asker: Asker | None
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Those that need no passphrase first: a person is asked only if none of them is taken."""
    wanted = {blob for path in settings.identity_files if (blob := _public_blob(path))}
    offered = set()
    for key in agent.get_keys() if settings.use_agent else ():
        if not settings.identities_only or key.asbytes() in wanted:
            offered.add(key.asbytes())
            yield f"agent's key {getattr(key, 'comment', '') or key.get_name()}", key
    for path in settings.identity_files:
        if path.is_file() and _public_blob(path) not in offered:
            yield from _from_file(path, settings, tried, asker)
    for unlock in tried.locked:
        yield from unlock()


def _public_blob(path: Path) -> bytes | None:
    public = path.with_name(path.name + ".pub")
    try:
        return bytes(paramiko.pkey.PublicBlob.from_file(str(public)).key_blob)
    except (OSError, ValueError):
        return None


def _from_file(
    path: Path, settings: Settings, tried: _Tried, asker: Asker | None
) -> Iterator[tuple[str, paramiko.PKey]]:
    try:
        yield from _certified(path, settings, None)
    except ENCRYPTED:
        if asker is None:
            tried.words.append(f"{path}: has a passphrase, and no agent holds it (ssh-add {path})")
        else:
            tried.locked.append(lambda: _unlocked(path, settings, tried, asker))
    except UNREADABLE as error:
        tried.words.append(f"{path}: cannot be used ({error})")


def _certified(path: Path, settings: Settings, passphrase: Any) -> Iterator[tuple[str, paramiko.PKey]]:
    """The key of a file with each of its certificates, then alone. The passphrase is bytes, whatever paramiko says."""
    for certificate in [*settings.certificate_files, path.with_name(path.name + "-cert.pub")]:
        if certificate.is_file():
            key = paramiko.PKey.from_path(path, passphrase)
            key.load_certificate(str(certificate))
            yield f"{path} with {certificate.name}", key
    yield str(path), paramiko.PKey.from_path(path, passphrase)


def _unlocked(path: Path, settings: Settings, tried: _Tried, asker: Asker) -> Iterator[tuple[str, paramiko.PKey]]:
    """The same with the passphrase that a person gives; an empty one passes the key over, as ssh has it."""
    for _ in range(settings.tries):
        try:
            passphrase = asker(Question(f"Passphrase of the key {path}: ", "this machine"))
        except NotAnswered:
            passphrase = ""
        if not passphrase:
            tried.words.append(f"{path}: has a passphrase, which was not given")
            return
        try:
            yield from _certified(path, settings, passphrase.encode())
            return
        except (*ENCRYPTED, *UNREADABLE):
            tried.words.append(f"{path}: not opened by that passphrase")


def _offer(
    ssh: paramiko.Transport, settings: Settings, name: str, key: paramiko.PKey, tried: _Tried
) -> Sequence[str] | None:
    """What the host wants besides this key, [] if nothing; None if it does not take it."""
    try:
        further = list(ssh.auth_publickey(settings.user, key))
    except paramiko.BadAuthenticationType as error:
        tried.allowed = list(error.allowed_types)
        tried.words.append(f"{name}: keys are not allowed")
    except (paramiko.AuthenticationException, EOFError) as error:
        hung_up = "" if isinstance(error, paramiko.AuthenticationException) else ", hung up"
        tried.words.append(f"{name}: refused{hung_up}")
    else:
        tried.words.append(f"{name}: accepted")
        tried.allowed = further
        return further
    return None


def _by_nothing(ssh: paramiko.Transport, settings: Settings, tried: _Tried) -> Sequence[str] | None:
    """Ask with the method "none": what the host would allow, [] if it wants nothing; None if it does not say."""
    if not ssh.is_active():
        return None
    try:
        ssh.auth_none(settings.user)
    except paramiko.BadAuthenticationType as error:
        tried.allowed = list(error.allowed_types)
        return tried.allowed
    except (paramiko.SSHException, EOFError):
        return None
    return []


def _evidence(tried: _Tried) -> list[str]:
    allowed = [f"the host allows: {', '.join(tried.allowed)}"] if tried.allowed else []
    return [*(f"tried {word}" for word in tried.words or ["no key: none was found"]), *allowed]
