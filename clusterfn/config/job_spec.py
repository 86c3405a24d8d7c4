"""A job, ready to be written: what it is made of, and its spec.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.config.options import PASSED_ON, Options
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.config.spec import DATA, Host, Interpreter, Resources, ResultPolicy


class EnvironmentRef(NamedTuple):
    """An environment that is, or is to be, made on a host.

    Attributes:
        id: The hash of its lock.
        root: The folder there that contains environments, absolute.
        purged: Whether files of it may have been removed by the file system since.
        cuda: The version of CUDA that its PyTorch must show on the GPUs; "" if that is not asked.
        owners: Users and groups of the host who may have made it, in addition to this user and root.
    """

    id: str
    root: str
    purged: bool = False
    cuda: str = ""
    owners: tuple[str, ...] = ()


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
    """

    count: int
    chunk: int
    elements: int
    at_once: int
    per_element: int | None = None
    element_s: float | None = None
    aim_s: float | None = None

    @property
    def in_words(self) -> str:
        """How many items, and how many of them run side by side."""
        return f"{self.count} item{'s' if self.count > 1 else ''}, {self.at_once} at a time"


class SessionSpec(NamedTuple):
    """What makes a job a session.

    Attributes:
        idle_s: It ends after so long without a call.
        caller: (major, minor) of the Python that calls.
        workers: How many calls run at a time; they share the cores and GPUs of the session.
    """

    idle_s: float
    caller: tuple[int, int]
    workers: int = 1


class KernelSpec(NamedTuple):
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


class JobSpec(NamedTuple):
    """One job, ready to be written: everything that spec.json and job.sh are made from.

    Attributes:
        id: 16 hex digits, chosen by the client.
        name: The function's name, safe for a scheduler.
        interpreter: That of its environment, once this is found.
        root: The host's root, absolute.
        bridge: The folder of the bridge there, absolute.
        host_python: The old interpreter that runs the supervisor.
        sys_path: Folders of the user's modules there.
        login_umask: That of the user's login, for what the function writes.
        resume: The job with a copy of whose checkpoint this one begins.
        scheduler_options: Those of this call alone; `host` has them too.
        after: The jobs whose values it takes, by id: `name`, and `items`, the indices of a group's items or None.
        passed_on: The options of the call that only its host reads, as `options_passed_on` gives them.
        requeue: How often it is requeued for each cause: "timeout", "preempted", "node".
        quiet_s: After so long without output and use of a CPU, a waiting call says so.
        keep_value: The value stays on the host until `Job.result` fetches it.
        arguments: Those of the call in a short line, for people.
        has_value: Whether it is called for its value, as a function is, and not for what it prints, as most commands.
        notify: What the host runs at its end; not in spec.json.
        results: What is accepted of its value. This machine remembers that: the host could change its spec.json.
    """

    id: str
    name: str
    host: Host
    root: str
    bridge: str
    host_python: str
    resources: Resources
    interpreter: Interpreter = Interpreter("", (0, 0))
    sys_path: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
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
    login_umask: int = 0o077
    resume: str | None = None
    scheduler_options: Mapping[str, Any] = {}
    after: Mapping[str, Mapping[str, Any]] = {}
    quiet_s: float = layout.QUIET_S
    keep_value: bool = False
    results: ResultPolicy = ResultPolicy()
    passed_on: Mapping[str, Any] = {}
    requeue: Mapping[str, int] = {}
    arguments: str = ""
    has_value: bool = True
    notify: Mapping[str, Any] = {}
    shared: Sequence[tuple[str, str, int]] = ()

    @property
    def restarts(self) -> bool:
        """Whether its scheduler may start it again: SLURM does so by itself, or when it is asked."""
        says = keys_by_scheduler()[self.host.scheduler].restarts
        return bool(self.retries or self.requeue or says and says(self.host.scheduler_options))

    def scheduler_names_of_dependencies(self) -> list[str]:
        """Return the names by which the scheduler knows the jobs whose values it takes."""
        return [layout.job_name(dependency["name"], job) for job, dependency in sorted(self.after.items())]

    def to_json(self) -> bytes:
        """Write spec.json, which the supervisor and the worker read: see docs/reference/protocol.md."""
        return json.dumps(self.record(), indent=1).encode()

    def record(self) -> dict[str, Any]:
        """Return what spec.json says."""
        host, python = self.host, self.interpreter
        resources = {**self.resources._asdict(), **({"gpus_only": host.gpus_only} if host.gpus_only else {})}
        parts: list[Mapping[str, Any]] = [
            {"format": layout.FORMAT, "id": self.id, "name": self.name, "host": host.name, "scheduler": host.scheduler},
            {"root": self.root, "bridge": self.bridge, "resources": resources},
            {"queue_timeout_s": host.queue_timeout_s, "limits": host.limits._asdict()},
            {"python": python.path, "version": python.version, "activation": python.activation},
            {"building": self.building._asdict() if self.building else None},
            {"group": asdict(self.group)} if self.group else {},
            {"session": self.serving._asdict()} if self.serving else {},
            {"kernel": self.kernel._asdict()} if self.kernel else {},
            {"sys_path": self.sys_path, "env": dict(self.env), "secrets": sorted(self.secrets), "cwd": self.cwd},
            {"outputs": self.outputs, "keep_days": host.keep_days, "log_limit_bytes": self.log_limit_bytes},
            {"grace_s": self.grace_s, "stall_s": self.stall_s, "quiet_s": self.quiet_s, "retries": self.retries},
            {"umask": self.login_umask},
            {"resume": self.resume} if self.resume else {},
            {"requeue": dict(self.requeue)} if self.requeue else {},
            {"restarts": True} if self.restarts else {},
            {"results": DATA} if self.results.data_only else {},
            self.passed_on,
            {"keep_value": self.keep_value} if self.keep_value else {},
            {"arguments": self.arguments} if self.arguments else {},
            {"after": {job: dict(dependency) for job, dependency in self.after.items()}} if self.after else {},
            {"scheduler_options": dict(self.scheduler_options)} if self.scheduler_options else {},
            {"clusters": host.clusters} if host.clusters else {},
            {} if self.has_value else {"has_value": False},
            {"shared": self.shared} if self.shared else {},
        ]
        return {key: value for part in parts for key, value in part.items()}

    @classmethod
    def from_json(cls, spec: Mapping[str, Any], host: Host, host_python: str) -> JobSpec:
        """Read a group's job back from its spec.json, to start more of it.

        The values of its secrets are not in it, nor what only job.sh needs.
        """
        building = spec.get("building")
        if building:
            building = {**building, "owners": tuple(building.get("owners", ()))}
        return cls(
            id=spec["id"],
            name=spec["name"],
            host=host.with_scheduler_options(spec.get("scheduler_options", {})),
            root=spec["root"],
            bridge=spec["bridge"],
            host_python=host_python,
            resources=Resources(**known_fields(Resources, spec["resources"])),
            interpreter=Interpreter(spec["python"], tuple(spec["version"]), spec["activation"]),
            sys_path=tuple(spec["sys_path"]),
            env=spec["env"],
            cwd=spec["cwd"],
            outputs=tuple(spec["outputs"]),
            building=EnvironmentRef(**known_fields(EnvironmentRef, building)) if building else None,
            group=Group(**known_fields(Group, spec["group"])),
            log_limit_bytes=spec["log_limit_bytes"],
            grace_s=spec["grace_s"],
            stall_s=spec.get("stall_s"),
            retries=spec.get("retries", 0),
            login_umask=spec.get("umask", 0o077),
            resume=spec.get("resume"),
            scheduler_options=spec.get("scheduler_options", {}),
            after=spec.get("after", {}),
            quiet_s=spec.get("quiet_s", layout.QUIET_S),
            passed_on={name: spec[name] for name in PASSED_ON if spec.get(name) is not None},
            requeue=spec.get("requeue", {}),
            results=host.result_policy(),
            arguments=spec.get("arguments", ""),
            has_value=spec.get("has_value", True),
            shared=tuple(map(tuple, spec.get("shared", ()))),
        )


