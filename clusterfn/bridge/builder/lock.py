"""One at a time: a folder with numbered files, of which the highest names the holder; an empty name holds nothing.

A number is never used again, so a lock that was taken from a dead holder cannot be taken from the one after him by
mistake. Works where link(2) works, or rename of folders.
"""

import os
import shutil
import time

from ..supervisor import publish
from .holder import Other

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

    from .holder import Holder

_LOOK_S = 0.1
_FREE = "free"


class Lock:
    """A lock in a folder of its own.

    Attributes:
        held_by: Who held it at the last look, if that was another.
    """

    def __init__(self, folder: str, holder: "Holder") -> None:
        self.held_by: "Optional[Other]" = None
        self._folder = folder
        self._holder = holder
        self._number = 0

    def take(self) -> bool:
        """Take it if it is free or its holder is dead."""
        os.makedirs(self._folder, exist_ok=True)
        number, token = current(self._folder)
        if token and not self._is_over(token):
            return False
        try:
            if not publish.publish(self._folder, str(number + 1), self._holder.token.encode(), mode=0o666):
                return False
        except FileNotFoundError:  # `forget` was called between
            return False
        self._number = number + 1
        if not self.is_mine():
            _remove(os.path.join(self._folder, str(self._number)))
            return False
        self._forget()
        return True

    def wait(self, meanwhile: "Callable[[Optional[Other]], None]") -> None:
        """Take it, and call `meanwhile` with the holder as often as somebody else still has it."""
        while not self.take():
            meanwhile(self.held_by)
            time.sleep(_LOOK_S)

    def is_mine(self) -> bool:
        """Whether nobody took it over, thinking this process dead."""
        return current(self._folder) == (self._number, self._holder.token)

    def release(self) -> None:
        """Let the next have it."""
        if not self._number or not self.is_mine():
            return
        path = os.path.join(self._folder, str(self._number))
        with open(path + ".free", "w") as file:
            file.write(_FREE)
        os.rename(path + ".free", path)

    def forget(self) -> None:
        """Remove the lock itself, once nobody needs it any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_over(self, token: str) -> bool:
        if self.held_by is None or self.held_by.token != token:
            self.held_by = Other(self._holder.root, token)
        return self.held_by.is_dead()

    def _forget(self) -> None:
        for number in _numbers(self._folder):
            if number < self._number:
                _remove(os.path.join(self._folder, str(number)))


def current(folder: str) -> "tuple[int, str]":
    """The highest number and the token that it holds; an empty token if nobody does."""
    while True:
        number = max(_numbers(folder), default=0)
        if not number:
            return 0, ""
        data = publish.read(folder, str(number))
        if data is not None:
            token = data.decode("ascii", "replace")
            return number, "" if token == _FREE else token


def _numbers(folder: str) -> "list[int]":
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [int(name) for name in names if name.isdecimal()]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
