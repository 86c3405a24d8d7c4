"""The options of a call: what users write as keywords, what that becomes, and what to write instead of a mistake.

An option is written once, here: its type and description in `JobOptions` or `CallOptions`, its check in `Options`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Callable, NamedTuple, NoReturn, TypedDict, Union

from clusterfn.config.forms import (
    ADDRESS,
    ASK_FOR_GPUS,
    CHOOSE_ENVIRONMENT,
    ENVIRONMENT_KINDS,
    MODULE,
    is_set_by_clusterfn,
    names_a_file,
    nearly_a_file,
    nearly_an_environment,
    python_version,
)
from clusterfn.config.notify import Notify, parse_notify
from clusterfn.config.units import GPU_TYPE, NUMBER, VARIABLE, finite, parse_memory, parse_time
from clusterfn.errors import ConfigError, did_you_mean, nearest_word

Time = Union[str, timedelta]
# Gets a value and its keyword, and returns what `Options` holds.
Check = Callable[[Any, str], Any]


class JobOptions(TypedDict, total=False):
    """The options that an `Executor` and a `Session` take for all of their calls.

    Attributes:
        cores: Number of CPU cores (1).
        memory: Memory with a unit: "16GB" is 16 * 2**30 bytes. Default: the host's.
        gpus: Number of whole GPUs (0: CUDA is hidden). The job never runs with fewer.
        gpu_memory: Minimum size of each GPU: "24GB" means a GPU sold as 24 GB. Needs gpus.
        gpu_type: Part of each GPU's name, "a6000"; with SLURM a type that `sinfo -o %G` shows. Needs gpus.
        allow_cpu: Run on the CPU if the job's PyTorch cannot use the GPUs, instead of raising an
            EnvironmentBuildError (False).
        time: Time limit with a unit: "90min", "2h", "02:00:00" or a timedelta.
        environment: An environment on the host, "python:/path", "venv:~/v", "prefix:/path", "conda:name" or "current"
            (local); or a file to build one from: "environment.yml", "pyproject.toml[extra,group:dev]", "uv.lock",
            "pylock.toml", "requirements.txt". clusterfn writes its lock next to that file.
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
        host: A host's name in clusterfn.yml. Default: $CLUSTERFN_HOST, `default_host:`, the only host, or `local`. For
            a function that is decorated while the variable is set, the variable overrides this option.
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
        notify: Who is told when the job ends, by the host itself: "ada@example.edu", "$SLACK_WEBHOOK" (a variable that
            holds the address of a webhook), or {"mail": …, "webhook": …, "command": …, "after": "10min"}. A map tells
            once. Default: the host's `notify:`; {} sends no notice.
    """

    nodes: int | None
    tasks_per_node: int | None
    host: str | None
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
    return "\n".join((inspect.getdoc(each) or "").partition("Attributes:\n")[2] for each in (JobOptions, CallOptions))


HOST_VARIABLE = "CLUSTERFN_HOST"
# The endings by which a word counts as a script.
SCRIPTS = (".py", ".sh", ".bash", ".sbatch", ".slurm")
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
# Keys of a host in clusterfn.yml that are not options of a call. They
# are repeated here, because `hosts` imports this module.
OF_HOSTS = (
    "address", "build_on", "build_partition", "build_timeout", "cuda", "defaults", "env_python", "env_root",
    "fetch_on", "gpu_option", "gpu_sizes", "lease", "limits", "login_ttl",
    "owners", "poll_floor", "prolog", "purge_days", "queue_timeout", "root", "scheduler", "scheduler_env",
    "scheduler_path", "setup", "ssh_config", "transport",
)  # fmt: skip
OF_SLURM = ("partition", "account", "qos", "constraint", "reservation", "ntasks")


def unknown(who_has: str, keyword: str, value: object, allowed: Sequence[str]) -> ConfigError:
    """Make the error for an unknown keyword, with what to write instead.

    Args:
        who_has: "there is", or "map() has".
        allowed: The keywords that can be written there.
    """
    problem, meant = f"{who_has} no argument {keyword!r}", _meant_by(keyword, value)
    elsewhere = (hint for (has, word), hint in _ELSEWHERE.items() if word == keyword and has in allowed)
    # Words of other tools come first, because their hints say more than the nearest of our own words.
    if instead := next(elsewhere, None) or _NOT_ASKED_FOR.get(keyword):
        return ConfigError(problem, hint=instead.format(_quoted(value)))
    if keyword in OF_SLURM or keyword.startswith("slurm_"):
        written = f"slurm={{{_quoted(keyword.removeprefix('slurm_').replace('_', '-'))}: {_quoted(value)}}}"
        return ConfigError(problem, hint=f"write {written}, or set it in clusterfn.yml, below `slurm:`")
    if meant in allowed:
        return ConfigError(f"{problem}; did you mean {meant}?", hint=_as_meant(keyword, meant, value))
    if keyword in OF_HOSTS:
        return ConfigError(problem, hint=f"set it in clusterfn.yml, below the host: `{keyword}: …`")
    if meant in _KEYWORDS:
        # `host` is allowed where a Session or an Executor rejects the keyword: the call has to go without them.
        alone = f" and call f without {who_has.partition('(')[0]}" if "host" in allowed else ""
        return ConfigError(problem, hint=f"write @cluster({meant}=…) or f.with_options({meant}=…){alone}")
    return ConfigError(f"{problem}{did_you_mean(keyword, allowed)}", hint=f"the arguments are {', '.join(allowed)}")


def is_option(keyword: str) -> bool:
    """Whether `@cluster` and `with_options` have this keyword."""
    return keyword in _KEYWORDS


def _meant_by(keyword: str, value: object) -> str:
    """Return our word for a keyword: `python="3.11"` asks for a package, and `python="/path"` for an environment."""
    return "packages" if keyword == "python" and python_version(f"python:{value}") else ALIASES.get(keyword, keyword)


def _as_meant(keyword: str, meant: str, value: object) -> str | None:
    """Say what to write: the value under its right word, or a near one which that word takes."""
    if meant == "packages" and keyword == "python":
        # Without quotes, Python reads 3.10 as the number 3.1.
        return f"write {_python_package('3.10' if value == 3.1 else value)}"
    if meant == "environment":
        # The value of `environment=` also contains the kind, which is the keyword here.
        if keyword in ("env_file", "requirements"):
            return f"write environment={_quoted(value if isinstance(value, str) else 'environment.yml')}"
        kind = keyword if keyword in ("python", "venv") else "conda"
        named = value if isinstance(value, str) else "NAME" if kind == "conda" else "/PATH"
        return f"write {meant}={_quoted(f'{kind}:{named}')}"
    try:
        if meant in _KEYWORDS:
            _KEYWORDS[meant][1](value, meant)
    except ConfigError as rejected:
        return rejected.hint
    return f"write {meant}={_quoted(value)}"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


# Also matches what `--gres` of sbatch takes, such as gpu:a6000:2, so that the error can translate it.
_GPUS = re.compile(r"(?:gpu:)?(?:(?!gpu:)([A-Za-z][\w.-]*):)?(\d{1,4})")
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GPU_NAME = re.compile(r"[A-Za-z]{1,8}\d[\w-]{0,30}")
_JOB_ID = re.compile(r"[0-9a-f]{4,16}")
# The last two alternatives are an option of pip and its value.
_PACKAGE = re.compile(r"(?:[\w./-]+::|pip:)?[A-Za-z0-9_]|--?[a-z]|[./]")
_PACKAGES_FILE = re.compile(r"(?:(?:-r|--requirement)[\s=]*)?([^\s:@=]+\.(?:txt|ya?ml|toml|cfg|lock))", re.IGNORECASE)
# The causes that `requeue=` knows.
_CAUSES = ("timeout", "preempted", "node")
# Used if `requeue=` names only causes: how often a job is requeued for each.
REQUEUED = 3
_MOST_REQUEUED = 1000
_MOST_PRIORITY = 1_000_000


def _whole_number(least: int) -> Check:
    def check(value: Any, name: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        problem = f"{name}={value!r} is not a whole number of at least {least}"
        if name == "gpus" and isinstance(value, (list, tuple, Mapping)):
            raise ConfigError(problem, hint="write gpus=1; `gpus: {only: [3]}` of a host in clusterfn.yml names GPUs")
        if not isinstance(value, str):
            near = value if isinstance(value, bool) else finite(value)
            raise ConfigError(problem, hint=f"write {name}={max(math.ceil(near), least)}")
        if NUMBER.fullmatch(value.strip()):
            raise ConfigError(problem, hint=f"write {name}={max(math.ceil(float(value)), least)}, without quotes")
        gres = _GPUS.fullmatch(value.strip()) if name == "gpus" else None
        if not gres and name == "gpus" and _GPU_NAME.fullmatch(value):
            raise ConfigError(problem, hint=f'write gpus=1, gpu_type="{value}"')
        if not gres:
            raise ConfigError(problem, hint=f"write {name}=1: a number, without quotes")
        kind = f', gpu_type="{gres[1]}"' if gres[1] else ""
        raise ConfigError(problem, hint=f"write gpus={int(gres[2])}{kind}")

    return check


def _priority(value: Any, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_PRIORITY:
        return value
    problem = f"{name}={value!r:.80} is not a whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}"
    raise ConfigError(problem, hint=f"write {name}=1 to start the job before your others, or {name}=-1 for after them")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{name}={value!r} is not a string", hint=f'write it in quotes: {name}="..."')
    return value


def _matching(pattern: re.Pattern[str], example: str) -> Check:
    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write it like {example!r}")
        return value

    return check


def _host_name(value: Any, name: str) -> str:
    if isinstance(value, str) and HOST_NAME.fullmatch(value):
        return value
    hint = f'write the name of a host in clusterfn.yml: {name}="tensor01"'
    if isinstance(value, str) and ADDRESS.fullmatch(value):
        hint = f"add it to clusterfn.yml, and use the name that it has there: clusterfn init {value}"
    raise ConfigError(f"{name}={value!r:.80} is not the name of a host", hint=hint)


def _several(item: Check) -> Check:
    def check(value: Any, name: str) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            alone = "..."
            with contextlib.suppress(ConfigError):
                alone = _quoted(item(value, name))
            raise ConfigError(f"{name}={value!r} is not a list", hint=f"write {name}=[{alone}], even for one")
        return tuple(item(each, name) for each in value)

    return check


def may_be_in_a_name(sign: str) -> bool:
    """Whether the name of a job may hold a character: those of Python's names in any script, ".", "-" and a blank."""
    return sign in ".- " or f"_{sign}".isidentifier()