def options_passed_on(options: Options) -> dict[str, Any]:
    """Return the options of `PASSED_ON` that the call has, by the names of their fields."""
    usual = options._field_defaults
    return {name: value for name in PASSED_ON if (value := getattr(options, name)) != usual[name]}


_TYPES: Mapping[str, type] = {
    "id": str,
    "name": str,
    "host": str,
    "root": str,
    "bridge": str,
    "resources": dict,
    "secrets": list,
    "outputs": list,
}
# The id becomes a part of paths and patterns, so nothing else may pass.
_ID = re.compile(r"[0-9a-f]{16}")
# Each item takes memory on this machine before its result comes, so a host must not announce any number.
MOST_ITEMS = 10_000_000
SPEC_OF_JOB = f"{layout.SPEC} of the job"


def read_spec(data: bytes) -> dict[str, Any]:
    """Parse the spec.json of a job, as its host has it now; raise ValueError if it is damaged."""
    spec = json.loads(data)
    for name, expected in _TYPES.items():
        # A host writes this file, and may not be trusted. Compare types exactly, because True also is an int.
        if type(spec[name]) is not expected:
            raise ValueError(f"its {name!r} is of the type {type(spec[name]).__name__}")
    if not is_id(spec["id"]) or type(spec.get("group") or {}) is not dict:
        raise ValueError("its id, or its group")
    if (spec.get("group") or {"count": 0})["count"] > MOST_ITEMS:
        raise ValueError("its number of items")
    if not all(type(text) is str for text in [*spec["secrets"], *spec["outputs"]]):
        raise ValueError("its secrets, or its outputs")
    return dict(spec)


def is_id(text: str) -> bool:
    """Whether it is the id of a job, of which no part can mean a place elsewhere."""
    return _ID.fullmatch(text) is not None


def known_fields(kind: type[Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that a spec.json has; another version may have written more."""
    return {name: value for name, value in spec.items() if name in kind.__annotations__}
