"""The options of a call: what users write as keywords, what that becomes, and what to write instead of other keywords.

An option is written once, here: its type and description in `JobOptions` or `CallOptions`, its field in `Options`, its
check in `_KEYWORDS`, and its name in `PASSED_ON` if only the host has something to do with it. The checks are in
`option_checks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypedDict, Union

from clusterfn.config import option_checks as checks
from clusterfn.config.environment_kinds import BIND, MODULE, Notify, parse_notify, python_version
from clusterfn.config.option_checks import Check, python_package, quoted
from clusterfn.config.units import GPU_TYPE, parse_memory, parse_time
from clusterfn.errors import ConfigError, did_you_mean

Time = Union[str, timedelta]
Hosts = Union[str, Sequence[str]]


class JobOptions(TypedDict, total=False):
    """The options that an `Executor` and a `Session` take for all of their calls.

    Attributes:
        cores: Number of CPU cores (1).
        memory: Memory with a unit: "16GB" is 16 * 2**30 bytes. Default: the host's.
        gpus: Number of whole GPUs (0: CUDA is hidden). The job never runs with fewer.
        gpu_memory: Minimum size of each GPU: "24GB" means a GPU sold as 24 GB. Needs gpus, and no scheduler.
        gpu_type: Part of each GPU's name, "a6000"; with SLURM a type that `sinfo -o %G` shows. Needs gpus.
        allow_cpu: Run on the CPU if the job's PyTorch cannot use the GPUs, instead of raising an
            EnvironmentBuildError (False).
        time: Time limit with a unit: "90min", "2h", "02:00:00" or a timedelta.
        environment: An environment on the host, "python:/path", "venv:~/v", "prefix:/path", "conda:name" or "current"
            (local); or a file to build one from: "environment.yml", "pyproject.toml[extra,group:dev]", "uv.lock",
            "pylock.toml", "requirements.txt", "script" (its own header). clusterfn writes its lock next to that file.
        binds: Folders of the host that a container's image shows, in addition to the host's `binds:`: "/data", or
            "/scratch:/mnt" for another place in the image.
        packages: The same without a file: ["python=3.11", "torch==2.7.1", "pip:rich", "bioconda::samtools"].
        modules: Environment modules to load, such as "cuda/11.8".
        env: Environment variables of the job. Numbers become strings.
        secrets: Names of local environment variables whose values only this job gets.
        slurm: Options of sbatch by their long names, merged over those of the host: {"partition": "gpu", "qos": "x"}.
            None removes one: {"account": None}.
        results: "data" accepts only plain data from the host: numbers, strings, containers, dates, paths, arrays and
            tensors. Exceptions arrive as text. Default: "objects", or what the host's `results:` says.
        max_result: Size with a unit, "2GB". A terminal asks before clusterfn fetches a larger value; otherwise
            ResultTooLarge is raised, and the value stays on the host. Default: the host's `max_result:`, or no limit.
    """

    cores: int | None
    memory: str | None
    gpus: int | None
    gpu_memory: str | None
    gpu_type: str | None
    allow_cpu: bool | None
    time: Time | None
    environment: str | None
    binds: Sequence[str] | None
    packages: Sequence[str] | None
    modules: Sequence[str] | None
    env: Mapping[str, str | float] | None
    secrets: Sequence[str] | None
    slurm: Mapping[str, str | float | bool | None] | None
    results: str | None
    max_result: str | None


class CallOptions(JobOptions, total=False):
    """The options that a decorated function can have.

    Attributes:
        nodes: Number of SLURM nodes (1). Each node calls the function with these cores, this memory and these GPUs, and
            `torch.distributed.init_process_group()` finds the others. The first node's return value is the result.
        tasks_per_node: Number of processes that call the function on each SLURM node (1), as `srun` would start them.
            `cores` is for each of them; memory and GPUs are shared by those of a node.
        host: A host's name in clusterfn.yml. A list of names, or the name of a list there, means the one of them that
            can start the call first. Default: $CLUSTERFN_HOST, `default_host:`, the only host, or `local`. For a
            function that is decorated while the variable is set, the variable overrides this option.
        outputs: Patterns of files in the job's folder to download after it has returned, such as "*.pt".
            Those of item 3 of a map go to the folder NAME-7f3a/3.
        cwd: Working directory of the function. Default: an empty folder of the job's own.
        name: Name of the job. Default: the function's name.
        on_interrupt: "detach" (the job keeps running after Ctrl-C) or "stop".
        stall_timeout: End the job as `Stalled`, with the stack of every thread, after this time without output and
            CPU use. Same format as `time`. Default: no limit.
        warn_before: Warn the function this long before its time limit, and when SLURM is about to end it: by raising
            `clusterfn.TimeAlmostUp`, or by calling what it gave to `clusterfn.on_warning`. Same format as `time`.
        retries: Number of retries after a transient failure (0), such as a GPU's ECC error, which moves the job to
            another GPU, or a lost machine. clusterfn never retries other exceptions.
        requeue: Start the job again, with the same checkpoint folder: {"timeout": 3, "preempted": 5, "node": 1} says
            how often for each cause; a list of causes means three times each. `time` applies to each attempt.
        resume: Id of an earlier job on the same host, "7f3a": the job starts with a copy of its checkpoint folder.
        keep: True leaves the value of a submitted job on the host until `job.result()` asks for it (False). Other calls
            on that host take it as an argument without any transfer: `evaluate(train.submit(1e-3))`.
        priority: Order among your own jobs that wait on a machine without a scheduler (0): higher numbers start first.
            It never changes your place among other users.
        notify: A line of shell that the host runs when the job has ended, such as "mail -s done ada@example.edu", or
            {"command": …, "after": "10min"}. A map runs it once. Default: the host's `notify:`; {} runs nothing.
    """

    nodes: int | None
    tasks_per_node: int | None
    host: Hosts | None
    outputs: Sequence[str] | None
    cwd: str | None
    name: str | None
    on_interrupt: str | None
    stall_timeout: Time | None
    warn_before: Time | None
    retries: int | None
    requeue: Sequence[str] | Mapping[str, int] | None
    resume: str | None
    keep: bool | None
    priority: int | None
    notify: str | Mapping[str, str] | None


def descriptions() -> str:
    """Return what the docstrings of `JobOptions` and `CallOptions` say of each option."""
    texts = (inspect.getdoc(options) or "" for options in (JobOptions, CallOptions))
    return "\n".join(text.partition("Attributes:\n")[2] for text in texts)


HOST_VARIABLE = "CLUSTERFN_HOST"
# The endings by which a word counts as a script.
SCRIPTS = (".py", ".sh", ".bash", ".sbatch", ".slurm")


class Options(NamedTuple):
    """What the decorator (or `with_options`) said: `CallOptions`, checked, units parsed; None where it was silent."""

    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    nodes: int | None = None
    tasks_per_node: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_type: str | None = None
    allow_cpu: bool | None = None
    time_s: float | None = None
    stall_s: float | None = None
    warn_s: float | None = None
    retries: int = 0
    requeue: Mapping[str, int] = {}
    resume: str | None = None
    host: str | None = None
    environment: str | None = None
    binds: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    scheduler_options: Mapping[str, Any] = {}
    outputs: tuple[str, ...] = ()
    cwd: str | None = None
    name: str | None = None
    on_interrupt: str = "detach"
    keep: bool = False
    results: str | None = None
    max_result_bytes: int | None = None
    priority: int = 0
    notify: Notify | None = None

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Reject `f.options(…)`, which Ray has."""
        hint = "call f.with_options(gpus=1)(x)"
        raise ConfigError("f.options has the options of the decorator, and is not a function", hint=hint)


