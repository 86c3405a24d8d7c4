"""One try to reach a host again, what it means, and how long to wait before. Called by `link`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hostlink.boot import Opened

PAUSE_FIRST_S, PAUSE_LAST_S = 0.5, 30.0
BOOT_FAILURES = 5


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
        not_yet: Why it cannot be reached now, as far as that is known.
    """

    opened: Opened | None = None
    refused: HostError | ConfigError | None = None
    needs_a_person: bool = False
    not_yet: str | None = None


def once(opener: Callable[[], Opened], attempt: int) -> Tried:
    """Try.

    Args:
        attempt: How many there have been before: a host on which no agent starts is given up after some.
    """
    try:
        return Tried(opener())
    except AuthenticationError:
        return Tried(needs_a_person=True)
    except (HostKeyError, ConfigError) as error:
        return Tried(refused=error)
    except Unreachable as error:
        return Tried(not_yet=error.message)
    except HostError as error:
        return Tried(refused=error if attempt + 1 >= BOOT_FAILURES else None)
