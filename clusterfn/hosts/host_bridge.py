"""What a host is known to have: the bridge, and files that are sent once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import posixpath
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import bridge_bundle, loop
from clusterfn.hosts.connection import Completed, HostConnection, Reply, TreeFile

_BELIEVED_S = 3600.0
_REMOVE = '{ rm -rf -- "$2" && mv -- "$1" "$2"; } 2>/dev/null; rm -rf -- "$2"'
# A crash of a file server may leave zeros in a file of the right size.
_LOAD_ERRORS = re.compile(
    rb"^(?:ModuleNotFound|Import|Syntax|Indentation|EOF|UnicodeDecode)Error\b|^ValueError: source code|"
    rb"can't open file .*\[Errno 2\]"
)


class HostContents:
    """Paths on one host, absolute. A host that answers slowly is sent nothing twice.

    What is there is forgotten after an hour: the host removes what no client has asked for in a long time.
    """

    def __init__(self) -> None:
        self._since = time.time()
        self._present: set[str] = set()
        self._coming: dict[str, Reply[bool]] = {}
        self._sending = threading.Lock()

    def __contains__(self, path: str) -> bool:
        """Whether it has arrived."""
        # Unlike the monotonic clock, this one also counts the time in
        # which a laptop sleeps. It may be set back, hence `abs`.
        if abs(time.time() - self._since) > _BELIEVED_S:
            self.forget()
        self._take_answer(path)
        return path in self._present

    def add(self, paths: Iterable[str]) -> None:
        """Take note that these are there."""
        self._present.update(paths)

    def forget(self, paths: Sequence[str] | None = None) -> None:
        """Believe no longer that these, or any, are there; what is on its way still comes."""
        if paths is None:
            self._since = time.time()
        for path in list(self._coming) if paths is None else paths:
            self._take_answer(path)
        self._present.difference_update(set(self._present) if paths is None else paths)

    def unknown(self, paths: Iterable[str]) -> list[str]:
        """Return those that neither are there nor come."""
        return [path for path in paths if path not in self and path not in self._coming]

    def send(self, path: str, upload: Callable[[], Reply[bool]]) -> list[Reply[bool]]:
        """Call `upload` if the path neither is there nor comes; return what must succeed before it is there.

        Each that gets the same request may cancel it, which ends it with the last of them.
        """
        with self._sending:
            if path in self:
                return []
            coming = self._coming.get(path)
            # An upload that has just failed or was cancelled cannot be shared. Then start another one below.
            if coming is not None and coming.share():
                return [coming]
            coming = self._coming[path] = upload()
        return [coming]

    def _take_answer(self, path: str) -> None:
        """Take note if it has arrived since."""
        reply = self._coming.get(path)
        if reply is not None and reply.done():
            self._coming.pop(path, None)
            if reply.exception(0) is None:
                self._present.add(path)


class HostBridge:
    """The bridge of this version on one host.

    Args:
        connect: Returns the connection to the host.
        contents: What is known to be there, or is on its way.
        unset: Prefixes of variables that its programs must not inherit.
    """

    def __init__(self, connect: Callable[[], HostConnection], contents: HostContents, unset: Sequence[str]) -> None:
        self._connect = connect
        self._contents = contents
        self._unset = unset
        self._suffix = ""
        # By the folder that each removes.
        self._removals: dict[str, Reply[Completed]] = {}
        # Counts how often a lost bridge was sent again. Only the loop's thread changes it, so it needs no lock.
        self._sends = 0

    @functools.cached_property
    def name(self) -> str:
        """Its folder as it is first sent, below the host's root."""
        return posixpath.join(layout.BRIDGE, bridge_bundle.bridge().digest)

    @property
    def folder(self) -> str:
        """Its folder, absolute."""
        return posixpath.join(self._connect().facts.root, self.name + self._suffix)

    @property
    def is_there(self) -> bool:
        """Whether the host is known to have it."""
        return self.folder in self._contents

    def words(self, program: str, *words: str, folder: str = "") -> list[str]:
        """Return the command that starts a program of it, in its own folder or that of another version."""
        python = self._connect().facts.python
        # With -I and -S, neither variables nor packages of the user change what the programs of the bridge import.
        return [python, "-I", "-S", posixpath.join(folder or self.folder, program), *words]

    def lay_out(self) -> list[Reply[bool]]:
        """Send it if the host lacks it; what needs it is sent after these."""
        folder = self.folder
        return [] if folder in self._contents else self._contents.send(folder, lambda: self.put(folder))

    def put(self, folder: str) -> Reply[bool]:
        """Send it to that folder; the agent leaves what is there only if it is whole."""
        files = [TreeFile(name, data) for name, data in bridge_bundle.bridge().files.items()]
        # A removal that is slow to start would take what comes now under that name.
        removal = self._removals.get(folder)
        after = [removal] if removal is not None and not removal.done() else []
        return self._connect().put_tree(folder, files, after=after)

    def distrust(self) -> None:
        """Look again for all that was there, which may be gone or damaged; send the bridge under another name."""
        with contextlib.suppress(HostError):
            # The bridge gets another name below, so a failed removal does no
            # harm. The next request reports a lost connection.
            self._removals[self.folder] = self._connect().run(removal_command(self.folder))
        self._suffix = f"-{secrets.token_hex(4)}"
        self._contents.forget()

    def mend(self, folder: str) -> list[Reply[bool]]:
        """Send again, under its own name, the one that jobs were sent with, unless it is of another version.

        What needs it goes after these.
        """
        self._contents.forget()
        return self._contents.send(folder, lambda: self.put(folder)) if self._is_own(folder) else []

    def supervise(
        self, command: str, *args: str, bridge: str = "", stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Reply[Completed]:
        """Run one of the supervisor's commands, `conclude`, `list` or `clean`, next to the jobs that run.

        Args:
            bridge: The folder of the bridge that a job was sent with; else this version's.
        """
        return self.run([layout.SUPERVISE, command, *args], bridge, stdin, timeout_s)

    def run(
        self, words: Sequence[str], bridge: str = "", stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Reply[Completed]:
        """Run a program of it to its end; once more if the host turns out to have lost or damaged it."""
        # Read the counter before asking: of many requests that miss the bridge together, only the first sends it again.
        before, folder, sends = [] if bridge else self.lay_out(), bridge or self.folder, self._sends
        argv = self.words(*words, folder=folder)

        def ask(after: Sequence[Reply[bool]]) -> Reply[Completed]:
            return self._connect().run(
                argv, stdin=stdin, unset=self._unset, timeout_s=timeout_s, after=after,
                forks=words[0] == layout.SUPERVISE,
            )  # fmt: skip

        async def answer(reply: Reply[Completed]) -> None:
            try:
                ended = await attempts[-1]
                if ended.rc != 0 and self._is_own(folder) and _cannot_load(folder, ended.err):
                    attempts.append(ask(self._send_again(folder, sends)))
                    ended = await attempts[-1]
                reply.resolve(ended)
            except (ClusterfnError, concurrent.futures.CancelledError) as error:
                reply.reject(error)

        attempts = [ask(before)]
        reply = attempts[0].substitute(lambda: attempts[-1].cancel())
        loop.begin(answer(reply))
        return reply

    def _is_own(self, folder: str) -> bool:
        """Whether it is of this version."""
        return posixpath.basename(folder).startswith(bridge_bundle.bridge().digest)

    def _send_again(self, folder: str, sends: int) -> list[Reply[bool]]:
        """Replace what the host has lost or damaged, unless that was done after `sends` times. Does not wait."""
        if sends == self._sends:
            self._sends += 1
            self._contents.forget()
            self._removals[folder] = self._connect().run(removal_command(folder))
        return self._contents.send(folder, lambda: self.put(folder))


def _cannot_load(folder: str, stderr: bytes) -> bool:
    """Whether Python says that a file of the bridge is not there, or holds something else than what was sent."""
    *_, last = stderr.splitlines() or [b""]
    is_of_it = folder.encode() in stderr or b"named '_clusterfn" in last
    return is_of_it and _LOAD_ERRORS.search(last) is not None


def removal_command(folder: str) -> list[str]:
    """Return the command that removes a folder of a host, after it has renamed it.

    Renamed first: a late write into it, such as a conclusion, fails and cannot restore it. A removal that is cut short,
    as by the end of the program, leaves nothing that is taken for the whole.
    """
    aside = posixpath.join(posixpath.dirname(folder), layout.REMOVED + posixpath.basename(folder))
    return ["/bin/sh", "-c", _REMOVE, "sh", folder, aside]
