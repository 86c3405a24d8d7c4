"""The plain facts that modules share: what a job asks for, where it goes, what it is made of, and its spec.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clusterfn.bridge import layout

DATA = "data"  # the word of `results` for plain data


@dataclass(frozen=True)
class Resources:
    """What a job asks for. None means: the host's default.

    Attributes:
        cores: Processor cores (`--cpus-per-task`).
        memory_bytes: Memory of the whole job.
        gpus: Whole GPUs; 0 hides CUDA.
        time_s: Seconds until the job is ended.
        gpu_memory_bytes: The size of each GPU, at least.
        gpu_type: Words of each GPU's name, "a6000"; with SLURM the type of its gres.
        nodes: How many nodes call the function; all else is for each of them.
        tasks_per_node: How many processes of each node call it; each has these cores.
        allow_cpu: Whether it may run on the CPU where PyTorch cannot use the GPUs.
    """

    cores: int = 1
    memory_bytes: int | None = None
    gpus: int = 0
    time_s: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_type: str | None = None
    nodes: int = 1
    allow_cpu: bool = False
    tasks_per_node: int = 1


@dataclass(frozen=True)
class EnvironmentSettings:
    """How environments are made on a host.

    Attributes:
        root: Their folder, as in clusterfn.yml; None: below the host's root.
        python: Where that of a project's environment comes from: "conda", "standalone", "host", or the path of the
            host's interpreter; "" if nothing is said.
        fetch_on: Who fetches packages: "host", "client", or "auto": the host if it can.
        build_on: "host", or "node": in a batch job of its own.
        partition: For that job.
        at: "root"; or "node", unpacked once on each node into its own disk, below /var/tmp; or a folder for that.
        timeout_s: How many seconds a package's script may take, and for how many a build may do nothing.
        purge_days: Files that are not read for so long are removed by the file system; None if they stay.
        installer: "clusterfn"; "conda": the host's own; or the path of one there.
        driver: Of the GPUs, if it is known beforehand.
        capabilities: Compute capabilities of the GPUs, if they are known beforehand.
        table: A file with more rows for the table of CUDA builds.
    """

    root: str | None = None
    python: str = ""
    fetch_on: str = "auto"
    build_on: str = "host"
    partition: str | None = None
    at: str = "root"
    timeout_s: float = 1200.0
    purge_days: float | None = None
    installer: str = "clusterfn"
    driver: str | None = None
    capabilities: tuple[str, ...] = ()
    table: str | None = None


@dataclass(frozen=True)
class Limits:
    """What all of one user's running jobs may take of a machine together; None: as much as there is.

    Attributes:
        cores: More than the machine has lift its own cap: cores are shared in time.
    """

    gpus: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    jobs: int | None = None


@dataclass(frozen=True)
class ResultPolicy:
    """What this machine accepts of what a host returns.

    Attributes:
        data_only: Values may be plain data alone, and exceptions arrive as text.
        max_bytes: The size of a value that is fetched without asking; None for any size.
    """

    data_only: bool = False
    max_bytes: int | None = None


@dataclass(frozen=True)
class Host:
    """One host of clusterfn.yml, checked. The keys are documented in docs/reference/configuration.md.

    Attributes:
        name: Its name in clusterfn.yml.
        address: Name or alias for ssh, `user@name:port` allowed; "" for this machine.
        scheduler: A word of `SCHEDULER_KEYS` in `schedulers`.
        transport: "auto", "paramiko", "openssh" or "local".
        source: Where it was defined, "file:line", for messages.
        scheduler_options: What is below the key with the scheduler's own name.
        secrets: Names of local variables whose values its jobs get where they are set; one may end with `*`.
        results: "objects", or "data": its values may be plain data alone.
        max_result_bytes: The size of a value that is fetched from it without asking.
    """

    name: str
    address: str
    scheduler: str
    source: str
    transport: str = "auto"
    ssh_config: str | None = None
    root: str = "~/.clusterfn"
    owners: tuple[str, ...] = ()
    python: str | None = None
    environment: str | None = None
    defaults: Resources = Resources()
    setup: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prolog: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    gpu_option: str = "gres"
    gpu_sizes: Mapping[str, int] = field(default_factory=dict)
    lease: str = "socket"
    limits: Limits = Limits()
    poll_floor_s: float = 2.0
    queue_timeout_s: float | None = None
    keep_days: float = 14.0
    login_ttl_s: float = 8 * 3600.0
    results: str = "objects"
    max_result_bytes: int | None = None
    making: EnvironmentSettings = EnvironmentSettings()

    @property
    def clusters(self) -> str:
        """Which of several clusters the scheduler's commands ask; "" for the usual one."""
        return str(self.scheduler_options.get("clusters") or self.scheduler_options.get("cluster") or "")

    def result_policy(self, results: str | None = None, max_bytes: int | None = None) -> ResultPolicy:
        """Return what is accepted of its values; what a call says comes before what the host's keys say."""
        return ResultPolicy((results or self.results) == DATA, max_bytes or self.max_result_bytes)

    def with_scheduler_options(self, given: Mapping[str, Any]) -> Host:
        """Return the host with these options of one call merged over its own."""
        return replace(self, scheduler_options={**self.scheduler_options, **given}) if given else self


