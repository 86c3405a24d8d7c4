"""The turns of the loop in which conversations with hosts run, and answers for them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from clusterfn.hosts import loop
from clusterfn.hosts.connection import Reply
from tests.waiting import WAIT_S


def settle() -> None:
    """Wait until what runs in the loop waits for something that is not there."""
    loop.call(lambda: None)  # there is one from now on
    began = time.monotonic()
    loop.settle(WAIT_S)
    assert time.monotonic() - began < WAIT_S, "something keeps the loop"


def answered(value: Any) -> Reply[Any]:
    """Return a request that has its answer."""
    reply: Reply[Any] = Reply(lambda: None)
    reply.resolve(value)
    return reply


def printed(out: bytes = b"", err: bytes = b"", rc: int = 0) -> Reply[Any]:
    """Return a command that has ended, and has printed this."""
    return answered(SimpleNamespace(rc=rc, out=out, err=err, signal=None))
