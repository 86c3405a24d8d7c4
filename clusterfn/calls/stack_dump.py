"""Requests the stacks of a running job from its supervisor, by a file in the job's folder; the answer is one beside it.

Works on every node that sees the job's folder.
"""

from __future__ import annotations

import posixpath
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterfn.bridge import layout

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection

_TIMEOUT_S = 60.0
_TICK_S = 0.1


def request_stack_dump(connection: HostConnection, folder: str, keep_waiting: Callable[[float], bool]) -> str | None:
    """Request the stacks of all threads of the job in that folder; None if there was no answer.

    Args:
        connection: Its host.
        folder: The job's folder.
        keep_waiting: Whether to wait longer, given the seconds since the question.
    """
    token, began = secrets.token_hex(8), time.monotonic()
    question = posixpath.join(folder, layout.STACK)
    place = posixpath.join(folder, layout.stack_answer(token))
    answer = connection.wait(place)
    connection.put(question, token.encode(), sync=False).result(_TIMEOUT_S)
    try:
        while not answer.done() and keep_waiting(time.monotonic() - began):
            time.sleep(_TICK_S)
        return answer.result(0).decode("utf-8", "replace") if answer.done() else None
    finally:
        left = [place] if answer.done() else [place, question]
        answer.cancel()
        connection.run(["rm", "-f", "--", *left])
