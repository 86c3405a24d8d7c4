"""One try to reach a host again, what it means, and how long to wait before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.rpc.frames import AgentStream

PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
NO_AGENT_S = 600.0  # a host that has just started lets users in before their home and its Python are there


def pause_s(waits: int) -> float:
    """How long to wait after so many waits: twice as long each time, and never as long as another client does."""
    longest = min(PAUSE_FIRST_S * 2**waits, PAUSE_LAST_S) if waits else 0.0
    return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Tried:
    """What came of it: a stream, or why there is none.

    Attributes:
        refused: For good.
        needs_a_person: Who has to log in.
        not_yet: Why it cannot be reached now.
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
        """Try. A host that answers and starts no agent is given up after `NO_AGENT_S`, an unsafe one at once."""
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
            for_good = error.kind == "refused" or now - self._no_agent_since >= NO_AGENT_S
            return Tried(refused=error) if for_good else Tried(not_yet=error.message)
