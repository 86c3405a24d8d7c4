"""What tests of a session's calls send, and the agent that they kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterfn.config import config_file
from clusterfn.hosts.connection import connection_for


def of_main(function: Callable[..., Any]) -> Callable[..., Any]:
    """Travels by value, as a function of a script does."""
    function.__module__ = "__main__"
    return function


def agent() -> int:
    """The process of the agent that serves this program."""
    host, _ = config_file.load().resolve(None)
    return connection_for(host).facts.pid
