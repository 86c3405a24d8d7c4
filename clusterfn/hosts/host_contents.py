"""What a host is known to have, and what is on its way there: a host that answers slowly is sent nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply


class HostContents:
    """Paths on one host, absolute."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._coming: dict[str, Reply[bool]] = {}
        self._lock = threading.Lock()

    def __contains__(self, path: str) -> bool:
        """Whether it has arrived."""
        return path in self._there

    def add(self, paths: Iterable[str]) -> None:
        """Take note that these are there."""
        self._there.update(paths)

    def forget(self, paths: Sequence[str] | None = None) -> None:
        """Believe no longer that these, or any, are there; what is on its way still comes."""
        self._there.difference_update(set(self._there) if paths is None else paths)

    def unknown(self, paths: Iterable[str]) -> list[str]:
        """Return those that neither are there nor come."""
        return [path for path in paths if path not in self._there and path not in self._coming]

    def send(self, path: str, upload: Callable[[], Reply[bool]]) -> list[Reply[bool]]:
        """Call `upload` if the path neither is there nor comes; return what must succeed before it is there.

        Each that gets the same request may cancel it, which ends it with the last of them.
        """
        with self._lock:
            if path in self._there:
                return []
            coming = self._coming.get(path)
            if coming is not None and coming.share():
                return [coming]
            coming = self._coming[path] = upload()
        coming.add_done_callback(lambda reply: self._answered(path, reply))
        return [coming]

    def _answered(self, path: str, reply: Reply[bool]) -> None:
        with self._lock:
            if self._coming.get(path) is reply:
                del self._coming[path]
            if reply.exception(0) is None:
                self._there.add(path)
