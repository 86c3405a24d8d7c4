"""What Grid Engine says of a site, and what clusterfn.yml says of it: names of queues and resources for qsub. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterfn.config import value_kinds as kinds
from clusterfn.config.scheduler_keys import BATCH_JOBS, BY_GPU, OPTIONS, SchedulerKeys
from clusterfn.config.spec import Host
from clusterfn.config.value_kinds import WRITTEN, Key, Kind
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError, did_you_mean
from clusterfn.scheduler import site

# What most sites call these.
USUAL_NAMES = {"parallel_environment": "smp", "memory": "h_vmem", "gpus": "gpu"}
_GPU_NAME = re.compile(r"(?:n|num_?)?gpus?|gpu_?cards?", re.IGNORECASE)


@dataclass(frozen=True)
class GridEngineSite(site.SchedulerSite):
    """One site.

    Attributes:
        queues: Names.
        environments: Those parallel environments whose slots are all on one host.
        resources: What jobs can ask for: the name, and whether an amount is for the whole job instead of each slot.
        trouble: What qconf said instead; "" if it answered.
    """

    queues: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    resources: Mapping[str, bool] = field(default_factory=dict)
    trouble: str = ""

    commands = site.Commands(
        programs=("qsub", "qconf", "qstat", "qdel", "qacct", "qhost"),
        variables=("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
        modules=("sge", "uge", "gridengine"),
        usual=("$SGE_ROOT/bin/*", "/opt/sge/bin/*", "/opt/gridengine/bin/*", "/opt/uge/bin/*", "/usr/local/sge/bin/*"),
        probe=("qconf", "-sql"),
        # PBS has a qsub too, but no qconf, so the probe prints nothing there.
        bare="SGE_ROOT|^$",
        files=("/opt/sge", "/opt/gridengine", "/opt/uge"),
    )
    title = "Grid Engine"
    program = "qconf"
    wanted_address = "a host from which qsub works"
    no_accounts = "Grid Engine charges the project that clusterfn.yml names, or your default one"

    @classmethod
    def read(cls, sections: Mapping[str, site.Section]) -> GridEngineSite | None:
        """Read `qconf -sql`, a line "NAME ALLOCATION_RULE" for each parallel environment, and `qconf -sc`."""
        section = sections.get("grid_engine", site.MISSING)
        if section.rc == site.NOT_THERE:
            return None
        if section.rc != 0:
            return cls(trouble=section.trouble)
        rules = [line.split() for line in section.part("environments")]
        columns = [line.split() for line in section.part("resources") if not line.startswith("#")]
        return cls(
            tuple(line.strip() for line in section.lines if line.strip()),
            tuple(rule[0] for rule in rules if rule[1:] == ["$pe_slots"]),
            {row[0]: row[5] == "JOB" for row in columns if len(row) >= 7 and row[4] != "NO"},
        )

    def overview(self) -> list[str]:
        """Return one line: its queues and parallel environments."""
        if self.trouble:
            return [f"Grid Engine, and qconf fails: {self.trouble}"]
        environments = f"; parallel environments: {', '.join(self.environments)}" if self.environments else ""
        return [f"Grid Engine with {len(self.queues)} queues: {', '.join(self.queues)}{environments}"]

    def choose_options(self, answers: site.AdvanceAnswers, ask: site.Ask) -> dict[str, Any]:
        """Return the queues that were given, and the site's names where they are not the usual ones."""
        options: dict[str, Any] = {}
        if answers.account:
            raise ConfigError("--account is for SLURM", hint="leave it out, or choose a queue with --partition")
        for option, queue in (("--partition", answers.partition), ("--gpu-partition", answers.gpu_partition)):
            site.check_advance_answer("there is no queue", option, queue and queue.partition("@")[0], self.queues)
        # Without a queue, Grid Engine itself chooses one that has room.
        if answers.gpu_partition:
            named = {"cpu": answers.partition, "gpu": answers.gpu_partition}
            options["queue"] = {kind: queue for kind, queue in named.items() if queue}
        elif answers.partition:
            options["queue"] = answers.partition
        usual, memory, gpus = (USUAL_NAMES[key] for key in ("parallel_environment", "memory", "gpus"))
        if self.environments and usual not in self.environments:
            options["parallel_environment"] = self.environments[0]
        if self.resources and memory not in self.resources:
            options["memory"] = None
        other = next((name for name in self.resources if _GPU_NAME.fullmatch(name)), None)
        if other and gpus not in self.resources:
            options["gpus"] = gpus = other
        per_job = [name for name in (memory, gpus) if self.resources.get(name)]
        return {**options, "per_job": per_job} if per_job else options

    def check(self, host: Host, place: str) -> str:
        """Find the queues, the parallel environment and the resources that are named."""
        if self.trouble:
            hint = "log in and see what `qconf -sql` prints"
            raise ConfigError("qconf does not answer", evidence=self.trouble.splitlines(), hint=hint)
        options = host.scheduler_options
        queue = options.get("queue")
        queues = list(queue.values()) if isinstance(queue, dict) else [*filter(None, [queue])]
        resources = [options.get("memory"), options.get("gpus"), *options.get("resources", {})]
        for kind, names, existing in (
            ("queue", [name.partition("@")[0] for name in queues], self.queues),
            ("parallel_environment", [options.get("parallel_environment")], self.environments),
            ("resource", resources, [*self.resources]),
        ):
            for name in names:
                if name is not None and name not in existing:
                    problem = f"there is no {kind} {name}{did_you_mean(name, existing)}"
                    raise ConfigError(problem, evidence=sorted(existing), hint=f"correct grid_engine: of {place}")
        return f"Grid Engine with {len(self.queues)} queues: {', '.join(self.queues)}"


