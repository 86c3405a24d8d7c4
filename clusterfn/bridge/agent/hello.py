"""The first request: makes the root, and refuses one in which others could plant code."""

import os
import stat

from .facts import facts, machine
from .failures import Failure
from .paths import expand
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


class Hello(Request):
    """Makes the root and says what kind of host this is."""

    def start(self) -> None:
        root = os.path.expanduser(os.path.expandvars(self.header["root"]))
        if "$" in root or not os.path.isabs(root):
            raise Failure("bad", "the root is not an absolute path on this host: is a variable unset?", root)
        self.agent.root = os.path.normpath(root)
        warnings = self.check(self.agent.root)
        self.agent.machine = machine()
        have = [os.path.exists(expand(path)) for path in self.header["have"]]
        self.end(**dict(facts(self.agent), warnings=warnings, have=have))

    def check(self, root: str) -> "List[str]":
        os.makedirs(root, mode=0o700, exist_ok=True)
        found = os.stat(root)
        if found.st_uid != os.geteuid():
            message = "the root belongs to the user with id %d, who could plant code there" % found.st_uid
            raise Failure("refused", message, root)
        if found.st_mode & stat.S_IWOTH:
            raise Failure("refused", "everybody may write to the root and could plant code there; chmod go-w it", root)
        open_to_group = found.st_mode & stat.S_IWGRP
        return ["%s: its group may write there and could plant code; chmod g-w it" % root] if open_to_group else []