# The fields that are passed on to the host as they are: once they are checked, only the host reads them.
PASSED_ON = ("warn_s", "priority")

# Maps a keyword to the field of Options that it sets, and to the check of its value.
_KEYWORDS: dict[str, tuple[str, Check]] = {
    "cores": ("cores", checks.whole_number(1)),
    "memory": ("memory_bytes", parse_memory),
    "gpus": ("gpus", checks.whole_number(0)),
    "nodes": ("nodes", checks.whole_number(1)),
    "tasks_per_node": ("tasks_per_node", checks.whole_number(1)),
    "gpu_memory": ("gpu_memory_bytes", parse_memory),
    "gpu_type": ("gpu_type", checks.matching(GPU_TYPE, "a6000")),
    "allow_cpu": ("allow_cpu", checks.yes_or_no),
    "time": ("time_s", parse_time),
    "stall_timeout": ("stall_s", parse_time),
    "warn_before": ("warn_s", parse_time),
    "retries": ("retries", checks.whole_number(0)),
    "requeue": ("requeue", checks.requeue),
    "resume": ("resume", checks.job_id),
    "host": ("host", checks.host_names),
    "environment": ("environment", checks.environment),
    "binds": ("binds", checks.several(checks.matching(BIND, "/data:/mnt"))),
    "packages": ("packages", checks.several(checks.package)),
    "modules": ("modules", checks.several(checks.matching(MODULE, "cuda/12.4"))),
    "env": ("env", checks.environment_variables),
    "secrets": ("secrets", checks.secret_names),
    "slurm": ("scheduler_options", checks.scheduler_options),
    "outputs": ("outputs", checks.several(checks.output)),
    "cwd": ("cwd", checks.folder),
    "name": ("name", checks.job_name),
    "on_interrupt": ("on_interrupt", checks.one_of("detach", "stop")),
    "keep": ("keep", checks.yes_or_no),
    "priority": ("priority", checks.priority),
    "notify": ("notify", parse_notify),
    "results": ("results", checks.one_of("objects", "data")),
    "max_result": ("max_result_bytes", parse_memory),
}


