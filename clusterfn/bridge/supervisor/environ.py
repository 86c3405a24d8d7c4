"""The worker's environment: the host's own with what would leak into the environment's Python taken out.

In this order, the later wins: the host's variables, the environment's activation, the job's own variables, its secrets,
and what clusterfn itself needs. Caches stay where the host has them, unless the home directory cannot hold them.
"""

import os

from ..layout import (
    CACHE,
    CHECKPOINT,
    CHECKPOINT_VARIABLE,
    INDEX_VARIABLE,
    INPUTS,
    SHELLS_OWN,
    TAG,
    THREADS,
    attempt_dir,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

_LEAKS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
_LEAKS_OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUNBUFFERED")
_LEAKING_PREFIXES = ("CONDA_", "_CE_")
_CONDA = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV")
# The names, separated by blanks, are those that job.sh set on purpose (modules, prolog).
_KEEP = "CLUSTERFN_KEEP"
_INPUTS = "CLUSTERFN_INPUTS"
# The host is itself a job if a function calls others on its own machine.
_OF_ANOTHER_JOB = (TAG, INDEX_VARIABLE, _INPUTS)
# Each variable has its folder below root, its usual place, and the variable that moves that place.
_CACHES = {
    "HF_HOME": ("huggingface", ".cache/huggingface", "XDG_CACHE_HOME"),
    "TORCH_HOME": ("torch", ".cache/torch", "XDG_CACHE_HOME"),
    "PIP_CACHE_DIR": ("pip", ".cache/pip", "XDG_CACHE_HOME"),
    "TRITON_CACHE_DIR": ("triton", ".triton/cache", "TRITON_HOME"),
}
_TOKEN_PATH = "HF_TOKEN_PATH"
# What a worker whose interpreter has started may still get. Until then it has no GPU, so code that an environment runs
# when its interpreter starts cannot use another job's, and it has used no cache. That code may depend on all others.
LATE = frozenset(["CUDA_VISIBLE_DEVICES", _TOKEN_PATH, *_CACHES, TAG, CHECKPOINT_VARIABLE, INDEX_VARIABLE, *THREADS])
# Of these, the interpreter and the loader of programs make lists of folders when they start.
_FOLDERS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONHOME", "PYTHONPYCACHEPREFIX")
_TOKEN = ".cache/huggingface/token"
# A home directory with so many free bytes can hold one more model.
ROOM_BYTES = 10 << 30


class DescribedJob:
    """What a worker's environment depends on: a job, or what a shell has in place of one."""

    def __init__(self, job_id: str, folder: str, spec: "Any") -> None:
        self.id, self.folder, self.spec = job_id, folder, spec

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def secrets(self) -> "dict[str, str]":
        """Return the secret variables and their values."""
        return {}


def worker_environment(
    job: DescribedJob, attempt: int, host: "Mapping[str, str]", gpus: "Optional[list[str]]"
) -> "dict[str, str]":
    """Everything the worker's process finds in os.environ.

    Args:
        host: The supervisor's own environment.
        gpus: Leased GPUs, as CUDA calls them; None where the scheduler hands them out.
    """
    spec = job.spec
    keep = host.get(_KEEP, "").split()
    leaks = (*_LEAKS, *_LEAKS_OF_PYTHON, *_OF_ANOTHER_JOB, *SHELLS_OWN, _KEEP)
    values = {
        name: value
        for name, value in host.items()
        if name in keep or not (name in leaks or name.startswith(_LEAKING_PREFIXES))
    }
    values.update(dict.fromkeys(THREADS, str(spec["resources"]["cores"])))
    activation = spec["activation"]
    for name in activation.get("unset", ()):
        values.pop(name, None)
    values.update(activation.get("set", {}))
    for name, folders in {"PATH": [os.path.dirname(spec["python"])], **activation.get("prepend", {})}.items():
        before = [folders] if isinstance(folders, str) else list(folders)
        values[name] = os.pathsep.join(before + [values[name]] if values.get(name) else before)
    given: "Optional[str]" = ""
    if spec["resources"]["gpus"]:
        given = host.get("CUDA_VISIBLE_DEVICES") if gpus is None else ",".join(gpus)
        # SLURM counts in this order too; CUDA would put the fastest first.
        values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if given is not None:
        values["CUDA_VISIBLE_DEVICES"] = given
    values.update(spec["env"])
    values.update(job.secrets())
    values.setdefault("PYTHONIOENCODING", "utf-8")
    if spec.get("after"):
        values[_INPUTS] = os.path.join(attempt_dir(job.folder, attempt), INPUTS)
    values.update(
        {TAG: "%s/%d" % (job.id, attempt), CHECKPOINT_VARIABLE: job.path(CHECKPOINT), "PYTHONNOUSERSITE": "1"}
    )
    return values


def changed_names(before: "Mapping[str, str]", after: "Mapping[str, str]") -> "list[str]":
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def may_still_get(before: "Mapping[str, str]", after: "Mapping[str, str]") -> bool:
    """Whether a process whose interpreter started with some variables may become a worker with these others.

    This rule holds for those that are forked from a template.
    """
    return LATE.issuperset(changed_names(before, after))


def depends_on_cwd(env: "Mapping[str, str]") -> bool:
    """Whether an interpreter that starts with these variables looks for files in a folder that depends on its own."""
    folders = [path for name in _FOLDERS if name in env for path in env[name].split(os.pathsep)]
    return not all(path.startswith("/") for path in folders)


def expand_cwd(spec: "Mapping[str, Any]") -> str:
    """Return the working directory that the job asks for; "" if it has its own. Variables and ~ are the host's."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(spec["cwd"]))) if spec["cwd"] else ""


def redirect_caches(spec: "Mapping[str, Any]", values: "dict[str, str]") -> "list[str]":
    """Point caches below root if the home directory cannot hold them; what to say about it, if anything.

    What the host or the job sets stays. So do caches that exist and an existing login to Hugging Face.

    Args:
        values: What the worker's process will find in os.environ; changed.
    """
    if spec["scheduler"] == "local":
        return []
    home = os.path.expanduser("~")
    reason = ""
    if not os.path.isdir(home):
        reason = "the home directory %s does not exist" % home
    elif not os.access(home, os.W_OK | os.X_OK):
        reason = "the home directory %s is not writable" % home
    elif os.stat(home).st_dev == os.stat(spec["root"]).st_dev:
        return []
    else:
        # This import is late, because a worker starts without it.
        from .text import format_size

        facts = os.statvfs(home)
        free = facts.f_bavail * facts.f_frsize
        if free < ROOM_BYTES:
            reason = "the home directory %s has only %s free" % (home, format_size(free))
    moved = [
        name
        for name, (_, usual, moves) in _CACHES.items()
        if name not in values and moves not in values and (reason or not os.path.exists(os.path.join(home, usual)))
    ]
    if not moved:
        return []
    if "HF_HOME" in moved and os.access(os.path.join(home, _TOKEN), os.R_OK):
        values.setdefault(_TOKEN_PATH, os.path.join(home, _TOKEN))
    below = os.path.join(spec["root"], CACHE)
    values.update((name, os.path.join(below, _CACHES[name][0])) for name in moved)
    reason = reason or "%s is on another disk and has no such cache" % home
    return ["%s point below %s: %s" % (", ".join(moved), below, reason)]


def add_script_variables(activation: "dict[str, Any]", ready: "dict[str, Any]") -> None:
    """Add the variables that an environment's own scripts set, as its READY tells, to those of its activation."""
    variables = (ready.get("told") or {}).get("set", {}).items()
    of_scripts = {name: value for name, value in variables if name not in _CONDA}
    activation["set"] = dict(of_scripts, **activation.get("set", {}))
