"""A machine without a scheduler: clusterfn's own queue gives out what it has (`bridge.queue`)."""

import os

from .base import HostScheduler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class BareOnHost(HostScheduler):
    """No scheduler.

    Args:
        node: The machine's name, where a scheduler gave it another than its own.
    """

    has_nodes = False

    def __init__(self, node: str = "") -> None:
        self._node = node

    def submission_id(self) -> "Optional[str]":
        """None: the process of job.sh tells them apart."""
        return None

    def element_log(self, element: int, submission: str) -> int:
        """By the element's own number."""
        return element

    def node_name(self) -> str:
        """The machine's own."""
        return self._node or os.uname()[1]