def _is_job_name(text: str) -> bool:
    fits = 0 < len(text) <= 64 and text[0].isidentifier() and not text.endswith(" ")
    return fits and all(map(may_be_in_a_name, text))


def _job_name(value: Any, name: str) -> str:
    # Keyboards and file systems may write a letter in two ways. Use one of them, so that the same name always matches.
    text = unicodedata.normalize("NFC", value) if isinstance(value, str) else ""
    if _is_job_name(text):
        return text
    near = "_".join("".join(sign if may_be_in_a_name(sign) else " " for sign in text).split(" "))[:63]
    near = re.sub("_{2,}", "_", near)
    fitting = next((each for each in (near, f"_{near}") if near.strip("_") and _is_job_name(each)), "train")
    hint = f'use up to 64 letters, digits, blanks, "_", "." and "-", a letter or "_" first: {name}="{fitting}"'
    raise ConfigError(f"{name}={value!r:.80} is not possible", hint=hint)


def _package(value: Any, name: str) -> str:
    text = _text(value, name).strip()
    if file := _PACKAGES_FILE.fullmatch(text):
        raise ConfigError(f"{name}: {text!r} is a file, not a package", hint=f'write environment="{file[1]}"')
    if not _PACKAGE.match(text):
        raise ConfigError(f"{name}: {text!r} is not a package name", hint=f'write {name}=["python=3.11", "numpy>=2"]')
    return text


