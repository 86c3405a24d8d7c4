"""What the jobs of a host may get: its cores, memory and GPUs, within what its administrator allows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge.supervisor.eligible_gpus import eligible_gpus
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.config.units import exact_memory
from clusterfn.errors import ConfigError, Unsatisfiable
from clusterfn.hosts import gpus, site_rules
from clusterfn.hosts.connected_host import ConnectedHost
from clusterfn.hosts.site_rules import SiteRules

if TYPE_CHECKING:
    from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo
    from clusterfn.config.spec import Host, Resources


class HostCapacity:
    """What one host gives to jobs, as this process knows it."""

    def __init__(self, session: ConnectedHost) -> None:
        self._session, self._host = session, session.host
        self._warned: set[str] = set()
        self._gpus: tuple[GpuInfo, ...] | None = None

    def enough(self, request: Resources) -> None:
        """Reject what a host without a scheduler can never give, and a type of GPU that a cluster does not have.

        Raises:
            Unsatisfiable: It has fewer cores, less memory or fewer GPUs than that.
        """
        if self._session.scheduler.has_nodes:
            self.require_commands()
            if request.gpu_type:
                gpus.require_type(self.gpu_types, request, self._host.name, self._session.scheduler.title)
            return
        facts, limits, host = self._session.connection.facts, self.limit(self._host).limits, self._host
        amounts = (("gpus", request.gpus, limits.gpus, str), ("cores", request.cores, limits.cores, str),
                  ("memory", request.memory_bytes or 0, limits.memory_bytes, exact_memory))  # fmt: skip
        for name, amount, limit, as_text in amounts:
            if limit is not None and amount > limit:
                # Such a job would wait forever, because not even the end of
                # all other jobs of the user makes enough room.
                field = "memory_bytes" if name == "memory" else name
                by_site = self.rules is not None and limit == getattr(self.rules.limits, field)
                mend = f", or change limits: {{{name}: …}} in {host.source}"
                raise Unsatisfiable(
                    f"{name}={as_text(amount)} is more than all your jobs on {host.name} may have: {as_text(limit)}",
                    host=host.name, stage="submit", hint=f"ask for at most {as_text(limit)}{'' if by_site else mend}",
                    evidence=[f"the administrator has set it in {site_rules.FILE} on {host.name}"] if by_site else [],
                )  # fmt: skip
        # A user may allow more cores than the machine has, because cores are shared in time.
        self._reject_above("cores", request.cores, max(facts.cpus, limits.cores or 0), str)
        self._reject_above("memory", request.memory_bytes or 0, facts.memory_bytes, format_size)
        available = self.gpus if request.gpus else None
        if available is not None:
            if self._host.gpus_only:
                gpus.enough_allowed(available, request, self._host)
            self._reject_above("gpus", request.gpus, len(available), str)
            if request.gpu_type or request.gpu_memory_bytes:
                gpus.enough(available, request, self._host.name)

    def require_commands(self) -> None:
        """Reject a host on which not even a login shell finds the commands of its scheduler.

        Raises:
            ConfigError: It names the key that says where they are.
        """
        lacking, name, source = self._session.connection.facts.lacking, self._host.name, self._host.source
        if lacking:
            hint = f"write the folder that has it as `scheduler_path: [FOLDER]` for host {name} ({source}); "
            hint += f"`clusterfn check {name}` shows what was found"
            message = f"{lacking[0]} is neither in PATH of {name} nor found by its login shell"
            raise ConfigError(message, host=name, evidence=[f"scheduler: {self._host.scheduler} ({source})"], hint=hint)

    @property
    def rules(self) -> SiteRules | None:
        """What the administrator allows there, None for all there is; a scheduler has rules of its own."""
        text = self._session.connection.facts.site
        return site_rules.read(text) if text and not self._session.scheduler_rules.has_nodes else None

    def limit(self, host: Host) -> Host:
        """Return the host, with the options of a call, within what the administrator allows."""
        return self.rules.limit(host) if self.rules else host

    def limit_time(self, request: Resources) -> Resources:
        """Return what a job asks for with a time that the administrator allows; raise Unsatisfiable if it has more."""
        return self.rules.limit_time(request, self._host.name) if self.rules else request

    def warnings(self, request: Resources) -> Iterator[str]:
        """Yield what the user should know before such a job goes there, each once."""
        name, facts, places = self._host.name, self._session.connection.facts, self._session.command_places

        def is_new(about: str) -> bool:
            old, self._warned = self._warned, self._warned | {about}
            return about not in old

        if places and is_new("commands"):
            yield (
                f"clusterfn found the commands of {self._session.scheduler.title} on {name} {places.how}; "
                f"to save the search, add {places.in_words()} to host {name} ({self._host.source})"
            )
        if self._session.scheduler.has_nodes:
            return
        if facts.ends_jobs and is_new("logout"):
            yield (
                f"logind on {name} ends your processes when you log out, so jobs end with the connection; "
                f"`clusterfn check {name}` shows what to ask the administrator for"
            )
        if not request.gpus or self._host.gpus_only or "gpus" in self._warned:
            return
        if gpus.hides_some(facts.visible_gpus, len(self.gpus or ())) and is_new("gpus"):
            yield gpus.about_visible(facts.visible_gpus, name)

    def _reject_above(self, name: str, requested: int, available: int, as_text: Callable[[int], str]) -> None:
        if requested > available:
            other = f"remove {name}=, or use another host: `clusterfn init ADDRESS` adds one"
            hint = f"ask for at most {as_text(available)}" if available else other
            message = f"{name}={as_text(requested)} is more than {self._host.name} has: {as_text(available)}"
            raise Unsatisfiable(message, host=self._host.name, stage="submit", hint=hint)

    @property
    def gpus(self) -> tuple[GpuInfo, ...] | None:
        """Each GPU of the host that its jobs may get; None if nvidia-smi fails.

        Only an answer with GPUs is kept: a driver may recover.

        Raises:
            Unsatisfiable: `gpus: {only: …}` names one that the host does not have.
        """
        if not self._gpus:
            self._gpus = gpus.ask(self._session.connection)
        return gpus.allowed(self._gpus, self._host) if self._gpus and self._host.gpus_only else self._gpus

    @functools.cached_property
    def gpu_types(self) -> Sequence[str] | None:
        """The types of a cluster's GPUs, as its scheduler says; None if it does not."""
        return gpus.ask_types(self._session.connection, self._session.scheduler)

    def count_gpus_for(self, request: Resources) -> int:
        """Return how many GPUs of the requested type and size it has; 0 if that is not known."""
        return len(eligible_gpus(self.gpus or (), request.gpu_type, request.gpu_memory_bytes))
