"""Which request is which class; and the requests that are one line."""

import os

from .failures import Failure
from .hello import Hello
from .listing import Listing
from .paths import date, expand
from .reading import Follow, Get, Still, Wait
from .repeating import Repeat
from .request import Request
from .running import Run, Spawn
from .uploads import Put, PutTree


class Have(Request):
    def start(self) -> None:
        self.end(have=[self.has(expand(path)) for path in self.header["paths"]])

    def has(self, path: str) -> bool:
        date(path, self.agent.root)  # first: what is there after this is not removed for a while
        return os.path.exists(path)


class Ping(Request):
    def start(self) -> None:
        self.end()


class Stop(Request):
    def start(self) -> None:
        target = self.agent.requests.get(self.header["target"])
        if target is not None:
            target.safely(target.stop)
        self.end()


class Unknown(Request):
    def start(self) -> None:
        raise Failure("bad", "this agent has no %r" % self.header.get("do"))


VERBS = {
    "hello": Hello, "have": Have, "ping": Ping, "stop": Stop, "put": Put, "put_tree": PutTree, "get": Get,
    "list": Listing, "follow": Follow, "wait": Wait, "still": Still, "run": Run, "spawn": Spawn, "repeat": Repeat,
}  # fmt: skip