def _environment(value: Any, name: str) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
        quoted = ", ".join(f'"{each}"' for each in value)
        raise ConfigError(f"{name}={value!r:.80} is not a string", hint=f"write packages=[{quoted}]")
    text = _text(value, name)
    kind, _, rest = text.partition(":")
    if version := python_version(text):
        hint = f'name an interpreter by its path, {name}="python:/path/to/python", or write {_python_package(version)}'
        raise ConfigError(f"{name}={text!r} names a version of Python, not an interpreter", hint=hint)
    if meant := nearly_an_environment(text):
        raise ConfigError(f"{name}={text!r} does not name an environment", hint=f'write {name}="{meant}"')
    if text == "current" or names_a_file(text) or (kind in ENVIRONMENT_KINDS and rest):
        return text
    if file := nearly_a_file(text):
        raise ConfigError(f"{name}={text!r} does not name an environment", hint=f'write {name}="{file}"')
    conda = (
        f'write {name}="conda:{text}", or ' if re.fullmatch(r"[\w-]+", text) and kind not in ENVIRONMENT_KINDS else ""
    )
    raise ConfigError(
        f"{name}={text!r} does not name an environment",
        hint=f"{conda}{CHOOSE_ENVIRONMENT}",
    )


def _python_package(version: object) -> str:
    return f'packages=["python={version}"]'


