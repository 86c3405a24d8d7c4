"""Log in with paramiko: by keys, then by keyboard-interactive (codes, menus) and password, if a person can be asked.

A wrong answer is asked for again as often as ssh would (NumberOfPasswordPrompts) or the server allows. Questions are
asked in the connecting thread, because the person's Ctrl-C arrives there.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from clusterfn.hosts.transports import ssh_errors
from clusterfn.hosts.transports.prompts import AGAIN, Asker, LoginQuestion, NotAnswered
from clusterfn.hosts.transports.ssh_config import Settings

METHODS = ("keyboard-interactive", "password")
AUTH_TIMEOUT_S = 30.0
# A person may take this long to answer. The server gives up earlier, usually after two minutes.
PERSON_S = 3600.0
UNREADABLE = (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError)
ENCRYPTED = (paramiko.PasswordRequiredException, TypeError)


@dataclass
class _Round:
    """What the server asks at once."""

    about: str
    prompts: Sequence[tuple[str, bool]]
    answers: concurrent.futures.Future[list[str]]


def log_in(ssh: paramiko.Transport, settings: Settings, host_name: str, asker: Asker | None = None) -> None:
    """Log the transport in with the first key that the host accepts, and the further steps that it wants.

    Args:
        asker: Asks for passphrases, passwords and codes; None: no person can be asked.

    Raises:
        AuthenticationError: Nothing that could be given was enough.
    """
    login = _Login(ssh, settings, asker)
    ssh.auth_timeout = AUTH_TIMEOUT_S
    further = login.by_keys()
    partly = further is not None
    if further is None:
        further = login.by_nothing()
    if further and asker is not None:
        ssh.auth_timeout = PERSON_S
        further = login.by_person(further)
    if further != []:
        evidence = [f"tried {word}" for word in login.tried or ["no key: none was found"]]
        evidence += [f"{ssh_errors.ALLOWS}{', '.join(login.allowed)}"] if login.allowed else []
        raise ssh_errors.login_refused(
            host_name, settings, evidence, login.allowed, partly=partly, asked=asker is not None
        )


def _no_answer(_: LoginQuestion) -> str:
    raise NotAnswered


class _Login:
    """The steps of one login. Each returns what the host still wants, [] if nothing; None if it refused.

    Attributes:
        tried: What was tried, in words.
        allowed: The methods that the host would allow.
    """

    def __init__(self, ssh: paramiko.Transport, settings: Settings, asker: Asker | None) -> None:
        self._ssh, self._settings = ssh, settings
        self._has_person = asker is not None
        self._ask = asker or _no_answer
        self.tried: list[str] = []
        self.allowed: list[str] = []
        # The text before the next question: why it is asked again.
        self._before = ""

    def by_keys(self) -> list[str] | None:
        """Offer keys until the host accepts one."""
        with contextlib.closing(paramiko.Agent()) as agent:
            for name, key in self._keys(agent):
                if not self._ssh.is_active():
                    return None
                if (further := self._offer(name, key)) is not None:
                    return further
        return None

    def _keys(self, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield keys, those without a passphrase first: a person is asked only if the host takes none of them."""
        configured = {blob for path in self._settings.identity_files if (blob := _public_blob(path))}
        offered = set()
        locked = []
        for key in agent.get_keys() if self._settings.use_agent else ():
            if not self._settings.identities_only or key.asbytes() in configured:
                offered.add(key.asbytes())
                yield f"agent's key {getattr(key, 'comment', '') or key.get_name()}", key
        for path in self._settings.identity_files:
            # Do not offer a key of the agent again: servers count attempts, and end a connection after MaxAuthTries.
            if not path.is_file() or _public_blob(path) in offered:
                continue
            try:
                yield from self._certified(path, None)
            except ENCRYPTED:
                if self._has_person:
                    locked.append(path)
                else:
                    self.tried.append(f"{path}: has a passphrase, and no agent has it (ssh-add {path})")
            except UNREADABLE as error:
                self.tried.append(f"{path}: cannot be used ({error})")
        for path in locked:
            yield from self._unlocked(path)

    def _certified(self, path: Path, passphrase: Any) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield a file's key with each certificate, then alone. The passphrase is bytes, whatever paramiko says."""
        for certificate in [*self._settings.certificate_files, path.with_name(path.name + "-cert.pub")]:
            if certificate.is_file():
                key = paramiko.PKey.from_path(path, passphrase)
                key.load_certificate(str(certificate))
                yield f"{path} with {certificate.name}", key
        yield str(path), paramiko.PKey.from_path(path, passphrase)

    def _unlocked(self, path: Path) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the same with a passphrase that a person types; an empty one skips the key, as in ssh."""
        for _ in range(self._settings.tries):
            try:
                passphrase = self._ask(LoginQuestion(f"Passphrase of the key {path}: ", "this machine"))
            except NotAnswered:
                passphrase = ""
            if not passphrase:
                self.tried.append(f"{path}: has a passphrase, which was not given")
                return
            try:
                yield from self._certified(path, passphrase.encode())
                return
            except (*ENCRYPTED, *UNREADABLE):
                self.tried.append(f"{path}: not opened by that passphrase")

    def _offer(self, name: str, key: paramiko.PKey) -> list[str] | None:
        try:
            self.allowed = list(self._ssh.auth_publickey(self._settings.user, key))
        except paramiko.BadAuthenticationType as error:
            self.allowed = list(error.allowed_types)
            self.tried.append(f"{name}: keys are not allowed")
        except (paramiko.AuthenticationException, EOFError) as error:
            hung_up = "" if isinstance(error, paramiko.AuthenticationException) else ", hung up"
            self.tried.append(f"{name}: refused{hung_up}")
        else:
            self.tried.append(f"{name}: accepted")
            return self.allowed
        return None

    def by_nothing(self) -> list[str] | None:
        """Ask with the method "none" what the host would allow."""
        if not self._ssh.is_active():
            return None
        try:
            self._ssh.auth_none(self._settings.user)
        except paramiko.BadAuthenticationType as error:
            self.allowed = list(error.allowed_types)
            return self.allowed
        except (paramiko.SSHException, EOFError):
            return None
        return []

    def by_person(self, allowed: Sequence[str]) -> list[str] | None:
        """Log in step by step with what a person answers."""
        left: list[str] | None = list(allowed)
        while left and (methods := [method for method in METHODS if method in left]):
            left = next((further for method in methods if (further := self._method(method)) is not None), None)
        return left

    def _method(self, method: str) -> list[str] | None:
        """Try one method as often as the person may."""
        for attempt in range(self._settings.tries):
            if not self._ssh.is_active():
                return None
            self._before = AGAIN if attempt else ""
            try:
                if method == METHODS[0]:
                    return self._ask_rounds()
                password = self._ask(LoginQuestion("Password: ", self._who, self._before))
                return list(self._ssh.auth_password(self._settings.user, password, fallback=False))
            except NotAnswered:
                self.tried.append(f"{method}: not answered")
                return None
            except paramiko.BadAuthenticationType:
                self.tried.append(f"{method}: not allowed")
                return None
            except (paramiko.SSHException, EOFError):
                self.tried.append(f"{method}: {'refused' if self._ssh.is_active() else 'refused, hung up'}")
        return None

    @property
    def _who(self) -> str:
        return f"{self._settings.user}@{self._settings.hostname}"

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
                return self._ssh.auth_interactive(self._settings.user, handler)
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
            LoginQuestion(text, self._who, "" if number else one.about, secret=not echo)
            for number, (text, echo) in enumerate(one.prompts)
        ]
        try:
            one.answers.set_result([self._ask(question) for question in questions])
        except BaseException:
            # The person may press Ctrl-C. paramiko's thread waits for the answers, and must get an error instead.
            one.answers.set_exception(paramiko.AuthenticationException("not answered"))
            self._ssh.close()
            raise


def _public_blob(path: Path) -> bytes | None:
    public = path.with_name(path.name + ".pub")
    try:
        return bytes(paramiko.pkey.PublicBlob.from_file(str(public)).key_blob)
    except (OSError, ValueError):
        return None
