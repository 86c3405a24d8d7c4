"""What this process knows of one host: the connection, what the host already has, and which interpreters were found.

Asks the host each thing once. Sends no job.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.eligible_gpus import eligible_gpus
from clusterfn.config.units import shown_memory
from clusterfn.environment import existing
from clusterfn.errors import ConfigError, HostError, Unsatisfiable
from clusterfn.hosts import bridge_bundle, exit_flush, gpus, site_rules
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.connection import Reply, TreeFile
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver, ResolvedEnvironment
from clusterfn.hosts.host_contents import HostContents
from clusterfn.hosts.scheduler_watch import SchedulerWatch
from clusterfn.hosts.site_rules import SiteRules
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo
    from clusterfn.config.spec import Host, Resources
    from clusterfn.hosts.survey.commands import FoundCommands
    from clusterfn.scheduler.base import Scheduler

CALLER = existing.CALLER
_PROBE_TIMEOUT_S = 60.0
_BELIEVED_S = 3600.0
HELD_S = 5.0
_SHELL_S = 3.0  # a call waits for it


class HostState:
    """One host, as this process knows it.

    Args:
        host: Which.

    Attributes:
        contents: What is known to be there, or is on its way.
        limits: What its scheduler said of what it allows; None until it was asked.
        found_commands: Where a login shell has shown the scheduler's commands, which PATH lacks; None if it has them.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.contents = HostContents()
        self._looked = time.time()
        self.limits: list[str] | None = None
        self.found_commands: FoundCommands | None = None
        self._suffix = ""
        self._probe: Sequence[str] = ()
        self._connected: hosts.HostConnection | None = None
        self._held: bool | None = None
        self._held_looked = 0.0
        self._has_warned = False
        self._has_told_of_commands = False
        self._has_told_of_gpus = False
        self._gpus: tuple[GpuInfo, ...] | None = None
        self._watch: SchedulerWatch | None = None
        self._watched: hosts.HostConnection | None = None
        self._watching = threading.Lock()

    @property
    def connection(self) -> hosts.HostConnection:
        """The one connection to the host; opened again if it was given up."""
        return self.connect()

    def connect(self, meanwhile: Callable[[], object] = lambda: None) -> hosts.HostConnection:
        """Return the connection, after calling `meanwhile` while the host's agent starts, if it is not open yet."""
        connected = self._connected
        if connected is not None and connected.usable():  # each call asks several times
            return connected
        have = [posixpath.join(self.host.root, self._bridge_name)]
        have += [posixpath.join(self.host.root, layout.HOLD)] if self.scheduler_rules.holds else []
        host = self.found_commands.on(self.host) if self.found_commands else self.host
        connected = hosts.connection_for(host, have=have, probe=self._probe, meanwhile=meanwhile)
        if connected.facts.lacking:
            self._find_commands(connected)
        self.contents.forget()
        if connected.facts.have[:1] == (True,):
            self.contents.add([posixpath.join(connected.facts.root, self._bridge_name)])
        self._looked, self._connected = time.time(), connected
        return connected

    def _find_commands(self, connection: hosts.HostConnection) -> None:
        """Ask a login shell for the scheduler's commands, which a command over ssh does not find."""
        from clusterfn.hosts.survey import commands  # hardly any host needs it

        with contextlib.suppress(HostError):  # `enough` says what is missing
            shown = commands.look(connection, self.host.scheduler, timeout_s=_SHELL_S)
            self.found_commands = shown.found.get(self.host.scheduler)

    def expect(self, wanted: EnvironmentRequest) -> None:
        """Ask for this environment together with the next connection, if there is none yet: one round trip less.

        Raises:
            ConfigError: No such kind of environment.
        """
        self._probe = self._environments.early_probe(wanted)

    @functools.cached_property
    def _bridge_name(self) -> str:
        return posixpath.join(layout.BRIDGE, bridge_bundle.bridge().digest)

    @property
    def root(self) -> str:
        """The host's root, absolute."""
        return self.connection.facts.root

    @property
    def bridge(self) -> str:
        """The folder of the bridge there, absolute."""
        return posixpath.join(self.root, self._bridge_name + self._suffix)

    @property
    def has_bridge(self) -> bool:
        """Whether the host already has the bridge of this version."""
        self._believe_no_longer()
        return self.bridge in self.contents

    @property
    def has_held_allocation(self) -> bool:
        """Whether an allocation was held there, as the connection or a look of a few seconds ago has found.

        Waits for nothing: the first call says how it was, and has the host look for the calls after it.
        """
        if not self.scheduler_rules.holds:
            return False
        connection = self.connection
        if self._held is None:
            self._held, self._held_looked = connection.facts.have[1:2] == (True,), time.monotonic()
        elif time.monotonic() - self._held_looked > HELD_S:
            self._held_looked = time.monotonic()
            connection.have([posixpath.join(self.root, layout.HOLD)]).add_done_callback(self._on_held)
        return self._held

    def _on_held(self, reply: Reply[list[bool]]) -> None:
        if reply.exception() is None:
            self._held = reply.result(0)[0]

    def distrust(self) -> None:
        """Look again for what was there, which may be gone or damaged, and send the bridge again under another name."""
        with contextlib.suppress(HostError):  # it has another name below; the next request to that host raises it
            self.connection.run(exit_flush.removal_command(self.bridge))
        self._suffix = f"-{secrets.token_hex(4)}"
        self.contents.forget()

    def mend_bridge(self, bridge: str) -> list[Reply[bool]]:
        """Send again, under its own name, the bridge that jobs were sent with; not one of another version.

        What needs it goes after these.
        """
        self.contents.forget()
        if not posixpath.basename(bridge).startswith(bridge_bundle.bridge().digest):
            return []
        # a tree that is there is left alone
        self.connection.run(exit_flush.removal_command(bridge)).result(_PROBE_TIMEOUT_S)
        return self.contents.send(bridge, lambda: self.put_bridge(bridge))

    def lay_out_bridge(self) -> list[Reply[bool]]:
        """Send the bridge if the host lacks it; what needs it is sent after these."""
        if self.has_bridge:
            return []
        bridge = self.bridge
        return self.contents.send(bridge, lambda: self.put_bridge(bridge))

    def put_bridge(self, bridge: str) -> Reply[bool]:
        """Send the bridge of this version to that folder."""
        files = [TreeFile(name, data) for name, data in bridge_bundle.bridge().files.items()]
        return self.connection.put_tree(bridge, files)

    def _believe_no_longer(self) -> None:
        """Ask again once an hour what is there: the host removes what no client has asked for in a long time."""
        if abs(time.time() - self._looked) > _BELIEVED_S:
            self._looked = time.time()
            self.contents.forget()

    def supervise(
        self, command: str, *args: str, bridge: str = "", stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Reply[hosts.Completed]:
        """Run one of the supervisor's commands, `conclude`, `list` or `clean`, next to the jobs that run.

        Args:
            bridge: The folder of the bridge that a job was sent with; else this version's.
        """
        before = [] if bridge else self.lay_out_bridge()
        supervise = posixpath.join(bridge or self.bridge, layout.SUPERVISE)
        argv = [self.connection.facts.python, "-I", "-S", supervise, command, *args]
        return self.connection.run(argv, stdin=stdin, unset=self.scheduler.unset, timeout_s=timeout_s, after=before)

    @property
    def builder(self) -> list[str]:
        """The words that start the builder of environments on the host; its command follows."""
        return [self.connection.facts.python, "-I", "-S", posixpath.join(self.bridge, layout.BUILD)]

    @functools.cached_property
    def scheduler_rules(self) -> Scheduler:
        """The scheduler as far as the configuration alone describes it; needs no connection."""
        return scheduler_for(self.host)

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        """What builds the host's commands and reads their answers."""
        facts = self.connection.facts

        # prints which jobs wait on a host without a scheduler, and ensures that a spooler starts them
        def queue() -> tuple[str, ...]:
            supervise = posixpath.join(self.bridge, layout.SUPERVISE)
            return (self.connection.facts.python, "-I", "-S", supervise, "queue", self.root)

        return scheduler_for(self.host, {"user": facts.user, "boot_id": facts.boot_id, "queue": queue})

    @property
    def watch(self) -> SchedulerWatch:
        """The looks at the scheduler for all jobs of this process, as long as the connection is the same."""
        with self._watching:
            connection = self.connection
            if self._watch is None or self._watched is not connection:
                self._watch = SchedulerWatch(connection, self.scheduler, poll_floor_s=self.host.poll_floor_s)
                self._watched = connection
            return self._watch

    def unwatch(self, job_name: str) -> None:
        """Look at that job no longer. Open no connection, and ignore that it has ended."""
        watch = self._watch
        if watch is not None:
            with contextlib.suppress(HostError):
                watch.remove(job_name)

    def missing(self, paths: list[str]) -> set[str]:
        """Return which of these paths, absolute and named by their content, the host lacks, or gets at this moment."""
        self._believe_no_longer()
        unknown = self.contents.unknown(paths)
        answers = self.connection.have(unknown).result(_PROBE_TIMEOUT_S) if unknown else []
        self.contents.add(path for path, there in zip(unknown, answers) if there)
        return {path for path in paths if path not in self.contents}

    def environment(
        self, wanted: EnvironmentRequest, say: Callable[[str], None] = lambda _: None
    ) -> ResolvedEnvironment:
        """Find the environment of a call on the host, once in a process, or lock it so that it can be made there.

        Args:
            wanted: What the call says of it; its silence means the host's own.
            say: Gets sentences about what takes time, and what was decided.

        Raises:
            ConfigError: No such kind of environment.
            LockError: It cannot be locked.
            EnvironmentBuildError: It does not exist, or cannot be built.
        """
        return self._environments.find(wanted, say)

    def expected_python(self, wanted: EnvironmentRequest) -> tuple[int, int] | None:
        """Return the Python of an environment that exists on the host, or was resolved before; else None."""
        return self._environments.expected_python(wanted)

    def forget_environments(self) -> None:
        """Choose again those that clusterfn makes: more is known of the GPUs."""
        self._environments.forget()

    @functools.cached_property
    def _environments(self) -> EnvironmentResolver:
        return EnvironmentResolver(self)

    def enough(self, asked: Resources) -> None:
        """Reject what a host without a scheduler can never give, and a type of GPU that a cluster does not have.

        Raises:
            Unsatisfiable: It has fewer cores, less memory or fewer GPUs than that.
        """
        if self.scheduler.has_nodes:
            self.require_commands()
            if asked.gpu_type:
                gpus.known(self.gpu_types, asked, self.host.name, self.scheduler.title)
            return
        facts, limits, host = self.connection.facts, self.limit(self.host).limits, self.host
        wanted = (("gpus", asked.gpus, limits.gpus, str), ("cores", asked.cores, limits.cores, str),
                  ("memory", asked.memory_bytes or 0, limits.memory_bytes, shown_memory))  # fmt: skip
        for name, amount, limit, shown in wanted:
            if limit is not None and amount > limit:  # it would wait for ever for the user's own jobs
                field = "memory_bytes" if name == "memory" else name
                by_site = self.rules is not None and limit == getattr(self.rules.limits, field)
                mend = f", or change limits: {{{name}: …}} in {host.source}"
                raise Unsatisfiable(
                    f"{name}={shown(amount)} is more than all your jobs on {host.name} may have: {shown(limit)}",
                    host=host.name, stage="submit", hint=f"ask for at most {shown(limit)}{'' if by_site else mend}",
                    evidence=[f"the administrator has set it in {site_rules.FILE} on {host.name}"] if by_site else [],
                )  # fmt: skip
        self._reject_above("cores", asked.cores, max(facts.cpus, limits.cores or 0), str)
        self._reject_above("memory", asked.memory_bytes or 0, facts.memory_bytes, shown_memory)
        there = self.gpus if asked.gpus else None
        if there is not None:
            if self.host.gpus_only:
                gpus.enough_allowed(there, asked, self.host)
            self._reject_above("gpus", asked.gpus, len(there), str)
            if asked.gpu_type or asked.gpu_memory_bytes:
                gpus.enough(there, asked, self.host.name)

    def require_commands(self) -> None:
        """Reject a host on which not even a login shell finds the commands of its scheduler.

        Raises:
            ConfigError: It names the key that says where they are.
        """
        lacking = self.connection.facts.lacking
        if lacking:
            raise ConfigError(
                f"{lacking[0]} is neither in PATH of {self.host.name} nor found by its login shell",
                host=self.host.name,
                evidence=[f"scheduler: {self.host.scheduler} ({self.host.source})"],
                hint=f"write the folder that has it as `scheduler_path: [FOLDER]` for host {self.host.name} "
                f"({self.host.source}); `clusterfn check {self.host.name}` shows what was found",
            )

    @property
    def rules(self) -> SiteRules | None:
        """What the administrator allows there, None for all there is; a scheduler has rules of its own."""
        told = self.connection.facts.site
        return site_rules.read(told) if told and not self.scheduler_rules.has_nodes else None

    def limit(self, host: Host) -> Host:
        """Return the host, with the options of a call, within what the administrator allows."""
        return self.rules.limit(host) if self.rules else host

    def limit_time(self, asked: Resources) -> Resources:
        """Return what a job asks for with a time that the administrator allows; raise Unsatisfiable if it has more."""
        return self.rules.limit_time(asked, self.host.name) if self.rules else asked

    def warnings(self, asked: Resources) -> Iterator[str]:
        """Yield what the user should know before such a job goes there, each once."""
        name, facts = self.host.name, self.connection.facts
        if self.found_commands and not self._has_told_of_commands:
            self._has_told_of_commands = True
            yield (
                f"clusterfn found the commands of {self.scheduler.title} on {name} {self.found_commands.how}; "
                f"to save the search, add {self.found_commands.in_words()} to host {name} ({self.host.source})"
            )
        if self.scheduler.has_nodes:
            return
        if facts.ends_jobs and not self._has_warned:
            self._has_warned = True
            yield (
                f"logind on {name} ends your processes when you log out, so jobs end with the connection; "
                f"`clusterfn check {name}` shows what to ask the administrator for"
            )
        if asked.gpus and facts.visible_gpus and not self.host.gpus_only and not self._has_told_of_gpus:
            self._has_told_of_gpus = True
            yield gpus.about_visible(facts.visible_gpus, name)

    def _reject_above(self, name: str, asked: int, there: int, shown: Callable[[int], str]) -> None:
        if asked > there:
            raise Unsatisfiable(
                f"{name}={shown(asked)} is more than {self.host.name} has: {shown(there)}",
                host=self.host.name,
                stage="submit",
                hint=f"ask for at most {shown(there)}"
                if there
                else f"remove {name}=, or use another host: `clusterfn init ADDRESS` adds one",
            )

    @property
    def gpus(self) -> tuple[GpuInfo, ...] | None:
        """Each GPU of the host that its jobs may get; None if nvidia-smi fails.

        Only an answer with GPUs is kept: a driver may recover.

        Raises:
            Unsatisfiable: `gpus: {only: …}` names one that the host does not have.
        """
        if not self._gpus:
            self._gpus = gpus.ask(self.connection)
        return gpus.allowed(self._gpus, self.host) if self._gpus and self.host.gpus_only else self._gpus

    @functools.cached_property
    def gpu_types(self) -> Sequence[str] | None:
        """The types of a cluster's GPUs, as its scheduler says; None if it does not."""
        return gpus.ask_types(self.connection, self.scheduler)

    def count_gpus_for(self, asked: Resources) -> int:
        """Return how many GPUs of the requested type and size it has; 0 if that is not known."""
        return len(eligible_gpus(self.gpus or (), asked.gpu_type, asked.gpu_memory_bytes))


_sessions: dict[str, HostState] = {}
_lock = threading.Lock()


def open_session(host: Host) -> HostState:
    """Return the state of a host: one for each process, and for each host as it is configured."""
    with _lock:
        return _sessions.setdefault(repr(host), HostState(host))
