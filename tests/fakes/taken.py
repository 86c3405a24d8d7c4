"""What follows a job that its host has taken, and asks nothing."""

from __future__ import annotations


class Taken:
    """Of a `JobBackend`, as much as the display of a job asks."""

    waits_here = False

    @property
    def queue(self) -> Taken:
        """It has no place in a queue."""
        return self

    def skip_turn(self) -> None:
        """It is followed."""

    def unanswered(self, since: float) -> str:
        """It has been answered."""
        return ""

    def why_silent(self) -> str:
        """Nothing is known of it."""
        return "its host is silent"
