"""The plain facts that modules share: what a job asks for, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterfn.config.environment_kinds import Notify

# The value of `results` that accepts only plain data.
DATA = "data"


class Resources(NamedTuple):
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


class EnvironmentSettings(NamedTuple):
    """How environments are made on a host.

    Attributes:
        root: Their folder, as in clusterfn.yml; None: below the host's root.
        python: Where that of a project's environment comes from: "standalone", "host", or the path of the host's
            interpreter; "" if nothing is said.
        fetch_on: Who fetches packages: "host", "client", or "auto": the host if it can.
        build_on: "host", or "node": in the job that needs it.
        timeout_s: How many seconds a package's script may take, and for how many a build may do nothing.
        purge_days: Files that are not read for so long are removed by the file system; None if they stay.
    """

    root: str | None = None
    python: str = ""
    fetch_on: str = "auto"
    build_on: str = "host"
    timeout_s: float = 1200.0
    purge_days: float | None = None


class Limits(NamedTuple):
    """What all of one user's running jobs may take of a machine together; None: as much as there is.

    Attributes:
        cores: More than the machine has lift its own cap: cores are shared in time.
    """

    gpus: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    jobs: int | None = None


class ResultPolicy(NamedTuple):
    """What this machine accepts of what a host returns.

    Attributes:
        data_only: Values may be plain data alone, and exceptions arrive as text.
        max_bytes: The size of a value that is fetched without asking; None for any size.
    """

    data_only: bool = False
    max_bytes: int | None = None


class Host(NamedTuple):
    """One host of clusterfn.yml, checked. The keys are documented in docs/reference/configuration.md.

    Attributes:
        name: Its name in clusterfn.yml.
        address: Name or alias for ssh, `user@name:port` allowed; "" for this machine.
        scheduler: A word of `keys_by_scheduler`.
        transport: "auto", "paramiko", "openssh" or "local".
        source: Where it was defined, "file:line", for messages.
        compress: Whether ssh compresses the connection.
        gpus_only: The only GPUs that its jobs may get: numbers as nvidia-smi counts, or UUIDs; empty for all.
        scheduler_options: What is below the key with the scheduler's own name.
        scheduler_path: Folders of the scheduler's commands there, which come before the others of PATH.
        scheduler_env: Variables that these commands need there.
        secrets: Names of local variables whose values its jobs get where they are set; one may end with `*`.
        results: "objects", or "data": its values may be plain data alone.
        max_result_bytes: The size of a value that is fetched from it without asking.
        notify: What the host runs when a job has ended; None for nothing.
        container: The words that run a program in an image, with `{image}` among them; empty if there are none.
        binds: Folders of it that an image shows, each as FOLDER or FOLDER:FOLDER_IN_THE_IMAGE.
        spare: Whether a process that has loaded what jobs need waits there, while a client is connected.
    """

    name: str
    address: str
    scheduler: str
    source: str
    transport: str = "auto"
    ssh_config: str | None = None
    compress: bool = False
    root: str = "~/.clusterfn"
    owners: tuple[str, ...] = ()
    python: str | None = None
    environment: str | None = None
    defaults: Resources = Resources()
    setup: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prolog: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    notify: Notify | None = None
    scheduler_options: Mapping[str, Any] = {}
    scheduler_path: tuple[str, ...] = ()
    scheduler_env: Mapping[str, str] = {}
    gpu_option: str = "gres"
    memory_as: str = "mem"
    gpus_only: tuple[str, ...] = ()
    limits: Limits = Limits()
    poll_floor_s: float = 2.0
    queue_timeout_s: float | None = None
    keep_days: float = 14.0
    login_ttl_s: float = 8 * 3600.0
    results: str = "objects"
    max_result_bytes: int | None = None
    making: EnvironmentSettings = EnvironmentSettings()
    spare: bool = True
    container: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()

    @property
    def clusters(self) -> str:
        """Which of several clusters the scheduler's commands ask; "" for the usual one."""
        return str(self.scheduler_options.get("clusters") or self.scheduler_options.get("cluster") or "")

    def result_policy(self, results: str | None = None, max_bytes: int | None = None) -> ResultPolicy:
        """Return what is accepted of its values; what a call says comes before what the host's keys say."""
        return ResultPolicy((results or self.results) == DATA, max_bytes or self.max_result_bytes)

    @property
    def is_this_machine(self) -> bool:
        """Whether it is reached without ssh."""
        return "local" in (self.scheduler, self.transport)

    def with_scheduler_options(self, options: Mapping[str, Any]) -> Host:
        """Return the host with these options of one call merged over its own."""
        return self._replace(scheduler_options=merged(self.scheduler_options, options)) if options else self


def merged(options: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a scheduler with later ones behind them: of two that exclude each other, the last counts."""
    return {**{name: value for name, value in options.items() if name not in later}, **later}


class Interpreter(NamedTuple):
    """An interpreter that was found on a host and asked for its version.

    Attributes:
        path: Absolute path there.
        version: (major, minor).
        activation: Variables that make it complete (PATH and others), see `ExistingEnvironment.read`.
        image: The image that it enters, as `environment=` names it; "" for none.
        torch: The version of its PyTorch, and for which CUDA that was built; "" for what it lacks.
    """

    path: str
    version: tuple[int, int]
    activation: Mapping[str, object] = {}
    image: str = ""
    torch: tuple[str, str] = ("", "")

    @property
    def title(self) -> str:
        """What people know it by: the script that enters an image is in a folder whose name says nothing."""
        return self.image or self.path
