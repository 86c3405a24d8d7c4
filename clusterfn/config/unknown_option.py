"""What to write instead of a keyword that is no option: it may be misspelled, of another tool, or a key of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterfn.config.forms import python_version
from clusterfn.config.option_checks import Check, python_package, quoted
from clusterfn.errors import ConfigError, did_you_mean

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
    "pip": "packages",
    "hosts": "host",
    "output": "outputs",
}
SESSION_IS_ONE = "a Session is an executor already: use session.submit(f, x) or session.map(f, xs)"
# Keywords of the Executors in the standard library, and of Clustrix,
# submitit and Modal, with what to write here (docs/how-to/migrate.md).
_NOT_ASKED_FOR = {
    "max_workers": "leave it out: the host's free resources decide how many run at the same time, or use "
    "Executor(max_workers={})",
    **dict.fromkeys(
        ("image", "container", "docker"), "containers are not supported: set environment= or packages= instead"
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
    "volumes": "use a path of the host, or pass File(path) and set outputs=",
    "schedule": "clusterfn runs no schedules: call the function from cron",
    "nice": 'with SLURM, write slurm={{"nice": {}}}; without a scheduler, priority=-1 puts the call after your others',
}
# Maps an allowed keyword and the one that was written to what to write instead.
_ELSEWHERE = {
    ("max_parallel", "max_workers"): "write max_parallel={}",
    ("chunksize", "timeout"): "set it where you wait: .results(timeout={}); time= of @cluster limits each call",
}
# Keys of a host in clusterfn.yml that are not options of a call. They are repeated here, because `keys` imports this
# module.
OF_HOSTS = (
    "address", "build_on", "build_partition", "build_timeout", "cuda", "defaults", "env_python", "env_root",
    "fetch_on", "gpu_option", "gpu_sizes", "lease", "limits", "login_ttl",
    "owners", "poll_floor", "prolog", "purge_days", "queue_timeout", "root", "scheduler", "scheduler_env",
    "scheduler_path", "setup", "spare", "ssh_config", "transport",
)  # fmt: skip
OF_SLURM = ("partition", "account", "qos", "constraint", "reservation", "ntasks")


def unknown_option(
    who_has: str, keyword: str, value: object, allowed: Sequence[str], checks: Mapping[str, Check]
) -> ConfigError:
    """Make the error for an unknown keyword, with what to write instead.

    Args:
        who_has: "there is", or "map() has".
        allowed: The keywords that can be written there.
        checks: The keywords of `@cluster`, each with the check of its value.
    """
    problem, meant = f"{who_has} no argument {keyword!r}", ALIASES.get(keyword, keyword)
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
        return ConfigError(f"{problem}; did you mean {meant}?", hint=_as_meant(keyword, meant, value, checks))
    if keyword in OF_HOSTS:
        return ConfigError(problem, hint=f"set it in clusterfn.yml, below the host: `{keyword}: …`")
    if meant in checks:
        # `host` is allowed where a Session or an Executor rejects the keyword: the call has to go without them.
        alone = f" and call f without {who_has.partition('(')[0]}" if "host" in allowed else ""
        return ConfigError(problem, hint=f"write @cluster({meant}=…) or f.with_options({meant}=…){alone}")
    return ConfigError(f"{problem}{did_you_mean(keyword, allowed)}", hint=f"the arguments are {', '.join(allowed)}")


def _as_meant(keyword: str, meant: str, value: object, checks: Mapping[str, Check]) -> str | None:
    """Say what to write: the value under its right word, or a near one which that word takes."""
    if meant == "packages" and keyword == "python":
        # Without quotes, Python reads 3.10 as the number 3.1.
        return f"write {python_package('3.10' if value == 3.1 else value)}"
    if meant == "environment":
        # The value of `environment=` also contains the kind, which is the keyword here.
        if keyword in ("env_file", "requirements"):
            return f"write environment={quoted(value if isinstance(value, str) else 'environment.yml')}"
        kind = keyword if keyword in ("python", "venv") else "conda"
        named = value if isinstance(value, str) else "NAME" if kind == "conda" else "/PATH"
        return f"write {meant}={quoted(f'{kind}:{named}')}"
    try:
        if meant in checks:
            checks[meant](value, meant)
    except ConfigError as rejected:
        return rejected.hint
    return f"write {meant}={quoted(value)}"