def keywords() -> Sequence[str]:
    """Return the keywords of `@cluster`."""
    return list(_KEYWORDS)


def parse_options(values: Mapping[str, object]) -> Options:
    """Return the options of a call from its keywords; a keyword that is None counts as not said.

    Raises:
        ConfigError: An unknown keyword, or a value of the wrong type or without its unit.

    Example:
        >>> parse_options({"cores": 2, "memory": "1GB"}).memory_bytes
        1073741824
    """
    return changed(Options(), values)


def changed(before: Options, values: Mapping[str, object]) -> Options:
    """Return the options with what these keywords say in place of what was said before.

    With `gpus=0` no type and size of GPUs stays. `environment=` and `packages=` replace each other.

    Raises:
        ConfigError: As `parse_options`.

    Example:
        >>> changed(Options(cores=2, retries=1), {"cores": 4}).retries
        1
    """
    facts: dict[str, Any] = {}
    for keyword, value in values.items():
        if keyword not in _KEYWORDS:
            raise unknown("there is", keyword, value, list(_KEYWORDS))
        if value is not None:
            name, check = _KEYWORDS[keyword]
            facts[name] = check(value, keyword)
    # A type or a size of GPUs from the decorator makes no sense for a call without GPUs.
    base = before._replace(gpu_type=None, gpu_memory_bytes=None) if facts.get("gpus") == 0 else before
    # Only one of these two can be said.
    if "environment" in facts:
        base = base._replace(packages=())
    if facts.get("packages"):
        base = base._replace(environment=None)
    return base._replace(**facts)


def without_needs(options: Options) -> Options:
    """Return options for a machine that has no GPUs, and none of the host's environments, modules and folders."""
    of_job = options._replace(cores=None, memory_bytes=None, nodes=None, tasks_per_node=None, scheduler_options={})
    without_gpus = of_job._replace(gpus=0, gpu_memory_bytes=None, gpu_type=None, allow_cpu=None)
    return without_gpus._replace(environment="current", binds=(), packages=(), modules=(), cwd=None)


