"""The types of spec.json, for mypy alone: at run time it is a plain dict, which `job.read_spec` has checked.

`config/job_spec.py` of the client writes it; docs/reference/protocol.md describes it.
"""

from typing import Any, Dict, List, Optional, TypedDict


class SpecResources(TypedDict, total=False):
    """What a job asks for; None where it does not say."""

    cores: int
    memory_bytes: Optional[int]
    gpus: int
    time_s: Optional[float]
    gpu_memory_bytes: Optional[int]
    gpu_type: Optional[str]
    gpus_only: List[str]
    nodes: int
    tasks_per_node: int
    allow_cpu: bool


class SpecBuilding(TypedDict):
    """The environment that is made before the call, if it is not there."""

    id: str
    root: str
    purged: bool
    cuda: str
    owners: List[str]


class SpecGroup(TypedDict):
    """The items of a map, and how they are shared out."""

    count: int
    chunk: int
    elements: int
    at_once: int
    per_element: Optional[int]
    element_s: Optional[float]
    aim_s: Optional[float]


class SpecInput(TypedDict):
    """A job whose value this one takes; of a group these items, or None for all."""

    name: str
    items: Optional[List[int]]


class _Always(TypedDict):
    format: int
    id: str
    name: str
    host: str
    scheduler: str
    root: str
    bridge: str
    resources: SpecResources
    queue_timeout_s: Optional[float]
    limits: Dict[str, Any]
    python: str
    version: List[int]
    activation: Dict[str, Any]
    building: Optional[SpecBuilding]
    sys_path: List[str]
    env: Dict[str, str]
    secrets: List[str]
    cwd: Optional[str]
    outputs: List[str]
    keep_days: float
    log_limit_bytes: int
    grace_s: float
    stall_s: Optional[float]
    quiet_s: Optional[float]
    retries: int
    umask: int


class Spec(_Always, total=False):
    """All of it; below are the fields that only some calls have."""

    group: SpecGroup
    session: Dict[str, Any]
    kernel: Dict[str, Any]
    resume: str
    requeue: Dict[str, int]
    restarts: bool
    warn_s: float
    priority: int
    keep_value: bool
    results: str
    arguments: str
    has_value: bool
    after: Dict[str, SpecInput]
    scheduler_options: Dict[str, Any]
    clusters: str
    shared: List[List[Any]]
    # The workers of a session add this field.
    syncs_later: bool