@dataclass(frozen=True)
class EnvironmentRef:
    """An environment that is, or is to be, made on a host.

    Attributes:
        id: The hash of its lock.
        root: The folder there that contains environments, absolute.
        purged: Whether files of it may have been removed by the file system since.
        cuda: The version of CUDA that its PyTorch must show on the GPUs; "" if that is not asked.
        node_root: The folder on each node's own disk into which it is unpacked; "" if it runs where it was made.
        owners: Users and groups of the host who may have made it, in addition to this user and root.
    """

    id: str
    root: str
    purged: bool = False
    cuda: str = ""
    node_root: str = ""
    owners: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentSpec:
    """Which interpreter runs the function.

    Attributes:
        kind: "python" (a path), "venv", "prefix", "conda", "current", or "found" (the host's own pythonX.Y).
        value: The path or name; "" for "current" and "found".
    """

    kind: str
    value: str


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that was found on a host and asked for its version.

    Attributes:
        path: Absolute path there.
        version: (major, minor).
        activation: Variables that make it complete (PATH and others), see `ExistingEnvironment.activation`.
    """

    path: str
    version: tuple[int, int]
    activation: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The items of one function, and how they are shared out.

    Attributes:
        count: Items.
        chunk: Items that an element claims at a time, at most.
        elements: How many are started.
        at_once: How many of them run at the same time.
        per_element: Chunks that one claims, apart from those of the dead; None: as many as it gets.
        element_s: Seconds that one asks for; None: the scheduler's own limit.
        aim_s: Seconds of work that one claims at a time, by what its items took so far; None: whole chunks.
        block: Items that start together once their inputs have ended; None: all of them wait for all inputs.
    """

    count: int
    chunk: int
    elements: int
    at_once: int
    per_element: int | None = None
    element_s: float | None = None
    aim_s: float | None = None
    block: int | None = None


@dataclass(frozen=True)
class SessionSpec:
    """What makes a job a session.

    Attributes:
        idle_s: It ends after so long without a call.
        caller: (major, minor) of the Python that calls.
        workers: How many calls run at a time; they share the cores and GPUs of the session.
    """

    idle_s: float
    caller: tuple[int, int]
    workers: int = 1


@dataclass(frozen=True)
class KernelSpec:
    """What makes a job hold a Jupyter kernel, the whole of JupyterLab, or a scheduler of dask.

    Attributes:
        program: The module that the environment must have: "ipykernel", "jupyterlab" or "distributed".
        idle_s: It ends after so long in which no cell ran. A scheduler of dask is never idle.
        reconnect_s: It ends after so long without a connection to its client.
        caller: (major, minor) of the Python that asks for it.
    """

    program: str
    idle_s: float
    reconnect_s: float
    caller: tuple[int, int]