def keyword_of(name: str) -> str:
    """Return what users write for a field of `Options`.

    Example:
        >>> keyword_of("memory_bytes")
        'memory'
    """
    return next(keyword for keyword, (field_name, _) in _KEYWORDS.items() if field_name == name)


# Maps words of SLURM, PBS and other libraries to our keywords.
ALIASES = {
    **dict.fromkeys(("cpu", "cpus", "ncpus", "num_cpus", "cpus_per_task", "n_cores", "n_cpus", "threads"), "cores"),
    **dict.fromkeys(("mem", "ram", "memory_gb"), "memory"),
    **dict.fromkeys(("gpu", "ngpus", "n_gpus", "num_gpus", "gpus_per_node"), "gpus"),
    **dict.fromkeys(("node", "num_nodes", "n_nodes", "nnodes", "node_count"), "nodes"),
    **dict.fromkeys(("ntasks_per_node", "nproc_per_node"), "tasks_per_node"),
    **dict.fromkeys(("vram", "gpu_mem", "gpu_ram"), "gpu_memory"),
    **dict.fromkeys(("gpu_kind", "gpu_model", "gpu_name"), "gpu_type"),
    **dict.fromkeys(("retry", "max_retries", "num_retries"), "retries"),
    **dict.fromkeys(("walltime", "timeout", "time_limit"), "time"),
    **dict.fromkeys(("python", "conda", "venv", "env_file", "requirements"), "environment"),
    **dict.fromkeys(("workdir", "working_dir", "dir", "chdir"), "cwd"),
    **dict.fromkeys(("bind", "mounts"), "binds"),
    "pip": "packages",
    "hosts": "host",
    "output": "outputs",
}
SESSION_IS_ONE = "a Session is an executor already: use session.submit(f, x) or session.map(f, xs)"
# Keywords of the Executors in the standard library, and of Clustrix,
# submitit and Modal, with what to write here (docs/how-to/migrate.md).
_NOT_ASKED_FOR = {
    "max_workers": "leave it out: the host's free resources decide how many run at the same time",
    **dict.fromkeys(
        ("image", "container", "docker"),
        'name an image of the host: environment="apptainer:/image.sif", or set packages= instead',
    ),
    "initializer": "call it at the beginning of the function: each call has a process of its own",
    "async_submit": "call f.submit(...), which returns a Job at once",
    "parallel": "write the loop's body as a function f and call f.map(items)",
    "auto_gpu_parallel": "ask for GPUs with gpus=, and use them inside the function",
    **dict.fromkeys(("provider", "platform"), "clusterfn does not rent machines: name a host in clusterfn.yml"),
    "timeout_min": 'write time="{}min"',
    "mem_gb": 'write memory="{}GB"',
    "queue": 'write slurm={{"partition": {}}}, or set `slurm: partition:` in clusterfn.yml, below the host',
    "files": 'give the file as an argument: f(clusterfn.File("data.csv")) receives its path on the host',
    **dict.fromkeys(
        ("slurm_array_parallelism", "max_containers"), "set it where you map: f.map(items, max_parallel={})"
    ),
    "min_containers": "keep a GPU warm with clusterfn.Session",
    "session": SESSION_IS_ONE,
    **{
        word: f"set it where you map: f.map(items, {word}={{}})"
        for word in ("max_parallel", "chunksize", "on_error", "sequential_up_to")
    },
    **{word: f"keep a GPU warm with clusterfn.Session({word}={{}})" for word in ("idle", "workers")},
    "volumes": "use a path of the host, or pass File(path) and set outputs=",
    "schedule": "clusterfn runs no schedules: call the function from cron",
    "nice": 'with SLURM, write slurm={{"nice": {}}}; without a scheduler, priority=-1 puts the call after your others',
}
# Maps an allowed keyword and the one that was written to what to write instead.
_ELSEWHERE = {
    ("max_parallel", "max_workers"): "write max_parallel={}",
    ("max_workers", "workers"): "write max_workers={}",
    ("chunksize", "timeout"): "set it where you wait: .results(timeout={}); time= of @cluster limits each call",
}
OF_SLURM = ("partition", "account", "qos", "constraint", "reservation", "ntasks")