def _output(value: Any, name: str) -> str:
    """Reject a pattern that leads out of the job's folder."""
    text = _text(value, name)
    if text.startswith(("/", "~")) or ".." in PurePosixPath(text).parts:
        hint = f'{name}= takes paths relative to the job\'s own folder: {name}=["*.pt"]'
        raise ConfigError(f"{name}={value!r} is outside the job's folder", hint=hint)
    return text


def _folder(value: Any, name: str) -> str:
    text = _text(value, name)
    if not text.startswith(("/", "~", "$")):
        hint = f'{name}= is a folder on the host: write an absolute path or use ~, such as {name}="~/data"'
        raise ConfigError(f"{name}={value!r} is not an absolute path", hint=hint)
    return text


def _environment_variables(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        hint = f'write {name}={{"NAME": "value"}}'
        with contextlib.suppress(ConfigError):
            hint = f"write environment={_quoted(_environment(value, 'environment'))}"
        raise ConfigError(f"{name}={value!r} is not a dict", hint=hint)
    for key, each in value.items():
        _matching(VARIABLE, "OMP_NUM_THREADS")(key, name)
        if is_set_by_clusterfn(key):
            raise ConfigError(f"{name}[{key!r}] is set by clusterfn itself", hint=ASK_FOR_GPUS)
        number = isinstance(each, (int, float)) and not isinstance(each, bool)
        if not number and not (isinstance(each, str) and _can_be_passed(each)):
            text = int(each) if isinstance(each, bool) else "..."
            problem = f"{name}[{key!r}]={each!r} is neither a string nor a number"
            raise ConfigError(problem, hint=f'write {name}={{"{key}": "{text}"}}')
    return {key: str(each) for key, each in value.items()}


def _scheduler_options(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}={value!r} is not a dict of options", hint=f'write {name}={{"partition": "gpu"}}')
    if not value:
        # An empty value takes back the options of the decorator.
        return {}
    # Imported late, because this reads YAML, which takes time to import.
    from clusterfn.config.schedulers import SCHEDULER_KEYS

    check = SCHEDULER_KEYS[name].of_call
    assert check is not None
    return {name: check(value)}


def _requeue(value: Any, name: str) -> dict[str, int]:
    usual = f'write {name}=["timeout", "preempted", "node"], or {name}={{"timeout": 3}}'
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        value = dict.fromkeys(value, REQUEUED)
    if not isinstance(value, Mapping):
        problem = f"{name}={value!r:.60} is neither a list of causes nor a dict of how often for each"
        cause = nearest_word(value.strip().lower(), _CAUSES) if isinstance(value, str) else None
        raise ConfigError(problem, hint=f'write {name}=["{cause}"], even for one' if cause else usual)
    for cause, count in value.items():
        if cause not in _CAUSES:
            near = did_you_mean(cause, _CAUSES) if isinstance(cause, str) else ""
            raise ConfigError(f"{name}= has no cause {cause!r}{near}", hint=f"the causes are {', '.join(_CAUSES)}")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_REQUEUED:
            problem = f"{name}[{cause!r}]={count!r} is not a whole number from 0 to {_MOST_REQUEUED}"
            raise ConfigError(problem, hint=f'write {name}={{"{cause}": {REQUEUED}}}')
    return {cause: count for cause, count in value.items() if count}


def read_requeue(words: Sequence[str]) -> dict[str, Any]:
    """Read what a command line or a cell gives for `requeue=`: causes with commas, each with a number or without.

    Example:
        >>> read_requeue(["timeout=5,node", "preempted"])
        {'timeout': 5, 'node': 3, 'preempted': 3}
    """
    pairs = [each.partition("=") for word in words for each in word.split(",")]
    return {
        cause: (int(count) if count.isdecimal() else count) if equals else REQUEUED for cause, equals, count in pairs
    }


def _can_be_passed(value: str) -> bool:
    """Whether a process can be given this text: neither a NUL nor half a character."""
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _yes_or_no(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither True nor False", hint=f"write {name}=True")
    return value


def _keep(value: Any, name: str) -> bool:
    if isinstance(value, str) and _is_duration(value):
        raise ConfigError(
            f"{name}={value!r} is a duration, and {name}= says whether the value stays on the host",
            hint=f"write {name}=True; how long a host keeps jobs is the key `keep: {value}` in clusterfn.yml",
        )
    return _yes_or_no(value, name)


def _is_duration(text: str) -> bool:
    try:
        return parse_time(text) > 0
    except ConfigError:
        return False


def _job_id(value: Any, name: str) -> str:
    if isinstance(value, str) and _JOB_ID.fullmatch(value):
        return value
    # A Job was given instead of its id.
    own = getattr(value, "id", None)
    hint = f'write {name}="{own}"' if isinstance(own, str) else f'use at least its first four digits: {name}="7f3a"'
    raise ConfigError(f"{name}={value!r:.80} is not the id of a job", hint=hint)


def _one_of(*words: str) -> Check:
    def check(value: Any, name: str) -> str:
        if value not in words:
            near = nearest_word(value, words) if isinstance(value, str) else None
            forms = " or ".join(f'{name}="{word}"' for word in ([near] if near else words))
            raise ConfigError(f"{name}={value!r} is not possible", hint=f"write {forms}")
        return str(value)

    return check


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


# Maps a keyword to the field of Options that it sets, and to the check of its value.
_KEYWORDS: dict[str, tuple[str, Check]] = {
    "cores": ("cores", _whole_number(1)),
    "memory": ("memory_bytes", parse_memory),
    "gpus": ("gpus", _whole_number(0)),
    "nodes": ("nodes", _whole_number(1)),
    "tasks_per_node": ("tasks_per_node", _whole_number(1)),
    "gpu_memory": ("gpu_memory_bytes", parse_memory),
    "gpu_type": ("gpu_type", _matching(GPU_TYPE, "a6000")),
    "allow_cpu": ("allow_cpu", _yes_or_no),
    "time": ("time_s", parse_time),
    "stall_timeout": ("stall_s", parse_time),
    "warn_before": ("warn_s", parse_time),
    "retries": ("retries", _whole_number(0)),
    "requeue": ("requeue", _requeue),
    "resume": ("resume", _job_id),
    "host": ("host", _host_name),
    "environment": ("environment", _environment),
    "packages": ("packages", _several(_package)),
    "modules": ("modules", _several(_matching(MODULE, "cuda/12.4"))),
    "env": ("env", _environment_variables),
    "secrets": ("secrets", _several(_matching(VARIABLE, "HF_TOKEN"))),
    "slurm": ("scheduler_options", _scheduler_options),
    "outputs": ("outputs", _several(_output)),
    "cwd": ("cwd", _folder),
    "name": ("name", _job_name),
    "on_interrupt": ("on_interrupt", _one_of("detach", "stop")),
    "keep": ("keep", _keep),
    "priority": ("priority", _priority),
    "notify": ("notify", parse_notify),
    "results": ("results", _one_of("objects", "data")),
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

    With `gpus=0` no type and size of GPUs stays.

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
    return base._replace(**facts)


def without_needs(options: Options) -> Options:
    """Return options for a machine that has no GPUs, and none of the host's environments, modules and folders."""
    return options._replace(
        cores=None, memory_bytes=None, gpus=0, nodes=None, tasks_per_node=None, gpu_memory_bytes=None,
        gpu_type=None, allow_cpu=None, environment="current", packages=(), modules=(), cwd=None, scheduler_options={},
    )  # fmt: skip


def keyword_of(name: str) -> str:
    """Return what users write for a field of `Options`.

    Example:
        >>> keyword_of("memory_bytes")
        'memory'
    """
    return next(keyword for keyword, (field_name, _) in _KEYWORDS.items() if field_name == name)
