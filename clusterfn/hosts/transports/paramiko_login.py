"""Log in with paramiko: by keys, then by keyboard-interactive (codes, menus) and password, if a person can be asked.

A wrong answer is asked for again as often as ssh would (NumberOfPasswordPrompts) or the server allows. Questions are
asked in the connecting thread, because the person's Ctrl-C arrives there.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from clusterfn.hosts.transports import ssh_errors
from clusterfn.hosts.transports.prompts import AGAIN, Asker, LoginQuestion, NotAnswered
from clusterfn.hosts.transports.ssh_config import Settings

METHODS = ("keyboard-interactive", "password")
# A person may take this long to answer. The server gives up earlier, usually after two minutes.
PERSON_S = 3600.0


@dataclass
class _Round:
    """What the server asks at once."""

    about: str
    prompts: Sequence[tuple[str, bool]]
    answers: concurrent.futures.Future[list[str]]


@dataclass
class InteractiveLogin:
    """The steps of one login.

    Attributes:
        who: Who asks, for the person.
        tries: How often one thing is asked.
        words: Called with what was tried, in words.
    """

    ssh: paramiko.Transport
    user: str
    who: str
    asker: Asker
    tries: int
    words: Callable[[str], None]
    # The text before the next question: why it is asked again.
    _before: str = ""

    def go(self, allowed: Sequence[str]) -> list[str] | None:
        """Log in step by step; return what the host still wants ([]: nothing), or None if it refused."""
        left: list[str] | None = list(allowed)
        while left and (methods := [method for method in METHODS if method in left]):
            left = next((further for method in methods if (further := self._method(method)) is not None), None)
        return left

    def _method(self, method: str) -> list[str] | None:
        """Try one method; return what the host still wants, or None if it refused every try."""
        for attempt in range(self.tries):
            if not self.ssh.is_active():
                return None
            self._before = AGAIN if attempt else ""
            try:
                if method == METHODS[0]:
                    return self._ask_rounds()
                password = self.asker(LoginQuestion("Password: ", self.who, self._before))
                return list(self.ssh.auth_password(self.user, password, fallback=False))
            except NotAnswered:
                self.words(f"{method}: not answered")
                return None
            except paramiko.BadAuthenticationType:
                self.words(f"{method}: not allowed")
                return None
            except (paramiko.SSHException, EOFError):
                self.words(f"{method}: {'refused' if self.ssh.is_active() else 'refused, hung up'}")
        return None

    def _ask_rounds(self) -> list[str]:
        """Answer in this thread the questions that paramiko passes to a handler in its own."""
        rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()

        def handler(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            about = "\n".join(part for part in (self._before, title, instructions) if part)
            one = _Round(about, prompts, concurrent.futures.Future())
            rounds.put(one)
            return one.answers.result()

        def log_in() -> Sequence[str]:
            try:
                return self.ssh.auth_interactive(self.user, handler)
            finally:
                rounds.put(None)

        thread = concurrent.futures.ThreadPoolExecutor(1, "clusterfn-login")
        outcome = thread.submit(log_in)
        thread.shutdown(wait=False)
        while (one := rounds.get()) is not None:
            self._answer(one)
        return list(outcome.result())

    def _answer(self, one: _Round) -> None:
        questions = [
            LoginQuestion(text, self.who, "" if number else one.about, secret=not echo)
            for number, (text, echo) in enumerate(one.prompts)
        ]
        try:
            one.answers.set_result([self.asker(question) for question in questions])
        except BaseException:
            # The person may press Ctrl-C. paramiko's thread waits for the answers, and must get an error instead.
            one.answers.set_exception(paramiko.AuthenticationException("not answered"))
            self.ssh.close()
            raise


AUTH_TIMEOUT_S = 30.0
UNREADABLE = (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError)
ENCRYPTED = (paramiko.PasswordRequiredException, TypeError)


@dataclass
class _LoginAttempts:
    """What was tried, in words, and what the server would allow."""

    words: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    locked: list[Callable[[], Iterator[tuple[str, paramiko.PKey]]]] = field(default_factory=list)


def log_in(ssh: paramiko.Transport, settings: Settings, host_name: str, asker: Asker | None = None) -> None:
    """Log the transport in with the first key that the host accepts, and the further steps that it wants.

    Args:
        asker: Asks for passphrases, passwords and codes; None: no person can be asked.

    Raises:
        AuthenticationError: Nothing that could be given was enough.
    """
    ssh.auth_timeout = AUTH_TIMEOUT_S
    tried = _LoginAttempts()
    further: Sequence[str] | None = None
    with contextlib.closing(paramiko.Agent()) as agent:
        for name, key in _keys(agent, settings, tried, asker):
            if not ssh.is_active() or (further := _offer(ssh, settings, name, key, tried)) is not None:
                break
    partly = further is not None
    if further is None:
        further = _by_nothing(ssh, settings, tried)
    if further and asker is not None:
        ssh.auth_timeout = PERSON_S
        who = f"{settings.user}@{settings.hostname}"
        further = InteractiveLogin(ssh, settings.user, who, asker, settings.tries, tried.words.append).go(further)
    if further != []:
        evidence = [f"tried {word}" for word in tried.words or ["no key: none was found"]]
        evidence += [f"the host allows: {', '.join(tried.allowed)}"] if tried.allowed else []
        raise ssh_errors.login_refused(
            host_name, settings, evidence, tried.allowed, partly=partly, asked=asker is not None
        )


def _keys(
    agent: paramiko.Agent, settings: Settings, tried: _LoginAttempts, asker: Asker | None
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield keys, those without a passphrase first: a person is asked only if the host takes none of them."""
    configured = {blob for path in settings.identity_files if (blob := _public_blob(path))}
    offered = set()
    for key in agent.get_keys() if settings.use_agent else ():
        if not settings.identities_only or key.asbytes() in configured:
            offered.add(key.asbytes())
            yield f"agent's key {getattr(key, 'comment', '') or key.get_name()}", key
    for path in settings.identity_files:
        # Do not offer a key of the agent again: servers count attempts, and end a connection after some (MaxAuthTries).
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
    path: Path, settings: Settings, tried: _LoginAttempts, asker: Asker | None
) -> Iterator[tuple[str, paramiko.PKey]]:
    try:
        yield from _certified(path, settings, None)
    except ENCRYPTED:
        if asker is None:
            tried.words.append(f"{path}: has a passphrase, and no agent has it (ssh-add {path})")
        else:
            tried.locked.append(lambda: _unlocked(path, settings, tried, asker))
    except UNREADABLE as error:
        tried.words.append(f"{path}: cannot be used ({error})")


def _certified(path: Path, settings: Settings, passphrase: Any) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield a file's key with each certificate, then alone. The passphrase is bytes, whatever paramiko says."""
    for certificate in [*settings.certificate_files, path.with_name(path.name + "-cert.pub")]:
        if certificate.is_file():
            key = paramiko.PKey.from_path(path, passphrase)
            key.load_certificate(str(certificate))
            yield f"{path} with {certificate.name}", key
    yield str(path), paramiko.PKey.from_path(path, passphrase)


def _unlocked(
    path: Path, settings: Settings, tried: _LoginAttempts, asker: Asker
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield the same with a passphrase that a person types; an empty one skips the key, as in ssh."""
    for _ in range(settings.tries):
        try:
            passphrase = asker(LoginQuestion(f"Passphrase of the key {path}: ", "this machine"))
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
    ssh: paramiko.Transport, settings: Settings, name: str, key: paramiko.PKey, tried: _LoginAttempts
) -> Sequence[str] | None:
    """Offer a key; return what else the host wants, [] if nothing; None if it rejects the key."""
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


def _by_nothing(ssh: paramiko.Transport, settings: Settings, tried: _LoginAttempts) -> Sequence[str] | None:
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