def where_to_write(option: str, owner: str = "", function: str = "f") -> str:
    """Say where to write an option that is no argument of a call.

    Args:
        owner: What runs the call: "Session" or "Executor", which have options of their own; else "".
        function: The name of what is called.

    Example:
        >>> where_to_write("gpus", "Session")
        'write Session(gpus=…)'
    """
    if owner and option in JobOptions.__annotations__:
        return f"write {owner}({option}=…)"
    # A session rejects a function with such an option.
    alone = f" and call {function} without Session" if owner == "Session" else ""
    return f"write @cluster({option}=…) or {function}.with_options({option}=…){alone}"


def without_keyword(called: str, value: object, allowed: Sequence[str]) -> ConfigError:
    """Make the error for a value that stands where only keywords do, with what to write instead."""
    instead: Mapping[str, object] = {}
    if isinstance(value, Mapping) and value.keys() <= set(allowed):
        instead = value
    elif isinstance(value, str) and "host" in allowed:
        instead = {"host": value}
    words = ", ".join(f"{name}={quoted(setting)}" for name, setting in instead.items())
    hint = f"write {words}" if words else f"write one of these before it: {'=, '.join(allowed)}="
    return ConfigError(f"{called}(): {value!r:.60} has no keyword", hint=hint)


def unknown(who_has: str, keyword: str, value: object, allowed: Sequence[str], owner: str = "") -> ConfigError:
    """Make the error for an unknown keyword, with what to write instead.

    Args:
        who_has: "there is", or "map() has".
        allowed: The keywords that can be written there.
        owner: As for `where_to_write`.
    """
    problem = f"{who_has} no argument {keyword!r}"
    meant = ALIASES.get(keyword, keyword)
    # `python="3.11"` asks for a package, and `python="/path"` for an environment.
    if keyword == "python" and python_version(f"python:{value}"):
        meant = "packages"
    elsewhere = (hint for (has, word), hint in _ELSEWHERE.items() if word == keyword and has in allowed)
    # Words of other tools come first, because their hints say more than the nearest of our own words.
    if instead := next(elsewhere, None) or _NOT_ASKED_FOR.get(keyword):
        return ConfigError(problem, hint=instead.format(quoted(value)))
    if keyword in OF_SLURM or keyword.startswith("slurm_"):
        written = f"slurm={{{quoted(keyword.removeprefix('slurm_').replace('_', '-'))}: {quoted(value)}}}"
        return ConfigError(problem, hint=f"write {written}, or set it in clusterfn.yml, below `slurm:`")
    if meant in allowed:
        return ConfigError(f"{problem}; did you mean {meant}?", hint=_as_meant(keyword, meant, value))
    if meant in _KEYWORDS:
        return ConfigError(problem, hint=where_to_write(meant, owner))
    hint = f"the arguments are {', '.join(allowed)}; keys of a host belong in clusterfn.yml"
    return ConfigError(f"{problem}{did_you_mean(keyword, allowed)}", hint=hint)


def _as_meant(keyword: str, meant: str, value: object) -> str | None:
    """Say what to write: the value under its right word, or a near one which that word takes."""
    if meant == "packages" and keyword == "python":
        # Without quotes, Python reads 3.10 as the number 3.1.
        return f"write {python_package('3.10' if value == 3.1 else value)}"
    if meant == "environment":
        # The value of `environment=` also contains the kind, which is the keyword here.
        if keyword in ("env_file", "requirements"):
            return f"write environment={quoted(value if isinstance(value, str) else 'environment.yml')}"
        kind = keyword if keyword in ("python", "venv") else "conda"
        if not isinstance(value, str):
            value = "NAME" if kind == "conda" else "/PATH"
        return f"write {meant}={quoted(f'{kind}:{value}')}"
    try:
        if meant in _KEYWORDS:
            _KEYWORDS[meant][1](value, meant)
    except ConfigError as rejected:
        return rejected.hint
    return f"write {meant}={quoted(value)}"
