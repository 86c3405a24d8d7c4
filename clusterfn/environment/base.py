"""The seam to environments: which interpreter runs the function, and what makes its environment complete.

An environment says what to do on a host and reads the answers; it sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from clusterfn.config.spec import Interpreter


class Environment(Protocol):
    """One environment on one kind of host."""

    def key(self) -> str:
        """What tells it from others on the same host."""

    def probe(self) -> Sequence[str]:
        """The command that finds its interpreter on the host; it prints what `verification` reads."""

    def verification(self, rc: int | None, out: bytes, err: bytes) -> Interpreter:
        """The interpreter that the probe found.

        Raises:
            EnvironmentBuildError: There is none, or it does not run.
        """

    def plan(self, interpreter: Interpreter, root: str) -> Mapping[str, Mapping[str, bytes]]:
        """Folders to lay out on the host before the first job: absolute path -> files, each executable."""

    def activation(self, interpreter: Interpreter, root: str) -> Mapping[str, object]:
        """Changes to the variables of the job: {"prepend": {name: [paths]}, "set": {...}, "unset": [...]}."""