_SITE_NAME = re.compile(r"[A-Za-z_][\w.@*-]*")


def _site_name(value: Value) -> str:
    text = value.as_written()
    if not _SITE_NAME.fullmatch(text):
        raise value.error(f'"{text}" cannot name anything in Grid Engine', "write one word that `qconf` lists")
    return text


def _queue(value: Value) -> Any:
    if value.kind == "map":
        return {kind: _site_name(name) for kind, name in value.mapping(("cpu", "gpu")).items()}
    return _site_name(value)


def _resources(value: Value) -> dict[str, str]:
    """Read what is asked for by `-l` in addition to what calls ask for."""
    for key, amount in value.pairs:
        _site_name(key)
        if key.text in ("h_rt", "s_rt"):
            raise key.error(f"clusterfn sets `-l {key.text}` itself", "use `time=` or `defaults: time:`")
        if not re.fullmatch(r"[^,\s=]+", amount.as_written()):
            raise amount.error(f'"{amount.as_written()}" is not the value of a resource', "write one word or number")
    return {name: amount.as_written() for name, amount in value.mapping().items()}


_NAME_OR_NULL = Kind(
    lambda value: None if value.kind == "null" else _site_name(value), {"type": ["string", "number", "null"]}
)
_OPTIONS: Mapping[str, Kind] = {
    "queue": Kind(_queue, BY_GPU),
    "project": Kind(_site_name, WRITTEN),
    "parallel_environment": Kind(_site_name, WRITTEN),
    "memory": _NAME_OR_NULL,
    "gpus": _NAME_OR_NULL,
    "per_job": kinds.LINES,
    "resources": Kind(_resources, {"type": "object", "additionalProperties": WRITTEN}),
}
_FORMS = {key: option.form for key, option in _OPTIONS.items()}
_QSUB = Kind(
    lambda value: {key: _OPTIONS[key].read(option) for key, option in value.mapping(_OPTIONS).items()},
    {"type": "object", "additionalProperties": False, "properties": _FORMS},
)

KEYS = SchedulerKeys(
    "clusterfn submits them with qsub",
    keys={
        "grid_engine": Key(
            OPTIONS,
            _QSUB,
            "none",
            "{queue: long.q, project: physics}",
            "names of the site for qsub, see [Grid Engine](../how-to/grid-engine.md); only with "
            "`scheduler: grid_engine`",
        ),
        **BATCH_JOBS,
    },
    limits=("with Grid Engine the scheduler sets limits, by resource quotas", "`qconf -srqsl` lists them"),
    misread=(":,%\\", "Grid Engine expands or splits paths at : , % and \\"),
    sets_memory=lambda options: options.get("memory", "") is None,
)
