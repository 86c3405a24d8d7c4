"""What SLURM says of a site: its partitions and GPUs, the user's accounts, and what it allows one user. Pure.

A tool that a site does not have limits nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, did_you_mean
from clusterfn.scheduler import site
from clusterfn.scheduler.base import NodeGpus, SchedulerLimits, Waiting

_NODES = re.compile(r"\d{1,18}", re.ASCII)
_NOTHING = ("", "UNLIMITED", "(null)", "none")


@dataclass(frozen=True)
class Partition:
    """One partition, as sinfo has it.

    Attributes:
        state: "up" where jobs start.
        memory_mb: Of its largest node; 1 or less where the site does not track memory, None where sinfo does not say.
    """

    name: str
    default: bool
    state: str
    time_limit: str
    nodes: int
    gres: str
    memory_mb: int | None = None

    @property
    def has_no_memory(self) -> bool:
        """Whether SLURM knows of no memory there, and refuses jobs that ask for some."""
        return self.memory_mb is not None and self.memory_mb <= 1


class Account(NamedTuple):
    """One association of the user, as sacctmgr has it."""

    name: str
    partition: str
    qos: tuple[str, ...]


@dataclass(frozen=True)
class SlurmSite(site.SchedulerSite):
    """One site.

    Attributes:
        accounts: None of them where a site has no accounting.
        trouble: What sinfo said instead of partitions; "" if it answered.
    """

    partitions: tuple[Partition, ...] = ()
    accounts: tuple[Account, ...] = ()
    trouble: str = ""

    commands = site.Commands(
        programs=("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "sacctmgr"),
        variables=("SLURM_CONF", "SLURM_CONF_SERVER"),
        modules=("slurm",),
        usual=(
            "$SLURM_ROOT/bin", "$SLURM_HOME/bin", "/opt/slurm/bin", "/opt/slurm/*/bin", "/usr/local/slurm/bin",
            "/cm/shared/apps/slurm/current/bin", "/cm/local/apps/slurm/current/bin", "/usr/local/bin",
        ),
        probe=("sinfo", "--noheader", "--format=%P"),
        bare="configuration source|process configuration file|cannot stat file|unable to status file",
        files=(
            "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/etc/slurm-wlm/slurm.conf", "/opt/slurm",
            "/usr/local/etc/slurm.conf", "/usr/local/slurm/etc/slurm.conf", "/run/slurm*",
        ),
    )  # fmt: skip
    title = "SLURM"
    program = "sinfo"
    wanted_address = "the login node of the cluster; for a machine without a queue: scheduler: bare"
    no_accounts = "SLURM does not say which accounts you may use"

    @classmethod
    def read(cls, sections: Mapping[str, site.Section]) -> SlurmSite | None:
        queues, accounts = sections.get("partitions", site.MISSING), sections.get("accounts", site.MISSING)
        if queues.rc == site.NOT_THERE:
            return None
        return cls(
            read_partitions(queues.lines) if queues.rc == 0 else (),
            read_accounts(accounts.lines) if accounts.rc == 0 else (),
            queues.trouble,
        )

    def overview(self) -> list[str]:
        """Return a line for each partition, and the accounts."""
        if self.trouble:
            return [f"SLURM, and sinfo fails: {self.trouble}"]
        lines = [f"SLURM with {len(self.partitions)} partitions (* is the default):"]
        for partition in self.partitions:
            name = f"{partition.name}{'*' if partition.default else ''}"
            gres = f", {partition.gres}" if "gpu" in partition.gres else ""
            lines.append(f"  {name}  {partition.state}, limit {partition.time_limit}, {partition.nodes} nodes{gres}")
        accounts = sorted({account.name for account in self.accounts})
        lines += [f"your accounts: {', '.join(accounts)}"] if accounts else []
        return [*lines, *self._on_memory()]

    def _on_memory(self) -> list[str]:
        names = [partition.name for partition in self.partitions if partition.has_no_memory]
        if not names:
            return []
        where = "" if len(names) == len(self.partitions) else f" in {', '.join(names)}"
        return [f"SLURM does not track memory{where}: clusterfn asks it for none, and keeps memory= itself"]

    def choose_options(self, answers: site.AdvanceAnswers, ask: site.Ask) -> dict[str, Any]:
        """Return the account and the partitions."""
        options: dict[str, Any] = {}
        accounts = sorted({account.name for account in self.accounts})
        existing = [partition.name for partition in self.partitions]
        site.check_advance_answer("there is no partition", "--partition", answers.partition, existing)
        site.check_advance_answer("there is no partition", "--gpu-partition", answers.gpu_partition, existing)
        site.check_advance_answer("SLURM does not let you use account", "--account", answers.account, accounts)
        if answers.account:
            options["account"] = answers.account
        elif len(accounts) > 1:
            # With a single account there is nothing to choose, because SLURM takes it anyway.
            options["account"] = ask("Account to charge", "--account", accounts, accounts[0])
        usable = [partition for partition in self.partitions if partition.state == "up"]
        default = next((partition.name for partition in usable if partition.default), None)
        names = [partition.name for partition in usable]
        cpu = answers.partition or default
        if cpu is None and names:
            question = "Which partition, since SLURM has no default"
            cpu = names[0] if len(names) == 1 else ask(question, "--partition", names, names[0])
        gpu = answers.gpu_partition
        with_gpus = [partition.name for partition in usable if "gpu" in partition.gres]
        if not gpu and with_gpus and cpu not in with_gpus:
            question = "Which partition for jobs with GPUs"
            gpu = with_gpus[0] if len(with_gpus) == 1 else ask(question, "--gpu-partition", with_gpus, with_gpus[0])
        if gpu and gpu != cpu:
            options["partition"] = {"cpu": cpu, "gpu": gpu} if cpu else {"gpu": gpu}
        elif cpu and cpu != default:
            options["partition"] = cpu
        if usable and all(partition.has_no_memory for partition in usable):
            options["mem"] = None
        return options

    def check(self, host: Host, place: str) -> str:
        """Find the partitions that are named, or the default ones; of "a,b" SLURM takes one that is up."""
        if self.trouble:
            hint = f"log in and see what sinfo prints; is {place} the login node?"
            if "slurm.conf" in self.trouble or "configuration" in self.trouble:
                key = "scheduler_env: {SLURM_CONF: …}"
                hint = f"run `echo $SLURM_CONF` there in a login shell, and write {key} of {place}"
            raise ConfigError("sinfo does not answer", evidence=self.trouble.splitlines(), hint=hint)
        partitions = {partition.name: partition for partition in self.partitions}
        configured = host.scheduler_options.get("partition")
        chosen = list(configured.values()) if isinstance(configured, dict) else [*filter(None, [configured])]
        for group in chosen or [partition.name for partition in partitions.values() if partition.default]:
            names = [name for name in str(group or "").split(",") if name]
            hint = f"correct slurm: partition: of {place}"
            for name in names:
                if name not in partitions:
                    problem = f"there is no partition {name}{did_you_mean(name, list(partitions))}"
                    raise ConfigError(problem, evidence=sorted(partitions), hint=hint)
            if names and all(partitions[name].state != "up" for name in names):
                usable = ", ".join(name for name, partition in partitions.items() if partition.state == "up") or "none"
                problem = "; ".join(f"the partition {name} is {partitions[name].state}" for name in names)
                raise ConfigError(problem, hint=f"ask the administrator, or {hint}; those that are up: {usable}")
        rows = []
        for partition in partitions.values():
            name = f"{partition.name}{'*' if partition.default else ''}"
            nodes = f"nodes {partition.nodes}, {partition.gres}"
            rows.append(f"{name}  {partition.state}, limit {partition.time_limit}, {nodes}")
        rows += self._on_memory()
        return "\n".join([f"SLURM with {len(self.partitions)} partitions (* is the default):", *rows])

    def check_account(self, host: Host, place: str) -> str | None:
        """Find the account and the QOS that are named."""
        if not self.accounts:
            return None
        account, qos = host.scheduler_options.get("account"), host.scheduler_options.get("qos")
        mine = [entry for entry in self.accounts if account in (None, entry.name)]
        accounts = [entry.name for entry in self.accounts]
        levels = [name for entry in mine for name in entry.qos]
        for option, value, available in (("account", account, accounts), ("qos", qos, levels)):
            if value is not None and available and str(value) not in available:
                names = list(dict.fromkeys(available))
                message = f"SLURM does not let you use {option} {value}{did_you_mean(str(value), names)}"
                raise ConfigError(message, hint=f"set `slurm: {option}:` of {place} to one of {', '.join(names)}")
        rows = [
            f"{entry.name}  {entry.partition or 'any'}  {', '.join(entry.qos) or 'default'}" for entry in self.accounts
        ]
        return "\n".join(["accounts that you can charge (account, partition, QOS):", *rows])


def read_partitions(lines: Iterable[str]) -> tuple[Partition, ...]:
    """Parse `sinfo --format=%P|%a|%l|%D|%G|%m`: a row for each kind of node, so one partition may have several."""
    partitions: dict[str, Partition] = {}
    for line in lines:
        words = line.strip().split("|")
        if len(words) not in (5, 6):
            continue
        # sinfo puts a star behind the name of the default partition.
        starred, state, limit, count, gres = words[:5]
        name = starred.rstrip("*")
        nodes = int(count) if _NODES.fullmatch(count) else 0
        row = partitions[name] = partitions.get(name) or Partition(name, starred.endswith("*"), state, limit, 0, gres)
        kinds = dict.fromkeys(kind for kind in (row.gres, gres) if kind not in _NOTHING)
        # sinfo shows a + behind the amount where the nodes of a row differ.
        memory = words[5].rstrip("+") if len(words) == 6 else ""
        sizes = [int(memory)] if _NODES.fullmatch(memory) else []
        most = max([*sizes, *([] if row.memory_mb is None else [row.memory_mb])], default=None)
        partitions[name] = replace(row, nodes=row.nodes + nodes, gres=", ".join(kinds) or row.gres, memory_mb=most)
    return tuple(partitions.values())


def read_accounts(lines: Iterable[str]) -> tuple[Account, ...]:
    """Parse `sacctmgr -nP show assoc format=account,partition,qos`."""
    rows = (line.strip().split("|") for line in lines)
    rows = (row for row in rows if len(row) >= 3 and row[0] and " " not in row[0])
    accounts = (Account(row[0], row[1], tuple(level for level in row[2].split(",") if level)) for row in rows)
    return tuple(dict.fromkeys(accounts))


# What one user may have: array sizes, jobs at a time, the time of a partition

_CONFIG = re.compile(r"^(MaxArraySize|MaxJobCount)\s*=\s*([0-9]{1,18})(?![0-9])", re.MULTILINE)
_ARRAY_TASKS = re.compile(r"^SchedulerParameters\s*=.*\bmax_array_tasks=([0-9]{1,18})(?![0-9])", re.MULTILINE)
_PARTITION = re.compile(r"^PartitionName=(\S+)(.*)$", re.MULTILINE)
# A longer number is no count.
_COUNT = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")
_TIME = re.compile(r" MaxTime=(?:([0-9]{1,9})-)?([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})(?!\S)")


def read_limits(outputs: Sequence[str], partition: str | None) -> SchedulerLimits:
    """Read what scontrol says of its configuration and partitions, and sacctmgr; "" of one that failed.

    Example:
        >>> read_limits(["MaxArraySize = 1001", "PartitionName=short Default=YES MaxTime=01:00:00", "40|"], None)
        SchedulerLimits(array=1000, jobs=40, time_s=3600.0)
    """
    config, partitions, associations = outputs
    limits = {name: int(value) for name, value in _CONFIG.findall(config)}
    # The elements of an array are numbered from 1, and the largest number that SLURM takes is one below MaxArraySize.
    arrays = [limits["MaxArraySize"] - 1] if "MaxArraySize" in limits else []
    arrays += [int(tasks) for tasks in _ARRAY_TASKS.findall(config)]
    jobs = [int(word) for word in _COUNT.findall(associations)]
    jobs += [limits["MaxJobCount"]] if "MaxJobCount" in limits else []
    elements = max(min(arrays), 0) if arrays else None
    return SchedulerLimits(elements, min(jobs, default=None), _shortest_time(partitions, partition))


def _shortest_time(text: str, partition: str | None) -> float | None:
    """Return the shortest MaxTime of the partitions that are asked for, or of the default one."""
    names = partition.split(",") if partition else []
    times = []
    for name, facts in _PARTITION.findall(text):
        match = _TIME.search(facts)
        if match and (name in names if names else " Default=YES" in facts):
            days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
            times.append(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return min(times, default=None)


# Which GPUs there are, which are free, and which jobs wait for some

_FACT = re.compile(r"(?:^| )(NodeName|Gres|GresUsed|State|Partitions)=(\S*)")
_GRES_GPUS = re.compile(r"(?:^|,)gpu:(?:([^:,(]+):)?([0-9]{1,9})(?![0-9])")
_WANTS = re.compile(r"gpu(?::[^,\s]+)?")
# The field and its width. squeue cuts off a value that is longer than its column.
_COLUMNS = (
    ("JobArrayID", 32), ("UserName", 32), ("tres-per-node", 48), ("tres-per-job", 48), ("SubmitTime", 22),
    ("Reason", 40), ("Name", 80),
)  # fmt: skip
COLUMNS_OPTION = "--Format=" + ",".join(f"{name}:{width}" for name, width in _COLUMNS)


def gpu_types(text: str) -> list[str]:
    """Read the types of all nodes' GPUs, sorted; "" among them where some have none.

    Example:
        >>> gpu_types("gpu:a6000:4,lscratch:50\\n(null)\\ngpu:2(S:0)")
        ['', 'a6000']
    """
    return sorted({kind for line in text.splitlines() for kind, _ in _counted(line.strip())})


def gpu_nodes(text: str) -> list[NodeGpus]:
    """Read the GPUs of each node that has some.

    Example:
        >>> gpu_nodes("NodeName=n1 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) State=MIXED")
        [NodeGpus(node='n1', state='mixed', type='a100', total=4, used=1)]
    """
    gpus = []
    for line in text.splitlines():
        facts = {name: value for name, value in reversed(_FACT.findall(line))}
        used = dict(_counted(facts.get("GresUsed", "")))
        for kind, total in _counted(facts.get("Gres", "")):
            used_count = used.get(kind) if used else None
            gpus.append(NodeGpus(facts.get("NodeName", "?"), facts.get("State", "?").lower(), kind, total, used_count))
    return gpus


def _counted(gres: str) -> Iterable[tuple[str, int]]:
    return [(kind, int(count)) for kind, count in _GRES_GPUS.findall(gres)]


def waiting_for_gpus(text: str) -> list[Waiting]:
    """Read the jobs that wait for GPUs, in the order of the text."""
    ends = list(itertools.accumulate(width for _, width in _COLUMNS))
    jobs = []
    for line in text.splitlines():
        row = [line[a:b].strip() for a, b in zip([0, *ends], ends)]
        wants = [word for cell in row[2:-3] for word in _WANTS.findall(cell)]
        if wants:
            jobs.append(Waiting(row[0], row[1], ",".join(wants), *row[-3:]))
    return jobs