@dataclass(frozen=True)
class JobSpec:
    """One job, ready to be written: everything that spec.json and job.sh are made from.

    Attributes:
        id: 16 hex digits, chosen by the client.
        name: The function's name, safe for a scheduler.
        root: The host's root, absolute.
        bridge: The folder of the bridge there, absolute.
        host_python: The old interpreter that runs the supervisor.
        sys_path: Folders of the user's modules there.
        umask: The user's own, for what the function writes.
        resume: The job with a copy of whose checkpoint this one begins.
        scheduler_options: Those of this call alone; `host` has them too.
        after: The jobs whose values it takes, by id: `name`, and `items`, the indices of a group's items or None.
        warn_s: The function is warned so long before it is ended; None: it is not.
        requeue: How often it is requeued for each cause: "timeout", "preempted", "node".
        quiet_s: After so long without output and use of a CPU, a waiting call says so.
        keep_value: The value stays on the host until `Job.result` fetches it.
        results: What is accepted of its value. Only this machine knows that: the host could change its spec.json.
    """

    id: str
    name: str
    host: Host
    root: str
    bridge: str
    host_python: str
    resources: Resources
    interpreter: Interpreter
    sys_path: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    cwd: str | None = None
    building: EnvironmentRef | None = None
    group: Group | None = None
    serving: SessionSpec | None = None
    kernel: KernelSpec | None = None
    log_limit_bytes: int = 64 * 2**20
    grace_s: float = 10.0
    stall_s: float | None = None
    retries: int = 0
    umask: int = 0o077
    resume: str | None = None
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quiet_s: float = layout.QUIET_S
    keep_value: bool = False
    results: ResultPolicy = ResultPolicy()
    warn_s: float | None = None
    requeue: Mapping[str, int] = field(default_factory=dict)

    def scheduler_names_of_dependencies(self) -> list[str]:
        """Return the names by which the scheduler knows the jobs whose values it takes."""
        return [layout.job_name(told["name"], job) for job, told in sorted(self.after.items())]

    def to_json(self) -> bytes:
        """Write spec.json, which the supervisor and the worker read: see docs/reference/protocol.md."""
        record = {
            "format": layout.FORMAT,
            "id": self.id,
            "name": self.name,
            "host": self.host.name,
            "scheduler": self.host.scheduler,
            "root": self.root,
            "bridge": self.bridge,
            "resources": asdict(self.resources),
            "queue_timeout_s": self.host.queue_timeout_s,
            "lease": self.host.lease,
            "limits": asdict(self.host.limits),
            "python": self.interpreter.path,
            "version": list(self.interpreter.version),
            "activation": self.interpreter.activation,
            "building": asdict(self.building) if self.building else None,
            **({"group": asdict(self.group)} if self.group else {}),
            **({"session": asdict(self.serving)} if self.serving else {}),
            **({"kernel": asdict(self.kernel)} if self.kernel else {}),
            "sys_path": list(self.sys_path),
            "env": dict(self.env),
            "secrets": sorted(self.secrets),
            "cwd": self.cwd,
            "outputs": list(self.outputs),
            "keep_days": self.host.keep_days,
            "log_limit_bytes": self.log_limit_bytes,
            "grace_s": self.grace_s,
            "stall_s": self.stall_s,
            "quiet_s": self.quiet_s,
            "retries": self.retries,
            "umask": self.umask,
            **({"resume": self.resume} if self.resume else {}),
            **({"requeue": dict(self.requeue)} if self.requeue else {}),
            **({"warn_s": self.warn_s} if self.warn_s is not None else {}),
            **({"keep_value": True} if self.keep_value else {}),
            **({"after": {job: dict(told) for job, told in self.after.items()}} if self.after else {}),
            **({"scheduler_options": dict(self.scheduler_options)} if self.scheduler_options else {}),
            **({"clusters": self.host.clusters} if self.host.clusters else {}),
        }
        return json.dumps(record, indent=1).encode()

    @classmethod
    def from_json(cls, spec: Mapping[str, Any], host: Host, host_python: str) -> JobSpec:
        """Read a group's job back from its spec.json, to start more of it.

        The values of its secrets are not in it, nor what only job.sh needs.
        """
        building = spec.get("building")
        if building:
            building = {**building, "owners": tuple(building.get("owners", ()))}
        return cls(
            id=spec["id"], name=spec["name"], host=host.with_scheduler_options(spec.get("scheduler_options", {})),
            root=spec["root"], bridge=spec["bridge"],
            host_python=host_python, resources=Resources(**known_fields(Resources, spec["resources"])),
            interpreter=Interpreter(spec["python"], tuple(spec["version"]), spec["activation"]),
            sys_path=tuple(spec["sys_path"]), env=spec["env"], cwd=spec["cwd"], outputs=tuple(spec["outputs"]),
            building=EnvironmentRef(**known_fields(EnvironmentRef, building)) if building else None,
            group=Group(**known_fields(Group, spec["group"])),
            log_limit_bytes=spec["log_limit_bytes"], grace_s=spec["grace_s"], stall_s=spec.get("stall_s"),
            retries=spec.get("retries", 0), umask=spec.get("umask", 0o077), resume=spec.get("resume"),
            scheduler_options=spec.get("scheduler_options", {}), after=spec.get("after", {}),
            quiet_s=spec.get("quiet_s", layout.QUIET_S), warn_s=spec.get("warn_s"),
            requeue=spec.get("requeue", {}), results=host.result_policy(),
        )  # fmt: skip


def known_fields(kind: type[Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass that a spec.json has; another version may have written more."""
    return {name: value for name, value in told.items() if name in kind.__dataclass_fields__}
