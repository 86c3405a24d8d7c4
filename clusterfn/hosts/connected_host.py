"""One host, the connection to it, and what is known to be there: the bridge, and files that are sent once."""

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
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import bridge_bundle, loop
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.connection import Completed, HostConnection, Reply, TreeFile
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.config.spec import Host
    from clusterfn.hosts.scheduler_commands import FoundCommands
    from clusterfn.scheduler.base import Scheduler

_BELIEVED_S = 3600.0
_REMOVE = '{ rm -rf -- "$2" && mv -- "$1" "$2"; } 2>/dev/null; rm -rf -- "$2"'
# A crash of a file server may leave zeros in a file of the right size.
_LOAD_ERRORS = re.compile(
    rb"^(?:ModuleNotFound|Import|Syntax|Indentation|EOF|UnicodeDecode)Error\b|^ValueError: source code|"
    rb"can't open file .*\[Errno 2\]"
)
# The first call to a host waits for this, so it must be short. A host whose
# login shell is slower gets an error that names `scheduler_path:`.
_SHELL_S = 3.0


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


class ConnectedHost:
    """A host, which is connected when it is first asked for anything.

    Args:
        host: Which.

    Attributes:
        contents: What is known to be there, or is on its way.
        bridge: The bridge there, and its programs.
        probe: A command to run together with the next connection: one round trip less.
        command_places: Where a login shell has shown the scheduler's commands, which PATH lacks; None if it has them.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.contents = HostContents()
        self.bridge = HostBridge(self.connect, self.contents, self.scheduler_rules.unset)
        self.probe: Sequence[str] = ()
        self.command_places: FoundCommands | None = None
        self._connected: HostConnection | None = None

    @property
    def connection(self) -> HostConnection:
        """The one connection to the host; opened again if it was given up."""
        return self.connect()

    @property
    def root(self) -> str:
        """The host's root, absolute."""
        return self.connection.facts.root

    def here(self, when: float) -> float:
        """Return a moment by this machine's clock, given by the host's. Waits for nothing."""
        return when - self._connected.facts.ahead_s if self._connected is not None else when

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that can be used, or that is being made again."""
        return self._connected is not None and self._connected.usable()

    def connect(self, meanwhile: Callable[[], object] = lambda: None) -> HostConnection:
        """Return the connection, after calling `meanwhile` while the host's agent starts, if it is not open yet."""
        connected = self._connected
        if connected is not None and connected.usable():
            # A call gets the connection several times, so the usual case must cost next to nothing.
            return connected
        if loop.is_here():
            # Connecting would block the loop's thread. Whatever runs in the
            # loop belongs to the old connection and ends with it.
            raise HostError(f"The connection to {self.host.name} was closed", host=self.host.name)
        have = [posixpath.join(self.host.root, self.bridge.name)]
        host = self.command_places.on(self.host) if self.command_places else self.host
        connected = hosts.connection_for(host, have=have, probe=self.probe, meanwhile=meanwhile)
        if connected.facts.lacking:
            self._find_commands(connected)
        self.contents.forget()
        if connected.facts.have[:1] == (True,):
            self.contents.add([posixpath.join(connected.facts.root, self.bridge.name)])
        # Assign last: other threads use this attribute without a lock.
        self._connected = connected
        return connected

    def _find_commands(self, connection: HostConnection) -> None:
        """Ask a login shell for the scheduler's commands, which a command over ssh does not find."""
        # Imported late, because hardly any host hides the commands of its scheduler from a non-interactive shell.
        from clusterfn.hosts import scheduler_commands

        with contextlib.suppress(HostError):
            # Do not fail here: `HostCapacity.enough` rejects the call
            # later, and names the missing command and the key for it.
            answer = scheduler_commands.look(connection, self.host.scheduler, timeout_s=_SHELL_S)
            self.command_places = answer.schedulers.get(self.host.scheduler)

    @functools.cached_property
    def scheduler_rules(self) -> Scheduler:
        """The scheduler as far as the configuration alone describes it; needs no connection."""
        return scheduler_for(self.host)

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        """What builds the host's commands and reads their answers."""
        facts = self.connection.facts

        # On a host without a scheduler, this program prints which jobs wait, and ensures that a spooler starts them.
        def queue() -> tuple[str, ...]:
            return tuple(self.bridge.words(layout.SUPERVISE, "queue", self.root))

        return scheduler_for(self.host, {"user": facts.user, "boot_id": facts.boot_id, "queue": queue})
