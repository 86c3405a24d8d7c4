"""The first request: makes the root, and refuses one in which others could plant code."""

import os

from .facts import facts, machine
from .failures import Failure
from .paths import date, expand
from .request import Request
from .trusted import Trusted, user_name


class Hello(Request):
    """Makes the root and says what kind of host this is."""

    def start(self) -> None:
        root = os.path.expanduser(os.path.expandvars(self.header["root"]))
        if "$" in root or not os.path.isabs(root):
            raise Failure("bad", "the root is not an absolute path on this host: is a variable unset?", root)
        self.agent.root = os.path.normpath(root)
        trusted = Trusted(self.header.get("owners") or ())
        check(trusted, self.agent.root, "root")
        os.makedirs(self.agent.root, mode=0o700, exist_ok=True)
        check(trusted, self.agent.root, "root")  # somebody may have been faster
        if os.stat(self.agent.root).st_uid != os.geteuid():
            who = user_name(os.stat(self.agent.root).st_uid)
            raise Failure("refused", "it belongs to %s, who could plant code there" % who, self.agent.root)
        self.agent.machine = machine()
        paths = [expand(path) for path in self.header["have"]]
        for path in paths:
            check(trusted, path, "bridge")
            date(path, self.agent.root)
        self.end(**dict(facts(self.agent), have=[os.path.exists(path) for path in paths]))


def check(trusted: Trusted, path: str, what: str) -> None:
    """Refuse a folder that another user could replace."""
    found = trusted.objection(path)
    if found is None:
        return
    folder, why = found
    place = "" if folder == path else ", and the %s %s lies below it" % (what, path)
    own = os.lstat(folder).st_uid == os.geteuid()
    raise Failure("refused", "%s%s: another user could plant code there" % (why, place), folder, own=own)
