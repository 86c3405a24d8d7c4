"""The steps of a login that need a person: keyboard-interactive (codes, menus) and password, with paramiko.

Each question is asked once; a wrong answer is asked for again as often as ssh would (NumberOfPasswordPrompts) or the
server allows. Asked in the thread that connects: the person's Ctrl-C comes there.
"""

from __future__ import annotations

import concurrent.futures
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paramiko

from clusterfn.hosts.transports.asking import AGAIN, Asker, NotAnswered, Question

METHODS = ("keyboard-interactive", "password")
PERSON_S = 3600.0  # the server gives up before, usually after two minutes


@dataclass
class _Round:
    """What the server asks at once."""

    about: str
    prompts: Sequence[tuple[str, bool]]
    answers: concurrent.futures.Future[list[str]]


@dataclass
class Steps:
    """The steps of one login.

    Attributes:
        who: Who asks, for the person.
        tries: How often a wrong answer is asked for again, itself included.
        words: Is told what was tried.
    """

    ssh: paramiko.Transport
    user: str
    who: str
    asker: Asker
    tries: int
    words: Callable[[str], None]
    _before: str = ""  # what the next question begins with

    def go(self, wanted: Sequence[str]) -> list[str] | None:
        """Take steps until the host lets in ([]), wants what no person can give, or has refused (None)."""
        left: list[str] | None = list(wanted)
        while left and (methods := [method for method in METHODS if method in left]):
            left = next((further for method in methods if (further := self._method(method)) is not None), None)
        return left

    def _method(self, method: str) -> list[str] | None:
        """What is wanted after this step; None if every try was refused."""
        take = self._ask_rounds if method == METHODS[0] else self._ask_password
        for attempt in range(self.tries):
            if not self.ssh.is_active():
                return None
            self._before = AGAIN if attempt else ""
            try:
                return take()
            except NotAnswered:
                self.words(f"{method}: not answered")
                return None
            except paramiko.BadAuthenticationType:
                self.words(f"{method}: not allowed")
                return None
            except (paramiko.SSHException, EOFError):
                self.words(f"{method}: {'refused' if self.ssh.is_active() else 'refused, hung up'}")
        return None

    def _ask_password(self) -> list[str]:
        password = self.asker(Question("Password: ", self.who, self._before))
        return list(self.ssh.auth_password(self.user, password, fallback=False))

    def _ask_rounds(self) -> list[str]:
        """paramiko brings the questions on a thread of its own; they are handed over to this one."""
        rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()

        def handler(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            about = "\n".join(part for part in (self._before, title, instructions) if part)
            one = _Round(about, prompts, concurrent.futures.Future())
            rounds.put(one)
            return one.answers.result()

        thread = concurrent.futures.ThreadPoolExecutor(1, "clusterfn-login")
        outcome = thread.submit(self.ssh.auth_interactive, self.user, handler)
        outcome.add_done_callback(lambda _: rounds.put(None))
        thread.shutdown(wait=False)
        while (one := rounds.get()) is not None:
            self._answer(one)
        return list(outcome.result())

    def _answer(self, one: _Round) -> None:
        try:
            one.answers.set_result([self._one(one, number) for number in range(len(one.prompts))])
        except BaseException:  # whoever answers may press Ctrl-C: paramiko's thread must not wait on
            one.answers.set_exception(paramiko.AuthenticationException("not answered"))  # for paramiko's own thread
            self.ssh.close()
            raise

    def _one(self, one: _Round, number: int) -> str:
        text, echo = one.prompts[number]
        return self.asker(Question(text, self.who, "" if number else one.about, secret=not echo))
