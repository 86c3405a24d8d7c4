"""What this process knows of one host: the connection, what lies there already, and which interpreters were found.

Asks the host each thing once. Sends no job. Called by `dispatch`, `tracker` and the CLI.
"""

from __future__ import annotations

import functools
import posixpath
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterfn import host as hosts
from clusterfn import layout, parcel
from clusterfn.environment import existing
from clusterfn.errors import EnvironmentBuildError, HostError, Unsatisfiable
from clusterfn.host import Reply, TreeFile
from clusterfn.scheduler import scheduler_for
from clusterfn.scheduler.base import Scheduler
from clusterfn.spec import Host, Interpreter, Resources
from clusterfn.watch import Watch

if TYPE_CHECKING:
    from clusterfn.environment.making import Made

CALLER = existing.CALLER
OLDEST = (3, 9)  # that the worker runs on
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ready:
    """An environment that can be used on the host.

    Attributes:
        interpreter: Its Python, with the variables that make it complete.
        folders: What must be laid out first: absolute path -> files, each executable.
        made: The lock that it is made from; None if somebody else made it.
    """

    interpreter: Interpreter
    folders: Mapping[str, Mapping[str, bytes]]
    made: Made | None = None


class Session:
    """One host, as this process knows it.

    Args:
        host: Which.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.there: set[str] = set()
        self._ready: dict[str, Ready] = {}
        self._anew = ""
        self._watch: Watch | None = None
        self._watched: hosts.HostConnection | None = None
        self._finding = threading.Lock()  # held while the host is asked, so never by whoever hands out answers
        self._watching = threading.Lock()

    @property
    def connection(self) -> hosts.HostConnection:
        """The one connection to the host; opened again if it was given up."""
        return hosts.connection_for(self.host, have=[posixpath.join(self.host.root, self._bridge_name)])

    @functools.cached_property
    def _bridge_name(self) -> str:
        return posixpath.join(layout.BRIDGE, parcel.bridge().digest)

    @property
    def root(self) -> str:
        """The host's root, absolute."""
        return self.connection.facts.root

    @property
    def bridge(self) -> str:
        """The folder of the bridge there, absolute."""
        return posixpath.join(self.root, self._bridge_name + self._anew)

    @property
    def has_bridge(self) -> bool:
        """Whether the bridge of this version lies there already."""
        found = self.connection.facts.have[:1] == (True,) and not self._anew
        return found or self.bridge in self.there

    def distrust(self) -> None:
        """What was there may be gone or damaged: look again, and lay the bridge out anew, under another name."""
        self.connection.run(["rm", "-rf", "--", self.bridge])
        self._anew = f"-{secrets.token_hex(4)}"
        self.there.clear()

    def lay_out_bridge(self) -> list[Reply[bool]]:
        """Send the bridge if it is not there; what needs it goes after these."""
        if self.has_bridge:
            return []
        files = [TreeFile(name, data) for name, data in parcel.bridge().files.items()]
        return [self.remember(self.bridge, self.connection.put_tree(self.bridge, files))]

    def remember(self, path: str, sent: Reply[bool]) -> Reply[bool]:
        """Know, once it has arrived, that this path is on the host."""

        def arrived(reply: Reply[bool]) -> None:
            if reply.exception() is None:
                self.there.add(path)

        sent.add_done_callback(arrived)
        return sent

    def supervise(self, command: str, *args: str, bridge: str = "", stdin: bytes = b"") -> Reply[hosts.Completed]:
        """Run one of the supervisor's commands, `conclude`, `list` or `expire`, beside whatever jobs run.

        Args:
            bridge: The folder of the bridge that a job was sent with; else this version's.
        """
        before = [] if bridge else self.lay_out_bridge()
        supervise = posixpath.join(bridge or self.bridge, layout.SUPERVISE)
        argv = [self.connection.facts.python, "-I", "-S", supervise, command, *args]
        return self.connection.run(argv, stdin=stdin, unset=self.scheduler.unset, after=before)

    @property
    def builder(self) -> list[str]:
        """The words that start the builder of environments there; its command follows."""
        return [self.connection.facts.python, "-I", "-S", posixpath.join(self.bridge, layout.BUILD)]

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        """Builds the host's commands and reads their answers."""
        facts = self.connection.facts
        return scheduler_for(self.host, {"user": facts.user, "boot_id": facts.boot_id})

    @property
    def watch(self) -> Watch:
        """One look at the scheduler for all jobs of this process, as long as the connection is the same."""
        with self._watching:
            connection = self.connection
            if self._watch is None or self._watched is not connection:
                self._watch = Watch(connection, self.scheduler, poll_floor_s=self.host.poll_floor_s)
                self._watched = connection
            return self._watch

    def missing(self, paths: list[str]) -> set[str]:
        """Those of these paths, absolute and named by their content, that the host lacks."""
        unknown = [path for path in paths if path not in self.there]
        if not unknown:
            return set()
        answers = self.connection.have(unknown).result(_PROBE_TIMEOUT_S)
        self.there.update(path for path, there in zip(unknown, answers) if there)
        return {path for path, there in zip(unknown, answers) if not there}

    def environment(
        self, text: str | None, packages: Sequence[str] = (), gpus: int = 0, say: Callable[[str], None] = lambda _: None
    ) -> Ready:
        """The environment that is named: found on the host once per process, or locked so that it can be made there.

        Args:
            text: As `environment=` of a call; None for the host's own.
            packages: As `packages=` of a call.
            gpus: How many cards the job asks for: a build of PyTorch depends on them.
            say: Is told in sentences what takes time, and what was decided.

        Raises:
            ConfigError: No such kind of environment.
            LockError: It cannot be locked.
            EnvironmentBuildError: It is not there, or cannot be made there.
        """
        named = text or (None if packages else self.host.environment)
        if packages or not existing.names_one(named):
            return self._to_be_made(named, packages, gpus, say)
        spec = existing.parse(named, self.host.scheduler)
        with self._finding:
            key = f"{spec.kind}:{spec.value}"
            if key not in self._ready:
                self._ready[key] = self._find(existing.Existing(spec))
            return self._ready[key]

    def _to_be_made(self, text: str | None, packages: Sequence[str], gpus: int, say: Callable[[str], None]) -> Ready:
        from clusterfn import builds  # they and what they need take time to import
        from clusterfn.environment import making

        wanted = making.specification(text, packages)
        with self._finding:
            key = f"{bool(gpus)} {making.stamp(wanted)}"
            if key not in self._ready:
                made = builds.made(self, wanted, gpus, CALLER, say)
                key = f"{bool(gpus)} {making.stamp(wanted)}"  # the lock may have been written just now
                self._ready[key] = Ready(made.interpreter, {}, made)
            return self._ready[key]

    def _find(self, environment: existing.Existing) -> Ready:
        answer = self.connection.run(environment.probe(), timeout_s=_PROBE_TIMEOUT_S).result(_PROBE_TIMEOUT_S)
        try:
            found = environment.verification(answer.rc, answer.out, answer.err)
        except EnvironmentBuildError as error:
            error.host = self.host.name
            raise
        self._new_enough(environment.key(), found)
        activation = environment.activation(found, self.root)
        interpreter = Interpreter(found.path, found.version, activation)
        return Ready(interpreter, environment.plan(found, self.root))

    def _new_enough(self, key: str, found: Interpreter) -> None:
        if found.version < OLDEST:
            raise EnvironmentBuildError(
                f"the environment {key!r} has Python {found.version[0]}.{found.version[1]}, "
                f"and a function needs Python {OLDEST[0]}.{OLDEST[1]} or newer",
                host=self.host.name, stage="environment", evidence=[found.path],
                hint=f"name an environment with a newer Python, best {CALLER[0]}.{CALLER[1]} as here",
            )  # fmt: skip

    def enough(self, asked: Resources) -> None:
        """Refuse what a host without a scheduler can never give.

        Raises:
            Unsatisfiable: It has fewer cores, less memory or fewer cards than that.
        """
        if self.host.scheduler == "slurm":
            return
        facts = self.connection.facts
        self._refuse_above("cores", asked.cores, facts.cpus, str)
        self._refuse_above("memory", asked.memory_bytes or 0, facts.memory_bytes, shown_memory)
        if asked.gpus and self._gpu_count is not None:
            self._refuse_above("gpus", asked.gpus, self._gpu_count, str)

    def _refuse_above(self, name: str, asked: int, there: int, shown: Callable[[int], str]) -> None:
        if asked > there:
            raise Unsatisfiable(
                f"{name}={shown(asked)} is more than {self.host.name} has: {shown(there)}",
                host=self.host.name,
                stage="submit",
                hint=f"ask for at most {shown(there)}" if there else "use another host",
            )

    @functools.cached_property
    def _gpu_count(self) -> int | None:
        """Cards that nvidia-smi lists; None if it cannot say, which the supervisor then explains."""
        try:
            answer = self.connection.run(["nvidia-smi", "-L"], timeout_s=20.0).result(30.0)
        except HostError:
            return 0
        return answer.out.count(b"UUID:") if answer.rc == 0 else None


def shown_memory(size: int) -> str:
    """An amount of memory as a person writes it.

    Example:
        >>> shown_memory(3 * 2**29)
        '1.5GB'
    """
    return f"{size / 2**30:.1f}GB" if size >= 2**30 else f"{size >> 20}MB"


_sessions: dict[str, Session] = {}
_lock = threading.Lock()


def open_session(host: Host) -> Session:
    """The session of a host; one per process and host as configured."""
    with _lock:
        return _sessions.setdefault(repr(host), Session(host))
