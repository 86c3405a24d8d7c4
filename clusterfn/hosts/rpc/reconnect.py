"""Reconnect: one try to reach a host again, what its failure means, and the pause before the next."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.rpc.frames import AgentStream

PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
# A host that has just booted accepts logins before home folders and Python are mounted. Only later is this an error.
NO_AGENT_S = 600.0
# The agent's word for a root that another user could change. No retry makes it safe.
_UNSAFE = "refused"


def pause_s(waits: int) -> float:
    """Return the pause after so many pauses: exponential backoff with jitter."""
    longest = min(PAUSE_FIRST_S * 2**waits, PAUSE_LAST_S) if waits else 0.0
    return longest * random.uniform(0.5, 1.0)


class Tried(NamedTuple):
    """The result of a try: a stream, or why it failed.

    Attributes:
        refused: The error, if it is final.
        needs_a_person: Whether a person has to log in.
        not_yet: Why the host cannot be reached now.
    """

    opened: AgentStream | None = None
    refused: HostError | ConfigError | None = None
    needs_a_person: bool = False
    not_yet: str = ""


class Tries:
    """The tries of one link to reach its host again."""

    def __init__(self) -> None:
        self._no_agent_since: float | None = None

    def once(self, opener: Callable[[], AgentStream]) -> Tried:
        """Try once. Give up a host that starts no agent for `NO_AGENT_S`, and an unsafe one at once."""
        since, self._no_agent_since = self._no_agent_since, None
        try:
            return Tried(opener())
        except AuthenticationError:
            return Tried(needs_a_person=True)
        except (HostKeyError, ConfigError) as error:
            return Tried(refused=error)
        except Unreachable as error:
            return Tried(not_yet=error.message)
        except HostError as error:
            now = time.monotonic()
            self._no_agent_since = now if since is None else since
            for_good = error.kind == _UNSAFE or now - self._no_agent_since >= NO_AGENT_S
            return Tried(refused=error) if for_good else Tried(not_yet=error.message)
