"""Reconnect: one try to reach a host again, what its failure means, and the pause before the next."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from clusterfn.errors import AuthenticationError, HostError, HostKeyError, Unreachable
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


class Tries:
    """The tries of one link to reach its host again."""

    def __init__(self) -> None:
        self._no_agent_since: float | None = None

    def once(self, opener: Callable[[], AgentStream]) -> AgentStream:
        """Try once.

        Raises:
            AuthenticationError: A person has to log in.
            Unreachable: The host cannot be reached now; or it has started no agent, for less than `NO_AGENT_S`.
            HostError, ConfigError: It is refused for good.
        """
        since, self._no_agent_since = self._no_agent_since, None
        try:
            return opener()
        except (AuthenticationError, HostKeyError, Unreachable):
            raise
        except HostError as error:
            now = time.monotonic()
            self._no_agent_since = now if since is None else since
            if error.kind == _UNSAFE or now - self._no_agent_since >= NO_AGENT_S:
                raise
            raise Unreachable(error.message) from error
