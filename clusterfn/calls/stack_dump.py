"""Asks a running job's supervisor where the job is, by a file beside the job, and waits for the answer beside that.

Works wherever the job runs, as far as its folder is seen there.
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


def ask(connection: HostConnection, folder: str, go_on: Callable[[float], bool]) -> str | None:
    """The stacks of the job in that folder; None if nobody answered.

    Args:
        connection: Its host.
        folder: The job's folder.
        go_on: Whether to wait on, given the seconds since the question.
    """
    token, began = secrets.token_hex(8), time.monotonic()
    question = posixpath.join(folder, layout.STACK)
    place = posixpath.join(folder, layout.stack_answer(token))
    answer = connection.wait(place)
    connection.put(question, token.encode(), sync=False).result(_TIMEOUT_S)
    try:
        while not answer.done() and go_on(time.monotonic() - began):
            time.sleep(_TICK_S)
        return answer.result(0).decode("utf-8", "replace") if answer.done() else None
    finally:
        left = [place] if answer.done() else [place, question]
        answer.cancel()
        connection.run(["rm", "-f", "--", *left])
